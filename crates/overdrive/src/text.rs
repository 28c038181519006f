//! Text for a model and from it: by the tokenizer that came with it, or as bytes where its
//! vocabulary is that of bytes.

use crate::failure::Failure;
use crate::model::Model;
use overdrive::formats::huggingface::Tokenizer;
use overdrive::ir::{DType, Graph, Tensor};
use overdrive::studies::pretrained::ModelTask;
use std::collections::BTreeMap;

/// How many values a byte has.
const BYTES: usize = 256;

/// The tokenizer of a model that reads text.
pub(crate) fn tokenizer(model: &Model) -> Result<&Tokenizer, Failure> {
    match model {
        Model::Pretrained(pretrained) if pretrained.architecture.task() == ModelTask::Other => {
            Err(Failure::bad_input(format!(
                "`{}` reads no text alone: expected a decoder or an encoder of text, found a \
                 model with other inputs; \
                 --inputs of `bench` and `eval` takes them by name",
                pretrained.name
            )))
        }
        Model::Pretrained(pretrained) => pretrained.tokenizer.as_ref().ok_or_else(|| {
            let name = &pretrained.name;
            Failure::bad_input(format!(
                "`{name}` reads no text: expected a tokenizer.json in its folder, found none"
            ))
        }),
        Model::Template(template) if template.vocabulary == Some(BYTES) => Ok(&Tokenizer::BYTES),
        Model::Onnx(model) => Err(Failure::bad_input(format!(
            "`{}` reads no text: a file of ONNX has no tokenizer; give a folder in Hugging Face's \
             format",
            model.name()
        ))),
        Model::Template(template) => Err(Failure::bad_input(format!(
            "`{}` reads no text: expected a model with a tokenizer.json or a vocabulary of \
             {BYTES} bytes, found {}",
            template.name,
            template
                .vocabulary
                .map_or("numbers as inputs".to_owned(), |n| format!("a vocabulary of {n}"))
        ))),
    }
}

/// The token ids of a text.
pub(crate) fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    let refused =
        |error| Failure::bad_input(format!("the text cannot be turned into tokens: {error}"));
    match tokenizer.encode(text).map_err(refused)? {
        ids if ids.is_empty() => {
            Err(Failure::bad_input("the text has no token: expected at least one"))
        }
        ids => Ok(ids),
    }
}

/// `1 window`, `2 windows`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Inputs of a bound graph that reads this text in every row: ids `x`, and a `mask` where there is
/// one. A row of fixed length is filled up with zeros.
pub(crate) fn inputs(graph: &Graph, ids: &[u32]) -> Result<BTreeMap<String, Tensor>, Failure> {
    let mut given = BTreeMap::new();
    for port in graph.inputs() {
        let ty = graph.ty(port.value);
        let [rows, tokens] = ty.sizes()[..] else {
            return Err(Failure::bad_input(format!(
                "input `{}`: expected rows of tokens, found {ty}",
                port.name
            )));
        };
        if ids.len() > tokens {
            let found = ids.len();
            return Err(Failure::bad_input(format!(
                "the text has {found} tokens: expected at most {tokens}"
            )));
        }
        let value = |id: &u32| if port.name == "mask" { 1 } else { i128::from(*id) };
        let mut row: Vec<i128> = ids.iter().map(value).collect();
        row.resize(tokens, 0);
        given.insert(
            port.name.clone(),
            Tensor::from_ints(integer(ty.dtype)?, [rows, tokens], &row.repeat(rows)),
        );
    }
    Ok(given)
}

fn integer(dtype: DType) -> Result<DType, Failure> {
    match dtype.is_int() {
        true => Ok(dtype),
        false => Err(Failure::bad_input(format!(
            "the model reads no text: expected integer ids, found {dtype}"
        ))),
    }
}

/// Tokens before a new one that its text is decoded with. Decoders look at a neighbour or two. All
/// tokens would cost a time that grows with the text: milliseconds a token behind 16,000.
const NEIGHBOURS: usize = 16;

/// The text of tokens as they come: what may still change with the next token is held back.
pub(crate) struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The last tokens: `NEIGHBOURS` at least, if there were so many, and twice as many at most,
    /// beside those whose text is held back.
    ids: Vec<u32>,
    /// Bytes of the text of `ids` that were given out.
    given: usize,
}

impl<'a> TextStream<'a> {
    /// Goes on behind a prompt.
    pub(crate) fn after(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        let mut stream = Self { tokenizer, ids: prompt.to_vec(), given: 0 };
        stream.forget();
        stream
    }

    /// Keeps the last neighbours, whose text was given out.
    fn forget(&mut self) {
        self.ids.drain(..self.ids.len().saturating_sub(NEIGHBOURS));
        self.given = self.tokenizer.decode(&self.ids).map_or(0, |text| text.len());
    }

    /// The text that is certain after one more token.
    pub(crate) fn push(&mut self, id: u32) -> String {
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids).unwrap_or_default();
        // A character with missing bytes.
        if text.ends_with('\u{FFFD}') {
            return String::new();
        }
        let rest = self.rest_of(&text);
        if self.ids.len() > 2 * NEIGHBOURS {
            self.forget();
        }
        rest
    }

    /// The text that was held back.
    pub(crate) fn finish(mut self) -> String {
        let text = self.tokenizer.decode(&self.ids).unwrap_or_default();
        self.rest_of(&text)
    }

    fn rest_of(&mut self, text: &str) -> String {
        let rest = text.get(self.given..).unwrap_or_default().to_owned();
        self.given = self.given.max(text.len());
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Characters of one to four bytes, over many windows of neighbours.
    #[test]
    fn a_long_text_streams_as_it_is_decoded_whole() {
        let text = "a naïve 語, 𝄞; ".repeat(40);
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let (prompt, rest) = ids.split_at(30 * "a naïve 語, 𝄞; ".len());
        let mut stream = TextStream::after(&Tokenizer::BYTES, prompt);
        let mut streamed: String = rest.iter().map(|&id| stream.push(id)).collect();
        assert!(stream.ids.len() <= 2 * NEIGHBOURS + 4, "{}", stream.ids.len());
        streamed += &stream.finish();
        assert_eq!(streamed, text[prompt.len()..]);
    }
}

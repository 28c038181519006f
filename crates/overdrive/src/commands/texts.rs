//! Labelled texts for a published classifier: read, in its tokens, in three parts.

use crate::failure::Failure;
use crate::terminal::note;
use overdrive::formats::huggingface::Tokenizer;
use overdrive::studies::pretrained::{Labels, Pretrained, Problem};
use overdrive::train::data::{Meaning, Parts, Rows, Target, Texts};

/// The source of the texts.
#[derive(Copy, Clone)]
pub(super) struct TextsSource<'a> {
    /// The file.
    pub(super) data: &'a str,
    /// The column of labels, unless it is the usual one.
    pub(super) label: Option<&'a str>,
    /// The fifth that is for testing.
    pub(super) fold: usize,
}

/// Tokens of a row.
#[derive(Copy, Clone)]
pub(super) enum Length {
    Exactly(usize),
    /// Those of the longest text, up to this many.
    AtMost(usize),
}

/// The three parts, in rows of how many tokens.
pub(super) fn parts(
    (model, tokenizer): (&Pretrained, &Tokenizer),
    asked: TextsSource<'_>,
    length: Length,
) -> Result<(Parts, usize), Failure> {
    if !Texts::are_in(asked.data) {
        return Err(Failure::bad_input(format!(
            "--data: `{}` is a classifier, which learns from labelled texts and is judged by them: \
             expected a .csv or .jsonl file with `text` and `label`, found `{}`",
            model.name, asked.data
        )));
    }
    let labels = model.labels.as_ref().expect("a classifier has labels");
    let meaning = meaning(&model.name, labels)?;
    let texts = Texts::read(asked.data, asked.label).map_err(Failure::bad_input)?;
    let encoded = texts.encoded(tokenizer, meaning).map_err(Failure::bad_input)?;
    let tokens = match length {
        Length::Exactly(tokens) => tokens,
        Length::AtMost(tokens) => tokens.min(encoded.longest()),
    };
    let (count, kind) = (texts.len(), kind(labels));
    note!("note: {count} texts, each labelled with {kind}, in rows of {tokens} tokens");
    let cut = encoded.longer_than(tokens);
    if cut > 0 {
        note!("note: {cut} of them are longer, and cut");
    }
    let rows = Rows { tokens, filling: model.architecture.filling() };
    let parts = encoded.parts(rows, asked.fold).map_err(Failure::bad_input)?;
    Ok((parts, tokens))
}

/// Whether an output of a published model is a class or a quantity, where labels can say which.
fn target(labels: &Labels) -> Target {
    match labels.problem {
        Problem::Quantity => Target::Quantity,
        Problem::OneClass | Problem::SeveralClasses => Target::Classes,
    }
}

fn meaning<'l>(model: &str, labels: &'l Labels) -> Result<Meaning<'l>, Failure> {
    let found = match (labels.problem, labels.names.len()) {
        (Problem::OneClass, _) => return Ok(Meaning::Class(&labels.names)),
        (Problem::Quantity, 1) => return Ok(Meaning::Quantity),
        (Problem::Quantity, count) => format!("{count} quantities"),
        (Problem::SeveralClasses, _) => "any number of classes (multi_label_classification)".into(),
    };
    Err(Failure::bad_input(format!(
        "--data: expected a model that gives one class or one quantity for a text, found \
         `{model}`, which gives {found}; labels of that kind are not read here: give a text \
         without labels to `quantize`"
    )))
}

/// The kind of label, in words.
fn kind(labels: &Labels) -> String {
    const LISTED: usize = 4;
    match target(labels) {
        Target::Quantity => "a quantity".to_owned(),
        Target::Classes => {
            let names = &labels.names;
            let more = if names.len() > LISTED { ", ..." } else { "" };
            let listed = names[..names.len().min(LISTED)].join(", ");
            format!("one of {} classes ({listed}{more})", names.len())
        }
    }
}

//! A text in UTF-8, in memory or in a mapped file, and the pieces in which a tokenizer reads it.
//!
//! Invariant: a piece ends where no tokenizer of words joins two tokens, so that the tokens of all
//! pieces are those of the text. Without white space a piece ends after a whole character.

use crate::TrainError;
use overdrive_files::Mapped;
use serde::Deserialize;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// Bytes of a piece at most, but for a longer line of JSON.
const PIECE: u64 = 1 << 16;

/// The place of the bytes.
#[derive(Debug)]
enum Bytes {
    Memory(Vec<u8>),
    File(Mapped),
}

/// The meaning of the bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Form {
    /// They are one document.
    Document,
    /// Each line is an object of JSON, whose `text` is a document.
    Lines,
}

/// A text.
#[derive(Debug)]
pub(super) struct Text {
    bytes: Bytes,
    form: Form,
}

/// A document of a file `.jsonl`.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl Text {
    /// One in memory, which is UTF-8.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes: Bytes::Memory(bytes), form: Form::Document }
    }

    /// A file, which is one document. It is read through once, to see that it is text.
    ///
    /// # Errors
    /// When it cannot be read, is not UTF-8, or is empty.
    pub(super) fn open(path: &Path) -> Result<Self, TrainError> {
        let _about = overdrive_files::about(path);
        let file = Mapped::open(path)?;
        if file.is_empty() {
            let (place, remedy) = (path.display(), "name another file");
            return Err(TrainError::invalid(place, "text", "an empty file", remedy));
        }
        let text = Self { bytes: Bytes::File(file), form: Form::Document };
        text.part(0..text.len())?;
        Ok(text)
    }

    /// The same; a file `.jsonl` is a document a line.
    ///
    /// # Errors
    /// As `open`.
    pub(super) fn open_documents(path: &Path) -> Result<Self, TrainError> {
        let is_lines = path.extension().is_some_and(|ending| ending == "jsonl");
        let form = if is_lines { Form::Lines } else { Form::Document };
        Ok(Self { form, ..Self::open(path)? })
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.len() as u64,
            Bytes::File(file) => file.len(),
        }
    }

    /// These bytes, which must be there.
    ///
    /// # Errors
    /// When the file has become shorter.
    pub(super) fn bytes(&self, range: Range<u64>) -> Result<&[u8], TrainError> {
        match &self.bytes {
            Bytes::Memory(bytes) => Ok(&bytes[range.start as usize..range.end as usize]),
            Bytes::File(file) => Ok(file.bytes(range)?),
        }
    }

    /// The name of the text, for messages.
    pub(super) fn name(&self) -> Cow<'_, str> {
        match &self.bytes {
            Bytes::Memory(_) => "text".into(),
            Bytes::File(file) => file.path().to_string_lossy(),
        }
    }

    /// The pieces in their order. They end after one that cannot be read.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Result<Range<u64>, TrainError>> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let start = next.take().filter(|start| *start < self.len())?;
            let piece = self.piece_from(start);
            next = piece.as_ref().ok().map(|piece| piece.end);
            Some(piece)
        })
    }

    /// The documents that lie in a piece or end in it, in parts that a tokenizer reads at once.
    /// Each part is given with whether its document ends there.
    ///
    /// # Errors
    /// When the file was changed and is no text any more, or a line is no document.
    pub(super) fn documents(
        &self,
        piece: &Range<u64>,
        mut each: impl FnMut(&str, bool) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let part = self.part(piece.clone())?;
        if self.form == Form::Document {
            return each(part, piece.end == self.len());
        }
        let mut offset = piece.start;
        for line in part.split_inclusive('\n') {
            if !line.trim().is_empty() {
                let document = self.line_of(line, offset)?;
                let bytes = document.as_bytes();
                let mut start = 0;
                while start < bytes.len() {
                    let all = &bytes[start..];
                    let end = start + end_of_words(&all[..all.len().min(PIECE as usize)], all);
                    each(&document[start..end], end == bytes.len())?;
                    start = end;
                }
            }
            offset += line.len() as u64;
        }
        Ok(())
    }

    /// The document of a line that begins at `offset`.
    fn line_of<'t>(&self, line: &'t str, offset: u64) -> Result<Cow<'t, str>, TrainError> {
        match serde_json::from_str::<Line<'_>>(line) {
            Ok(line) => Ok(line.text),
            Err(error) => {
                let before = self.bytes(0..offset)?.iter().filter(|byte| **byte == b'\n').count();
                let place = format!("{}, line {}", self.name(), before + 1);
                let remedy = "write an object a line: {\"text\": \"...\"}";
                let expected = "a JSON object with a `text`";
                Err(TrainError::invalid(place, expected, error, remedy))
            }
        }
    }

    /// The piece that begins at `start`.
    fn piece_from(&self, start: u64) -> Result<Range<u64>, TrainError> {
        let rest = self.bytes(start..self.len())?;
        let first = &rest[..rest.len().min(PIECE as usize)];
        let length = match self.form {
            Form::Document => end_of_words(first, rest),
            Form::Lines => end_of_lines(first, rest),
        };
        Ok(start..start + length as u64)
    }

    /// A part as text.
    fn part(&self, range: Range<u64>) -> Result<&str, TrainError> {
        let offset = range.start;
        std::str::from_utf8(self.bytes(range)?).map_err(|error| {
            let found = format!("other bytes at offset {}", offset + error.valid_up_to() as u64);
            let remedy = "convert the file, `iconv -t UTF-8`";
            TrainError::invalid(self.name(), "UTF-8 text", found, remedy)
        })
    }
}

/// The end of the last word in `first`, with which `all` begins. If a mark stands before white
/// space, some tokenizers join the two; a letter or a digit they do not.
fn end_of_words(first: &[u8], all: &[u8]) -> usize {
    if first.len() == all.len() {
        return all.len();
    }
    let ends = |at: usize, is_word: fn(&u8) -> bool| {
        first[at].is_ascii_whitespace() && is_word(&first[at - 1])
    };
    let last = |is_word| (1..first.len()).rev().find(|at| ends(*at, is_word));
    // At least a byte, if a file is no text any more.
    let whole = || std::str::from_utf8(first).map_or_else(|e| e.valid_up_to().max(1), str::len);
    last(u8::is_ascii_alphanumeric)
        .or_else(|| last(|byte| !byte.is_ascii_whitespace()))
        .unwrap_or_else(whole)
}

/// The end of the last line in `first`, with which `all` begins, or of the only one.
fn end_of_lines(first: &[u8], all: &[u8]) -> usize {
    let ends = |byte: &u8| *byte == b'\n';
    let within = first.iter().rposition(ends);
    within.or_else(|| all.iter().position(ends)).map_or(all.len(), |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &Text) -> Vec<Range<u64>> {
        text.pieces().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn pieces_cover_a_text_and_end_after_words() {
        let words = "a word, and;\n\nčaj ".repeat(20_000);
        let text = Text::of_bytes(words.clone().into_bytes());
        let found = pieces(&text);
        assert!(found.len() > 4);
        let mut end = 0;
        for piece in found {
            assert_eq!(piece.start, end);
            end = piece.end;
            let rest = &words[end as usize..];
            assert!(rest.is_empty() || rest.starts_with(' '), "{:?}", &rest[..rest.len().min(9)]);
            let before = words[..end as usize].chars().next_back().unwrap();
            assert!(rest.is_empty() || before.is_ascii_alphanumeric(), "{before}");
        }
        assert_eq!(end, text.len());
        // Neither white space nor one byte a character.
        let text = Text::of_bytes("č".repeat(100_000).into_bytes());
        assert!(pieces(&text).iter().all(|piece| piece.end % 2 == 0));
        // White space alone.
        assert_eq!(pieces(&Text::of_bytes(vec![b' '; 100_000])).len(), 2);
    }

    #[test]
    fn lines_are_documents_of_any_length() {
        let long = "word ".repeat(40_000);
        let lines =
            format!("{{\"text\": \"a \\u010daj\\n\"}}\n\n{{\"id\": 1, \"text\": \"{long}\"}}\n");
        let lines = lines.repeat(3);
        let text = Text { bytes: Bytes::Memory(lines.into_bytes()), form: Form::Lines };
        let (mut found, mut parts, mut open) = (Vec::new(), 0, String::new());
        for piece in pieces(&text) {
            let taken = text.documents(&piece, |part, ends| {
                open += part;
                parts += 1;
                if ends {
                    found.push(std::mem::take(&mut open));
                }
                Ok(())
            });
            taken.unwrap();
        }
        assert_eq!((found.len(), open.as_str()), (6, ""));
        assert!(found[0] == "a čaj\n" && found[5] == long && parts > 9, "{parts} parts");
        let text =
            Text { bytes: Bytes::Memory(b"{\"text\": \"a\"}\n{}\n".into()), form: Form::Lines };
        let said = text.documents(&(0..text.len()), |_, _| Ok(())).unwrap_err().to_string();
        assert!(said.contains("line 2") && said.contains("missing field `text`"), "{said}");
    }
}

//! Labelled texts: a table with a column of texts, or a JSON object a line.
//!
//! Columns, or keys, are `text` or `sentence`, and `label`. A text is read in the tokens of a
//! tokenizer and cut to the tokens of a row. The last tokens of a row are the ones that the
//! tokenizer puts behind every text. Invariant: no line is left out; one that has no text or no
//! label is an error.

use super::labelled::hex;
use super::{Batch, Parts, Split, Target, Targets};
use crate::TrainError;
use csv::{ReaderBuilder, StringRecord};
use overdrive_formats::huggingface::Tokenizer;
use overdrive_ir::{DType, Tensor};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// Names of the column of texts.
const TEXT: [&str; 2] = ["text", "sentence"];
/// Name of the column of labels, unless the user says otherwise.
const LABEL: &str = "label";

/// A text with its label as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    /// Its line, from 1.
    number: u64,
    text: String,
    label: String,
}

/// Labelled texts before anyone knows what the labels mean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Texts {
    place: String,
    lines: Vec<Line>,
}

/// The meaning of labels to a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Meaning<'a> {
    /// A class by its name, or by its number among these names.
    Class(&'a [String]),
    /// A number.
    Quantity,
}

/// How texts become rows of one length.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Tokens of a row.
    pub tokens: usize,
    /// The token that fills a row up.
    pub filling: u32,
}

impl Texts {
    /// Whether a name is that of a file with labelled texts: `.csv` or `.jsonl`.
    pub fn are_in(name: &str) -> bool {
        Path::new(name).extension().is_some_and(|ending| ending == "csv" || ending == "jsonl")
    }

    /// Reads a file by its ending; `label` is the name of the column, or the key, of labels.
    ///
    /// # Errors
    /// With the line, when a text or a label is missing; when the file cannot be read, is empty, or
    /// has other columns.
    pub fn read(name: &str, label: Option<&str>) -> Result<Self, TrainError> {
        let path = Path::new(name);
        let _about = overdrive_files::about(path);
        let bytes = overdrive_files::read(path, overdrive_files::UNBOUNDED)?;
        let label = label.unwrap_or(LABEL);
        let lines = match path.extension().is_some_and(|ending| ending == "jsonl") {
            true => json_lines(name, &bytes, label)?,
            false => csv_lines(name, &bytes, label)?,
        };
        match lines.is_empty() {
            true => Err(TrainError::invalid(
                name,
                "at least one labelled text",
                "none",
                "write a text and its label to each line",
            )),
            false => Ok(Self { place: name.to_owned(), lines }),
        }
    }

    /// The number of them.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// True when there are none, which `read` refuses.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The same in tokens, with labels as targets.
    ///
    /// # Errors
    /// With the line, when a label is no class of the model or no number, or the tokenizer has no
    /// tokens for a text.
    pub fn encoded(
        &self,
        tokenizer: &Tokenizer,
        meaning: Meaning<'_>,
    ) -> Result<Encoded, TrainError> {
        let at = |line: &Line| format!("{}, line {}", self.place, line.number);
        let targets = match meaning {
            Meaning::Class(names) => {
                let of = self.lines.iter().map(|line| class(&at(line), &line.label, names));
                Targets::Classes { of: of.collect::<Result<_, _>>()?, count: names.len() }
            }
            Meaning::Quantity => {
                let of = self.lines.iter().map(|line| quantity(&at(line), &line.label));
                Targets::Quantities(of.collect::<Result<_, _>>()?)
            }
        };
        let ids = |line: &Line| {
            let found = tokenizer.encode(&line.text).and_then(|ids| match ids.is_empty() {
                true => Err("no token".to_owned()),
                false => Ok(ids),
            });
            found.map_err(|found| {
                let expected = "a text that the tokenizer knows";
                TrainError::invalid(at(line), expected, found, "change the text or the tokenizer")
            })
        };
        let rows = self.lines.iter().map(ids).collect::<Result<_, _>>()?;
        let empty = tokenizer.encode("").unwrap_or_default();
        let behind = empty[empty.len().div_ceil(2)..].to_vec();
        Ok(Encoded(Arc::new(Set { rows, behind, targets })))
    }
}

/// Labelled texts in tokens.
#[derive(Clone, Debug)]
pub struct Encoded(Arc<Set>);

#[derive(Debug)]
struct Set {
    rows: Vec<Vec<u32>>,
    /// Tokens behind every text.
    behind: Vec<u32>,
    targets: Targets,
}

impl Encoded {
    /// Tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.0.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Texts that are longer than a row of so many tokens, and are cut.
    pub fn longer_than(&self, tokens: usize) -> usize {
        self.0.rows.iter().filter(|row| row.len() > tokens).count()
    }

    /// The target of each text.
    pub fn targets(&self) -> &Targets {
        &self.0.targets
    }

    /// The three parts: a fifth of each class tests, an eighth of the rest validates.
    ///
    /// # Errors
    /// When there is no such fold, or there are too few texts for three parts.
    pub fn parts(&self, rows: Rows, fold: usize) -> Result<Parts, TrainError> {
        Parts::dealt(&self.0.targets, fold, &|members| {
            Ok(Arc::new(LabelledTexts { set: Arc::clone(&self.0), members, rows }))
        })
    }
}

/// Some of the texts.
struct LabelledTexts {
    set: Arc<Set>,
    members: Vec<u32>,
    rows: Rows,
}

impl LabelledTexts {
    /// The tokens of a text, at most those of a row.
    fn cut(&self, member: usize) -> Vec<u32> {
        let (mut row, tokens) = (self.set.rows[member].clone(), self.rows.tokens);
        if row.len() > tokens {
            let behind = &self.set.behind;
            let behind = if behind.len() < tokens { &behind[..] } else { &[] };
            row.truncate(tokens - behind.len());
            row.extend(behind);
        }
        row
    }
}

impl Split for LabelledTexts {
    fn len(&self) -> u64 {
        self.members.len() as u64
    }

    fn target(&self) -> Target {
        self.set.targets.kind()
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let members: Vec<usize> =
            samples.iter().map(|&i| self.members[i as usize] as usize).collect();
        let (mut x, mut mask) = (Vec::new(), Vec::new());
        for &member in &members {
            let (row, end) = (self.cut(member), x.len() + self.rows.tokens);
            mask.resize(x.len() + row.len(), 1);
            mask.resize(end, 0);
            x.extend(row.into_iter().map(i128::from));
            x.resize(end, i128::from(self.rows.filling));
        }
        let tensor = |values: &[i128]| {
            Tensor::from_ints(DType::I32, [members.len(), self.rows.tokens], values)
        };
        Ok(Batch {
            x: tensor(&x),
            mask: Some(tensor(&mask)),
            labels: self.set.targets.of(&members),
            text_bytes: vec![],
        })
    }

    fn hash(&self) -> Result<String, TrainError> {
        let mut hash = Sha256::new();
        for &member in &self.members {
            let row = self.cut(member as usize);
            hash.update((row.len() as u64).to_le_bytes());
            row.iter().for_each(|id| hash.update(id.to_le_bytes()));
            self.set.targets.hash(member as usize, &mut hash);
        }
        Ok(hex(hash))
    }
}

/// A class by its name, else by its number.
fn class(at: &str, label: &str, names: &[String]) -> Result<u32, TrainError> {
    let named = || names.iter().position(|name| name == label);
    let numbered = || label.parse::<usize>().ok().filter(|class| *class < names.len());
    named().or_else(numbered).map(|class| class as u32).ok_or_else(|| {
        const LISTED: usize = 6;
        let listed = names[..names.len().min(LISTED)].join(", ");
        let more = if names.len() > LISTED { ", ..." } else { "" };
        let expected = format!("a class of the model: 0 to {}, or {listed}{more}", names.len() - 1);
        let remedy = "write labels by the numbers or names of `id2label` in its config.json";
        TrainError::invalid(format!("{at}, label"), expected, format!("`{label}`"), remedy)
    })
}

fn quantity(at: &str, label: &str) -> Result<f32, TrainError> {
    label.parse::<f32>().ok().filter(|value| value.is_finite()).ok_or_else(|| {
        let (place, found) = (format!("{at}, label"), format!("`{label}`"));
        let remedy = "the model gives a quantity: write numbers, or name their column";
        TrainError::invalid(place, "a finite number", found, remedy)
    })
}

/// The error for a missing text or label at this place.
fn missing(at: &str, name: &str) -> TrainError {
    let remedy = "fill the gap, or leave the line out";
    TrainError::invalid(format!("{at}, `{name}`"), "a value", "nothing", remedy)
}

/// Errs about names of columns or keys.
fn unnamed(at: &str, label: &str, names: &[&str]) -> TrainError {
    let expected = format!("`{}` and `{label}`", TEXT.join("` or `"));
    let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let remedy = "rename the columns; --label of `train` names that of labels";
    TrainError::invalid(at, expected, found, remedy)
}

fn csv_lines(place: &str, bytes: &[u8], label: &str) -> Result<Vec<Line>, TrainError> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut columns: Option<(StringRecord, [usize; 2])> = None;
    let mut lines = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(1, csv::Position::line);
            let remedy = "convert the file, `iconv -t UTF-8`";
            TrainError::invalid(format!("{place}, line {line}"), "CSV in UTF-8", error, remedy)
        })?;
        let number = record.position().map_or(1, csv::Position::line);
        let at = format!("{place}, line {number}");
        let Some((names, [text, target])) = &columns else {
            let names: Vec<&str> =
                record.iter().map(|name| name.trim_start_matches('\u{feff}').trim()).collect();
            let find = |wanted: &str| names.iter().position(|name| *name == wanted);
            let (Some(text), Some(target)) = (TEXT.iter().find_map(|name| find(name)), find(label))
            else {
                return Err(unnamed(&at, label, &names));
            };
            columns = Some((StringRecord::from(names), [text, target]));
            continue;
        };
        if record.len() != names.len() {
            let expected = format!("{} fields, as there are names", names.len());
            let remedy = "put quotes around texts with commas or ends of lines";
            return Err(TrainError::invalid(at, expected, record.len(), remedy));
        }
        let field = |column: usize| match record[column].trim() {
            "" => Err(missing(&at, &names[column])),
            _ => Ok(record[column].to_owned()),
        };
        let label = field(*target)?.trim().to_owned();
        lines.push(Line { number, text: field(*text)?, label });
    }
    Ok(lines)
}

fn json_lines(place: &str, bytes: &[u8], label: &str) -> Result<Vec<Line>, TrainError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        TrainError::invalid(place, "UTF-8 text", error, "convert the file, `iconv -t UTF-8`")
    })?;
    let numbered = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let line = |(number, line): (u64, &str)| {
        let at = format!("{place}, line {number}");
        let fields: Map<String, Value> = serde_json::from_str(line).map_err(|error| {
            let remedy = "write an object a line: {\"text\": \"...\", \"label\": 0}";
            TrainError::invalid(&at, "a JSON object", error, remedy)
        })?;
        let name = TEXT.into_iter().find(|name| fields.contains_key(*name));
        let (Some(name), Some(target)) = (name, fields.get(label)) else {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            return Err(unnamed(&at, label, &names));
        };
        let text = fields[name].as_str().filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| missing(&at, name))?.to_owned();
        let label = match target {
            Value::String(text) if !text.trim().is_empty() => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            _ => return Err(missing(&at, label)),
        };
        Ok(Line { number, text, label })
    };
    numbered.map(line).collect()
}

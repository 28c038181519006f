//! CSV: a sample a line, a column of labels, all others features.
//!
//! A first line without a single number is a line of names. Labels are quantities where all are
//! numbers and some has a fraction, unless the reading says otherwise. Else they are classes:
//! numbers from 0 stay what they are, anything else is a name. Invariant: nothing is guessed of a
//! field; one that is no number is an error with its line and column.

use super::column_range::ColumnRange;
use super::{Reading, Samples, Target, Targets};
use crate::TrainError;
use csv::{ReaderBuilder, StringRecord, Trim};
use overdrive_formats::TableColumns;
use overdrive_ir::{DType, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The form of a line.
const LINES: &str = "a line is numbers with commas between, and a label";

/// Reads samples from CSV text; `place` is what errors call it.
///
/// # Errors
/// Names the line where it has another number of fields, a field is no number, or a label is no
/// class. Errs too where names repeat, or are not those that a model has learnt from.
pub(super) fn decode(place: &str, text: &[u8], reading: &Reading) -> Result<Samples, TrainError> {
    let mut reader =
        ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).from_reader(text);
    let at = |position: Option<&csv::Position>| Place {
        file: place,
        text,
        byte: position.map_or(0, |position| position.byte() as usize),
    };
    let mut table: Option<Table<'_>> = None;
    for record in reader.records() {
        let record = record.map_err(|e| {
            TrainError::invalid(at(e.position()), "a line of CSV in UTF-8", e, LINES)
        })?;
        let at = at(record.position());
        match &mut table {
            Some(table) => table.push(at, &record)?,
            None => table = Some(Table::begin(at, &record, reading)?),
        }
    }
    let Some(table) = table else {
        return Samples::new(place, Tensor::from_f32([0usize, 0], &[]), vec![]);
    };
    table.finish(place)
}

/// The place of a record, as errors name it. Its line is counted when it is printed: counted for
/// each record, the lines of a long file would take the square of its length.
#[derive(Copy, Clone)]
struct Place<'t> {
    file: &'t str,
    text: &'t [u8],
    /// The first byte of the record, or of empty lines before it.
    byte: usize,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, from) = self.text.split_at(self.byte.min(self.text.len()));
        let empty = from.iter().take_while(|byte| byte.is_ascii_whitespace());
        let ended = before.iter().chain(empty).filter(|byte| **byte == b'\n').count();
        write!(f, "{}, line {}", self.file, 1 + ended)
    }
}

/// A table while it is read.
struct Table<'r> {
    reading: &'r Reading,
    /// Names of columns, where there is a line of them.
    names: Option<Vec<String>>,
    width: usize,
    /// The column of labels.
    label: usize,
    features: Vec<f32>,
    labels: Vec<String>,
    /// One for each column.
    ranges: Vec<ColumnRange>,
}

impl<'r> Table<'r> {
    /// A table whose first line is this one.
    fn begin(
        at: Place<'_>,
        first: &StringRecord,
        reading: &'r Reading,
    ) -> Result<Self, TrainError> {
        let width = first.len();
        if width < 2 {
            let other = [';', '\t']
                .into_iter()
                .find(|separator| first.iter().any(|f| f.contains(*separator)));
            let found = match other {
                Some(separator) => format!("{width}, with {separator:?} in it"),
                None => width.to_string(),
            };
            return Err(TrainError::invalid(at, "2 or more fields", found, LINES));
        }
        let is_header = first.iter().all(|field| field.parse::<f32>().is_err());
        let names: Option<Vec<String>> =
            is_header.then(|| first.iter().map(str::to_owned).collect());
        if let Some(names) = &names {
            check_names(at, names)?;
        }
        let label = label(at, names.as_deref(), width, reading)?;
        let (features, labels, ranges) = (vec![], vec![], vec![ColumnRange::default(); width]);
        let mut table = Self { reading, names, width, label, features, labels, ranges };
        table.check_like(at)?;
        if !is_header {
            table.push(at, first)?;
        }
        Ok(table)
    }

    /// Errs where features have other names, or another number, than a model has learnt from.
    fn check_like(&self, at: Place<'_>) -> Result<(), TrainError> {
        let Some(like) = &self.reading.like else { return Ok(()) };
        let features = self.feature_names();
        let pairs = features.iter().zip(&like.features);
        if let Some((found, expected)) =
            pairs.into_iter().find(|(found, expected)| found != expected)
        {
            let (expected, found) = (format!("the feature `{expected}`"), format!("`{found}`"));
            return Err(TrainError::invalid(
                at,
                expected,
                found,
                "give the columns that the model learnt from",
            ));
        }
        Ok(())
    }

    fn feature_names(&self) -> Vec<String> {
        let names = self.names.iter().flatten().enumerate();
        names.filter(|(column, _)| *column != self.label).map(|(_, name)| name.clone()).collect()
    }

    /// The name of a field in errors.
    fn field(&self, at: impl fmt::Display, column: usize) -> String {
        match &self.names {
            Some(names) => format!("{at}, column `{}`", names[column]),
            None => format!("{at}, column {column}"),
        }
    }

    fn push(&mut self, at: Place<'_>, record: &StringRecord) -> Result<(), TrainError> {
        if record.len() != self.width {
            let expected = format!("{} fields as before", self.width);
            return Err(TrainError::invalid(at, expected, record.len(), LINES));
        }
        for (column, field) in record.iter().enumerate() {
            if field.is_empty() {
                let remedy = "fill the gap, or leave the line out";
                return Err(TrainError::invalid(
                    self.field(at, column),
                    "a value",
                    "nothing",
                    remedy,
                ));
            }
            if column == self.label && self.asked() != Some(Target::Quantity) {
                self.labels.push(field.to_owned());
                continue;
            }
            let value = field.parse::<f32>().ok().filter(|value| value.is_finite());
            let value = value.ok_or_else(|| {
                let remedy = match column == self.label {
                    true => "fill gaps, or learn classes: --target classes",
                    false => "fill gaps; write words as numbers, or leave the column out",
                };
                let found = format!("`{field}`");
                TrainError::invalid(self.field(at, column), "a number", found, remedy)
            })?;
            self.ranges[column].see(field, value);
            match column == self.label {
                true => self.labels.push(field.to_owned()),
                false => self.features.push(value),
            }
        }
        Ok(())
    }

    /// The kind of target that labels must have, if it is known before they are read.
    fn asked(&self) -> Option<Target> {
        let of = |like: &TableColumns| match like.is_quantity {
            true => Target::Quantity,
            false => Target::Classes,
        };
        self.reading.like.as_ref().map(of).or(self.reading.target)
    }

    fn finish(self, place: &str) -> Result<Samples, TrainError> {
        check_target(place, self.reading)?;
        self.check_ranges(place)?;
        match self.asked().unwrap_or_else(|| nature(&self.labels)) {
            Target::Classes => self.with_classes(place),
            Target::Quantity => self.with_quantities(place),
        }
    }

    /// Errs where f32 does not tell the numbers of a column apart.
    fn check_ranges(&self, place: &str) -> Result<(), TrainError> {
        let Some(column) = self.ranges.iter().position(ColumnRange::is_lost) else {
            return Ok(());
        };
        let (place, found) = (self.field(place, column), self.ranges[column]);
        let remedy = "subtract a constant from the column, or leave it out";
        Err(TrainError::invalid(place, "numbers that f32 tells apart", found, remedy))
    }

    fn with_quantities(self, place: &str) -> Result<Samples, TrainError> {
        let number = |label: &String| label.parse::<f32>().expect("quantities were seen to be so");
        let targets = Targets::Quantities(self.labels.iter().map(number).collect());
        let columns = TableColumns {
            features: self.feature_names(),
            label: self.names.as_ref().map(|names| names[self.label].clone()),
            is_quantity: true,
            ..TableColumns::default()
        };
        let shape = [self.labels.len(), self.width - 1];
        Ok(Samples::with(place, compact(shape, &self.features), targets)?.with_columns(columns))
    }

    fn with_classes(self, place: &str) -> Result<Samples, TrainError> {
        let (labels, classes) =
            match self.reading.like.as_ref().filter(|like| !like.classes.is_empty()) {
                Some(like) => (known(place, &self.labels, &like.classes)?, like.classes.clone()),
                None => found(place, &self.labels, self.asked())?,
            };
        if self.reading.like.as_ref().is_some_and(|like| like.classes != classes) {
            let (expected, found) =
                ("numbers of classes, as the model has learnt", classes.join(", "));
            return Err(TrainError::invalid(
                place,
                expected,
                found,
                "train a new model: leave MODEL out",
            ));
        }
        let columns = TableColumns {
            features: self.feature_names(),
            label: self.names.as_ref().map(|names| names[self.label].clone()),
            classes,
            is_quantity: false,
        };
        let shape = [labels.len(), self.width - 1];
        Ok(Samples::new(place, compact(shape, &self.features), labels)?.with_columns(columns))
    }
}

fn check_names(at: Place<'_>, names: &[String]) -> Result<(), TrainError> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => {
            let found = format!("`{name}` twice");
            Err(TrainError::invalid(
                at,
                "a name of its own for each column",
                found,
                "rename one of them",
            ))
        }
    }
}

/// The column of labels: the requested one, that of the model, or the last.
fn label(
    at: Place<'_>,
    names: Option<&[String]>,
    width: usize,
    reading: &Reading,
) -> Result<usize, TrainError> {
    let named = |wanted: &str| names?.iter().position(|name| name == wanted);
    let Some(wanted) = &reading.label else {
        let of_model = reading.like.as_ref().and_then(|like| like.label.as_deref());
        return Ok(of_model.and_then(named).unwrap_or(width - 1));
    };
    let numbered = || wanted.parse::<usize>().ok().filter(|column| *column < width);
    named(wanted).or_else(numbered).ok_or_else(|| {
        let numbers = format!("a column from 0 to {}", width - 1);
        let expected = match names {
            Some(names) => format!("{numbers}, or one of {}", names.join(", ")),
            None => format!("{numbers}; there is no line of names"),
        };
        TrainError::invalid(
            format!("{at}, --label"),
            expected,
            format!("`{wanted}`"),
            "name another column",
        )
    })
}

/// Classes of labels that a model knows by name.
fn known(place: &str, labels: &[String], classes: &[String]) -> Result<Vec<u32>, TrainError> {
    let numbers: BTreeMap<&String, u32> = classes.iter().zip(0..).collect();
    let class = |label: &String| {
        numbers.get(label).copied().ok_or_else(|| {
            let expected = format!("the model's classes {}", classes.join(", "));
            TrainError::invalid(
                place,
                expected,
                format!("`{label}`"),
                "train a new model: leave MODEL out",
            )
        })
    };
    labels.iter().map(class).collect()
}

/// Errs where a user asks for another kind of target than a model has learnt.
fn check_target(place: &str, reading: &Reading) -> Result<(), TrainError> {
    let Some((asked, like)) = reading.target.zip(reading.like.as_ref()) else { return Ok(()) };
    if (asked == Target::Quantity) == like.is_quantity {
        return Ok(());
    }
    let (learnt, other) = match like.is_quantity {
        true => ("a quantity", "--target classes"),
        false => ("classes", "--target quantity"),
    };
    let remedy = "train a new model: leave MODEL out";
    Err(TrainError::invalid(place, format!("{learnt}, as the model has learnt"), other, remedy))
}

/// The nature of labels where nobody says it: quantities where all are finite numbers and some has
/// a fraction.
fn nature(labels: &[String]) -> Target {
    let number = |label: &String| label.parse::<f32>().ok().filter(|number| number.is_finite());
    match labels.iter().map(number).collect::<Option<Vec<f32>>>() {
        Some(numbers) if numbers.iter().any(|number| number.fract() != 0.0) => Target::Quantity,
        _ => Target::Classes,
    }
}

/// Classes of labels, and their names where they are no numbers from 0.
fn found(
    place: &str,
    labels: &[String],
    asked: Option<Target>,
) -> Result<(Vec<u32>, Vec<String>), TrainError> {
    if let Ok(numbers) = labels.iter().map(|label| label.parse()).collect() {
        return Ok((numbers, vec![]));
    }
    let reals: Option<Vec<f64>> = labels.iter().map(|label| label.parse().ok()).collect();
    let not_finite = |x: &&f64| !x.is_finite();
    if let (None, Some(number)) = (asked, reals.iter().flatten().find(not_finite)) {
        let remedy = "fill gaps among numbers, or say that they are names: --target classes";
        return Err(TrainError::invalid(place, "labels that are finite", number, remedy));
    }
    let mut classes: Vec<String> =
        labels.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    if reals.is_some() {
        let number = |class: &String| class.parse::<f64>().unwrap_or(f64::NAN);
        classes.sort_by(|a, b| number(a).total_cmp(&number(b)));
    }
    if classes.len() == labels.len() && labels.len() > 2 {
        let (expected, found) =
            ("labels that repeat", format!("another one in each of {} lines", labels.len()));
        let remedy = match reals.is_some() {
            true => {
                "name the column of classes with --label, or learn a quantity: --target quantity"
            }
            false => "name the column of classes with --label",
        };
        return Err(TrainError::invalid(place, expected, found, remedy));
    }
    Ok((known(place, labels, &classes)?, classes))
}

/// A byte a feature where all are whole numbers that a byte holds.
fn compact(shape: [usize; 2], features: &[f32]) -> Tensor {
    if features.iter().all(|&v| v == f32::from(v as u8)) {
        let bytes: Vec<i128> = features.iter().map(|&v| v as i128).collect();
        return Tensor::from_ints(DType::U8, shape, &bytes);
    }
    Tensor::from_f32(shape, features)
}

//! CSV: a sample a line, features first, the class last. A first line of names is skipped.

use super::Samples;
use crate::TrainError;
use csv::{ReaderBuilder, StringRecord};
use overdrive_ir::{DType, Tensor};
use std::io::Read;

/// Reads samples from CSV text; `place` is what errors call it.
///
/// # Errors
/// With the line, where a line has another number of fields, a field is no number or a label no class.
pub(super) fn decode(place: &str, reader: impl Read) -> Result<Samples, TrainError> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(reader);
    let (mut features, mut labels) = (Vec::new(), Vec::new());
    let mut fields = 0;
    for (index, record) in reader.records().enumerate() {
        let at = format!("{place}, line {}", index + 1);
        let fault = |expected: &str, found: String| {
            TrainError::invalid(&at, expected, found, "a line is numbers with commas between, the class last")
        };
        let record = record.map_err(|e| fault("a line of CSV in UTF-8", e.to_string()))?;
        if index == 0 && is_header(&record) {
            continue;
        }
        if record.len() < 2 || (fields > 0 && record.len() != fields) {
            let expected =
                if fields > 0 { format!("{fields} fields as before") } else { "2 or more fields".into() };
            return Err(fault(&expected, record.len().to_string()));
        }
        fields = record.len();
        for field in record.iter().take(fields - 1) {
            let value: f32 = field.trim().parse().map_err(|_| fault("a number", format!("`{field}`")))?;
            features.push(value);
        }
        let label = record[fields - 1].trim();
        labels.push(label.parse().map_err(|_| fault("a class of 0, 1, 2, ...", format!("`{label}`")))?);
    }
    let shape = [labels.len(), fields.saturating_sub(1)];
    Samples::new(place, compact(shape, &features), labels)
}

/// Names instead of numbers.
fn is_header(record: &StringRecord) -> bool {
    record.iter().all(|field| field.trim().parse::<f32>().is_err())
}

/// A byte a feature where all are whole numbers that a byte holds.
fn compact(shape: [usize; 2], features: &[f32]) -> Tensor {
    if features.iter().all(|&v| v == f32::from(v as u8)) {
        let bytes: Vec<i128> = features.iter().map(|&v| v as i128).collect();
        return Tensor::from_ints(DType::U8, shape, &bytes);
    }
    Tensor::from_f32(shape, features)
}

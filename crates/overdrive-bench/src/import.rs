//! Reads result files of other programs as [`Results`]. Formats are recognised by content, and our
//! gate judges the figures.
//!
//! A fact that a foreign file does not tell stays absent: no sample is made up from a mean, and no
//! machine from a name. A time of zero is a failure. Nothing that was measured elsewhere can take
//! part in a speed-up, since nobody compared its outputs with a reference (see
//! [`Reported`](crate::reported::Reported)).

mod criterion;
mod draft;
mod error;
mod format;
mod nvbench;
mod older_suite;
mod operators;
mod pytorch;

pub use error::ImportError;

use std::path::Path;

use crate::json::{from_json, results_of_page};
use crate::results::Results;
use format::Format;

/// The file in the folder of a report that everything else there is drawn from.
pub const RESULTS: &str = "results.json";

/// Reads the results in a file or a folder, which can be:
/// - our own results, a page that holds them, or the folder of either;
/// - a PyTorch profiler export;
/// - nvbench or criterion JSON;
/// - a report of the older suite;
/// - a folder that criterion wrote (`target/criterion`).
///
/// Only a page of several files gives several `Results`.
///
/// # Errors
/// The error says what was expected and what was found. It is for a file that cannot be read, is
/// none of these, or is damaged.
pub fn read(path: &Path) -> Result<Vec<Results>, ImportError> {
    if path.is_dir() {
        let ours = path.join(RESULTS);
        // A pipe of that name is refused as a file, and not passed over.
        return if ours.exists() {
            read(&ours)
        } else {
            criterion::folder(path).map(|one| vec![one])
        };
    }
    let _about = overdrive_files::about(path);
    let bytes = overdrive_files::read(path, overdrive_files::RESULTS)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(ImportError::Compressed { path: path.to_owned() });
    }
    let text =
        String::from_utf8(bytes).map_err(|_| ImportError::NotText { path: path.to_owned() })?;
    if text.trim_start().starts_with('<') {
        let refused = |reason| ImportError::Page { path: path.to_owned(), reason };
        return results_of_page(&text).map_err(refused);
    }
    let beside = match Format::of(&text) {
        Some(Format::CriterionSample | Format::CriterionEstimates) => criterion::beside(path),
        _ => None,
    };
    beside.unwrap_or_else(|| parse(&text, path)).map(|results| vec![results])
}

/// Reads the text of a single file; `path` is only its name.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, path: &Path) -> Result<Results, ImportError> {
    let Some(format) = Format::of(text) else {
        return Err(ImportError::Unknown { path: path.to_owned(), found: format::describe(text) });
    };
    match format {
        Format::Overdrive => {
            from_json(text).map_err(|reason| ImportError::Ours { path: path.to_owned(), reason })
        }
        Format::Pytorch => pytorch::parse(text, path),
        Format::Nvbench => nvbench::parse(text, path),
        Format::CriterionMessages => criterion::messages(text, path),
        Format::CriterionSample => criterion::sample(text, path),
        Format::CriterionEstimates => criterion::estimates(text, path),
        Format::Quantization => older_suite::quantization(text, path),
        Format::Kernels => older_suite::kernels(text, path),
        Format::Compilation => older_suite::compilation(text, path),
    }
}

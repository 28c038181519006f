//! Result files of other programs as [`Results`], told apart by what is in them and judged by our gate.
//!
//! What a foreign file does not tell stays absent: no sample is made up from a mean, no machine from a name, and a
//! time of zero is a failure. Nothing that was measured elsewhere can take part in a speed-up, since nobody
//! compared its outputs with a reference (see [`Reported`](crate::reported::Reported)).

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

use crate::report::from_json;
use crate::results::Results;
use format::Format;

/// Reads results: our own, a PyTorch profiler export, nvbench or criterion JSON, a report of the older suite; or a
/// folder that criterion wrote (`target/criterion`).
///
/// # Errors
/// What was expected and what was found, for a file that cannot be read, is none of these, or is damaged.
pub fn read(path: &Path) -> Result<Results, ImportError> {
    if path.is_dir() {
        return criterion::folder(path);
    }
    let bytes = overdrive_files::read(path, overdrive_files::RESULTS)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(ImportError::Compressed { path: path.to_owned() });
    }
    let text = String::from_utf8(bytes).map_err(|_| ImportError::NotText { path: path.to_owned() })?;
    match Format::of(&text) {
        Some(Format::CriterionSample | Format::CriterionEstimates) => criterion::beside(&text, path),
        _ => parse(&text, path),
    }
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

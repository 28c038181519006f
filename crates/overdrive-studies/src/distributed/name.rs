//! The name of the study, under which all of its files keep records and notes.

use overdrive_bench::results::{Note, Results};

/// Its name.
pub(super) const STUDY: &str = "distributed";

/// Keeps a note of the study.
pub(super) fn note(results: &mut Results, text: String) {
    results.notes.push(Note { study: STUDY.to_owned(), text });
}

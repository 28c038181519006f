//! Results inside a page of a report, stored as JSON in a script element of their own.

use super::text::{JsonError, from_json};
use crate::results::Results;

/// The marks around the data. Nothing in between can look like the end: whoever writes a page
/// leaves no `<` there.
const DATA: (&str, &str) = ("<script type=\"application/json\" id=\"results\">", "</script>");

/// The results that a page holds, checked as a file of JSON is.
///
/// # Errors
/// When the page has no results, or they cannot be read.
pub fn results_of_page(page: &str) -> Result<Vec<Results>, JsonError> {
    let inside = page
        .split_once(DATA.0)
        .and_then(|(_, rest)| Some(rest.split_once(DATA.1)?.0))
        .unwrap_or("");
    let files: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(inside)?;
    files.iter().map(|file| from_json(file.get())).collect()
}

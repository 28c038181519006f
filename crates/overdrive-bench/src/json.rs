//! Results as JSON and back: a file of its own, or the data inside a page of a report.

mod page;
mod text;

pub use page::results_of_page;
pub use text::{JsonError, from_json, to_json};

//! Every sentence and table of a report, as pure functions of [`Results`](crate::results::Results):
//! what is not in the results cannot be said, and the same results always say the same.

mod anchor;
pub mod charts;
mod date;
mod decision;
#[cfg(test)]
mod example;
mod files;
mod findings;
#[cfg(test)]
pub(crate) mod gallery;
pub mod html;
mod json;
mod judged;
mod ladders;
mod leaders;
mod lost;
mod machines;
mod markdown;
mod matrix;
mod overview;
mod quality;
mod section;
mod side_tables;
mod summary;
mod table;
mod terminal;
mod text_table;
mod witness;

pub use anchor::anchor;
pub use date::utc;
pub use files::Report;
pub use findings::{Finding, Topic, findings};
pub use json::{JsonError, from_json, to_json};
pub(crate) use lost::{interval as quality_interval, lost as lost_quality, lost_quantity};
pub use machines::counted;
pub use markdown::markdown;
pub(crate) use markdown::table as markdown_table;
pub(crate) use section::time as reported_time;

pub use summary::{result_line, summary};
pub(crate) use table::cell;
pub use table::{Align, Table};
pub use terminal::terminal;
pub(crate) use text_table::indented;
pub use text_table::table as terminal_table;

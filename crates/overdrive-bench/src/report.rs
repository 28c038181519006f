//! Every sentence and table of a report, as pure functions of [`Results`](crate::results::Results): what is not
//! in the results cannot be said, and the same results always say the same.

mod anchor;
pub mod charts;
mod date;
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
mod markdown;
mod matrix;
mod overview;
mod quality;
mod section;
mod side_tables;
mod table;
mod terminal;

pub use anchor::anchor;
pub use date::utc;
pub use files::Report;
pub use findings::{Finding, Topic, findings};
pub use json::{JsonError, from_json, to_json};
pub use markdown::markdown;
pub(crate) use markdown::table as markdown_table;
pub(crate) use table::{Align, Table, cell};
pub(crate) use terminal::STYLE as TERMINAL_STYLE;
pub(crate) use terminal::table as terminal_table;
pub use terminal::terminal;

//! Every sentence and table of a report, as pure functions of [`Results`](crate::results::Results): what is not
//! in the results cannot be said, and the same results always say the same.

mod date;
#[cfg(test)]
mod example;
mod file;
mod json;
mod ladders;
mod markdown;
mod overview;
mod section;
mod side_tables;
mod table;
mod terminal;

pub use date::utc;
pub use file::{WriteError, write_atomically};
pub use json::{JsonError, from_json, to_json};
pub use markdown::markdown;
pub(crate) use terminal::STYLE as TERMINAL_STYLE;
pub use terminal::terminal;

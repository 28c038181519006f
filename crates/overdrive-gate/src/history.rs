//! Results over time: an append-only file of JSON lines, keyed by case and hardware, and where its
//! series changed.
//!
//! One run against the last says little: noise of a few per cent passes for a step, and a slow
//! drift passes unseen. A change point is a place where what came before and what came after differ
//! as distributions.
//!
//! - [`entry`]: a line. [`log`](mod@log): reading and appending. [`series`](mod@series): the
//!   lines of one key, with its change points, as plain data for whoever draws them.
//!   [`change_points()`]: E-divisive.

mod change_points;
mod course;
pub mod entry;
pub mod log;
pub mod series;

pub use change_points::{ChangePoint, change_points};
pub use course::history_table;
pub use entry::HistoryEntry;
pub use log::{HistoryError, append, read};
pub use series::{HistorySeries, series};

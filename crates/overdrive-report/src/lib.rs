//! Every sentence, table and picture of a report, from
//! [`Results`](overdrive_bench::results::Results) alone. A report cannot say anything that is not
//! in the results, and the same results always give the same report.
//!
//! - [`findings()`]: what to know, in sentences, the most telling first.
//! - [`summary()`], [`terminal()`], [`markdown()`], [`html`]: the forms of a report, all drawn from
//!   one [`Report`].
//! - [`charts`]: from records to options of ECharts; with the feature `plots`, `drawing` turns
//!   these into files.

mod anchor;
mod captioned;
pub mod charts;
mod decision;
#[cfg(feature = "plots")]
pub mod drawing;
mod files;
mod findings;
#[cfg(test)]
mod gallery;
pub mod html;
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
mod terminal;
mod to_loss;
mod witness;

pub use anchor::anchor;
pub use files::Report;
pub use findings::{Finding, Topic, findings};
pub use machines::counted;
pub use markdown::markdown;
pub use summary::{result_line, summary};
pub use terminal::terminal;

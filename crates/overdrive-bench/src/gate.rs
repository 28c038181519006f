//! The regression gate: is one program slower than another, decided on evidence that the machine's noise cannot
//! fake.
//!
//! The unit of replication is the fresh process, not the call: twenty calls in one process share its memory
//! layout, its clock and its neighbours, and are one observation of a revision. A *block* is four processes,
//! A B B A or B A A B, so that linear drift cancels inside it; its datum is the mean log ratio of the processes'
//! medians. Three blocks screen everything, ten fresh blocks judge what looked slower, and the same procedure
//! runs on A against itself, whose verdict says whether the machine could be trusted today.
//!
//! - [`observation`]: what one process said, from results or from plain lists of times.
//! - [`block`], [`session`]: which processes run, in which order; [`Processes`] brings them.
//! - [`judgement`], [`exact`], [`judge()`]: from blocks to verdicts, pure functions.
//! - [`verdicts`]: the session's outcome as data, with exit code; [`markdown()`], [`junit()`], [`terminal()`] draw it.
//! - [`command`], [`checkout`]: processes of this machine, and a revision of a repository as a program.
//!
//! docs/regression.md explains the rules to users.

pub mod block;
pub mod checkout;
mod child;
pub mod command;
pub mod exact;
mod judge;
pub mod judgement;
mod junit;
mod markdown;
pub mod observation;
pub mod session;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
pub mod verdicts;

pub use judge::{control, judge};
pub use junit::junit;
pub use markdown::markdown;
pub use session::{Processes, Session};
pub use terminal::terminal;
pub use verdicts::Verdicts;

//! The regression gate: is one program slower than another, decided on evidence that the machine's
//! noise cannot fake.
//!
//! The unit of replication is the fresh process, not the call: twenty calls in one process share
//! its memory layout, its clock and its neighbours, and are one observation of a revision. A
//! *block* is six processes in mirrored order, so that linear drift cancels inside it: the
//! baseline, the current, and the baseline once more as a control. Each figure gets one datum from
//! a block, the mean of its log ratios. Blocks are added to every case alike until a test that
//! holds at every look has decided, or time is up, and all blocks count.
//!
//! - [`observation`]: what one process said; [`read`](mod@read): from results or from plain lists
//!   of times; [`metric`]: what its figures mean.
//! - [`block`], [`session`]: which processes run, in which order; [`Processes`] brings them;
//!   [`evidence`]: what they showed.
//! - [`sequential`], [`judgement`], [`exact`], [`judge()`]: from blocks to verdicts, pure
//!   functions.
//! - [`finding`], [`verdicts`]: the session's outcome as data, with exit code; [`markdown()`],
//!   [`junit()`], [`terminal()`] draw it.
//! - [`command`], [`checkout`]: processes of this machine, and a revision of a repository as a
//!   program.
//!
//! docs/regression.md explains the rules to users.

pub mod block;
pub mod checkout;
mod child;
pub mod command;
pub mod evidence;
pub mod exact;
pub mod finding;
mod judge;
pub mod judgement;
mod junit;
mod markdown;
pub mod metric;
pub mod observation;
pub mod read;
mod sampled;
pub mod sequential;
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

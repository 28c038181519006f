//! The regression gate: is one program slower than another, decided on evidence that the machine's
//! noise cannot fake.
//!
//! The unit of replication is the fresh process, not the call. Twenty calls in one process share
//! its memory layout, its clock and its neighbours, and are one observation of a revision. A
//! *block* is six processes in mirrored order, so that linear drift cancels inside it. They run the
//! baseline, the current, and the baseline once more as a control. Each figure gets one datum from
//! a block, the mean of its log ratios. Blocks are added to every case alike until a test that
//! holds at every look has decided, or time is up. All blocks count.
//!
//! - [`read`](mod@read): observations of one process, from results or from plain lists of times;
//!   [`metric`]: the meaning of its figures.
//! - [`block`], [`session`]: which processes run, in which order; [`Processes`] brings them.
//! - [`sequential`], [`judge()`]: from blocks to verdicts, pure functions; [`derive()`],
//!   [`from_json()`]: the verdicts of a session, made and read back.
//! - [`markdown()`], [`junit()`], [`terminal()`] draw them.
//! - [`command`], [`checkout`]: processes of this machine, and a revision of a repository as a
//!   program.
//! - [`compare`], [`history`]: results beside results, of one machine or of several, and over time.
//!
//! The verdicts of a session are data of `overdrive-bench`
//! ([`Verdicts`](overdrive_bench::verdicts::Verdicts)), since results carry them into a report.
//! docs/regression.md explains the rules to users.

pub mod block;
pub mod checkout;
mod child;
pub mod command;
pub mod compare;
mod derive;
mod exact;
pub mod history;
mod holm;
mod judge;
mod judgement;
mod junit;
mod markdown;
pub mod metric;
mod observation;
pub mod read;
mod sampled;
pub mod sequential;
pub mod session;
mod signed_rank;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

pub use derive::{VerdictsError, check, derive, from_json};
pub use judge::{control, judge};
pub use junit::junit;
pub use markdown::markdown;
pub use session::{GateSession, Processes};
pub use terminal::terminal;

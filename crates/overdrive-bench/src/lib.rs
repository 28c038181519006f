//! How Overdrive measures: from something that can be called to a [`record::Record`], and from
//! records to every sentence of a report.
//!
//! - [`case`], [`failure`], [`work`], [`series`], [`deviation`], [`measurement`], [`outcome`],
//!   [`record`], [`results`]: the data, versioned, with a JSON Schema; none uses one that
//!   stands after it.
//! - [`import`], [`reported`]: result files of other programs, judged by the same gate.
//! - [`statistics`]: the median and its exact interval, robust spread, the bootstrap of a ratio.
//! - [`status`]: what the samples themselves say against being believed.
//! - [`clock`], [`subject`], [`rules`], [`runner`]: taking samples; [`executable`], [`oracle`]: of
//!   what a back end compiled.
//! - [`speedup`], [`ladder`]: the only ways to state a gain, which refuse where there is no proof.
//! - [`environment`], [`memory`], [`energy`], [`ceilings`], [`harness`]: what surrounds a figure.
//! - [`profile`]: where the time of a call goes, as a table and as a trace; never a latency.
//! - [`gate`]: whether one program is slower than another, on blocks of fresh processes.
//! - [`compare`], [`history`], [`hardware`]: results beside results, of one machine or of several.
//! - [`integrity`]: whether a results file agrees with itself.
//! - [`report`]: pure functions of records; with the feature `plots`, `drawing` turns its charts
//!   into files.
//! - [`digits`]: as many of them as the interval supports.
//! - [`exit`]: the exit codes.

pub mod case;
pub mod ceilings;
pub mod clock;
pub mod compare;
pub mod deviation;
pub mod digits;
#[cfg(feature = "plots")]
pub mod drawing;
pub mod energy;
pub mod environment;
pub mod executable;
pub mod exit;
pub mod failure;
pub mod gate;
pub mod hardware;
pub mod harness;
pub mod history;
pub mod import;
pub mod integrity;
pub mod ladder;
pub mod measurement;
pub mod memory;
pub(crate) mod nearly_equal;
pub mod oracle;
pub mod outcome;
pub mod profile;
pub mod record;
pub mod report;
pub mod reported;
pub mod results;
pub mod rules;
pub mod runner;
pub mod series;
pub mod speedup;
pub mod statistics;
pub mod status;
pub mod subject;
#[cfg(test)]
mod testing;
pub mod work;

//! How Overdrive measures: from something that can be called to a [`record::Record`]. Reports
//! (`overdrive-report`) and the regression gate (`overdrive-gate`) are made of records alone.
//!
//! - [`case`], [`failure`], [`work`], [`series`], [`deviation`], [`measurement`], [`outcome`],
//!   [`record`], [`results`]: the data, versioned, with a JSON Schema; none uses one that
//!   stands after it. [`verdicts`]: what the regression gate says, which results carry.
//! - [`json`]: results written and read; [`integrity`]: whether they agree with themselves.
//! - [`import`], [`reported`]: result files of other programs, judged by the same rules.
//! - [`statistics`]: the median and its exact interval, robust spread, the bootstrap of a ratio.
//! - [`status`]: what the samples themselves say against being believed.
//! - [`clock`], [`subject`], [`rules`], [`runner`]: taking samples; [`session_calls`], [`oracle`]:
//!   of what a back end compiled.
//! - [`speedup`], [`ladder`]: the only ways to state a gain, which refuse where there is no proof;
//!   [`quality`]: whether one model is worse than another.
//! - [`environment`], [`hardware`], [`memory`], [`energy`], [`ceilings`], [`harness`]: what
//!   surrounds a figure.
//! - [`profile`]: where the time of a call goes, as a table and as a trace; never a latency.
//! - [`digits`], [`date`], [`table`]: figures, moments and tables as text.
//! - [`exit`]: the exit codes.
//! - `testing`, with the feature of that name: synthetic clocks and records.

pub mod case;
pub mod ceilings;
pub mod clock;
pub mod date;
pub mod deviation;
pub mod digits;
pub mod energy;
pub mod environment;
pub mod exit;
pub mod failure;
pub mod hardware;
pub mod harness;
pub mod import;
pub mod integrity;
pub mod json;
pub mod ladder;
pub mod measurement;
pub mod memory;
pub mod nearly_equal;
pub mod oracle;
pub mod outcome;
pub mod profile;
pub mod quality;
pub mod record;
pub mod reported;
pub mod results;
pub mod rules;
pub mod runner;
pub mod series;
pub mod session_calls;
pub mod speedup;
pub mod statistics;
pub mod status;
pub mod subject;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verdicts;
pub mod work;

//! Costs and gains of quantization: each mode on each model, bytes and agreement and latency.
//!
//! The steps stand in files of their own, for `overdrive quantize` takes the same ones. They are
//! calibrate, apply, judge, weigh and time. To mix modes, there are also scan layers, estimate
//! losses, and search. Invariant: a mode is judged by running what it made, on samples that no
//! calibration saw.

mod agreement;
mod apply;
mod auto_round;
mod batches;
mod brought;
mod calibrate;
mod estimate;
mod figures;
mod fitting;
mod footprint;
mod going;
mod in_parts;
mod judge;
mod latency;
mod loss_estimates;
mod metric;
mod rivals;
mod search;
mod sensitivity;
mod streamed;
mod study;
mod subject;
mod task;
mod times;
mod tune;

pub use agreement::{Agreement, agreement, cosines, same_class};
pub use apply::{apply, apply_while};
pub use batches::{batch_of, calibration};
pub use brought::{Brought, Make, brought};
pub use calibrate::calibrate;
pub use estimate::{Estimate, mean};
pub use footprint::Footprint;
pub use going::{Going, to_the_end};
pub use in_parts::apply_in_parts;
pub use judge::{HeldOut, Judge};
pub use latency::{Conditions, latency, latency_of_blocks, latency_on};
pub use loss_estimates::{EstimatedLoss, loss_estimates};
pub use metric::{Metric, Scores};
pub use rivals::{Question, Rival, rivals};
pub use search::{Assignment, Candidate, Search, search};
pub use sensitivity::{Sensitivity, sensitivities};
pub use streamed::{Done, outputs, outputs_told};
pub(crate) use study::Quantization;
pub use task::{Task, Trial, evaluate};
pub use times::{BlockTimes, Timed};
pub use tune::{trained_as_long, tune};

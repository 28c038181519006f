//! What quantization costs and gains: each mode on each model, bytes and agreement and latency.
//!
//! The steps stand in files of their own, for `overdrive quantize` takes the same ones: calibrate, apply, judge, weigh,
//! time. Invariant: a mode is judged by running what it made, on samples that no calibration saw.

mod agreement;
mod apply;
mod calibrate;
mod footprint;
mod latency;
mod rows;

pub use agreement::{Agreement, agreement};
pub use apply::apply;
pub use calibrate::{calibrate, outputs};
pub use footprint::Footprint;
pub use latency::latency;
pub(crate) use rows::Quantization;

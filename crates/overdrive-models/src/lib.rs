//! The built-in models: fixed, so that figures compare from machine to machine and from year to year.
//!
//! One straight-line file per family, read like the formula; nothing here knows a device or a speed flag. The batch
//! is the named dimension `batch`; weights are states with seeded initial values. Invariant: a model's name always
//! means the same graph and the same weights.

mod conv;
mod gpt;
mod mlp;
mod registry;
mod transformer;

pub use registry::{MODELS, Model, UnknownModel, find};

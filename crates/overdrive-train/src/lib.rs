//! Training: data, a step that is one graph, the loop around it, and evaluation on held-out
//! samples.
//!
//! - [`data`]: what there is to learn from: splits that are fixed by a rule and held to a hash,
//!   batches of tensors.
//! - [`with_loss`], [`Recipe`], [`Trainer`]: forward, loss, backward, clipping and the optimizer as
//!   one graph.
//! - [`fit`]: the loop: schedule, validation, early stop, checkpoints.
//! - [`quantize_aware`](fn@quantize_aware): `fit` with quantized weights, from a trained model.
//! - [`distil_gate`](fn@distil_gate): gates of a model's attention, from that attention itself.
//! - [`evaluate`](fn@evaluate): loss and hits of every sample, from which accuracy and bits per
//!   byte follow.
//! - [`TrainError::NonFinite`], [`Observer::diverges`]: where a run that diverges does so.
//!
//! Everything runs on a `&dyn Backend`. Invariant: step n depends on the recipe, the data and n
//! alone. So an interrupted run continues bit for bit.

mod advice;
mod checkpoint;
mod compiled;
pub mod data;
mod diagnose;
mod distil_gate;
mod error;
mod evaluate;
mod evaluation;
mod fit;
mod formats;
mod growth;
mod held;
mod hidden;
mod kept;
mod kept_codes;
mod kept_model;
mod learner;
mod loss;
mod moments;
mod muon;
mod optimizer;
mod optimizer_shards;
mod quantize_aware;
mod ranks;
mod recipe;
mod recipes;
mod rise;
mod run;
mod schedule;
mod shuffle;
mod standardize;
mod step;
mod trained;
mod trainer;

pub use checkpoint::{Checkpoint, Progress, SavedState, SavedStates};
pub use distil_gate::distil_gate;
pub use error::TrainError;
pub use evaluate::{Evaluator, Judged, evaluate, evaluate_while};
pub use evaluation::Evaluation;
pub use fit::{batches, fit};
pub use formats::{FORMATS, Formats, NamedFormats};
pub use held::{Shards, Sharing};
pub use kept::{Parameters, drawn_as};
pub use learner::learner;
pub use loss::with_loss;
pub use moments::Moments;
pub use optimizer::Optimizer;
pub use quantize_aware::{Tuned, quantize_aware};
pub use ranks::{DATA, sharded_step};
pub use recipe::{Augmentation, EarlyStop, LossScaling, Recipe};
pub use recipes::{
    fine_tuning, fine_tuning_of_classes, from_scratch, from_scratch_of_classes, gate_training,
    recipe_of, tuning_of, tuning_of_published,
};
pub use run::{Ending, Fit, Fitted, Observer};
pub use schedule::{BadDecay, Decay, Fall, Schedule};
pub use shuffle::Shuffle;
pub use step::{parameters, training_step, training_step_on};
pub use trained::trained;
pub use trainer::{StepReport, Trainer, initial_parameter, initial_parameters};

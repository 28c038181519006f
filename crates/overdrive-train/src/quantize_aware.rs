//! Training with quantized weights, and activations where a scheme says so, from a model that is
//! already trained.
//!
//! The loop is [`fit`](fn@crate::fit) on the graph of [`learn`]. The result is the quantized graph,
//! whose outputs are bit for bit those that the validation samples were judged by.

use crate::{Fit, Observer, Progress, TrainError, fit};
use overdrive_passes::{Evidence, Quantization, Quantized, learn};
use std::collections::BTreeMap;

/// A model that was trained to be quantized.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The quantized model.
    pub quantized: Quantized,
    /// Progress of the training. Nothing was trained if no layer can take its scheme.
    pub progress: Progress,
}

/// Trains `run.model`, whose states begin as trained weights, to be quantized.
///
/// # Errors
/// When the model cannot be trained, a weight is not finite, or the evidence lacks what a scheme
/// needs.
pub fn quantize_aware(
    run: &Fit<'_>,
    quantization: &Quantization,
    evidence: &Evidence,
    observer: &mut dyn Observer,
) -> Result<Tuned, TrainError> {
    let learning = learn(run.model, quantization, evidence)?;
    if learning.is_empty() {
        let quantized = learning.conclude(&BTreeMap::new())?;
        return Ok(Tuned { quantized, progress: Progress::default() });
    }
    let fitted = fit(&Fit { model: &learning.graph, ..*run }, observer)?;
    Ok(Tuned { quantized: learning.conclude(&fitted.parameters)?, progress: fitted.progress })
}

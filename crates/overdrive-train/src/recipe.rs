//! `Recipe`: everything that decides how a model is trained, as data that is kept beside the
//! weights.

use crate::schedule::Decay;
use crate::{Moments, Optimizer, Parameters, Schedule, TrainError};
use overdrive_ir::DType;
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_passes::{AttentionGate, Compression, Float8, Lora, Scaling};
use serde::{Deserialize, Serialize};

/// How a model is trained.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recipe {
    /// Updates in all.
    pub steps: u64,
    /// Samples in each batch.
    pub batch: usize,
    /// Batches whose gradients are averaged before each update.
    pub accumulate: usize,
    /// Seed of the initial parameters and of the order of samples.
    pub seed: u64,
    /// The update rule.
    pub optimizer: Optimizer,
    /// Format in which the optimizer keeps moments of matrices.
    #[serde(default, skip_serializing_if = "Moments::is_f32")]
    pub moments: Moments,
    /// How the step keeps the parameters that it trains.
    #[serde(default, skip_serializing_if = "Parameters::is_f32")]
    pub parameters: Parameters,
    /// Learning rate of each step.
    pub schedule: Schedule,
    /// Largest norm of all gradients together; longer ones are shortened to it.
    pub clip_norm: Option<f64>,
    /// Format of the operands of contractions; sums stay in f32.
    pub precision: DType,
    /// How linear layers are on codes of fp8; else they are in `precision` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float8: Option<Float8>,
    /// How gradients are compressed for the exchange between ranks; else they are summed as they
    /// are. It needs several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Steps between two looks at the validation samples.
    pub evaluate_every: u64,
    /// When to stop early.
    pub early_stop: Option<EarlyStop>,
    /// Augmentation of samples before training.
    #[serde(default)]
    pub augmentation: Augmentation,
    /// Adapters, which alone are trained; without them all parameters are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// Parameters that are trained in addition to adapters: those of a classifier's head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside_lora: Vec<String>,
    /// Gates of attention, which alone are trained ([`distil_gate`](crate::distil_gate)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<AttentionGate>,
}

/// Random changes of samples that keep their meaning.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Augmentation {
    /// They stay as they are.
    #[default]
    None,
    /// Images appear moved by one pixel too ([`Shifted`](crate::data::Shifted)).
    Shift,
}

/// Stops when the validation loss has not become smaller for a while; the best parameters are what
/// is kept.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EarlyStop {
    /// Looks at the validation samples without a new best before it stops.
    pub patience: u32,
}

/// Dynamic scaling of the loss in f16, whose smallest gradients would be zero (Micikevicius et al.,
/// arXiv:1710.03740). The scale is halved when a gradient overflows, which skips the update. It is
/// doubled after `growth_interval` updates that did not overflow.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LossScaling {
    /// Scale of the first step.
    pub initial: f64,
    /// Updates in a row before it doubles.
    pub growth_interval: u32,
}

impl Default for LossScaling {
    /// PyTorch's scale, with an interval that is seen in runs of a thousand steps.
    fn default() -> Self {
        Self { initial: 65536.0, growth_interval: 200 }
    }
}

impl Default for Recipe {
    /// AdamW with a cosine after a short warm-up.
    fn default() -> Self {
        Self {
            steps: 1000,
            batch: 64,
            accumulate: 1,
            seed: 1,
            optimizer: Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.01 },
            moments: Moments::F32,
            parameters: Parameters::F32,
            schedule: Schedule { peak: 2e-3, warmup: 50, decay: Decay::Cosine { to: 0.05 } },
            clip_norm: Some(1.0),
            precision: DType::F32,
            float8: None,
            compression: None,
            evaluate_every: 100,
            early_stop: None,
            augmentation: Augmentation::None,
            lora: None,
            beside_lora: vec![],
            gate: None,
        }
    }
}

/// Samples whose mean loss tells models apart, and labels, of which a text has many.
const ENOUGH_SAMPLES: u64 = 512;
const ENOUGH_LABELS: u64 = 1 << 16;

impl Recipe {
    /// Each field with its value in JSON.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let recipe = serde_json::to_value(self).expect("a recipe is plain data");
        let fields = recipe.as_object().into_iter().flatten();
        fields.map(|(field, value)| (field.clone(), value.to_string())).collect()
    }

    /// Scaling of the loss that the precision asks for.
    pub fn loss_scaling(&self) -> Option<LossScaling> {
        (self.precision == DType::F16).then(LossScaling::default)
    }

    /// Whether a parameter of this name is trained; the others stay what they are.
    pub fn trains(&self, name: &str) -> bool {
        if self.gate.is_some() {
            return AttentionGate::is_state(name);
        }
        self.lora.is_none()
            || Lora::is_adapter(name)
            || self.beside_lora.iter().any(|beside| beside == name)
    }

    /// The learning rate of a step.
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.schedule.at(step, self.steps)
    }

    /// Most validation samples of a look, each with so many labels. They are an eighth of those
    /// learnt since the look before, but enough to tell models apart. A look computes no gradients.
    /// So looks take a few per cent of a long run, whatever the size of the data.
    pub fn samples_of_look(&self, labels: usize) -> u64 {
        let learnt = self.evaluate_every * (self.batch * self.accumulate) as u64;
        let enough = (ENOUGH_LABELS / labels.max(1) as u64).clamp(1, ENOUGH_SAMPLES);
        (learnt / 8).max(enough)
    }

    /// Errs with the first value that no training can use.
    ///
    /// # Errors
    /// When a count is zero, or a rate, a decay or a value of the optimizer is out of its range.
    /// When the precision is none that gradients have, or the format of codes is no fp8.
    pub fn check(&self) -> Result<(), TrainError> {
        let fault = |name: &str, expected: &str, found: String| {
            Err(TrainError::invalid(
                format!("recipe, {name}"),
                expected,
                found,
                "change the recipe",
            ))
        };
        let counts = [
            ("steps", self.steps),
            ("batch", self.batch as u64),
            ("accumulate", self.accumulate as u64),
            ("evaluate_every", self.evaluate_every),
        ];
        if let Some((name, found)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return fault(name, "at least 1", found.to_string());
        }
        if !(self.schedule.peak > 0.0 && self.schedule.peak.is_finite()) {
            return fault("learning rate", "a number above 0", self.schedule.peak.to_string());
        }
        if let Some((expected, found)) = self.schedule.decay.fault() {
            return fault("decay", expected, found.to_string());
        }
        if let Some((expected, found)) = self.optimizer.fault() {
            return fault("optimizer", expected, found.to_string());
        }
        if let Some(clip) = self.clip_norm.filter(|clip| clip.is_nan() || *clip <= 0.0) {
            return fault("clip_norm", "a number above 0", clip.to_string());
        }
        if ![DType::F32, DType::BF16, DType::F16].contains(&self.precision) {
            return fault("precision", "f32, bf16 or f16", self.precision.to_string());
        }
        if (self.parameters, self.precision) == (Parameters::Masters, DType::F32) {
            let expected = "`f32` or `stochastic`, or contractions in bf16 or f16: in f32 they \
                            read masters themselves";
            return fault("parameters", expected, "`masters`".to_owned());
        }
        let Some(float8) = &self.float8 else { return Ok(()) };
        let types = [("float8.forward", float8.forward), ("float8.gradient", float8.gradient)];
        if let Some((name, found)) = types.into_iter().find(|(_, dtype)| !dtype.is_fp8()) {
            return fault(name, "f8e4m3 or f8e5m2", found.to_string());
        }
        if float8.multiple == 0 {
            return fault("float8.multiple", "at least 1", "0".to_owned());
        }
        if float8.scaling == Scaling::Delayed && !float8.granularity.may_be_delayed() {
            let expected = "`current`, or `tensor` as float8.granularity";
            return fault("float8.scaling", expected, "`delayed`".to_owned());
        }
        match float8.break_even {
            Some(0) => fault("float8.break_even", "at least 1", "0".to_owned()),
            Some(found) if float8.granularity != Float8Granularity::Tensor => {
                // Casts by rows and blocks take another time for a byte.
                let expected = "none, or `tensor` as float8.granularity";
                fault("float8.break_even", expected, found.to_string())
            }
            _ => Ok(()),
        }
    }
}

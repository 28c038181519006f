//! The recipes of the models that train here in seconds to minutes. They were found on validation
//! samples. Any other model starts from the one for language models.

use crate::{Augmentation, Decay, EarlyStop, Optimizer, Recipe, Schedule};
use overdrive_passes::{AttentionGate, Lora};

/// How the model of this name is trained unless the user says otherwise.
pub fn recipe_of(model: &str) -> Recipe {
    match model {
        "digits-mlp" => digits(1_000, 2e-3, 0.1),
        "digits-conv" => Recipe { augmentation: Augmentation::Shift, ..digits(600, 6e-3, 1.0) },
        "table-mlp" => Recipe {
            evaluate_every: 50,
            early_stop: Some(EarlyStop { patience: 5 }),
            ..digits(1_000, 2e-3, 0.1)
        },
        "text-transformer" => Recipe { steps: 650, batch: 16, ..language(4e-3) },
        _ => from_scratch(),
    }
}

/// Training of a language model from scratch.
pub fn from_scratch() -> Recipe {
    Recipe { steps: 1_000, batch: 4, ..language(3e-4) }
}

/// Training of a classifier of text from scratch: with more samples a step, since each has one
/// label.
pub fn from_scratch_of_classes() -> Recipe {
    Recipe { batch: 16, ..from_scratch() }
}

/// How the trained model of this name is tuned further with quantized weights. It is a short run at
/// a tenth of the rate, and the parameters with the smallest validation loss stay.
pub fn tuning_of(model: &str) -> Recipe {
    let whole = recipe_of(model);
    let steps = (whole.steps / 5).max(100);
    let looks = 5;
    Recipe {
        steps,
        schedule: Schedule {
            peak: whole.schedule.peak / 10.0,
            warmup: steps / 10,
            ..whole.schedule
        },
        evaluate_every: steps.div_ceil(looks),
        early_stop: Some(EarlyStop { patience: looks as u32 }),
        ..whole
    }
}

/// Quantization-aware training of a published language model: as for fine-tuning, with the
/// parameters of the smallest validation loss.
pub fn tuning_of_published() -> Recipe {
    let whole = fine_tuning(None);
    Recipe { early_stop: Some(EarlyStop { patience: 4 }), ..whole }
}

/// Fine-tuning of a published language model: a short run at a rate far below that of its training.
/// The rate is higher if only adapters learn, since they start at zero.
pub fn fine_tuning(lora: Option<Lora>) -> Recipe {
    let steps = 200;
    let peak = if lora.is_some() { 2e-4 } else { 2e-5 };
    Recipe {
        steps,
        batch: 4,
        optimizer: Optimizer::Adamw { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 },
        schedule: Schedule { peak, warmup: steps / 10, decay: Decay::Cosine { to: 0.1 } },
        evaluate_every: 50,
        lora,
        ..Recipe::default()
    }
}

/// Fine-tuning of a published classifier: as for a language model, with more samples a step, since
/// each has one label.
pub fn fine_tuning_of_classes(lora: Option<Lora>) -> Recipe {
    Recipe { batch: 16, ..fine_tuning(lora) }
}

/// Gates of attention with tiles of this size. There is little to learn, and decay would pull
/// scores together.
pub fn gate_training(tile: usize) -> Recipe {
    let steps = 200;
    Recipe {
        steps,
        batch: 4,
        optimizer: Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.0 },
        schedule: Schedule { peak: 1e-2, warmup: steps / 10, decay: Decay::Cosine { to: 0.05 } },
        gate: Some(AttentionGate { tile, channels: 16 }),
        ..Recipe::default()
    }
}

fn digits(steps: u64, peak: f64, weight_decay: f64) -> Recipe {
    Recipe {
        steps,
        batch: 64,
        optimizer: Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-8, weight_decay },
        schedule: Schedule { peak, warmup: 50, decay: Decay::Cosine { to: 0.01 } },
        ..Recipe::default()
    }
}

fn language(peak: f64) -> Recipe {
    Recipe {
        optimizer: Optimizer::Adamw { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak, warmup: 100, decay: Decay::Cosine { to: 0.05 } },
        ..Recipe::default()
    }
}

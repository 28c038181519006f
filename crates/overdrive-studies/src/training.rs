//! Training steps on one device. Study `training` compares number formats with each other and with
//! PyTorch; study `memory` compares ways to take less of it.
//!
//! A case is the step that `overdrive train` makes: forward, loss, backward, clipping and AdamW.
//! Invariant: loss and norm of the gradients agree with their definition before a time counts.

pub(crate) mod language;
mod session;
mod step;
mod subject;
#[cfg(test)]
mod tests;

use crate::peers::RankPeers;
use crate::{Context, Study};
use overdrive_bench::results::Results;
use overdrive_ir::DType;
use overdrive_passes::Lora;
use overdrive_train::{Moments, Optimizer, Parameters, Recipe};
use session::{Compared, Part, take};
use step::{Limit, Model, Way};

/// Steps by number format.
pub(crate) struct Training;

/// Steps by what they keep in memory.
pub(crate) struct Memory;

/// Those of PyTorch: `peers/distributed_ranks.py` has them by these names.
const PARTS: [Part; 4] = [
    ("step", "bf16"),
    ("eager step", "f16"),
    ("step, float8 tensorwise", "bf16"),
    ("step, float8 rowwise", "bf16"),
];
/// Those of a host, which has no units for the others.
const PARTS_OF_HOST: [Part; 1] = [("step", "f32")];

impl Study for Training {
    fn name(&self) -> &'static str {
        "training"
    }

    fn summary(&self) -> &'static str {
        "a training step by number format: time, memory, energy, beside PyTorch"
    }

    fn quick_seconds(&self) -> u64 {
        10
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        const LARGE: &[&str] = &["bf16", "fp8", "fp8-head"];
        let peers = RankPeers::of(context, 1);
        let study = self.name();
        let mut of =
            |name: &'static str, batch: usize, formats: &[&'static str], parts: &[Part]| {
                let ways: Vec<Way> = formats.iter().map(|name| Way::in_formats(name)).collect();
                let model = Model { name, batch };
                take(context, &peers, &Compared { study, model, ways: &ways, parts }, results);
            };
        match (context.device().is_accelerator(), context.is_brief()) {
            (true, true) => of("gpt-125m", 4, &LARGE[..2], &PARTS[..1]),
            (true, false) => {
                let all = [
                    "bf16",
                    "f16",
                    "fp8",
                    "fp8-head",
                    "fp8-e4m3",
                    "fp8-current",
                    "fp8-rows",
                    "fp8-mx",
                ];
                of("gpt-125m", 16, &all, &PARTS);
                of("gpt-350m", 16, LARGE, &PARTS);
                of("gpt-1.3b", 8, LARGE, &PARTS);
                of("gpt-6.7b", 4, LARGE, &[]);
            }
            (false, true) => of("text-transformer", 2, &["f32", "bf16"], &PARTS_OF_HOST),
            (false, false) => {
                let all =
                    ["f32", "bf16", "f16", "fp8", "fp8-e4m3", "fp8-current", "fp8-rows", "fp8-mx"];
                of("text-transformer", 8, &all, &PARTS_OF_HOST);
            }
        }
    }
}

impl Study for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn summary(&self) -> &'static str {
        "a training step by what it keeps in memory: states, adapters, and memory limits"
    }

    fn quick_seconds(&self) -> u64 {
        10
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let peers = RankPeers::of(context, 1);
        let study = self.name();
        let mut of = |model: Model, ways: &[Way]| {
            take(context, &peers, &Compared { study, model, ways, parts: &[] }, results);
        };
        match (context.device().is_accelerator(), context.is_brief()) {
            (true, true) => {
                of(Model { name: "gpt-125m", batch: 4 }, &savings("bf16", &LIMITS[..1]))
            }
            (true, false) => {
                let ways = savings("bf16", &LIMITS);
                of(Model { name: "gpt-125m", batch: 16 }, &ways);
                of(Model { name: "gpt-350m", batch: 16 }, &ways);
                of(Model { name: "gpt-6.7b", batch: 4 }, &waits("bf16"));
            }
            (false, is_brief) => {
                let batch = if is_brief { 2 } else { 8 };
                of(Model { name: "text-transformer", batch }, &savings("f32", &LIMITS[..1]));
            }
        }
    }
}

/// Memory limits, the mildest first.
const LIMITS: [Limit; 4] =
    [Limit::OfArena(0.75), Limit::OfArena(0.55), Limit::OfArena(0.4), Limit::OfArena(0.3)];

/// Ways to keep the states of a large model on the host, after the plain one.
fn waits(formats: &'static str) -> Vec<Way> {
    let plain = || Way::in_formats(formats);
    let within = |share| {
        let limit = Limit::OfAll(share);
        Way { limit: Some(limit), ..plain().named(limit.name()) }
    };
    let blocks = Way { blocks: true, ..plain().named("all moments wait, copies block") };
    vec![plain(), within(0.75), blocks]
}

/// Ways to save memory, after the plain one.
fn savings(formats: &'static str, limits: &[Limit]) -> Vec<Way> {
    let plain = Way::in_formats(formats);
    let with = |variant: &str, recipe: Recipe| Way { recipe, ..plain.clone() }.named(variant);
    let recipe = || plain.recipe.clone();
    let moments = |moments| with(&format!("moments {moments}"), Recipe { moments, ..recipe() });
    let parameters =
        |kept| with(&format!("parameters {kept}"), Recipe { parameters: kept, ..recipe() });
    let optimizer = Optimizer::muon();
    let within = |limit: Limit| Way { limit: Some(limit), ..plain.clone().named(limit.name()) };
    let lora = Some(Lora { rank: 8, alpha: 16.0 });
    let mut ways = vec![plain.clone(), moments(Moments::Bf16), moments(Moments::Fp8)];
    ways.extend(limits.iter().map(|&limit| within(limit)));
    // Copies in the format of contractions are no others than the parameters in f32.
    if plain.recipe.precision != DType::F32 {
        ways.push(parameters(Parameters::Masters));
    }
    ways.push(parameters(Parameters::Stochastic));
    ways.push(with("Muon", Recipe { optimizer, ..recipe() }));
    ways.push(with("LoRA, rank 8", Recipe { lora, ..recipe() }));
    ways
}

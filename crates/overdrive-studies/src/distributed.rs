//! Several devices of one host together: weak and strong scaling of training, and collectives.
//! Other cases are attention whose context is split, and a block whose layers are split.
//!
//! A case is one graph for each rank ([`Joint`]), and ranks are threads of this process ([`team`]).
//! One rank alone is measured in the same session ([`session`]), so efficiency is a ratio of
//! medians with an interval. `peers/distributed.py` has the same cases in PyTorch. Invariant:
//! outputs are held against a reference before a time counts.

mod block;
mod collective;
mod context_parallel;
mod efficiency;
mod entrant;
mod fabric;
mod joint;
mod name;
mod pipeline;
mod session;
mod team;
#[cfg(test)]
mod tests;
mod training;

pub use fabric::fabric;

use crate::attention::AttentionPart;
use crate::peers::RankPeers;
use crate::{Context, Study};
use block::Block;
use collective::{Collective, CollectiveKind};
use context_parallel::ContextParallel;
use joint::Joint;
use name::{STUDY, note};
use overdrive_bench::results::Results;
use overdrive_ir::DType;
use overdrive_passes::{Compression, ContextExchange};
use overdrive_train::Shards;
use pipeline::Pipeline;
use session::Session;
use training::{Apart, Training};

/// The study.
pub(crate) struct Distributed;

impl Study for Distributed {
    fn name(&self) -> &'static str {
        STUDY
    }

    fn summary(&self) -> &'static str {
        "several devices together: scaling, exposed communication, memory a rank, energy"
    }

    fn quick_seconds(&self) -> u64 {
        20
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let Some(devices) = context.parties.ranks else {
            let text = "left out: this machine has one device, and ranks have one each".to_owned();
            return note(results, text);
        };
        let cases = match context.device().is_accelerator() {
            true => accelerator(context.is_brief()),
            false => host(context.is_brief()),
        };
        let most = devices.counts.iter().copied().max().unwrap_or(1);
        let peers = RankPeers::of(context, most);
        let session = Session::new(context, devices, &peers);
        for case in &cases {
            session.take(case.as_ref(), results);
        }
    }
}

/// Message sizes of the fit, beside those of the tables.
const SWEEP: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
/// Those of the tables in `docs/performance-many-gpus.md`.
const LARGE: [u64; 4] = [16 << 20, 64 << 20, 256 << 20, 1 << 30];

/// Collectives of each kind, of each size that this host's memory takes lightly.
fn collectives(sizes: &[u64]) -> Vec<Box<dyn Joint>> {
    let of = |kind| sizes.iter().map(move |&bytes| Box::new(Collective { kind, bytes }) as _);
    CollectiveKind::ALL.into_iter().flat_map(of).collect()
}

fn training(
    model: &'static str,
    (batch, shards): (usize, Shards),
    precision: DType,
) -> Box<dyn Joint> {
    Box::new(Training { model, batch, shards, compression: None, precision })
}

/// The scaling of such a step if the exchange cost nothing.
fn apart(model: &'static str, batch: usize, precision: DType) -> Box<dyn Joint> {
    let shards = Shards::Nothing;
    Box::new(Apart(Training { model, batch, shards, compression: None, precision }))
}

/// The same with gradients that are exchanged otherwise.
fn compressed(
    model: &'static str,
    (batch, shards, scheme): (usize, Shards, Compression),
    precision: DType,
) -> Box<dyn Joint> {
    Box::new(Training { model, batch, shards, compression: Some(scheme), precision })
}

/// The step in stages, on so many batches.
fn staged(
    model: &'static str,
    (batch, batches): (usize, usize),
    precision: DType,
) -> Box<dyn Joint> {
    let (shards, compression) = (Shards::Nothing, None);
    let training = Training { model, batch, shards, compression, precision };
    Box::new(Pipeline { training, batches })
}

/// Attention round a ring of the ranks, and by heads.
fn attention(part: AttentionPart, sizes: [usize; 4], dtype: DType) -> [Box<dyn Joint>; 2] {
    [ContextExchange::Ring, ContextExchange::Ulysses]
        .map(|exchange| Box::new(ContextParallel { part, sizes, dtype, exchange }) as _)
}

fn accelerator(is_brief: bool) -> Vec<Box<dyn Joint>> {
    use AttentionPart::{Both, Forward};
    let bf16 = DType::BF16;
    if is_brief {
        let mut cases = collectives(&[1 << 20, 64 << 20]);
        cases.extend(attention(Forward, [1, 16, 16 << 10, 128], bf16));
        cases.push(training("gpt-125m", (4, Shards::Nothing), bf16));
        return cases;
    }
    let mut cases = collectives(&[SWEEP, LARGE].concat());
    cases.push(Box::new(Block { tokens: 8192, width: 4096, heads: 32, dtype: bf16 }));
    for length in [64 << 10, 256 << 10] {
        for part in [Forward, Both] {
            cases.extend(attention(part, [1, 16, length, 128], bf16));
        }
    }
    for part in [Forward, Both] {
        cases.extend(attention(part, [1, 8, 1 << 20, 128], bf16));
    }
    for (model, batch) in [("gpt-125m", 16), ("gpt-1.3b", 8)] {
        cases.push(apart(model, batch, bf16));
    }
    for (model, batch, shards) in [
        ("gpt-125m", 16, Shards::Nothing),
        ("gpt-1.3b", 8, Shards::Nothing),
        ("gpt-1.3b", 8, Shards::Optimizer),
        ("gpt-1.3b", 8, Shards::Parameters),
        ("gpt-6.7b", 8, Shards::Parameters),
    ] {
        cases.push(training(model, (batch, shards), bf16));
    }
    for (model, batch) in [("gpt-125m", 16), ("gpt-1.3b", 4)] {
        cases.push(staged(model, (batch, 16), bf16));
    }
    let schemes = [
        Compression::F32,
        Compression::Bf16,
        Compression::Int8,
        Compression::Fp8,
        Compression::PowerSgd { rank: 4 },
    ];
    let (nothing, all) = (Shards::Nothing, Shards::Parameters);
    cases.extend(schemes.map(|scheme| compressed("gpt-125m", (16, nothing, scheme), bf16)));
    for (model, shards) in [("gpt-1.3b", nothing), ("gpt-1.3b", all), ("gpt-6.7b", all)] {
        cases.push(compressed(model, (8, shards, Compression::F32), bf16));
    }
    cases
}

/// Small cases, which only show that all of it works. Ranks are threads that share the cores, so
/// their figures say nothing of a machine.
fn host(is_brief: bool) -> Vec<Box<dyn Joint>> {
    use AttentionPart::{Both, Forward};
    let f32 = DType::F32;
    let mut cases = collectives(if is_brief { &[64 << 10] } else { &[64 << 10, 1 << 20, 4 << 20] });
    cases.push(Box::new(Block { tokens: 128, width: 128, heads: 4, dtype: f32 }));
    cases.extend(attention(Forward, [1, 4, 512, 64], f32));
    if !is_brief {
        cases.extend(attention(Both, [1, 4, 512, 64], f32));
    }
    cases.push(apart("text-transformer", 2, f32));
    cases.push(training("text-transformer", (2, Shards::Nothing), f32));
    cases.push(staged("text-transformer", (2, 4), f32));
    cases.push(training("text-transformer", (2, Shards::Optimizer), f32));
    cases.push(training("text-transformer", (2, Shards::Parameters), f32));
    for (shards, scheme) in
        [(Shards::Nothing, Compression::Int8), (Shards::Parameters, Compression::F32)]
    {
        cases.push(compressed("text-transformer", (2, shards, scheme), f32));
    }
    cases
}

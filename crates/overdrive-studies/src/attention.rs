//! Attention by mask, score function and length: forward, and forward with backward.
//!
//! All variants of a shape run in one session, so that each is related to plain causal attention.
//! Tables and slopes that a function reads are states, and ids of documents are an input that is
//! the same for every seed. Backward gives the gradients of q, k and v for a given gradient of the
//! output. Invariant: a sample of the batch depends on the same sample of the inputs alone, so that
//! some samples stand for all in the reference.
//!
//! `peers/pytorch.py` and `peers/attention_variants.py` know the workloads by name. Sources of the
//! functions: soft-cap, Gemma Team, arXiv:2408.00118; ALiBi, Press et al., arXiv:2108.12409;
//! relative bias, Raffel et al., arXiv:1910.10683.
//!
//! Long because each variant has its name, its op, its function and its inputs here.

use crate::{Context, Entry, Study, Workload, measure, relate};
use overdrive_bench::digits;
use overdrive_bench::results::{Note, Results};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::{
    Builder, Compare, DType, Expr, Graph, GraphError, Init, Mode, Tensor, TensorType, Value,
};
use overdrive_passes::differentiate;
use std::collections::BTreeMap;
use threshold::THRESHOLD;

mod shares;
mod threshold;

#[cfg(test)]
mod tests;

/// The study.
pub(crate) struct AttentionStudy;

/// B, H, T, D.
type Sizes = [usize; 4];

const ACCELERATOR_QUICK: [Sizes; 1] = [[1, 8, 1024, 128]];
/// Those of the tables in `docs/attention.md`.
const ACCELERATOR: [Sizes; 4] =
    [[16, 16, 1024, 128], [4, 16, 4096, 128], [1, 16, 16_384, 128], [2, 16, 8192, 64]];
/// Sizes of variants without functions: short sequences, odd lengths, narrow and wide heads.
const ACCELERATOR_PLAIN: [Sizes; 4] =
    [[16, 16, 512, 128], [8, 16, 2048, 128], [8, 16, 1023, 96], [2, 16, 4096, 256]];
const HOST_QUICK: [Sizes; 1] = [[1, 4, 256, 64]];
const HOST: [Sizes; 2] = [[1, 8, 512, 64], [1, 8, 2048, 64]];
/// So long that a session of every variant would take more than minutes.
const HOST_PLAIN: [Sizes; 1] = [[1, 8, 8192, 64]];

/// Query heads of each head of keys and values.
const GROUP: usize = 8;

/// A window has this part of the keys.
const WINDOWS: usize = 8;
/// Scores stay within this bound.
const CAP: f64 = 30.0;
/// Documents of a sample, of random lengths.
const DOCUMENTS: usize = 8;
/// Queries and keys of a tile of block-sparse attention, and least tiles along each side.
const TILE: usize = 128;
const FEWEST_TILES: usize = 8;

/// Samples of the batch that are compared with the reference: the first and the last.
const SAMPLES: usize = 2;
/// Tensors of all scores that live together where gradients are expanded, with room for the rest.
const STORED: u64 = 12;

/// The mask, or the one function of scores or of visibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionVariant {
    Causal,
    Full,
    /// Causal, and [`GROUP`] query heads share keys and values.
    Grouped,
    Window,
    SoftCap,
    Alibi,
    Documents,
    RelativeBias,
    /// So many percent of the tiles are hidden, and the rest is seen whole.
    BlockSparse(u8),
    /// About so many percent of the tiles are skipped by their scores.
    Threshold(u8),
}

/// The computed part of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionPart {
    Forward,
    Both,
}

use AttentionPart::{Both, Forward};
use AttentionVariant::{
    Alibi, BlockSparse, Causal, Documents, Full, Grouped, RelativeBias, SoftCap, Threshold, Window,
};

impl AttentionVariant {
    /// The first is the one that the others are related to.
    const PLAIN: [Self; 3] = [Causal, Full, Grouped];
    /// The plain ones first.
    const ALL: [Self; 14] = [
        Causal,
        Full,
        Grouped,
        Window,
        SoftCap,
        Alibi,
        Documents,
        RelativeBias,
        BlockSparse(50),
        BlockSparse(75),
        BlockSparse(90),
        Threshold(50),
        Threshold(75),
        Threshold(90),
    ];

    fn name(self) -> String {
        let name = match self {
            Causal => "causal attention",
            Full => "attention",
            Grouped => "grouped attention",
            Window => "window attention",
            SoftCap => "soft-cap attention",
            Alibi => "alibi attention",
            Documents => "document attention",
            RelativeBias => "relative-bias attention",
            BlockSparse(percent) => return format!("block-sparse attention, {percent} % skipped"),
            Threshold(percent) => return format!("threshold attention, {percent} % skipped"),
        };
        name.to_owned()
    }

    fn attention(self) -> Attention {
        match self {
            Full | BlockSparse(_) => Attention::FULL,
            Threshold(_) => Attention { threshold: Some(THRESHOLD), ..Attention::FULL },
            _ => Attention::CAUSAL,
        }
    }

    /// Whether it is measured so.
    fn has(self, part: AttentionPart) -> bool {
        part == Forward || !matches!(self, Threshold(_))
    }

    /// The percentage of tiles in its name, and tiles along a side of a head's scores.
    fn skipped(self, t: usize) -> Option<(u8, usize)> {
        match self {
            BlockSparse(percent) => Some((percent, t.div_ceil(tile(t)))),
            Threshold(percent) => Some((percent, t.div_ceil(threshold::SIDE))),
            _ => None,
        }
    }

    /// Why a length does not have it; `None` where it does.
    fn too_short(self, t: usize) -> Option<String> {
        self.skipped(t).and_then(shares::too_few)
    }

    /// The share of the graph's FLOPs that is left without hidden pairs. A tile below the threshold
    /// costs its scores, which are half of the products.
    fn computed(self, [batch, _, t, _]: Sizes, given: &BTreeMap<String, Tensor>) -> f64 {
        let seen = |pairs: usize| pairs as f64 / self.attention().visible_pairs(t, t) as f64;
        let left = self.skipped(t).map_or(1.0, shares::visible);
        match self {
            Window => seen(shares::pairs_of_window(t, t / WINDOWS)),
            Documents => {
                let ids = given["ids"].to_ints();
                seen(ids.chunks(t).map(shares::pairs_of_documents).sum()) / batch as f64
            }
            Threshold(_) => f64::midpoint(1.0, left),
            _ => left,
        }
    }

    /// Whether its score function reads floats. Their gradients have no kernel in f64, and are
    /// expanded though nobody wants them.
    fn reads_floats(self) -> bool {
        matches!(self, Alibi | RelativeBias)
    }

    /// The tensor that its function reads.
    fn captured(self, b: &Builder, dtype: DType, [batch, heads, t, _]: Sizes) -> Option<Expr<'_>> {
        match self {
            Alibi => {
                let slopes = Init::Value(slopes(dtype, heads));
                Some(b.state("slopes", TensorType::new(dtype, [heads]), slopes))
            }
            RelativeBias => {
                let table = Init::Normal { std: 1.0, seed: 1 };
                Some(b.state("table", TensorType::new(dtype, [heads, t]), table))
            }
            Documents => Some(b.input("ids", TensorType::new(DType::I32, [batch, t]))),
            BlockSparse(percent) => {
                let tiles = visible_tiles(percent, [heads, t.div_ceil(tile(t))]);
                Some(b.state("tiles", tiles.ty().clone(), Init::Value(tiles)))
            }
            Causal | Full | Grouped | Window | SoftCap | Threshold(_) => None,
        }
    }

    /// Heads of keys and values.
    fn kv_heads(self, heads: usize) -> usize {
        if self == Grouped { (heads / GROUP).max(1) } else { heads }
    }

    /// Its function, for a length.
    fn function(self, t: usize, captured: &[TensorType]) -> Option<Result<Graph, GraphError>> {
        Some(match self {
            Causal | Full | Grouped | Threshold(_) => return None,
            Window => mask_region(captured, |[_, _, q, k], _| {
                (q - k).compare(Compare::Lt, q.constant((t / WINDOWS) as f64))
            }),
            Documents => mask_region(captured, |[b, _, q, k], captured| {
                let [of_query, of_key] = [q, k].map(|at| captured[0].at(&[b, at]));
                of_query.compare(Compare::Eq, of_key)
            }),
            SoftCap => score_region(DType::F32, captured, |score, _, _| (score / CAP).tanh() * CAP),
            Alibi => score_region(DType::F32, captured, |score, [_, h, q, k], captured| {
                let slope = captured[0].at(&[h]).convert(DType::F32);
                score + slope * (k - q).convert(DType::F32)
            }),
            RelativeBias => score_region(DType::F32, captured, |score, [_, h, q, k], captured| {
                score + captured[0].at(&[h, q - k]).convert(DType::F32)
            }),
            BlockSparse(_) => mask_region(captured, |[_, h, q, k], captured| {
                let side = q.constant(tile(t) as f64);
                captured[0].at(&[h, q / side, k / side])
            }),
        })
    }
}

impl AttentionPart {
    /// The end of a workload's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Forward => "",
            Both => ", forward and backward",
        }
    }

    /// FLOPs over those of the forward: a backward has five products, where the forward has two.
    fn forwards(self) -> f64 {
        match self {
            Forward => 1.0,
            Both => 3.5,
        }
    }
}

/// Slopes of ALiBi: a geometric sequence that ends at 2^-8.
fn slopes(dtype: DType, heads: usize) -> Tensor {
    let slope = |head: usize| (-8.0 * (head + 1) as f64 / heads as f64).exp2();
    Tensor::from_f64(dtype, [heads], &(0..heads).map(slope).collect::<Vec<_>>())
}

/// Queries and keys of a tile of block-sparse attention: fewer if the sequence is short.
fn tile(t: usize) -> usize {
    (t / FEWEST_TILES).clamp(1, TILE)
}

/// Visible tiles `[H, T / tile, T / tile]`, at random. Each row of tiles has the same number, at
/// least one.
fn visible_tiles(percent: u8, [heads, side]: [usize; 2]) -> Tensor {
    let shown = shares::shown(percent, side);
    let row = |row: usize| {
        let drawn: Vec<f64> = philox::uniforms(2, row as u64).take(side).collect();
        let mut columns: Vec<usize> = (0..side).collect();
        columns.sort_by(|&a, &b| drawn[a].total_cmp(&drawn[b]));
        columns.truncate(shown);
        (0..side).map(move |column| i128::from(columns.contains(&column)))
    };
    let tiles: Vec<i128> = (0..heads * side).flat_map(row).collect();
    Tensor::from_ints(DType::Bool, [heads, side, side], &tiles)
}

/// Ids `[B, T]` of the documents in each sample, which follow one another.
fn documents(batch: usize, t: usize) -> Tensor {
    let of_sample = |sample: usize| {
        let starts = philox::uniforms(1, sample as u64).map(|u| (u * t as f64) as usize);
        let starts: Vec<usize> = starts.take(DOCUMENTS - 1).collect();
        (0..t).map(move |at| starts.iter().filter(|&&start| start <= at).count() as i128)
    };
    let ids: Vec<i128> = (0..batch).flat_map(of_sample).collect();
    Tensor::from_ints(DType::I32, [batch, t], &ids)
}

pub(crate) fn graph(
    (variant, part): (AttentionVariant, AttentionPart),
    (dtype, sizes): (DType, Sizes),
) -> Result<Graph, GraphError> {
    let b = Builder::new("attention");
    let [batch, heads, t, d] = sizes;
    let q = b.input("q", TensorType::new(dtype, sizes));
    let of_keys = TensorType::new(dtype, [batch, variant.kv_heads(heads), t, d]);
    let [k, v] = ["k", "v"].map(|name| b.input(name, of_keys.clone()));
    let captured: Vec<Expr<'_>> = variant.captured(&b, dtype, sizes).into_iter().collect();
    let types: Vec<TensorType> = captured.iter().map(|tensor| tensor.ty()).collect();
    let function = variant.function(t, &types).transpose()?;
    let regions = function.into_iter().collect();
    let [y, _] = q.attention_with([k, v], variant.attention(), regions, &captured);
    b.output("y", y);
    let graph = b.finish()?;
    if part == Forward {
        return Ok(graph);
    }
    let inputs: Vec<Value> = graph.inputs()[..3].iter().map(|port| port.value).collect();
    differentiate(&graph, &[graph.outputs()[0].value], &inputs)
}

/// The workload, compared on so many samples of the batch.
fn workload(
    case: (AttentionVariant, AttentionPart),
    (dtype, sizes): (DType, Sizes),
    samples: usize,
) -> Result<Workload, GraphError> {
    let (name, [batch, heads, t, d]) = (format!("{}{}", case.0.name(), case.1.suffix()), sizes);
    let dimensions = [("B", batch), ("H", heads), ("T", t), ("D", d)];
    let whole = graph(case, (dtype, sizes))?;
    // States are the same for every sample.
    let inputs = whole.inputs().len();
    let given = match case.0 {
        Documents => BTreeMap::from([("ids".to_owned(), documents(batch, t))]),
        Threshold(percent) => {
            let tiles = visible_tiles(percent, [heads, t.div_ceil(threshold::SIDE)]);
            let pair = threshold::queries_and_keys(&tiles, dtype, sizes);
            ["q", "k"].map(str::to_owned).into_iter().zip(pair).collect()
        }
        _ => BTreeMap::new(),
    };
    // A GPU has no kernel in f64 that skips tiles, and would store all scores: the host computes
    // that reference.
    let has_probe = !matches!(case.0, Threshold(_));
    let probe = has_probe.then(|| graph(case, (dtype, [1, 2, 128, d]))).transpose()?;
    let computed = case.0.computed(sizes, &given);
    let workload = Workload { given, probe, computed, ..Workload::new(&name, dimensions, whole) };
    workload.with_rows((batch, samples), inputs, |rows| graph(case, (dtype, [rows, heads, t, d])))
}

/// How far the FLOPs of the graph lie above those that papers count, as a share: `4 B H T² D`, half
/// of it where causal, times the forwards. The graph also counts scaling and exponentials, and the
/// whole diagonal.
fn above_convention(
    (variant, part): (AttentionVariant, AttentionPart),
    (workload, [batch, heads, t, d]): (&Workload, Sizes),
) -> f64 {
    let visible = if variant.attention().mask == Mask::Full { 1.0 } else { 0.5 };
    let forward = 4.0 * visible * (batch * heads * d) as f64 * (t as f64).powi(2);
    workload.graph.cost().flops as f64 / (part.forwards() * forward) - 1.0
}

impl Study for AttentionStudy {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn summary(&self) -> &'static str {
        "attention by mask, score function and length, forward, and forward with backward"
    }

    fn quick_seconds(&self) -> u64 {
        30
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let (every, plain) = match context.device().is_accelerator() {
            true => (context.sizes(&ACCELERATOR_QUICK, &ACCELERATOR), &ACCELERATOR_PLAIN[..]),
            false => (context.sizes(&HOST_QUICK, &HOST), &HOST_PLAIN[..]),
        };
        let every = every.iter().map(|&sizes| (sizes, &AttentionVariant::ALL[..]));
        let plain = context.sizes(&[], plain).iter();
        let plain = plain.map(|&sizes| (sizes, &AttentionVariant::PLAIN[..]));
        let mut above = 0.0f64;
        for (sizes, variants) in every.chain(plain) {
            for part in [Forward, Both] {
                let name = format!("attention{} of {sizes:?}", part.suffix());
                if let Some(reason) = context.sampling.over() {
                    note(results, format!("{name}: skipped, {reason}"));
                    continue;
                }
                context.journal.progress.workload(&name);
                match session(context, results, (part, sizes), variants) {
                    Ok(share) => above = above.max(share),
                    Err(error) => note(results, format!("{name}: {error}")),
                }
            }
        }
        if above > 0.0 {
            let text = format!(
                "FLOPs are those of the graph, at most {:.1} % above the 4 B H T^2 D of papers \
                 (half of it where causal; 2.5 times it backward); pairs that a mask function \
                 hides do not count, and tiles below the threshold count their scores alone",
                100.0 * above
            );
            note(results, text);
        }
    }
}

fn note(results: &mut Results, text: String) {
    results.notes.push(Note { study: AttentionStudy.name().to_owned(), text });
}

/// Samples whose reference fits in the host's memory, of so many bytes; none where one does not.
fn samples(
    (variant, part): (AttentionVariant, AttentionPart),
    [_, heads, t, _]: Sizes,
    host_bytes: u64,
) -> usize {
    let scores_bytes = STORED * (DType::F64.bits() / 8 * heads * t * t) as u64;
    let fitting = (host_bytes / scores_bytes).min(SAMPLES as u64) as usize;
    if part == Both && variant.reads_floats() { fitting } else { SAMPLES }
}

/// Measures these variants together, [`AttentionVariant::PLAIN`] first. A threshold is for
/// inference: its gradient stores all scores. Returns how far FLOPs lie above the convention, at
/// most.
fn session(
    context: &Context<'_>,
    results: &mut Results,
    (part, sizes): (AttentionPart, Sizes),
    variants: &[AttentionVariant],
) -> Result<f64, GraphError> {
    let device = context.device();
    let dtype = if device.is_accelerator() { DType::BF16 } else { DType::F32 };
    let host_bytes = context.reference.description().memory_bytes;
    let (mut workloads, mut measured, mut above) = (Vec::new(), Vec::new(), 0.0f64);
    for &variant in variants.iter().filter(|variant| variant.has(part)) {
        let case = (variant, part);
        if let Some(reason) = variant.too_short(sizes[2]) {
            let name = format!("{}{}", variant.name(), part.suffix());
            note(results, format!("{name} of {sizes:?}: left out, because {reason}"));
            continue;
        }
        let count = samples(case, sizes, host_bytes);
        if count == 0 {
            let host = digits::bytes(host_bytes);
            let text = format!(
                "{}{} of {sizes:?}: left out, because its reference would store all scores in \
                 f64, and this host has {host}; run it on a host with more memory",
                variant.name(),
                part.suffix()
            );
            note(results, text);
            continue;
        }
        let workload = workload(case, (dtype, sizes), count)?;
        above = above.max(above_convention(case, (&workload, sizes)));
        workloads.push(workload);
        measured.push(variant);
    }
    let entry = |workload| Entry { dtype, ..Entry::plain(workload, device, Mode::Compile) };
    let entries: Vec<Entry<'_>> = workloads.iter().map(entry).collect();
    // A reference takes longer than the calls. Another framework has its kernels of functions only
    // compiled, and its back ends of plain attention by name.
    let context = &context.with_one_seed().with_peer_modes(&["compile"]);
    let mut records = measure(context, AttentionStudy.name(), &entries, &mut []);
    let is_measured = !records.is_empty();
    for (of, variant) in measured.into_iter().enumerate().skip(1) {
        relate(&mut records, of, 0, "time_over_causal");
        if matches!(variant, BlockSparse(_) | Threshold(_)) {
            // Full attention is the second: it is never left out.
            relate(&mut records, of, 1, "time_over_full");
        }
        let measurement = records.get_mut(of).and_then(|r| r.outcome.measurement_mut());
        if let (Threshold(_), Some(measurement)) = (variant, measurement) {
            let given = &workloads[of].given;
            match threshold::skipped_percent(device.backend, &variant.attention(), given) {
                Ok(skipped) => {
                    measurement.quantities.insert("skipped_percent".to_owned(), skipped);
                }
                Err(error) => note(results, format!("{}: {error}", variant.name())),
            }
        }
    }
    context.add(results, records);
    Ok(if is_measured { above } else { 0.0 })
}

//! AWQ enlarges the weights that large activations read before the weights are rounded. It shrinks
//! the activations as much.
//!
//! The factors are `f_k = (mean |x_k|²)^(α/2)`, scaled so that the geometric mean of the smallest
//! and the largest is 1. The α is chosen from a grid, so that the rounded layer has the least error
//! on the calibration data. Then each group of a row is clipped at a share of its largest weight.
//! That share is chosen the same way, from a grid down to a half. The few clipped weights lose less
//! than the finer step saves the others. The error of a row is `e G eᵀ` with the Gram matrix G of
//! the calibration rows, so that no sample has to be kept. Source: Lin et al., "AWQ",
//! arXiv:2306.00978, with its published program: the grids, the normalisation, the clipping.

use super::held::LayerKind;
use super::layers::{Layer, Skipped, layers};
use super::linear_algebra::forms;
use super::rescale::rescale;
use super::streams::{Moved, NO_MAKER, streams};
use crate::{Evidence, Statistic};
use overdrive_ir::{BlockFormat, Graph, GraphError, Init, Tensor};
use std::collections::BTreeMap;

/// Values of α that are tried.
const STEPS: usize = 20;
/// Rows of a weight that judge an α.
const JUDGES: usize = 32;
/// Rows that are clipped together: the products of their errors are one of matrices.
const TOGETHER: usize = 64;
/// Shares of the largest weight that are tried as the end of a group, in twentieths.
const SHARES: std::ops::RangeInclusive<u32> = 10..=20;

/// The graph with rescaled linear layers, to be rounded to `format`. Layers without evidence, or
/// that cannot take the format, stay.
///
/// # Errors
/// When the graph is damaged.
pub fn awq(graph: &Graph, evidence: &Evidence, format: &BlockFormat) -> Result<Graph, GraphError> {
    let (found, _) = layers(graph)?;
    let mut factors = BTreeMap::new();
    for layer in found.iter().filter(|layer| layer.kind == LayerKind::Linear) {
        let (Some(gram), Ok(counts)) =
            (evidence.get(&layer.site, Statistic::Gram), format.block.counts(layer.shape))
        else {
            continue;
        };
        let judged = (judges(&layer.rows(graph), layer.shape), layer.shape[1] / counts[1].max(1));
        factors.insert(layer.name.clone(), best(&[judged], gram, format));
    }
    let scaled = rescale(graph, &factors)?;
    let mut clipped: BTreeMap<&str, Tensor> = BTreeMap::new();
    for layer in &found {
        let (Some(factors), Some(gram)) =
            (factors.get(&layer.name), evidence.get(&layer.site, Statistic::Gram))
        else {
            continue;
        };
        let mut rows = layer.rows(&scaled);
        let groups = format.block.counts(layer.shape).map_or(1, |counts| counts[1]);
        clip(&mut rows, gram, factors, (format, layer.shape[1] / groups.max(1)));
        let ty = scaled.ty(layer.state(&scaled).value);
        let tensor = Tensor::from_f64(ty.dtype, ty.shape.clone(), &layer.stored(&rows));
        clipped.insert(&layer.weight, tensor);
    }
    let inits: BTreeMap<&str, &Init> =
        scaled.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
    Ok(scaled.clone().with_initial_values(|name, _| match clipped.get(name) {
        Some(tensor) => Init::Value(tensor.clone()),
        None => inits[name].clone(),
    }))
}

/// Like [`awq`], for these layers where no node may be added. Factors go into the norm or the gated
/// layer that makes the inputs. The layers that read these inputs share the factors. Layers whose
/// inputs nothing can make smaller are only clipped, and listed.
///
/// # Errors
/// When the graph is damaged.
pub fn awq_folded(
    graph: &Graph,
    evidence: &Evidence,
    format: &BlockFormat,
    among: &dyn Fn(&Layer) -> bool,
) -> Result<(Graph, Vec<Skipped>), GraphError> {
    let (mut found, _) = layers(graph)?;
    found.retain(among);
    let (mut moved, mut left) = (Moved::new(graph), Vec::new());
    for stream in streams(graph, &found) {
        let first = stream.layers[0];
        let k = first.shape[1];
        let counts = format.block.counts([1, k]);
        let named = |reason: &str| {
            let layer =
                |layer: &&Layer| Skipped { layer: layer.name.clone(), reason: reason.to_owned() };
            stream.layers.iter().map(layer).collect::<Vec<_>>()
        };
        let (Some(gram), Ok(counts)) = (evidence.get(&first.site, Statistic::Gram), counts) else {
            left.extend(named(
                "its inputs do not divide into the groups of the format: rounded as it was",
            ));
            continue;
        };
        let group = k / counts[1].max(1);
        let factors = match &stream.maker {
            Some(maker) => {
                let of_layer = |layer: &&Layer| (judges(&moved.rows(layer), layer.shape), group);
                let judged: Vec<_> = stream.layers.iter().map(of_layer).collect();
                let factors = best(&judged, gram, format);
                moved.fold(&stream, maker, &factors);
                factors
            }
            None => {
                left.extend(named(NO_MAKER));
                vec![1.0; k]
            }
        };
        for &layer in &stream.layers {
            let mut rows = moved.rows(layer);
            clip(&mut rows, gram, &factors, (format, group));
            moved.set(layer, rows);
        }
    }
    Ok((moved.finish(), left))
}

/// Some rows of a weight, which judge factors.
fn judges(rows: &[f64], [n, k]: [usize; 2]) -> Vec<f64> {
    (0..n)
        .step_by((n / JUDGES).max(1))
        .flat_map(|row| rows[row * k..(row + 1) * k].to_vec())
        .collect()
}

/// The factors by which rows in groups, of layers that see the same, err least.
fn best(judged: &[(Vec<f64>, usize)], gram: &[f64], format: &BlockFormat) -> Vec<f64> {
    let k = gram.len().isqrt();
    let tried = (0..STEPS).map(|step| {
        let candidate = candidate(gram, k, step as f64 / STEPS as f64);
        let losses =
            judged.iter().map(|(rows, group)| loss(rows, gram, &candidate, (format, *group)));
        (losses.sum::<f64>(), candidate)
    });
    tried.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are steps").1
}

/// Clips each group of scaled rows where the error of the layer is least on the group's inputs.
fn clip(rows: &mut [f64], gram: &[f64], factors: &[f64], (format, group): (&BlockFormat, usize)) {
    let k = factors.len();
    for first in (0..k).step_by(group.max(1)) {
        let columns = first..(first + group).min(k);
        let seen = |i: usize, j: usize| gram[i * k + j] / (factors[i] * factors[j]);
        let seen: Vec<f64> =
            columns.clone().flat_map(|i| columns.clone().map(move |j| seen(i, j))).collect();
        for together in rows.chunks_mut(TOGETHER * k) {
            let (mut tried, mut errors) = (Vec::new(), Vec::new());
            for row in together.chunks(k) {
                let part = &row[columns.clone()];
                let largest =
                    part.iter().fold([0.0f64; 2], |[low, high], &x| [low.min(x), high.max(x)]);
                for share in SHARES.rev() {
                    let ends = largest.map(|end| end * f64::from(share) / f64::from(*SHARES.end()));
                    let grid = format.grid(ends, 1.0);
                    let clipped = |w: &f64| w.clamp(ends[0], ends[1]);
                    let error = |w: &f64| w - format.value(format.code(clipped(w), grid), grid);
                    errors.extend(part.iter().map(error));
                    tried.push(ends);
                }
            }
            let found = forms(&errors, &seen);
            let shares = SHARES.count();
            let tried = tried.chunks(shares).zip(found.chunks(shares));
            for (row, (tried, found)) in together.chunks_mut(k).zip(tried) {
                let of = tried.iter().zip(found).min_by(|a, b| a.1.total_cmp(b.1));
                let ([low, high], _) = of.expect("there are shares");
                row[columns.clone()].iter_mut().for_each(|w| *w = w.clamp(*low, *high));
            }
        }
    }
}

fn candidate(gram: &[f64], k: usize, alpha: f64) -> Vec<f64> {
    let factors: Vec<f64> = (0..k).map(|i| gram[i * k + i].sqrt().max(1e-8).powf(alpha)).collect();
    let (low, high) =
        factors.iter().fold((f64::INFINITY, 0.0f64), |(l, h), f| (l.min(*f), h.max(*f)));
    let norm = (low * high).sqrt();
    factors.into_iter().map(|f| f / norm).collect()
}

/// The error of the layer on what was seen, summed over the sample's rows.
fn loss(
    sample: &[f64],
    gram: &[f64],
    factors: &[f64],
    (format, group): (&BlockFormat, usize),
) -> f64 {
    let k = factors.len();
    let mut errors = vec![0.0; sample.len()];
    for (row, error) in sample.chunks(k.max(1)).zip(errors.chunks_mut(k.max(1))) {
        let scaled: Vec<f64> = row.iter().zip(factors).map(|(w, f)| w * f).collect();
        for (at, part) in scaled.chunks(group.max(1)).enumerate() {
            let ends = part.iter().fold([0.0f64; 2], |[low, high], &x| [low.min(x), high.max(x)]);
            let grid = format.grid(ends, 1.0);
            for (i, w) in part.iter().enumerate() {
                let column = at * group + i;
                error[column] = (w - format.value(format.code(*w, grid), grid)) / factors[column];
            }
        }
    }
    forms(&errors, gram).iter().sum()
}

//! AWQ: enlarges the weights that large activations read before they are rounded, and shrinks the activations as much.
//!
//! `f_k = (mean |x_k|²)^(α/2)`, normalised to a geometric mean of the ends of 1, with the α of a grid whose rounded layer
//! errs least on what was seen. The error of a row is `e G eᵀ` with the Gram matrix G of the calibration rows, so that no
//! sample has to be kept. Source: Lin et al., "AWQ", arXiv:2306.00978: the grid of 20, the normalisation.

use super::layers::{LayerKind, layers};
use super::rescale::rescale;
use crate::{Evidence, Statistic};
use overdrive_ir::{BlockFormat, Graph, GraphError};
use std::collections::BTreeMap;

/// Values of α that are tried.
const STEPS: usize = 20;
/// Rows of a weight that judge an α.
const JUDGES: usize = 32;

/// The graph with rescaled linear layers, to be rounded to `format`. Layers without evidence, or that cannot take the
/// format, stay.
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
        let [n, k] = layer.shape;
        let rows = layer.rows(graph);
        let picked =
            (0..n).step_by((n / JUDGES).max(1)).flat_map(|row| rows[row * k..(row + 1) * k].to_vec());
        let sample: Vec<f64> = picked.collect();
        let group = k / counts[1].max(1);
        let tried = (0..STEPS).map(|step| {
            let candidate = candidate(gram, k, step as f64 / STEPS as f64);
            (loss(&sample, gram, &candidate, (format, group)), candidate)
        });
        let best = tried.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are steps");
        factors.insert(layer.name.clone(), best.1);
    }
    rescale(graph, &factors)
}

fn candidate(gram: &[f64], k: usize, alpha: f64) -> Vec<f64> {
    let factors: Vec<f64> = (0..k).map(|i| gram[i * k + i].sqrt().max(1e-8).powf(alpha)).collect();
    let (low, high) = factors.iter().fold((f64::INFINITY, 0.0f64), |(l, h), f| (l.min(*f), h.max(*f)));
    let norm = (low * high).sqrt();
    factors.into_iter().map(|f| f / norm).collect()
}

/// The error of the layer on what was seen, summed over the sample's rows.
fn loss(sample: &[f64], gram: &[f64], factors: &[f64], (format, group): (&BlockFormat, usize)) -> f64 {
    let k = factors.len();
    let mut total = 0.0;
    for row in sample.chunks(k.max(1)) {
        let scaled: Vec<f64> = row.iter().zip(factors).map(|(w, f)| w * f).collect();
        let mut error = vec![0.0; k];
        for (at, part) in scaled.chunks(group.max(1)).enumerate() {
            let ends = part.iter().fold([0.0f64; 2], |[low, high], &x| [low.min(x), high.max(x)]);
            let grid = format.grid(ends, 1.0);
            for (i, w) in part.iter().enumerate() {
                let column = at * group + i;
                error[column] = (w - format.value(format.code(*w, grid), grid)) / factors[column];
            }
        }
        let through = |i: usize| gram[i * k..(i + 1) * k].iter().zip(&error).map(|(g, e)| g * e).sum::<f64>();
        total += (0..k).map(|i| error[i] * through(i)).sum::<f64>();
    }
    total
}

//! `sparsify` prunes weights to 2:4: of four consecutive inputs of an output, two weights stay.
//!
//! The pattern that sparse tensor cores take. The graph keeps its types; zeros are values, which
//! `quantize` may round afterwards and [`compress`] stores no more. The method chooses the two that
//! are kept; each method has a file. Invariant: a layer that is not pruned is listed with the
//! reason.

mod compress;
mod group;
mod magnitude;
mod sparse_gpt;
mod wanda;

pub use compress::compress;

use crate::{Evidence, Layer, LayerKind, Skipped, Statistic, layers};
use group::GROUP;
use overdrive_ir::{Graph, GraphError, Init, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the weights that stay are chosen.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pruning {
    /// The largest.
    Magnitude,
    /// The largest by the size of their input.
    Wanda,
    /// Column by column, with the rest making up for the error.
    SparseGpt,
}

impl Pruning {
    /// The statistics that a calibration run must gather for it.
    pub fn statistics(self) -> &'static [Statistic] {
        match self {
            Pruning::Magnitude => &[],
            Pruning::Wanda | Pruning::SparseGpt => &[Statistic::Gram],
        }
    }
}

/// A pruned graph and what was pruned.
#[derive(Clone, Debug)]
pub struct Sparsified {
    /// The graph; half of each pruned weight is 0.
    pub graph: Graph,
    /// Layers that were pruned.
    pub layers: Vec<String>,
    /// Layers that were not, and why.
    pub skipped: Vec<Skipped>,
}

/// Prunes every linear layer whose inputs are a multiple of four.
///
/// # Errors
/// When a weight is not finite, or the evidence lacks what the method needs.
pub fn sparsify(
    graph: &Graph,
    pruning: Pruning,
    evidence: &Evidence,
) -> Result<Sparsified, GraphError> {
    let (found, mut skipped) = layers(graph)?;
    let mut pruned = BTreeMap::new();
    let mut names = Vec::new();
    for layer in found {
        let reason = match (layer.kind, layer.shape[1] % GROUP) {
            (LayerKind::Convolution, _) => {
                Some("not pruned: only linear layers have a 2:4 product".to_owned())
            }
            (_, 0) => None,
            (_, _) => {
                Some(format!("not pruned: {} inputs are no multiple of {GROUP}", layer.shape[1]))
            }
        };
        if let Some(reason) = reason {
            skipped.push(Skipped { layer: layer.name, reason });
            continue;
        }
        let mut rows = layer.rows(graph);
        check(&layer, &rows)?;
        prune(&layer, &mut rows, pruning, evidence)?;
        let ty = graph.ty(layer.state(graph).value);
        let tensor = Tensor::from_f64(ty.dtype, ty.shape.clone(), &layer.stored(&rows));
        pruned.insert(layer.weight, tensor);
        names.push(layer.name);
    }
    let inits: BTreeMap<&str, &Init> =
        graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
    let sparse = graph.clone().with_initial_values(|name, _| match pruned.get(name) {
        Some(tensor) => Init::Value(tensor.clone()),
        None => inits[name].clone(),
    });
    Ok(Sparsified { graph: sparse, layers: names, skipped })
}

fn error(layer: &Layer, expected: String, found: String, remedy: &str) -> GraphError {
    GraphError {
        op: "sparsify".into(),
        scope: layer.weight.clone(),
        expected,
        found,
        remedy: remedy.into(),
    }
}

fn check(layer: &Layer, rows: &[f64]) -> Result<(), GraphError> {
    match rows.iter().find(|w| !w.is_finite()) {
        None => Ok(()),
        Some(w) => Err(error(layer, "finite weights".into(), w.to_string(), "mend the weights")),
    }
}

fn prune(
    layer: &Layer,
    rows: &mut [f64],
    pruning: Pruning,
    evidence: &Evidence,
) -> Result<(), GraphError> {
    let k = layer.shape[1];
    let gram = || {
        evidence.get(&layer.site, Statistic::Gram).ok_or_else(|| {
            let expected = format!("evidence `gram` of {}", layer.site);
            error(layer, expected, "none".into(), "calibrate this very graph on data first")
        })
    };
    match pruning {
        Pruning::Magnitude => magnitude::prune(rows),
        Pruning::Wanda => wanda::prune(rows, k, gram()?),
        Pruning::SparseGpt => sparse_gpt::prune(rows, k, gram()?),
    }
    Ok(())
}

//! A model that standardises its input itself: `x <- (x - mean) / deviation`, feature by feature,
//! and undoes the same of a quantity that it gives: `y <- y deviation + mean`.
//!
//! The statistics are constants of the graph. Every command, and every engine that the model is
//! exported to, thus takes and gives numbers as they are in the file. Invariant: only the split
//! that is given is looked at.

use crate::TrainError;
use crate::data::{Batch, Split, Target};
use overdrive_ir::{Builder, Expr, Graph, Tensor};

/// The scope of the nodes.
const SCOPE: &str = "standardize";

/// Samples that are read at a time.
const CHUNK: u64 = 1 << 10;

/// Whether a model standardises its input.
pub(crate) fn is_standardized(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| &*node.scope == SCOPE)
}

/// `graph` (input `x` `[batch, ...]`) with its input standardised by the statistics of these
/// samples, and its output `y` scaled back where they have quantities.
pub(crate) fn standardized(graph: &Graph, split: &dyn Split) -> Result<Graph, TrainError> {
    let x =
        graph.inputs().iter().find(|port| port.name == "x").expect("a model of samples has `x`");
    let features = graph.ty(x.value).shape.0[1..].to_vec();
    let [mean, factor] = statistics(split, &|batch| &batch.x)?;
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    b.declare(graph).into_iter().for_each(|(value, new)| map[value.0 as usize] = Some(new));
    {
        let _scope = b.scope(SCOPE);
        let raw = map[x.value.0 as usize].expect("inputs were declared");
        let axes: Vec<usize> = (1..raw.rank()).collect();
        let shape = overdrive_ir::Shape(features);
        let spread = |values: &[f64]| {
            let values = Tensor::from_f64(raw.dtype(), shape.clone(), values);
            b.constant(values).broadcast_in(&raw.shape(), &axes)
        };
        map[x.value.0 as usize] = Some((raw - spread(&mean)) * spread(&factor));
    }
    for node in graph.nodes() {
        let known =
            |value: &overdrive_ir::Value| map[value.0 as usize].expect("operands come first");
        let results = b.again(node, &node.operands.iter().map(known).collect::<Vec<_>>());
        node.results.iter().zip(results).for_each(|(v, new)| map[v.0 as usize] = Some(new));
    }
    let y = graph.outputs().iter().find(|port| port.name == "y").map(|port| port.value.0 as usize);
    if let (Some(y), Target::Quantity) = (y, split.target()) {
        let _scope = b.scope(SCOPE);
        let [mean, factor] = statistics(split, &|batch| &batch.labels)?;
        map[y] = map[y].map(|y| y * (1.0 / factor[0]) + mean[0]);
    }
    b.conclude(graph, |v| map[v.0 as usize].expect("every value was copied"));
    Ok(b.finish()?)
}

/// Numbers of a batch of samples, as many of each sample.
type Numbers<'f> = &'f dyn for<'b> Fn(&'b Batch) -> &'b Tensor;

/// Mean and 1 / deviation of each number of a sample; 1 of one that is the same everywhere.
fn statistics(split: &dyn Split, numbers: Numbers<'_>) -> Result<[Vec<f64>; 2], TrainError> {
    let mean = mean_of((split, numbers), &|_, x| x)?;
    let variance = mean_of((split, numbers), &|feature, x| (x - mean[feature]).powi(2))?;
    let factor = variance.iter().map(|v| if *v > 0.0 { 1.0 / v.sqrt() } else { 1.0 }).collect();
    Ok([mean, factor])
}

/// The mean over samples of a function of each number.
fn mean_of(
    (split, numbers): (&dyn Split, Numbers<'_>),
    of: &dyn Fn(usize, f64) -> f64,
) -> Result<Vec<f64>, TrainError> {
    let mut sums: Vec<f64> = Vec::new();
    let samples: Vec<u64> = (0..split.len()).collect();
    for part in samples.chunks(CHUNK as usize) {
        let values = numbers(&split.batch(part)?).to_f64();
        let width = values.len() / part.len();
        sums.resize(width, 0.0);
        for sample in values.chunks(width) {
            let terms = sample.iter().enumerate().map(|(feature, x)| of(feature, *x));
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
    }
    Ok(sums.into_iter().map(|sum| sum / split.len() as f64).collect())
}

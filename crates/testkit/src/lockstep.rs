//! All ranks of a sharded graph in lockstep, against the whole graph.

use crate::{Tolerance, compare};
use overdrive_ir::eval::{States, eval, eval_ranks};
use overdrive_ir::{Array, DType, Graph, Mesh, Sharding, StateDecl, Value, verify};
use overdrive_passes::{ContextExchange, Sharded, shard_with};
use std::collections::BTreeMap;

/// Shards a graph, and runs all ranks in f64: each has its part of the whole graph's results.
///
/// # Errors
/// The values that a rank has instead, or why the graph cannot be sharded.
pub fn lockstep(
    graph: &Graph,
    mesh: &Mesh,
    shardings: &BTreeMap<Value, Sharding>,
    inputs: &[Array],
) -> Result<Sharded, String> {
    lockstep_with(None, graph, mesh, shardings, inputs)
}

/// The same with an exchange of attention whose sequence is split.
///
/// # Errors
/// As [`lockstep`].
pub fn lockstep_with(
    exchange: Option<ContextExchange>,
    graph: &Graph,
    mesh: &Mesh,
    shardings: &BTreeMap<Value, Sharding>,
    inputs: &[Array],
) -> Result<Sharded, String> {
    let sharded = shard_with(graph, mesh, shardings, exchange)
        .map_err(|e| format!("{e}: {mesh}\n{graph}"))?;
    let wrong = |what: &dyn std::fmt::Display| {
        format!("{what}: {mesh}, {shardings:?}\n{graph}\n{}", sharded.graph)
    };
    verify(&sharded.graph).map_err(|e| wrong(&e))?;
    let mut states = States::new();
    let outputs = eval(graph, inputs, &mut states);
    let part = |whole: &Array, sharding: &Sharding, rank: usize| {
        Array::from(&sharded.part(&whole.to_tensor(), sharding, rank))
    };
    let ranks = 0..mesh.ranks();
    let of_rank = |rank: usize| -> Vec<Array> {
        inputs.iter().zip(&sharded.inputs).map(|(x, s)| part(x, s, rank)).collect()
    };
    let given: Vec<Vec<Array>> = ranks.clone().map(of_rank).collect();
    let initial = |rank: usize| -> States {
        let declared = graph.states().iter().zip(&sharded.states);
        let state = |(state, sharding): (&StateDecl, &Sharding)| {
            let whole = Array::from(&state.init.tensor(&state.name, graph.ty(state.value)));
            (state.name.clone(), part(&whole, sharding, rank))
        };
        declared.map(state).collect()
    };
    let mut rank_states: Vec<States> = ranks.clone().map(initial).collect();
    let found = eval_ranks(&sharded.graph, mesh, &given, &mut rank_states);
    let close = |expected: &Array, found: &Array, name: &str| {
        let magnitude = expected.to_f64().into_iter().fold(1.0, |max: f64, x| max.max(x.abs()));
        let tolerance = Tolerance::new(DType::F64, 1 << 10, magnitude);
        compare(expected, found, tolerance).map_err(|e| wrong(&format!("{name}: {e}")))
    };
    for rank in ranks {
        for (i, port) in graph.outputs().iter().enumerate() {
            let expected = part(&outputs[i], &sharded.outputs[i], rank);
            close(&expected, &found[rank][i], &port.name)?;
        }
        for (state, sharding) in graph.states().iter().zip(&sharded.states) {
            if state.update.is_some() {
                let expected = part(&states[&state.name], sharding, rank);
                close(&expected, &rank_states[rank][&state.name], &state.name)?;
            }
        }
    }
    Ok(sharded)
}

/// How many collectives of each name a graph holds.
pub fn collectives(graph: &Graph) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in graph.nodes() {
        if let Some(prim) = node.op.prim().filter(|prim| prim.channel().is_some()) {
            *counts.entry(prim.name()).or_insert(0) += 1;
        }
    }
    counts
}

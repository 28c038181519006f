//! `compress_gradients`: sums of gradients over the ranks of an axis, in fewer bytes on the wire.
//!
//! It runs on a training step after `shard`. A sum along the axis that splits batches (`all_reduce`
//! or `reduce_scatter`) is one of gradients, or a small one of the loss and its statistics. Each of
//! at least [`LEAST`] elements becomes other collectives; a scheme has a file, with its formula and
//! its source. Sums along other axes, or along several, stay.
//!
//! Top-k and PowerSGD send a part of a gradient and keep the rest for the next step (error
//! feedback: Karimireddy et al., arXiv:1901.09847). That rest is a state
//! `compression.NUMBER.error`, which differs from rank to rank.
//!
//! Sums stand in the graph where the optimizer needs them, after the whole backward. The first
//! exchange of each moves behind its gradient, with the work on what it sends. So it hides behind
//! the rest of the backward, and the gradient itself is kept no longer.
//!
//! Invariants: all ranks get the same bits. A NaN or an infinity in a gradient of any rank is a NaN
//! or an infinity in the result of all ranks. It is in no state. Every sum that stays is in the
//! notes.

mod first_hop;
mod power_sgd;
mod scheme;
mod top_k;
mod two_hop;
mod wire;

pub use scheme::{BadCompression, Compression};

use crate::Sharded;
use overdrive_ir::plan::Note;
use overdrive_ir::{Axis, DType, Graph, GraphError, Node, Prim, Reducer, Value};
use std::collections::{BTreeMap, BTreeSet};
use wire::Wire;

/// Elements below which the fixed time of a collective matters, and not its bytes.
const LEAST: usize = 4096;

/// Compresses the sums of gradients along `axis`. New states stand after those of `sharded`, with
/// their shardings.
///
/// # Errors
/// When the graph is ill-formed.
pub fn compress_gradients(
    sharded: Sharded,
    axis: &Axis,
    scheme: Compression,
) -> Result<Sharded, GraphError> {
    let Sharded { graph, mesh, inputs, outputs, mut states, mut notes } = sharded;
    let mut wire = Wire::new(&graph, &mesh, axis);
    let first_channel = wire.next_channel();
    let mut gradients = BTreeSet::new();
    let mut numbers = BTreeMap::new();
    for (number, sum) in sums(&graph, &wire).into_iter().enumerate() {
        match declined(scheme, &wire, &sum.sizes) {
            None => {
                numbers.insert(sum.channel, number);
            }
            Some(reason) => {
                let what = format!("compression of {:?}", sum.sizes);
                notes.push(Note::Declined { what, scope: sum.scope, reason });
            }
        }
    }
    let graph = graph.rewrite(&mut |_, node, operands| {
        let number = *numbers.get(&node.op.prim()?.channel()?.id)?;
        let (x, scattered) = (operands[0], scattered(node));
        gradients.insert(x.value());
        let sum = match scheme {
            Compression::F32 => two_hop::sum(&mut wire, DType::F32, (x, scattered)),
            Compression::Bf16 => two_hop::sum(&mut wire, DType::BF16, (x, scattered)),
            Compression::Int8 => two_hop::sum(&mut wire, DType::I8, (x, scattered)),
            Compression::Fp8 => two_hop::sum(&mut wire, DType::F8E4M3, (x, scattered)),
            Compression::TopK { share } => {
                let sum = top_k::sum(&mut wire, (number, x), share);
                wire.own_part(sum, scattered)
            }
            Compression::PowerSgd { rank } => {
                let sum = power_sgd::sum(&mut wire, (number, x), rank);
                wire.own_part(sum, scattered)
            }
        };
        Some(vec![sum.convert(x.dtype())])
    })?;
    states.extend(wire.into_states());
    let graph = first_hop::at_gradients(&graph, &gradients, first_channel)?;
    // Gradients of one shape have the same indices.
    let graph = crate::cse(&graph)?;
    Ok(Sharded { graph, mesh, inputs, outputs, states, notes })
}

/// A sum of more than one element over the ranks of the axis.
struct Sum {
    /// The summed value.
    operand: Value,
    sizes: Vec<usize>,
    /// The channel, which names the node.
    channel: u64,
    scope: String,
}

/// The sums along the axis, in the order in which their operands are computed. That order is the
/// same in all graphs of one model. So the graph of a batch that is only added to others numbers a
/// gradient as that of the last batch does. The same number means the same state.
fn sums(graph: &Graph, wire: &Wire<'_>) -> Vec<Sum> {
    let sum = |node: &Node| {
        let channel = node.op.prim()?.channel()?;
        let (operand, is_sum) = (*node.operands.first()?, reducer(node) == Some(Reducer::Sum));
        let ty = graph.ty(operand);
        let is_gradient = is_sum && wire.is_group(&channel.group) && ty.elements() > 1;
        (is_gradient && ty.dtype.is_arithmetic_float()).then(|| Sum {
            operand,
            sizes: ty.sizes(),
            channel: channel.id,
            scope: node.scope.to_string(),
        })
    };
    let mut sums: Vec<Sum> = graph.nodes().iter().filter_map(sum).collect();
    sums.sort_by_key(|sum| sum.operand);
    sums
}

fn reducer(node: &Node) -> Option<Reducer> {
    match node.op.prim()? {
        Prim::AllReduce { reducer, .. } | Prim::ReduceScatter { reducer, .. } => Some(*reducer),
        _ => None,
    }
}

/// The axis along which each rank keeps its part of the sum; `None` if it keeps all.
fn scattered(node: &Node) -> Option<usize> {
    match node.op.prim()? {
        Prim::ReduceScatter { axis, .. } => Some(*axis),
        _ => None,
    }
}

/// Why a sum stays.
fn declined(scheme: Compression, wire: &Wire<'_>, sizes: &[usize]) -> Option<String> {
    let elements: usize = sizes.iter().product();
    // A block for each rank, or padding would be most of the bytes.
    let least = LEAST.max(wire.ranks() * two_hop::BLOCK);
    if elements < least {
        return Some(format!("it has fewer than {least} elements"));
    }
    let Compression::PowerSgd { rank } = scheme else { return None };
    match sizes {
        [] | [_] => Some("it is no matrix".to_owned()),
        [rows, ..] => (rank * (rows + elements / rows) >= elements)
            .then(|| format!("factors of rank {rank} are not smaller")),
    }
}

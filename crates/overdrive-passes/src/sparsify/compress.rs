//! `compress` stores the weights of pruned layers as the two of four that stayed and a mask of
//! their places.
//!
//! A linear layer multiplies by them as they are (`sparse_linear`); codes are put back in their
//! places first (`unpack_24`), once, since nothing changes them. The graph means bit for bit what
//! it meant before. Weights are held output-major, as the ecosystem has them; four-bit codes have
//! no compressed form.

use super::group::{GROUP, KEPT};
use crate::{Quantized, QuantizedLayer, Skipped, dce};
use overdrive_ir::ops::{Linear, QuantizedLinear};
use overdrive_ir::{Builder, DType, Expr, Graph, GraphError, Init, Origin, Tensor, TensorType};
use std::collections::BTreeMap;

/// A weight as it is stored.
struct CompressedWeight {
    /// `[N, K/2]`.
    values: Tensor,
    /// `u8 [N, K/8]`.
    mask: Tensor,
    /// Whether the graph has it as `[K, N]`.
    transposed: bool,
}

/// The model with compressed weights in `pruned` layers, quantized or not. A layer that has no
/// compressed form is left unchanged and listed with the reason.
///
/// # Errors
/// When the graph is damaged.
pub fn compress(mut made: Quantized, pruned: &[String]) -> Result<Quantized, GraphError> {
    let mut stored = BTreeMap::new();
    for (layer, weight, transposed) in weights(&made.graph, pruned) {
        let (name, tensor) = initial(&made.graph, &weight);
        match compressed(&tensor, transposed) {
            Ok(halves) => {
                let [values, mask] = [&halves.values, &halves.mask].map(|t| t.bytes().len() as u64);
                match made.layers.iter_mut().find(|report| report.name == layer) {
                    Some(report) => {
                        report.code_bytes = values;
                        report.scale_bytes += mask;
                    }
                    None => made.layers.push(QuantizedLayer {
                        name: layer,
                        scheme: None,
                        float_bytes: tensor.bytes().len() as u64,
                        code_bytes: values,
                        scale_bytes: mask,
                        weight_error: 0.0,
                    }),
                }
                stored.insert(name, halves);
            }
            Err(reason) => made.skipped.push(Skipped { layer, reason }),
        }
    }
    made.graph = rebuild(&made.graph, &stored)?;
    Ok(made)
}

/// Layer, state and orientation of the weights of pruned layers.
fn weights(graph: &Graph, pruned: &[String]) -> Vec<(String, String, bool)> {
    let mut found = Vec::new();
    for node in graph.nodes() {
        let transposed = node.op.composite::<Linear>().is_some();
        if !transposed && node.op.composite::<QuantizedLinear>().is_none() {
            continue;
        }
        let Origin::State(state) = graph.origin(node.operands[1]) else { continue };
        let name = &graph.states()[state].name;
        let layer = name.rsplit_once('.').map_or(name.as_str(), |(layer, _)| layer);
        if pruned.iter().any(|pruned| pruned == layer) {
            found.push((layer.to_owned(), name.clone(), transposed));
        }
    }
    found
}

fn initial(graph: &Graph, name: &str) -> (String, Tensor) {
    let state =
        graph.states().iter().find(|s| s.name == name).expect("the state was found in this graph");
    (state.name.clone(), state.init.tensor(&state.name, graph.ty(state.value)))
}

/// The halves of a matrix, or why it has none.
fn compressed(tensor: &Tensor, transposed: bool) -> Result<CompressedWeight, String> {
    let (dtype, sizes) = (tensor.ty().dtype, tensor.ty().sizes());
    if dtype.bits() < 8 {
        return Err(format!(
            "two {dtype} codes share a byte: its zeros are stored like other codes"
        ));
    }
    let [n, k] = if transposed { [sizes[1], sizes[0]] } else { [sizes[0], sizes[1]] };
    let numbers = tensor.to_f64();
    let at = |row: usize, column: usize| {
        numbers[if transposed { column * n + row } else { row * k + column }]
    };
    let bytes = k.div_ceil(8);
    let (mut values, mut mask) = (Vec::with_capacity(n * k / 2), vec![0u8; n * bytes]);
    for row in 0..n {
        for first in (0..k).step_by(GROUP) {
            let mut kept: Vec<usize> =
                (first..first + GROUP).filter(|&c| at(row, c) != 0.0).collect();
            if kept.len() > KEPT {
                return Err(format!("{} of four weights are not 0 in row {row}", kept.len()));
            }
            // Groups with more zeros keep the first of them, so that every row has as many values.
            let zeros: Vec<usize> = (first..first + GROUP).filter(|c| !kept.contains(c)).collect();
            kept.extend(&zeros[..KEPT - kept.len()]);
            kept.sort_unstable();
            for column in kept {
                values.push(at(row, column));
                mask[row * bytes + column / 8] |= 1 << (column % 8);
            }
        }
    }
    let mask = Tensor::from_bytes(TensorType::new(DType::U8, [n, bytes]), mask)
        .expect("a byte an element");
    Ok(CompressedWeight { values: Tensor::from_f64(dtype, [n, k / 2], &values), mask, transposed })
}

/// The graph with these states in halves.
fn rebuild(
    graph: &Graph,
    stored: &BTreeMap<String, CompressedWeight>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    let mut halves = BTreeMap::new();
    for port in graph.inputs() {
        map[port.value.0 as usize] = Some(b.input(&port.name, graph.ty(port.value).clone()));
    }
    for state in graph.states() {
        let whole = |tensor: &Tensor, part: &str| {
            let name = format!("{}.{part}", state.name);
            b.state_named(&name, tensor.ty().clone(), Init::Value(tensor.clone()))
        };
        let value = match stored.get(&state.name) {
            Some(CompressedWeight { values, mask, transposed }) => {
                let [values, mask] = [whole(values, "compressed"), whole(mask, "bitmask")];
                halves.insert(state.value, [values, mask]);
                // For whatever else reads it; gone again where nothing does.
                let matrix = values.unpack_24(mask);
                if *transposed { matrix.t() } else { matrix }
            }
            None => b.state_named(&state.name, graph.ty(state.value).clone(), state.init.clone()),
        };
        map[state.value.0 as usize] = Some(value);
    }
    for node in graph.nodes() {
        let operands: Vec<Expr<'_>> = node
            .operands
            .iter()
            .map(|v| map[v.0 as usize].expect("operands precede their node"))
            .collect();
        let of_four = node.op.composite::<Linear>().and_then(|_| halves.get(&node.operands[1]));
        let results = match of_four {
            Some(&[values, mask]) => {
                let _scope = b.scope_path(&node.scope);
                let product = operands[0].sparse_linear(values, mask);
                vec![operands.get(2).map_or(product, |bias| product + *bias)]
            }
            None => b.again(node, &operands),
        };
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    b.conclude(graph, |v| map[v.0 as usize].expect("every value has its new one"));
    dce(&b.finish()?)
}

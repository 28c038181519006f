//! How far a right answer may lie from the f64 reference. It may differ by:
//! - rounding, on the scale of what was summed for each element ([decision
//!   0007](../../../docs/decisions/0007-tolerance-from-what-was-summed.md));
//! - codes that rounding decides ([decision
//!   0005](../../../docs/decisions/0005-tolerance-of-codes.md)).
//!
//! If a graph rounds activations to codes, a value between two codes may go to either, and later
//! layers turn one step into many. The reference itself shows how far that reaches. It is evaluated
//! on twins: inputs and parameters that differ by as much as rounding may. The judged outputs must
//! be as near as those of these twins, element by element and in the mean. Invariant: nothing here
//! looks at the judged outputs, so that no fault of a back end widens its own tolerance.

use overdrive_bench::deviation::Tolerance;
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::{Oracle, Perturbation};
use overdrive_ir::eval::philox;
use overdrive_ir::{DType, Graph, Init, Node, Prim, Tensor, TensorType, Unary};
use overdrive_passes::to_primitives;

/// Times what rounding comes to on the average: room for the extremes of millions of elements.
const EXTREMES: f64 = 8.0;
/// Times the largest difference of a twin's elements.
const OVER_LARGEST: f64 = 2.0;
/// Times the root of the mean square of a twin's differences.
const OVER_RMS: f64 = 1.5;

/// Largest difference allowed between a correct computation of `graph` in `dtype` and the oracle's
/// outputs, derived from those of `seed`.
///
/// Rounding is random: the error of a contraction of length k is about `unit(dtype) + unit(f32)
/// sqrt(k)` of the root of what is summed. How such errors add up from op to op the oracle knows
/// for each element. For a graph that rounds to codes it does not. There, errors of contractions
/// that follow one another add up as their root, on the scale of a typical output.
///
/// # Errors
/// Those of the reference.
pub(crate) fn tolerance(
    dtype: DType,
    graph: &Graph,
    (oracle, seed): (&Oracle<'_>, u64),
) -> Result<Tolerance, Failure> {
    let primitives = to_primitives(graph).ok();
    let products = || {
        let nodes = primitives.iter().flat_map(|g| g.nodes().iter().map(move |node| (g, node)));
        nodes.filter_map(|(g, node)| Some((contracted(g, node)?, g.types(&node.operands))))
    };
    // A model may have products in 16 bits of its own, whatever was asked for.
    let halves = products().flat_map(|(_, operands)| operands).map(|ty| ty.dtype);
    let halves = halves.filter(|found| matches!(found, DType::BF16 | DType::F16));
    let coarser = |one: DType, other: DType| {
        if other.epsilon() > one.epsilon() { other } else { one }
    };
    let dtype = halves.fold(dtype, coarser);
    let lengths: Vec<usize> = products().map(|(length, _)| length).collect();
    let longest = lengths.iter().copied().max().unwrap_or(1) as f64;
    let depth = lengths.len().max(1) as f64;
    let unit = dtype.epsilon() + DType::F32.epsilon() * longest.sqrt();
    if oracle.has_sensitivities() {
        return Ok(Tolerance::of_rounding(unit / 2.0, smallest(dtype)));
    }
    let relative = EXTREMES * unit * depth.sqrt();
    let rounding = relative * typical_size(&oracle.expected(seed)?);
    let elements = Tolerance::of_elements(relative, rounding);
    if !oracle.has_twins() {
        return Ok(elements);
    }
    let spread = oracle.spread(seed, relative)?;
    let atol = elements.atol + OVER_LARGEST * spread.largest;
    Ok(Tolerance { atol, rms: rounding + OVER_RMS * spread.rms, ..elements })
}

/// The smallest number above 0: results below it vanish.
fn smallest(dtype: DType) -> f64 {
    let tiny = |format: overdrive_ir::FloatFormat| {
        2f64.powi(1 - format.bias - format.mantissa_bits as i32)
    };
    dtype.float_format().map_or(f64::from(f32::from_bits(1)), tiny)
}

/// Whether a bound graph rounds what it computes to codes: to whole numbers, or to a format too
/// small to compute in.
pub(crate) fn rounds_to_codes(graph: &Graph) -> bool {
    let is_rounding = |graph: &Graph, node: &Node| match node.op.prim() {
        Some(Prim::Unary { kind }) => matches!(kind, Unary::Round | Unary::Floor | Unary::Ceil),
        Some(Prim::Convert { to, .. }) => {
            let from = graph.ty(node.operands[0]).dtype;
            from.is_arithmetic_float() && !to.is_arithmetic_float() && *to != DType::Bool
        }
        _ => false,
    };
    to_primitives(graph).is_ok_and(|g| g.nodes().iter().any(|node| is_rounding(&g, node)))
}

/// Floats of inputs, each off by at most the perturbation.
pub(crate) fn perturbed(tensors: &[Tensor], by: Perturbation) -> Vec<Tensor> {
    let moved = |(index, tensor): (usize, &Tensor)| moved(tensor, by, &format!("input {index}"));
    tensors.iter().enumerate().map(moved).collect()
}

/// The graph with its floats of states so, those aside that are codes.
pub(crate) fn with_perturbed_states(graph: &Graph, by: Perturbation) -> Graph {
    let mut states = graph.states().iter();
    graph.clone().with_initial_values(|name: &str, ty: &TensorType| {
        let init = &states.next().expect("asked once for each state, in their order").init;
        if ty.dtype.is_arithmetic_float() {
            Init::Value(moved(&init.tensor(name, ty), by, name))
        } else {
            init.clone()
        }
    })
}

fn moved(tensor: &Tensor, by: Perturbation, name: &str) -> Tensor {
    let ty = tensor.ty();
    if !ty.dtype.is_arithmetic_float() {
        return tensor.clone();
    }
    // In f64, since a change of less than half a unit would be lost in the tensor's own format.
    let draws = philox::uniforms(by.twin, philox::site_of(name));
    let values: Vec<f64> = tensor
        .to_f64()
        .iter()
        .zip(draws)
        .map(|(x, u)| x * (1.0 + by.relative * (2.0 * u - 1.0)))
        .collect();
    Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)
}

/// Number of products behind one element of a contraction.
fn contracted(graph: &Graph, node: &Node) -> Option<usize> {
    let sizes = |i: usize| graph.ty(node.operands[i]).sizes();
    match node.op.prim()? {
        Prim::DotGeneral(dot) => {
            Some(dot.contract.iter().map(|&(axis, _)| sizes(0)[axis]).product())
        }
        Prim::Convolution(_) => Some(sizes(1)[1..].iter().product()),
        Prim::Reduce { axes, .. } => Some(axes.iter().map(|&axis| sizes(0)[axis]).product()),
        _ => None,
    }
}

/// Root of the mean square.
fn typical_size(outputs: &[Vec<f64>]) -> f64 {
    let count: usize = outputs.iter().map(Vec::len).sum();
    let sum: f64 = outputs.iter().flatten().map(|x| x * x).sum();
    (sum / count.max(1) as f64).sqrt()
}

#[cfg(test)]
mod rounding;
#[cfg(test)]
mod tests;

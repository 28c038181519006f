//! The f64 reference evaluator: the specification that every back end is checked against.
//!
//! Floats are carried as f64 whatever their declared type, integers exactly; rounding happens only
//! at `convert` and the quantizing ops. Collectives run over simulated ranks, in lockstep. Slow and
//! obvious on purpose.

mod array;
pub mod philox;
pub mod scalar;
mod simulated_ranks;

pub use array::{Array, Data, for_each_index};
pub use simulated_ranks::eval_ranks;

use crate::{Graph, Tensor};
use std::collections::BTreeMap;

/// States by name, as arrays.
pub type States = BTreeMap<String, Array>;

/// Evaluates a bound graph on one rank. `states` supplies states by name (their initial value where
/// absent) and holds the updated ones afterwards. Returns the outputs in order.
pub fn eval(graph: &Graph, inputs: &[Array], states: &mut States) -> Vec<Array> {
    let mut ranks = [std::mem::take(states)];
    let mut outputs = eval_ranks(graph, &crate::Mesh::default(), &[inputs.to_vec()], &mut ranks);
    [*states] = ranks;
    outputs.pop().expect("one rank gives one set of outputs")
}

/// Evaluates on host tensors; outputs are rounded to their declared types.
pub fn eval_tensors(graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let inputs: Vec<Array> = inputs.iter().map(Array::from).collect();
    let outputs = eval(graph, &inputs, &mut States::new());
    outputs.iter().map(Array::to_tensor).collect()
}

/// Evaluates a region: a graph without states.
pub fn eval_region(region: &Graph, args: &[Array]) -> Vec<Array> {
    eval(region, args, &mut States::new())
}

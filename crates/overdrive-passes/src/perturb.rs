//! `perturb` adds the effect of rounding to a graph. Every value that a number format rounds gets a
//! random relative error. The shares are drawn again for each set of seeds.
//!
//! The distance between the results shows how far rounding may carry them, through this graph and
//! for these inputs. An op that holds a contraction stays whole. Its operands and its result are
//! rounded. Values in between (a block of keys, a slice of k) are summed in a wider format. Data
//! movement rounds nothing. Invariant: with a share of 0 the graph means what it meant. Source:
//! Parker, "Monte Carlo arithmetic", UCLA 1997.

use crate::legalize::{primitives, types};
use overdrive_ir::{
    Binary, Builder, DType, Expr, Graph, GraphError, Node, Operation, Prim, Reducer, StateDecl,
    TensorType, Unary, Value, WithoutKernels,
};
use std::cell::Cell;
use std::collections::BTreeSet;

/// The inputs that decide the draws, a `u64` each; they come last. Every draw has its own: layers
/// that are alike then have kernels that are alike, which are compiled once.
const PERTURBATION: &str = "perturbation.seed";

/// States with more elements are weights of contractions, whose other operand is perturbed.
/// Perturbing these states too would cost more than all the rest and show the same.
const LARGE_STATE: usize = 1 << 20;

/// The graph, which computes in f64, with every rounded value off by at most the share `relative`
/// of itself.
///
/// # Errors
/// When the graph is ill-formed.
pub fn perturb(graph: &Graph, relative: f64) -> Result<Graph, GraphError> {
    let flat = expanded(graph)?;
    let b = Builder::new(flat.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; flat.value_count()];
    b.declare(&flat).into_iter().for_each(|(value, expr)| map[value.0 as usize] = Some(expr));
    let noise = Noise { b: &b, relative, draws: Cell::new(0) };
    let noisy = |x| noise.off(x);
    let is_large = |state: &&StateDecl| flat.ty(state.value).elements() > LARGE_STATE;
    let large: BTreeSet<Value> =
        flat.states().iter().filter(is_large).map(|state| state.value).collect();
    let given =
        flat.inputs().iter().map(|port| port.value).chain(flat.states().iter().map(|s| s.value));
    for value in given.filter(|value| !large.contains(value)) {
        map[value.0 as usize] = map[value.0 as usize].map(noisy);
    }
    // Inputs and states in a smaller format are widened where they are read.
    let widens = |node: &Node| {
        let is_widening = matches!(node.op.prim(), Some(Prim::Convert { .. }));
        is_widening
            && flat.ty(node.operands[0]).dtype.is_arithmetic_float()
            && !large.contains(&node.operands[0])
    };
    for node in flat.nodes() {
        let known = |v: &Value| map[v.0 as usize].expect("operands come first");
        let operands: Vec<Expr<'_>> = node.operands.iter().map(known).collect();
        let results = b.again(node, &operands);
        for (value, result) in node.results.iter().zip(results) {
            map[value.0 as usize] =
                Some(if rounds(node) || widens(node) { noisy(result) } else { result });
        }
    }
    b.conclude(&flat, |value| map[value.0 as usize].expect("every value was copied"));
    b.finish()
}

/// Draws of one graph.
struct Noise<'b> {
    b: &'b Builder,
    relative: f64,
    draws: Cell<usize>,
}

impl<'b> Noise<'b> {
    /// `x (1 + relative u)` with u uniform from -1 to 1.
    fn off(&self, x: Expr<'b>) -> Expr<'b> {
        if x.dtype() != DType::F64 {
            return x;
        }
        let draw = self.draws.replace(self.draws.get() + 1);
        let seed = self.b.input(&format!("{PERTURBATION}.{draw}"), TensorType::scalar(DType::U64));
        let bits = self.b.op1(Prim::RandomBits { shape: x.shape(), site: 0 }, &[seed]);
        let share = bits.convert(DType::F64) * (2.0 * self.relative * 2f64.powi(-32))
            + (1.0 - self.relative);
        x * share
    }
}

/// Whether an op's results are new numbers, and not old ones moved or chosen.
fn rounds(node: &Node) -> bool {
    let Operation::Prim(prim) = &node.op else { return true };
    let is_sum = |reducer: &Reducer| matches!(reducer, Reducer::Sum | Reducer::Prod);
    match prim {
        Prim::Unary { kind } => !matches!(
            kind,
            Unary::Neg
                | Unary::Abs
                | Unary::Sign
                | Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Not
        ),
        Prim::Binary { kind } => {
            matches!(
                kind,
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Rem | Binary::Pow
            )
        }
        Prim::Reduce { reducer, .. } | Prim::ReduceWindow { reducer, .. } => is_sum(reducer),
        Prim::Scatter { reducer, .. } => reducer.as_ref().is_some_and(is_sum),
        // A lookup reads a state that is too large to perturb whole.
        Prim::DotGeneral(_) | Prim::Convolution(_) | Prim::Gather { .. } => true,
        _ => false,
    }
}

/// The graph with every composite in primitives, those aside that hold a contraction or regions.
fn expanded(graph: &Graph) -> Result<Graph, GraphError> {
    let target = WithoutKernels::default();
    graph.rewrite(&mut |b, node, operands| {
        if node.op.prim().is_some() || !node.regions.is_empty() {
            return None;
        }
        let flat = primitives(&node.op.expansion(&types(operands), &node.regions), &target);
        let contracts = |node: &Node| {
            matches!(node.op.prim(), Some(Prim::DotGeneral(_) | Prim::Convolution(_)))
                || !node.regions.is_empty()
        };
        if flat.nodes().iter().any(contracts) { None } else { Some(b.inline(&flat, operands)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute_in_f64;
    use overdrive_ir::eval::{eval_tensors, philox};
    use overdrive_ir::{Shape, Tensor};

    /// Rows of very different size times a matrix.
    fn product() -> (Graph, Vec<Tensor>) {
        let b = Builder::new("product");
        let [x, w] = [("x", [4usize, 64]), ("w", [64, 32])]
            .map(|(name, shape)| b.input(name, TensorType::new(DType::F32, shape)));
        b.output("y", x.matmul(w));
        let draw = |seed, rows: usize, columns: usize, size: &dyn Fn(usize) -> f64| {
            let values = philox::normals(seed, 1).take(rows * columns).enumerate();
            let values: Vec<f64> = values.map(|(i, x)| x * size(i / columns)).collect();
            Tensor::from_f64(DType::F32, [rows, columns], &values)
        };
        let rows = draw(1, 4, 64, &|row| 10f64.powi(-2 * row as i32));
        (compute_in_f64(&b.finish().unwrap()).unwrap(), vec![rows, draw(2, 64, 32, &|_| 1.0)])
    }

    fn outputs(graph: &Graph, inputs: &[Tensor], seed: i128) -> Vec<f64> {
        let draws = graph.inputs().len() - inputs.len();
        let seeds = (0..draws as i128)
            .map(|draw| Tensor::from_ints(DType::U64, Shape::default(), &[seed << 32 | draw]));
        let inputs: Vec<Tensor> = inputs.iter().cloned().chain(seeds).collect();
        eval_tensors(graph, &inputs)[0].to_f64()
    }

    #[test]
    fn nothing_changes_at_a_share_of_nothing() {
        let (graph, inputs) = product();
        let same = perturb(&graph, 0.0).unwrap();
        assert_eq!(outputs(&same, &inputs, 1), eval_tensors(&graph, &inputs)[0].to_f64());
    }

    #[test]
    fn each_row_is_off_by_a_share_of_what_was_summed_for_it() {
        let (graph, inputs) = product();
        let exact = eval_tensors(&graph, &inputs)[0].to_f64();
        let noisy = perturb(&graph, 1e-3).unwrap();
        let found = outputs(&noisy, &inputs, 1);
        assert_ne!(found, outputs(&noisy, &inputs, 2), "each seed has draws of its own");
        for (row, (exact, found)) in exact.chunks(32).zip(found.chunks(32)).enumerate() {
            let rms =
                (exact.iter().zip(found).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / 32.0).sqrt();
            // Both operands and the result, each with a standard deviation of 1 / sqrt(3); 64
            // terms.
            let expected = 1e-3 * 8.0 * 10f64.powi(-2 * row as i32);
            assert!((0.6..1.6).contains(&(rms / expected)), "row {row}: {rms:e} for {expected:e}");
        }
    }
}

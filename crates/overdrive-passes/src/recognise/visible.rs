//! Finds the keys that each query sees, if a mask determines that before anything runs.
//!
//! Exporters compute masks from positions: comparisons of index grids, tables of 0 and -∞, products
//! with the lowest number. All of them are evaluated here. A dimension along which nothing changes
//! gets one element, so that a causal mask of any batch is one square. Invariant: a mask that
//! depends on an input has no answer. Neither has one with a number that is not 0 and does not
//! surely hide.

use overdrive_ir::{Array, DType, Graph, Init, Operation, Origin, Prim, Value};
use std::collections::HashMap;

/// Values with more elements than this, dimensions without change left aside, are not computed.
const LIMIT: usize = 1 << 22;

/// The known values of a graph, computed when they are asked for.
pub(super) struct KnownValues<'g> {
    graph: &'g Graph,
    values: HashMap<Value, Option<Spread>>,
}

/// An array in which a dimension of one element may stand for any number of equal ones.
#[derive(Clone)]
struct Spread {
    shape: Vec<usize>,
    array: Array,
}

/// The keys that the queries see.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// All of them.
    Full,
    /// Query i sees key j where `j - Tk <= i - Tq`, and every query sees one.
    Causal,
}

/// The effect of a mask on scores.
#[derive(Copy, Clone)]
pub(super) enum Effect {
    /// Added to them: 0, or so low that the sum hides.
    Added,
    /// Keeps those where it is true.
    Keeps,
    /// Hides those where it is true.
    Hides,
}

impl<'g> KnownValues<'g> {
    pub(super) fn of(graph: &'g Graph) -> Self {
        Self { graph, values: HashMap::new() }
    }

    /// The part of the scores `[..., Tq, Tk]` that all of these masks let through.
    pub(super) fn sight(
        &mut self,
        masks: &[(Effect, Value)],
        [queries, keys]: [usize; 2],
    ) -> Option<Sight> {
        let mut seen = vec![true; queries * keys];
        for &(effect, value) in masks {
            let mask = self.value(value)?;
            let rank = mask.shape.len();
            if rank < 2 || mask.array.shape[..rank - 2].iter().any(|&n| n != 1) {
                return None;
            }
            let square = mask.array.reshaped(&mask.array.shape[rank - 2..]);
            let square = spread(&square, &[queries, keys]);
            let lowest = hides_from(mask.array.dtype);
            for (seen, position) in seen.iter_mut().zip(0..) {
                let number = square.get(position);
                *seen &= match effect {
                    Effect::Keeps => number != 0.0,
                    Effect::Hides => number == 0.0,
                    Effect::Added if number == 0.0 => true,
                    Effect::Added if number <= lowest => false,
                    Effect::Added => return None,
                };
            }
        }
        if seen.iter().all(|&seen| seen) {
            return Some(Sight::Full);
        }
        let causal =
            (0..queries * keys).all(|at| seen[at] == (at % keys + queries <= at / keys + keys));
        (causal && queries <= keys).then_some(Sight::Causal)
    }

    fn value(&mut self, value: Value) -> Option<Spread> {
        if let Some(known) = self.values.get(&value) {
            return known.clone();
        }
        let computed = self.compute(value);
        self.values.insert(value, computed.clone());
        computed
    }

    fn compute(&mut self, value: Value) -> Option<Spread> {
        let graph = self.graph;
        let shape = graph.ty(value).sizes();
        let whole = |array: Array| (array.len() <= LIMIT).then(|| Spread::of(array));
        let (node, operands) = match graph.origin(value) {
            Origin::Input(_) => return None,
            // A table that nothing replaces keeps its first value.
            Origin::State(i) => {
                let state = &graph.states()[i];
                let Init::Value(tensor) = &state.init else { return None };
                let kept = state.update.is_none() && graph.ty(value).elements() <= LIMIT;
                return kept.then(|| Spread::of(Array::from(tensor)));
            }
            Origin::Node(at, _) => {
                let node = graph.node(at);
                let operands: Option<Vec<Spread>> =
                    node.operands.iter().map(|&v| self.value(v)).collect();
                (node, operands?)
            }
        };
        let prim = node.op.prim().filter(|_| node.results.len() == 1 && node.regions.is_empty())?;
        match prim {
            Prim::Constant { value } => {
                (value.ty().elements() <= LIMIT).then(|| Spread::of(Array::from(value)))
            }
            Prim::Iota { dtype, axis, .. } => {
                let mut line = vec![1; shape.len()];
                line[*axis] = shape[*axis];
                whole(rounded(&Array::build(*dtype, &line, |at| at[*axis] as f64)))
                    .map(|line| Spread { shape, array: line.array })
            }
            Prim::Broadcast { dims, .. } => {
                let mut compact = vec![1; shape.len()];
                dims.iter().zip(&operands[0].array.shape).for_each(|(&to, &n)| compact[to] = n);
                Some(Spread { array: operands[0].array.reshaped(&compact), shape })
            }
            Prim::RankIndex { .. } | Prim::RandomBits { .. } => None,
            _ if prim.channel().is_some() => None,
            _ if prim.is_elementwise() => {
                let extent = |axis: usize| operands.iter().map(|x| x.array.shape[axis]).max();
                let common: Vec<usize> = (0..shape.len()).filter_map(extent).collect();
                let fits = common.iter().product::<usize>() <= LIMIT;
                let args =
                    || operands.iter().map(|x| spread(&x.array, &common)).collect::<Vec<_>>();
                let result = fits.then(|| evaluated(&node.op, &args()))?;
                Some(Spread { array: compact(result), shape })
            }
            _ => {
                let fits = |x: &Spread| x.shape.iter().product::<usize>() <= LIMIT;
                let fits = operands.iter().all(fits) && shape.iter().product::<usize>() <= LIMIT;
                let args =
                    || operands.iter().map(|x| spread(&x.array, &x.shape)).collect::<Vec<_>>();
                whole(fits.then(|| evaluated(&node.op, &args()))?)
            }
        }
    }
}

impl Spread {
    fn of(array: Array) -> Self {
        Self { shape: array.shape.clone(), array: compact(array) }
    }
}

fn evaluated(op: &Operation, args: &[Array]) -> Array {
    rounded(&op.eval(args, &[])[0])
}

/// As a back end would hold it.
fn rounded(array: &Array) -> Array {
    Array::from(&array.to_tensor())
}

/// A number this low or lower, added to a score of this type, hides it: its exponential is 0 beside
/// that of any visible score. Masks of -10000, as in older models, do not: a score may outweigh
/// them.
pub(super) fn hides_from(dtype: DType) -> f64 {
    if dtype.is_float() {
        dtype.round(f64::MIN, overdrive_ir::Overflow::Saturate) / 2.0
    } else {
        f64::NEG_INFINITY
    }
}

/// Repeats the dimensions of one element.
fn spread(array: &Array, shape: &[usize]) -> Array {
    if array.shape == shape {
        return array.clone();
    }
    array.rearrange(shape, |position| {
        let (mut rest, mut from, mut stride) = (position, 0, 1);
        for (&n, &kept) in shape.iter().zip(&array.shape).rev() {
            from += if kept == 1 { 0 } else { rest % n * stride };
            rest /= n;
            stride *= kept;
        }
        from
    })
}

/// One element for each dimension along which nothing changes.
fn compact(mut array: Array) -> Array {
    for axis in 0..array.shape.len() {
        let (n, inner) = (array.shape[axis], array.shape[axis + 1..].iter().product::<usize>());
        if n < 2 || array.is_empty() {
            continue;
        }
        let first = |position: usize| position - position / inner % n * inner;
        if (0..array.len())
            .all(|position| array.get(position).to_bits() == array.get(first(position)).to_bits())
        {
            let mut shape = array.shape.clone();
            shape[axis] = 1;
            array =
                array.rearrange(&shape, |position| position / inner * n * inner + position % inner);
        }
    }
    array
}

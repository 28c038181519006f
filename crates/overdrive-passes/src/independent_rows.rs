//! Decides whether the samples of a batch are computed independently, so that some of them can
//! represent all.
//!
//! Follows the rows of the inputs through the primitives of a graph. Invariant: a yes is a proof; a
//! graph that mixes rows where this analysis cannot see that it does not is a no.

use crate::to_primitives;
use overdrive_ir::{Graph, Node, Prim, Shape, Value};

/// The known facts of a value.
#[derive(Clone, Debug, PartialEq)]
enum Follows {
    /// One axis has `rows * inner` entries, row by row; each depends on its own row alone.
    Rows { axis: usize, inner: usize },
    /// The same for every row. By axis, whether all entries along it are equal.
    Nothing { equal: Vec<bool> },
}

use Follows::{Nothing, Rows};

/// Whether row `i` of every output depends on row `i` of the first `inputs` inputs and on nothing
/// else of them. Rows are entries of the first axis, at least two; `graph` is bound.
pub fn independent_rows(graph: &Graph, inputs: usize) -> bool {
    let Ok(flat) = to_primitives(graph) else { return false };
    let Some(rows) =
        flat.inputs().first().and_then(|port| sizes(&flat, port.value).first().copied())
    else {
        return false;
    };
    let updates_nothing = flat.states().iter().all(|state| state.update.is_none());
    rows > 1 && updates_nothing && follow(&flat, inputs, rows).is_some()
}

/// `Some` where the outputs are rows.
fn follow(graph: &Graph, inputs: usize, rows: usize) -> Option<()> {
    let unequal = |value: Value| Nothing { equal: vec![false; sizes(graph, value).len()] };
    let mut known: Vec<Option<Follows>> = vec![None; graph.value_count()];
    for (place, port) in graph.inputs().iter().enumerate() {
        let follows = match place < inputs {
            true if sizes(graph, port.value).first() != Some(&rows) => return None,
            true => Rows { axis: 0, inner: 1 },
            false => unequal(port.value),
        };
        known[port.value.0 as usize] = Some(follows);
    }
    for state in graph.states() {
        known[state.value.0 as usize] = Some(unequal(state.value));
    }
    for node in graph.nodes() {
        let of = |value: &Value| known[value.0 as usize].clone();
        let operands = node.operands.iter().map(of).collect::<Option<Vec<_>>>()?;
        let place = NodeRows { graph, node, rows };
        for (&value, follows) in node.results.iter().zip(place.results(&operands)?) {
            known[value.0 as usize] = Some(follows);
        }
    }
    let is_rows = |value: Value| known[value.0 as usize] == Some(Rows { axis: 0, inner: 1 });
    graph.outputs().iter().all(|port| is_rows(port.value)).then_some(())
}

fn sizes(graph: &Graph, value: Value) -> Vec<usize> {
    graph.ty(value).sizes()
}

/// A node of a graph with so many rows.
struct NodeRows<'g> {
    graph: &'g Graph,
    node: &'g Node,
    rows: usize,
}

impl NodeRows<'_> {
    /// The rows that results follow; `None` where rows meet.
    fn results(&self, operands: &[Follows]) -> Option<Vec<Follows>> {
        let unequal =
            |value: &Value| Nothing { equal: vec![false; sizes(self.graph, *value).len()] };
        if operands.iter().all(|operand| matches!(operand, Nothing { .. })) {
            let one = self.without_rows(operands);
            return Some(match one {
                Some(equal) => vec![Nothing { equal }],
                None => self.node.results.iter().map(unequal).collect(),
            });
        }
        let count = self.node.results.len();
        self.with_rows(operands).map(|follows| vec![follows; count])
    }

    /// The axes along which a result that depends on no row has equal entries, if that is known.
    fn without_rows(&self, operands: &[Follows]) -> Option<Vec<bool>> {
        let equal: Vec<&Vec<bool>> = operands
            .iter()
            .map(|operand| match operand {
                Nothing { equal } => equal,
                Rows { .. } => unreachable!("no operand has rows"),
            })
            .collect();
        match self.node.op.prim()? {
            Prim::Constant { value } => {
                let width = (value.ty().dtype.bits() / 8).max(1);
                let bytes = value.bytes();
                let one = bytes.get(..width)?;
                let splat = value.ty().dtype.bits() >= 8 && bytes.chunks(width).all(|c| c == one);
                Some(vec![splat; value.ty().rank()])
            }
            Prim::Broadcast { shape, dims } => {
                let from = |axis| dims.iter().position(|&dim| dim == axis);
                Some((0..shape.rank()).map(|axis| from(axis).is_none_or(|a| equal[0][a])).collect())
            }
            Prim::Iota { shape, axis, .. } => Some((0..shape.rank()).map(|a| a != *axis).collect()),
            Prim::Transpose { perm } => Some(perm.iter().map(|&axis| equal[0][axis]).collect()),
            Prim::Slice { .. } => Some(equal[0].clone()),
            Prim::Reshape { shape } if equal[0].iter().all(|&e| e) => {
                Some(vec![true; shape.rank()])
            }
            prim if prim.is_elementwise() => {
                let rank = equal[0].len();
                Some((0..rank).map(|axis| equal.iter().all(|e| e[axis])).collect())
            }
            _ => None,
        }
    }

    /// The rows that the result of an op follows, if some operand has rows.
    fn with_rows(&self, operands: &[Follows]) -> Option<Follows> {
        let first = operands.iter().find(|operand| matches!(operand, Rows { .. }))?;
        let &Rows { axis, inner } = first else { return None };
        let at = |axis: usize| Some(Rows { axis, inner });
        let shape = |operand: usize| sizes(self.graph, self.node.operands[operand]);
        let has_rows = |operand: usize| matches!(operands[operand], Rows { .. });
        match self.node.op.prim()? {
            Prim::Broadcast { dims, .. } => at(dims[axis]),
            Prim::Reshape { shape: to } => self.reshaped(&shape(0), to, axis),
            Prim::Transpose { perm } => at(perm.iter().position(|&from| from == axis)?),
            Prim::Slice { start, limit, stride } => {
                let whole = (start[axis], limit[axis], stride[axis]) == (0, shape(0)[axis], 1);
                whole.then_some(Rows { axis, inner })
            }
            Prim::Pad { pads } => {
                let stays = pads[axis] == overdrive_ir::Pad::default() && !has_rows(1);
                stays.then_some(Rows { axis, inner })
            }
            Prim::Concat { axis: joined } if *joined != axis => self.agreeing(operands, first),
            Prim::Reduce { axes, .. } if !axes.contains(&axis) => {
                at(axis - axes.iter().filter(|&&reduced| reduced < axis).count())
            }
            Prim::ReduceWindow { windows, .. } => {
                let w = windows[axis];
                let trivial = (w.size, w.stride, w.pad_low, w.pad_high) == (1, 1, 0, 0);
                trivial.then_some(Rows { axis, inner })
            }
            Prim::Sort { axis: sorted, .. } if *sorted != axis => at(axis),
            Prim::DotGeneral(dot) => {
                let batch =
                    dot.batch.iter().position(|&pair| has(pair, [has_rows(0), has_rows(1)], axis));
                if let Some(place) = batch {
                    let (l, r) = dot.batch[place];
                    let fits = |operand: usize, axis: usize| match &operands[operand] {
                        Rows { axis: found, inner: i } => (*found, *i) == (axis, inner),
                        Nothing { equal } => equal[axis],
                    };
                    return (fits(0, l) && fits(1, r)).then_some(Rows { axis: place, inner });
                }
                if has_rows(0) && has_rows(1) {
                    return None;
                }
                let side = usize::from(!has_rows(0));
                let pairs = dot.batch.iter().chain(&dot.contract);
                let bound: Vec<usize> = pairs.map(|&(l, r)| [l, r][side]).collect();
                if bound.contains(&axis) {
                    return None;
                }
                let free = (0..axis).filter(|a| !bound.contains(a)).count();
                let left = (shape(0).len() - dot.batch.len() - dot.contract.len()) * side;
                at(dot.batch.len() + left + free)
            }
            Prim::Convolution(_) if axis == 0 && !has_rows(1) => at(0),
            Prim::Gather { axes } if !has_rows(1) && !axes.contains(&axis) => {
                let window = (0..axis).filter(|a| !axes.contains(a)).count();
                at(shape(1).len() - 1 + window)
            }
            // The last axis of the indices is one index; a table is the same for every row.
            Prim::Gather { .. } if !has_rows(0) && axis + 1 < shape(1).len() => at(axis),
            Prim::DynamicSlice { sizes } => {
                let whole = sizes[axis] == shape(0)[axis] && !has_rows(1);
                whole.then_some(Rows { axis, inner })
            }
            prim if prim.is_elementwise() => self.agreeing(operands, first),
            _ => None,
        }
    }

    /// `first`, where every operand follows it or has equal entries along its axis.
    fn agreeing(&self, operands: &[Follows], first: &Follows) -> Option<Follows> {
        let &Rows { axis, .. } = first else { return None };
        let agrees = |operand: &Follows| match operand {
            Rows { .. } => operand == first,
            Nothing { equal } => equal[axis],
        };
        operands.iter().all(agrees).then(|| first.clone())
    }

    /// Rows stay outermost within an axis that has as many entries before it and a whole number of
    /// entries a row.
    fn reshaped(&self, from: &[usize], to: &Shape, axis: usize) -> Option<Follows> {
        let to = to.known()?;
        let before: usize = from[..axis].iter().product();
        let place = (0..to.len()).find(|&place| {
            to[..place].iter().product::<usize>() == before
                && to[place] != 1
                && to[place] % self.rows == 0
        })?;
        Some(Rows { axis: place, inner: to[place] / self.rows })
    }
}

/// Whether the pair names this axis on a side that has rows.
fn has((left, right): (usize, usize), [has_left, has_right]: [bool; 2], axis: usize) -> bool {
    has_left && left == axis || !has_left && has_right && right == axis
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Builder, DType, Expr, Init, Pad, Reducer, TensorType};

    fn independent(build: impl for<'b> Fn(Expr<'b>) -> Expr<'b>) -> bool {
        let b = Builder::new("rows");
        let x = b.input("x", TensorType::new(DType::F32, [4, 6, 8]));
        b.output("y", build(x));
        independent_rows(&b.finish().unwrap(), 1)
    }

    fn state<'b>(x: Expr<'b>, sizes: &[usize]) -> Expr<'b> {
        x.builder().state("w", TensorType::new(DType::F32, sizes.to_vec()), Init::ZEROS)
    }

    #[test]
    fn what_treats_rows_alike_keeps_them_apart() {
        assert!(independent(|x| x.exp() + x));
        assert!(independent(|x| x.sum(&[2])));
        assert!(independent(|x| x.reshape([24, 8]).matmul(state(x, &[8, 5])).reshape([4, 6, 5])));
        assert!(independent(|x| state(x, &[6, 8]).broadcast_in(&x.shape(), &[1, 2]) + x));
        assert!(independent(|x| x.dot(x, &[(0, 0)], &[(2, 2)])));
        assert!(independent(|x| x.transpose(&[1, 0, 2]).softmax(2).transpose(&[1, 0, 2])));
        assert!(independent(|x| x.slice_axis(1, 2, 5)));
        assert!(independent(|x| x.reshape([4, 2, 3, 8]).reshape([8, 24]).exp().reshape([4, 48])));
        assert!(independent(|x| x.builder().concat(&[x, x], 1)));
    }

    #[test]
    fn rows_that_meet_or_know_their_place_are_seen() {
        assert!(!independent(|x| x.softmax(0)));
        assert!(!independent(|x| x.sum(&[0]).broadcast_in(&x.shape(), &[1, 2]) + x));
        assert!(!independent(|x| x + x.builder().iota(DType::F32, x.shape(), 0)));
        assert!(!independent(|x| x + state(x, &[4, 6, 8])));
        assert!(!independent(|x| x.builder().concat(&[x, x], 0)));
        assert!(!independent(|x| x.transpose(&[1, 0, 2])));
        assert!(!independent(|x| x.reshape([6, 4, 8]).reduce(Reducer::Max, &[1])));
        assert!(!independent(|x| x.dot(x, &[(1, 1)], &[(2, 2)]).transpose(&[1, 0, 2])));
        let shifted = [Pad { low: 1, high: -1, interior: 0 }, Pad::default(), Pad::default()];
        assert!(!independent(|x| x.pad(shifted.to_vec(), 0.0)));
        assert!(!independent(|x| state(x, &[4, 6, 8])));
    }
}

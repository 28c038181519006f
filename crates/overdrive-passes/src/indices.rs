//! Finds the inputs of a graph that are indices, and checks whether given ones exist. `gather`
//! clamps an index out of range, and would silently give the row of another token.
//!
//! The part of the graph that makes indices of integer inputs is cut out as a graph of its own and
//! evaluated. The steps of the model on the way therefore count. ONNX's negative indices wrap, a
//! clamp of the model's own makes every value right, and an offset moves the bound. Invariant: only
//! indices that follow from inputs and constants through integers are judged. Those that a network
//! computes are its own affair.

use crate::dce::dce;
use crate::legalize::{expanded_from, model_scope, primitives, scope_of, types};
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::{
    Builder, Expr, Graph, GraphError, Node, Operation, Prim, Tensor, TensorType, WithoutKernels,
};
use std::collections::{BTreeMap, BTreeSet};

/// The indices of a graph as functions of its integer inputs.
#[derive(Debug)]
pub struct Indices {
    /// From integer inputs to the indices of each lookup.
    graph: Graph,
    /// Positions of those inputs among the model's, with their names.
    inputs: Vec<(usize, String)>,
    lookups: Vec<Lookup>,
}

/// A place that takes indices.
#[derive(Debug)]
struct Lookup {
    op: String,
    scope: String,
    /// Extents of the axes that are indexed.
    sizes: Vec<usize>,
    /// Inputs that its indices come from, by their place in `Indices::inputs`.
    from: BTreeSet<usize>,
}

/// An index that does not exist.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "input `{input}`: expected indices of `{op}`{place}, which has {size} of them, found {found}"
)]
pub struct OutOfRange {
    /// The input.
    pub input: String,
    /// The op that takes the index.
    pub op: String,
    place: String,
    /// The number of them.
    pub size: usize,
    /// The value, and which element it is.
    pub found: String,
}

/// The known facts of a value: its expression in the new graph, and the inputs that it comes from.
type KnownExpr<'b> = Option<(Expr<'b>, BTreeSet<usize>)>;

impl Indices {
    /// Those of a bound graph; `None` where no input is an index.
    pub fn of(graph: &Graph) -> Option<Self> {
        Self::cut(&expanded(graph).ok()?).ok().flatten()
    }

    fn cut(graph: &Graph) -> Result<Option<Self>, GraphError> {
        let b = Builder::new("indices");
        let mut known: Vec<KnownExpr<'_>> = vec![None; graph.value_count()];
        let (mut inputs, mut lookups) = (Vec::new(), Vec::new());
        for (position, port) in graph.inputs().iter().enumerate() {
            let ty = graph.ty(port.value);
            if !ty.dtype.is_float() {
                let from = BTreeSet::from([inputs.len()]);
                known[port.value.0 as usize] = Some((b.input(&port.name, ty.clone()), from));
                inputs.push((position, port.name.clone()));
            }
        }
        for node in graph.nodes() {
            if let Some(axes) = indexed_axes(node)
                && let Some((indices, from)) = &known[node.operands[1].0 as usize]
                && !from.is_empty()
            {
                let sizes = graph.ty(node.operands[0]).sizes();
                let op = expanded_from(&node.scope).map_or_else(|| node.op.name(), str::to_owned);
                let scope = model_scope(&node.scope).to_owned();
                b.output(&lookups.len().to_string(), *indices);
                let sizes = axes.iter().map(|&axis| sizes[axis]).collect();
                lookups.push(Lookup { op, scope, sizes, from: from.clone() });
            }
            let operands: Option<Vec<&(Expr<'_>, BTreeSet<usize>)>> =
                node.operands.iter().map(|v| known[v.0 as usize].as_ref()).collect();
            let Some(operands) = operands.filter(|_| is_of_integers(graph, node)) else { continue };
            let from: BTreeSet<usize> =
                operands.iter().flat_map(|(_, from)| from).copied().collect();
            let operands: Vec<Expr<'_>> = operands.iter().map(|(e, _)| *e).collect();
            let results = b.node(node.op.clone(), &operands, vec![]);
            for (value, result) in node.results.iter().zip(results) {
                known[value.0 as usize] = Some((result, from.clone()));
            }
        }
        drop(known);
        if lookups.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { graph: dce(&b.finish()?)?, inputs, lookups }))
    }

    /// Whether every index that the model's inputs lead to exists.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, inputs: &[Tensor]) -> Result<(), OutOfRange> {
        self.exist(&self.inputs.iter().map(|(at, _)| inputs[*at].clone()).collect::<Vec<_>>())
    }

    /// The inputs that are indices, each with a bound. Every element may be any number from 0 on
    /// that is below it, while the other inputs are 0.
    pub fn bounds(&self) -> BTreeMap<String, usize> {
        let zeros: Vec<Tensor> =
            self.graph.inputs().iter().map(|port| filled(self.graph.ty(port.value), 0)).collect();
        let bound = |(input, (_, name)): (usize, &(usize, String))| {
            let of_input = self.lookups.iter().filter(|lookup| lookup.from.contains(&input));
            let most = of_input.flat_map(|lookup| &lookup.sizes).max()?;
            let exists = |value: usize| {
                let mut given = zeros.clone();
                given[input] = filled(given[input].ty(), value as i128);
                self.exist(&given).is_ok()
            };
            // An offset that the model adds to an index shortens the end of its range.
            let (mut known, mut beyond) = (exists(0).then_some(0)?, *most);
            while known + 1 < beyond {
                let middle = known.midpoint(beyond);
                *(if exists(middle) { &mut known } else { &mut beyond }) = middle;
            }
            Some((name.clone(), known + 1))
        };
        self.inputs.iter().enumerate().filter_map(bound).collect()
    }

    fn exist(&self, given: &[Tensor]) -> Result<(), OutOfRange> {
        let found = eval_tensors(&self.graph, given);
        for (lookup, indices) in self.lookups.iter().zip(&found) {
            let axes = lookup.sizes.len();
            for (at, &index) in indices.to_ints().iter().enumerate() {
                let size = lookup.sizes[at % axes];
                if index < 0 || index >= size as i128 {
                    return Err(self.out_of_range(lookup, (at / axes, index, size), given));
                }
            }
        }
        Ok(())
    }

    fn out_of_range(
        &self,
        lookup: &Lookup,
        (row, index, size): (usize, i128, usize),
        given: &[Tensor],
    ) -> OutOfRange {
        let names: Vec<&str> = lookup.from.iter().map(|&i| self.inputs[i].1.as_str()).collect();
        // If indices are an input's elements one by one, it is the user's own number that helps.
        let rows = |tensor: &&Tensor| lookup.from.len() == 1 && tensor.ty().elements() > row;
        let own = lookup
            .from
            .first()
            .map(|&i| &given[i])
            .filter(rows)
            .map(|tensor| tensor.to_ints()[row]);
        let found = match own.filter(|own| *own == index || *own == index - size as i128) {
            Some(own) => format!("{own} as element {row}"),
            None => format!("the index {index}, computed from it"),
        };
        let place =
            if lookup.scope.is_empty() { String::new() } else { format!(" at {}", lookup.scope) };
        OutOfRange { input: names.join("`, `"), op: lookup.op.clone(), place, size, found }
    }
}

/// The graph with every composite that takes integers in primitives: lookups show.
fn expanded(graph: &Graph) -> Result<Graph, GraphError> {
    let target = WithoutKernels::default();
    graph.rewrite(&mut |b, node, operands| {
        let types = types(operands);
        let is_lookup = types.iter().any(|ty| ty.dtype.is_int()) && node.regions.is_empty();
        if node.op.prim().is_some() || !is_lookup {
            return None;
        }
        let flat = primitives(&node.op.expansion(&types, &node.regions), &target);
        let _scope = b.scope_path(&scope_of(&node.op));
        Some(b.inline(&flat, operands))
    })
}

/// A tensor of one number, wrapped to its type.
fn filled(ty: &TensorType, value: i128) -> Tensor {
    Tensor::from_ints(ty.dtype, ty.shape.clone(), &vec![value; ty.elements()])
}

fn indexed_axes(node: &Node) -> Option<&[usize]> {
    match node.op.prim()? {
        Prim::Gather { axes } | Prim::Scatter { axes, .. } => Some(axes),
        _ => None,
    }
}

/// A primitive whose operands and results are integers or booleans, the same on every call and
/// rank.
fn is_of_integers(graph: &Graph, node: &Node) -> bool {
    let Operation::Prim(prim) = &node.op else { return false };
    let is_pure = !matches!(prim, Prim::RandomBits { .. } | Prim::RankIndex { .. });
    let mut values = node.operands.iter().chain(&node.results);
    let is_pure = is_pure && prim.channel().is_none();
    is_pure && node.regions.is_empty() && values.all(|v| !graph.ty(*v).dtype.is_float())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::{Compare, DType, Init};

    /// A lookup in a table of ten rows, of what `of` makes of the ids `[2, 3]`.
    fn lookup(of: impl for<'b> Fn(Expr<'b>) -> Expr<'b>) -> Graph {
        let b = Builder::new("lookup");
        let ids = b.input("ids", TensorType::new(DType::I32, [2usize, 3]));
        let _bias = b.input("bias", TensorType::new(DType::F32, [4usize]));
        let table =
            b.state("table", TensorType::new(DType::F32, [10usize, 4]), Init::Constant(1.0));
        {
            let _scope = b.scope("words");
            b.output("y", table.embedding(of(ids)));
        }
        b.finish().unwrap()
    }

    fn check(graph: &Graph, ids: [i128; 6]) -> Result<(), String> {
        let given = [Tensor::from_ints(DType::I32, [2, 3], &ids), Tensor::from_f32([4], &[0.0; 4])];
        Indices::of(graph).unwrap().check(&given).map_err(|e| e.to_string())
    }

    #[test]
    fn an_index_that_does_not_exist_is_named() {
        let plain = lookup(|ids| ids);
        assert_eq!(check(&plain, [0, 9, 1, 2, 3, 4]), Ok(()));
        let found = check(&plain, [0, 9, 1, 2, 99, 4]).unwrap_err();
        for word in ["`ids`", "`embedding`", "words", "10", "99 as element 4"] {
            assert!(found.contains(word), "{word}: {found}");
        }
        assert!(check(&plain, [0, 9, 1, 2, 3, -1]).unwrap_err().contains("-1 as element 5"));
    }

    #[test]
    fn what_the_model_does_to_an_index_counts() {
        let wraps = lookup(|ids| {
            let below = ids.compare(Compare::Lt, ids.constant(0.0));
            below.select(ids + ids.constant(10.0), ids).convert(DType::I64)
        });
        assert_eq!(check(&wraps, [-10, -1, 0, 9, 5, 5]), Ok(()));
        assert!(check(&wraps, [-10, -11, 0, 9, 5, 5]).unwrap_err().contains("-11 as element 1"));
        let clamps = lookup(|ids| ids.max(ids.constant(0.0)).min(ids.constant(9.0)));
        assert_eq!(check(&clamps, [-7, 99, 0, 0, 0, 0]), Ok(()));
        let moved = lookup(|ids| ids + ids.constant(2.0));
        assert_eq!(check(&moved, [-2, 7, 0, 0, 0, 0]), Ok(()));
        assert!(check(&moved, [8, 0, 0, 0, 0, 0]).unwrap_err().contains("the index 10"));
    }

    #[test]
    fn the_range_of_an_input_is_that_of_the_indices_it_leads_to() {
        let bounds = |graph: &Graph| Indices::of(graph).unwrap().bounds();
        let ids = |below: usize| BTreeMap::from([("ids".to_owned(), below)]);
        assert_eq!(bounds(&lookup(|ids| ids)), ids(10));
        assert_eq!(bounds(&lookup(|ids| ids + ids.constant(3.0))), ids(7));
        assert_eq!(bounds(&lookup(|ids| ids - ids.constant(1.0))), BTreeMap::new());
    }

    #[test]
    fn what_a_network_computes_is_its_own_affair() {
        let b = Builder::new("computed");
        let x = b.input("x", TensorType::new(DType::F32, [3usize]));
        let table =
            b.state("table", TensorType::new(DType::F32, [10usize, 4]), Init::Constant(1.0));
        b.output("y", table.embedding(x.convert(DType::I32)));
        assert!(Indices::of(&b.finish().unwrap()).is_none());
    }
}

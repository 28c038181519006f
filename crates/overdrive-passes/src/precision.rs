//! `precision` puts contractions in a smaller number format and leaves everything else where it is.
//!
//! Contractions take most of the time, and in them rounding averages out. Sums, norms, softmax and
//! losses keep f32 (Micikevicius et al., "Mixed precision training", arXiv:1710.03740). Expansions,
//! never names, say which composites contract. Nothing is cast silently: every rounding is a
//! `convert` node.

use crate::bind::{bind, dimension_names};
use crate::cse::merge;
use crate::pipeline::batch;
use crate::readers::Readers;
use crate::rebuild::{NodeToCopy, rebuild, regions};
use overdrive_ir::{
    Convolution, DType, Dim, DotGeneral, Expr, Graph, GraphError, Node, NodeId, Operation, Prim,
    TensorType, Types, Value,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Number formats by role, as data.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recipe {
    /// Format of the operands of f32 contractions; sums stay in f32.
    pub contractions: DType,
}

impl Default for Recipe {
    /// Everything in f32.
    fn default() -> Self {
        Self { contractions: DType::F32 }
    }
}

/// The graph with its f32 contractions on operands of `recipe.contractions`. A result that feeds
/// contractions only stays in that format; every other is f32 again. Interfaces keep their types.
pub fn precision(graph: &Graph, recipe: &Recipe) -> Result<Graph, GraphError> {
    precision_of(graph, recipe, &|_| true)
}

/// The same for the contractions that `takes` accepts, and for all of their regions.
pub(crate) fn precision_of(
    graph: &Graph,
    recipe: &Recipe,
    takes: &dyn Fn(&Node) -> bool,
) -> Result<Graph, GraphError> {
    let low = recipe.contractions;
    if low == DType::F32 {
        return Ok(graph.clone());
    }
    let lowered: HashMap<Value, Vec<bool>> = graph
        .nodes()
        .iter()
        .filter(|node| takes(node))
        .filter_map(|node| Some((*node.results.first()?, lowered_operands(graph, node, low)?)))
        .collect();
    let stays = stays_low(graph, &lowered);
    let cast = rebuild(graph, &Clone::clone, &mut |place| {
        let regions = regions(place.node, |region| precision(region, recipe))?;
        let results = &place.node.results;
        let Some(lowered) = results.first().and_then(|v| lowered.get(v)) else {
            return Ok(place.keep(regions));
        };
        let cast = |(x, &lowered): (&Expr<'_>, &bool)| if lowered { low } else { x.dtype() };
        let operands: Vec<_> =
            place.operands.iter().zip(lowered).map(|pair| pair.0.convert(cast(pair))).collect();
        let stays: Vec<bool> = results.iter().map(|v| stays[v.0 as usize]).collect();
        let mut op = place.node.op.clone();
        if let Operation::Prim(
            Prim::DotGeneral(DotGeneral { accumulate, out, .. })
            | Prim::Convolution(Convolution { accumulate, out, .. }),
        ) = &mut op
        {
            (*accumulate, *out) = (DType::F32, if stays[0] { low } else { DType::F32 });
        }
        let values = place.builder.node(op, &operands, regions);
        let back = |((value, v), stays): ((&Expr<'_>, &Value), &bool)| {
            if *stays { value.dtype() } else { graph.ty(*v).dtype }
        };
        Ok(values
            .iter()
            .zip(results)
            .zip(&stays)
            .map(|each| each.0.0.convert(back(each)))
            .collect())
    })?;
    // Several contractions of one value round it once, and where it is made. Those of several
    // batches of a pipeline do not, so that their gradients are added in the wider format.
    let converts = |_: &Graph, node: &Node| matches!(node.op.prim(), Some(Prim::Convert { .. }));
    merge(&early(&cast)?, converts, batch)
}

/// The graph with conversions before the views that they follow. The op that makes the value then
/// writes it in the format that is wanted. A value that was widened only to be viewed and narrowed
/// again is then never widened.
fn early(graph: &Graph) -> Result<Graph, GraphError> {
    rebuild(graph, &Clone::clone, &mut |place| match before_views(graph, place) {
        Some(value) => Ok(vec![value]),
        None => Ok(place.keep(place.node.regions.clone())),
    })
}

/// Turns a conversion of a view into a view of a conversion. If a value was only widened and is
/// narrowed again, returns the value before. `None` for everything else.
fn before_views<'b>(graph: &Graph, place: &NodeToCopy<'b, '_>) -> Option<Expr<'b>> {
    let Prim::Convert { to, overflow } = *place.node.op.prim()? else { return None };
    let viewed = |value: Value| {
        let node = graph.producer(value)?;
        matches!(node.op.prim(), Some(Prim::Reshape { .. } | Prim::Transpose { .. }))
            .then_some(node)
    };
    let (mut views, mut value) = (vec![], place.node.operands[0]);
    while let Some(view) = viewed(value) {
        views.push(view);
        value = view.operands[0];
    }
    let widened = graph.producer(value).filter(|node| {
        matches!(node.op.prim(), Some(Prim::Convert { .. }))
            && graph.ty(node.operands[0]).dtype == to
            && graph.ty(value).dtype.bits() > to.bits()
    });
    let source = match widened {
        Some(node) => place.get(node.operands[0]),
        None if views.is_empty() => return None,
        None => place.builder.op1(Prim::Convert { to, overflow }, &[place.get(value)]),
    };
    Some(views.into_iter().rev().fold(source, |x, view| {
        let prim = view.op.prim().expect("views are primitives").clone();
        place.builder.op1(prim, &[x])
    }))
}

/// The graph with f32 results for contractions whose results were rounded only to be widened again.
/// These results lead to no other contraction. They are gradients of parameters, which cost as many
/// bytes in an update as the parameters themselves. A result that leads on to a contraction is
/// rounded there anyway.
///
/// # Errors
/// When the graph is ill-formed.
pub fn keep_sums(graph: &Graph) -> Result<Graph, GraphError> {
    let kept = kept_sums(graph);
    rebuild(graph, &Clone::clone, &mut |place| {
        let mut op = place.node.op.clone();
        if let Operation::Prim(
            Prim::DotGeneral(DotGeneral { accumulate, out, .. })
            | Prim::Convolution(Convolution { accumulate, out, .. }),
        ) = &mut op
            && kept[place.node.results[0].0 as usize]
        {
            *out = *accumulate;
        }
        match op.prim() {
            // A value that is wide already is not widened.
            Some(Prim::Convert { to, .. }) if place.operands[0].dtype() == *to => {
                Ok(place.operands.clone())
            }
            _ => Ok(place.builder.node(op, &place.operands, place.node.regions.clone())),
        }
    })
}

/// Results of contractions, and views of them, that are widened only and meet no contraction.
fn kept_sums(graph: &Graph) -> Vec<bool> {
    let readers = Readers::of(graph);
    let meets = leads_to_a_contraction(graph);
    let mut kept = vec![false; graph.value_count()];
    for node in graph.nodes().iter().rev() {
        for &value in &node.results {
            let (v, read_by) = (value.0 as usize, readers.nodes(value));
            let wide = graph.ty(value).dtype.accumulation();
            let widens = |id: &NodeId| {
                let reader = graph.node(*id);
                match reader.op.prim() {
                    Some(Prim::Convert { to, .. }) => *to == wide,
                    Some(Prim::Reshape { .. } | Prim::Transpose { .. }) => {
                        kept[reader.results[0].0 as usize]
                    }
                    _ => false,
                }
            };
            let is_inner = !meets[v] && !readers.is_kept(value) && !read_by.is_empty();
            kept[v] = is_inner && read_by.iter().all(widens);
        }
    }
    kept
}

/// For each value, whether a contraction reads it or a value computed from it.
pub(crate) fn leads_to_a_contraction(graph: &Graph) -> Vec<bool> {
    let mut leads = vec![false; graph.value_count()];
    for node in graph.nodes().iter().rev() {
        let on = contracts(&node.op, &graph.types(&node.operands), &node.regions)
            || node.results.iter().any(|result| leads[result.0 as usize]);
        if on {
            node.operands.iter().for_each(|value| leads[value.0 as usize] = true);
        }
    }
    leads
}

/// The operands of a contraction that are lowered; `None` for everything else.
fn lowered_operands(graph: &Graph, node: &Node, low: DType) -> Option<Vec<bool>> {
    let types = graph.types(&node.operands);
    if !contracts(&node.op, &types, &node.regions) {
        return None;
    }
    let wide: Vec<usize> = (0..types.len()).filter(|&i| types[i].dtype == DType::F32).collect();
    if node.op.prim().is_some() {
        let all = wide.len() == types.len();
        return all.then(|| vec![true; types.len()]);
    }
    // A composite may need some operands, such as statistics or captures of its regions, wider than
    // the rest. So as many are lowered as its types permit. If no result type changes with them,
    // the composite rounds operands itself, as those of fp8 do. Then they stay.
    let present = graph.types(&node.results);
    let mut choices: Vec<u32> = (1..1u32 << wide.len().min(MOST_OPERANDS)).collect();
    choices.sort_by_key(|choice| std::cmp::Reverse(choice.count_ones()));
    choices.into_iter().find_map(|choice| {
        let mut lowered = vec![false; types.len()];
        wide.iter().enumerate().for_each(|(bit, &i)| {
            lowered[i] = choice.checked_shr(bit as u32).unwrap_or(0) & 1 == 1
        });
        let cast = |(ty, &lowered): (&TensorType, &bool)| {
            if lowered { ty.with_dtype(low) } else { ty.clone() }
        };
        let operands: Vec<TensorType> = types.iter().zip(&lowered).map(cast).collect();
        let inferred = node.op.infer(&Types { operands: &operands, regions: &node.regions });
        inferred.is_ok_and(|results| results != present).then_some(lowered)
    })
}

/// Float operands of a composite that are tried in all combinations.
const MOST_OPERANDS: usize = 10;

/// Whether an op is a contraction or expands into one.
fn contracts(op: &Operation, types: &[TensorType], regions: &[Graph]) -> bool {
    match op {
        Operation::Prim(prim) => matches!(prim, Prim::DotGeneral(_) | Prim::Convolution(_)),
        Operation::Composite(_) => {
            // An expansion asks for sizes. Whether it contracts depends on none of them.
            let types: Vec<TensorType> = types.iter().map(of_some_size).collect();
            let sized = |region: &Graph| {
                let names = dimension_names(region).into_iter();
                bind(region, &names.map(|name| (name, 1)).collect())
            };
            let Ok(regions) = regions.iter().map(sized).collect::<Result<Vec<_>, _>>() else {
                return false;
            };
            let expansion = op.expansion(&types, &regions);
            expansion
                .nodes()
                .iter()
                .any(|n| contracts(&n.op, &expansion.types(&n.operands), &n.regions))
        }
    }
}

/// The type with one element along each dimension that has no size yet.
fn of_some_size(ty: &TensorType) -> TensorType {
    let size = |dim: &Dim| dim.size().unwrap_or(1);
    ty.with_shape(ty.shape.0.iter().map(size).collect::<Vec<usize>>())
}

/// f32 values that only lowered operands read.
fn stays_low(graph: &Graph, lowered: &HashMap<Value, Vec<bool>>) -> Vec<bool> {
    let mut reads = vec![0; graph.value_count()];
    for node in graph.nodes() {
        let Some(flags) = node.results.first().and_then(|v| lowered.get(v)) else { continue };
        node.operands.iter().zip(flags).for_each(|(v, &low)| reads[v.0 as usize] += low as usize);
    }
    graph.use_counts().iter().zip(reads).map(|(&uses, reads)| uses > 0 && uses == reads).collect()
}

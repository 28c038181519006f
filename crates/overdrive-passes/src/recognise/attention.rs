//! Attention as exporters leave it: `softmax(q kᵀ scale + mask) v`, whose scores exist as a whole.
//!
//! Exporters differ in ways that do not matter here. The factor is applied to the scores, to q, or
//! its root to q and k. Heads are moved to the front in several ways, and repeated or not for the
//! queries that share them. Keys are transposed before the product or by it. Weights may be
//! dropped, and a column of sinks may stand behind the scores (`attention_weights.rs`). Masks that
//! are known before the model runs hide nothing, or exactly what `Mask::Causal` hides, and every
//! query sees a key. Anything else, such as a mask or bias that is data, becomes a function of one
//! score (`score_function.rs`). A softmax of hidden scores alone is not a number, or even, or 0
//! after a guard; the op gives 0. Invariant: what is not shown to be attention stays products and a
//! softmax.

use super::attention_weights::{AttentionWeights, Sink};
use super::movement::{DimFactor, Moved, Movement, trace};
use super::number::{number, scaled};
use super::visible::{Effect, KnownValues, Sight, hides_from};
use crate::rebuild::{rebuild, regions};
use crate::score_function::{ScoreFunction, heads};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::{Binary, DotGeneral, Graph, GraphError, Node, Precision, Prim, Shape, Value};
use std::collections::{HashMap, HashSet};

/// Attention found in a graph.
struct FoundAttention {
    attention: Attention,
    /// q, k, v as `[B, H, T, D]`.
    operands: [(Value, Movement); 3],
    /// The seed, if weights are dropped.
    seed: Option<Value>,
    sink: Option<Sink>,
    /// The function of a score, where the mask of the op is not all.
    function: Option<ScoreFunction>,
    /// Shape of the product that it replaces.
    shape: Shape,
    /// Values that are not needed once it is there.
    interior: Vec<Value>,
}

/// The graph with the op in place of products around a softmax.
pub(super) fn attend(graph: &Graph) -> Result<Graph, GraphError> {
    let found = all(graph);
    rebuild(graph, &Clone::clone, &mut |place| {
        let Some(FoundAttention { attention, operands, seed, sink, function, shape, .. }) =
            place.node.results.first().and_then(|v| found.get(v))
        else {
            return Ok(place.keep(regions(place.node, attend)?));
        };
        let (functions, captures) = match function {
            Some(function) => (function.regions(graph)?, &function.captures[..]),
            None => (vec![], &[][..]),
        };
        let [q, k, v] =
            operands.each_ref().map(|(source, movement)| movement.apply(place.get(*source)));
        let rest: Vec<_> = seed.iter().chain(captures).map(|value| place.get(*value)).collect();
        let [mut out, lse] = q.attention_with([k, v], *attention, functions, &rest);
        if let Some(sink) = sink {
            let sink = sink.movement.apply(place.get(sink.source)) * sink.factor;
            out = out.attention_sink(lse, sink)[0];
        }
        Ok(vec![out.reshape(shape.clone())])
    })
}

/// By the value that it computes, where nothing else needs what is within.
fn all(graph: &Graph) -> HashMap<Value, FoundAttention> {
    let (mut known, uses) = (KnownValues::of(graph), graph.use_counts());
    let mut found: HashMap<Value, FoundAttention> = HashMap::new();
    for node in graph.nodes() {
        if let Some(attention) = find(graph, (&mut known, &uses), node) {
            found.insert(node.results[0], attention);
        }
    }
    // Scores may be shared by two of them, so that each is asked whether all of them together need
    // the rest.
    loop {
        let interior: HashSet<Value> = found.values().flat_map(|f| &f.interior).copied().collect();
        let replaced = |node: &Node| {
            node.results.iter().any(|v| found.contains_key(v) || interior.contains(v))
        };
        let others = graph
            .nodes()
            .iter()
            .filter(|node| !replaced(node))
            .flat_map(|node| node.operands.iter().copied());
        let updates = graph.states().iter().filter_map(|s| s.update);
        let named = graph.outputs().iter().map(|port| port.value);
        let needed: HashSet<Value> = others.chain(updates).chain(named).collect();
        let before = found.len();
        found.retain(|_, f| f.interior.iter().all(|v| !needed.contains(v)));
        if found.len() == before {
            return found;
        }
    }
}

/// The attention that `node` computes, if it is one.
fn find(
    graph: &Graph,
    (known, uses): (&mut KnownValues<'_>, &[usize]),
    node: &Node,
) -> Option<FoundAttention> {
    let weighted = product(node)?;
    let (batch, mut interior) = (weighted.batch.len(), vec![]);
    let rank = batch + 2;
    let in_order =
        weighted.batch.iter().map(|&(p, _)| p).eq(0..batch) && weighted.contract[0].0 == rank - 1;
    if graph.ty(node.operands[0]).rank() != rank || !in_order {
        return None;
    }
    let weights = AttentionWeights::of(graph, node.operands[0], &mut interior)?;
    let sink = match weights.column {
        Some(column) => Some(Sink::of(graph, column, (batch > 1).then(|| batch - 1))?),
        None => None,
    };
    let FoundScores { product: scores, mut factor, mask, function, interior: between } =
        FoundScores::in_bounds(graph, known, weights.scores)
            .or_else(|| FoundScores::by_function(graph, uses, &weights))?;
    interior.extend(between);
    let compared = product(scores).filter(|d| d.batch.len() == batch)?;
    let matrices = [scores.operands[0], scores.operands[1], node.operands[1]];
    if matrices.iter().any(|v| graph.ty(*v).rank() != rank) {
        return None;
    }
    let q = trace(graph, scores.operands[0])?;
    let k = trace(graph, scores.operands[1])?;
    let v = trace(graph, node.operands[1])?;
    factor *= q.factor * k.factor;
    // A factor of v would have to be applied to the result.
    let v = if v.factor == 1.0 { v } else { return None };
    let width = graph.ty(scores.operands[0]).sizes()[compared.contract[0].0];
    let sides = [
        arranged(
            q,
            &compared.batch.iter().map(|b| b.0).collect::<Vec<_>>(),
            Last::Contracted(compared.contract[0].0),
        ),
        arranged(
            k,
            &compared.batch.iter().map(|b| b.1).collect::<Vec<_>>(),
            Last::Contracted(compared.contract[0].1),
        ),
        arranged(
            v,
            &weighted.batch.iter().map(|b| b.1).collect::<Vec<_>>(),
            Last::Free(weighted.contract[0].1),
        ),
    ];
    let operands = grouped(sides);
    let dtype = graph.ty(node.results[0]).dtype;
    let same = operands.iter().all(|(source, _)| graph.ty(*source).dtype == dtype);
    let usual = 1.0 / (width as f64).sqrt();
    let scale = ((factor - usual).abs() > 1e-6 * usual).then_some(factor);
    let shape = graph.ty(node.results[0]).shape.clone();
    let attention = Attention { scale, mask, dropout: weights.dropout, ..Attention::FULL };
    let seed = weights.seed;
    let found = FoundAttention { attention, operands, seed, sink, function, shape, interior };
    same.then_some(found)
}

/// A product of matrices, one of each batch, that sums over one axis and takes no shortcut.
fn product(node: &Node) -> Option<&DotGeneral> {
    match node.op.prim()? {
        Prim::DotGeneral(dot) => {
            (dot.contract.len() == 1 && dot.precision == Precision::Exact).then_some(dot)
        }
        _ => None,
    }
}

/// A product of queries and keys, and what becomes of it.
struct FoundScores<'g> {
    product: &'g Node,
    factor: f64,
    mask: Mask,
    function: Option<ScoreFunction>,
    /// Values from the scores to the product.
    interior: Vec<Value>,
}

impl<'g> FoundScores<'g> {
    /// Those that masks hide as the op does by itself.
    fn in_bounds(graph: &'g Graph, known: &mut KnownValues<'_>, value: Value) -> Option<Self> {
        let MaskedProduct { product, factor, masks, interior } = masked_product(graph, value)?;
        let [.., queries, keys] = graph.ty(product.results[0]).sizes()[..] else { return None };
        let mask = match known.sight(&masks, [queries, keys])? {
            Sight::Full => Mask::Full,
            Sight::Causal => Mask::Causal,
        };
        Some(Self { product, factor, mask, function: None, interior })
    }

    /// Those that are any function of the product, where no row is hidden without a guard.
    fn by_function(graph: &'g Graph, uses: &[usize], weights: &AttentionWeights) -> Option<Self> {
        let mut function = ScoreFunction::of(graph, weights.scores, uses)?;
        if !weights.guarded && function.may_hide(graph) {
            return None;
        }
        let product = graph.producer(function.product)?;
        let dtype = graph.ty(product.operands[0]).dtype;
        let wide = graph.ty(function.product).dtype == dtype.accumulation();
        let interior = std::mem::take(&mut function.interior);
        let (factor, mask) = (function.scale, Mask::Full);
        let found = Self { product, factor, mask, function: Some(function), interior };
        (heads(product).is_some() && wide).then_some(found)
    }
}

/// A product, what it is multiplied with, and what then hides.
struct MaskedProduct<'g> {
    product: &'g Node,
    factor: f64,
    masks: Vec<(Effect, Value)>,
    interior: Vec<Value>,
}

/// Traces scores from the softmax back to the product.
fn masked_product(graph: &Graph, mut value: Value) -> Option<MaskedProduct<'_>> {
    let (mut factor, mut masks, mut interior) = (1.0, Vec::new(), Vec::new());
    loop {
        interior.push(value);
        let node = graph.producer(value)?;
        if let Some((x, c)) = scaled(graph, value) {
            (value, factor) = (x, factor * c);
            continue;
        }
        let lowest = hides_from(graph.ty(value).dtype);
        let hides = |v: Value| number(graph, v).is_some_and(|n| n <= lowest);
        // A factor would be applied after a mask was multiplied in.
        let unscaled = factor == 1.0;
        value = match (node.op.prim()?, &node.operands[..]) {
            (Prim::DotGeneral(_), _) => {
                return Some(MaskedProduct { product: node, factor, masks, interior });
            }
            (Prim::Binary { kind: Binary::Add }, &[x, y]) if unscaled => {
                let (scores, mask) = if leads_to_product(graph, x) { (x, y) } else { (y, x) };
                masks.push((Effect::Added, mask));
                scores
            }
            (Prim::Select, &[keep, x, low]) if unscaled && hides(low) => {
                masks.push((Effect::Keeps, keep));
                x
            }
            (Prim::Select, &[hide, low, x]) if unscaled && hides(low) => {
                masks.push((Effect::Hides, hide));
                x
            }
            _ => return None,
        };
    }
}

/// Whether a term of the scores is the one with the product in it.
fn leads_to_product(graph: &Graph, value: Value) -> bool {
    let (mut seen, mut pending) = (HashSet::new(), vec![value]);
    while let Some(value) = pending.pop() {
        let Some(node) = graph.producer(value).filter(|_| seen.insert(value)) else { continue };
        match node.op.prim() {
            Some(Prim::DotGeneral(_)) => return true,
            Some(Prim::Binary { kind: Binary::Add | Binary::Mul } | Prim::Select) => {
                pending.extend(&node.operands)
            }
            _ => {}
        }
    }
    false
}

/// The axis that comes last.
enum Last {
    Contracted(usize),
    Free(usize),
}

/// An operand of a product as `[B, H, T, D]`: its batch axes but the last are B.
fn arranged(moved: Moved, batch: &[usize], last: Last) -> (Value, [Vec<DimFactor>; 4], Movement) {
    let Moved { source, movement, .. } = moved;
    let axis = |i: usize| movement.dims[i].clone();
    let (Last::Contracted(known) | Last::Free(known)) = last;
    let other = (0..movement.dims.len()).find(|i| *i != known && !batch.contains(i));
    let [first, second] = [axis(known), other.map(axis).unwrap_or_default()];
    let [rows, width] =
        if matches!(last, Last::Contracted(_)) { [second, first] } else { [first, second] };
    let (heads, outer) = match batch {
        [outer @ .., heads] if !outer.is_empty() => (axis(*heads), outer),
        all => (vec![], all),
    };
    let outer = outer.iter().flat_map(|&i| axis(i)).collect();
    (source, [outer, heads, rows, width], movement)
}

/// The operands; where heads of k and v alike are repeated for queries that share them, once each.
fn grouped(mut sides: [(Value, [Vec<DimFactor>; 4], Movement); 3]) -> [(Value, Movement); 3] {
    let repeats = |side: &(Value, [Vec<DimFactor>; 4], Movement)| match side.1[1].last() {
        Some(&DimFactor::Repeat(n)) => Some(n),
        _ => None,
    };
    let shared = repeats(&sides[1]).filter(|_| repeats(&sides[1]) == repeats(&sides[2]));
    if shared.is_some() {
        sides[1..].iter_mut().for_each(|side| {
            side.1[1].pop();
        });
    }
    sides.map(|(source, dims, movement)| (source, movement.arranged(dims.to_vec())))
}

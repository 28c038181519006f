//! The walk over a graph: for each node, the axis that splits each of its factors, and the node as
//! one rank computes it.
//!
//! Each axis of the mesh takes the factor that puts the fewest bytes on the wire. It is a factor
//! along which some operand is split already, or the result is to be split. A contraction or a
//! lookup never gives up a factor that it could keep: every rank would repeat its work, or hold the
//! whole table. A composite stays whole as long as nothing has to be gathered for it; otherwise its
//! expansion is sharded in its place.
//!
//! Long because the choice of an axis, its cost and the node that it leads to read one `NodeCall`.

use super::context_exchange::ContextExchange;
use super::error::ShardError;
use super::layout::{Laid, localized, over, position, rechanneled, wire_bytes};
use super::relation::{FactorKind, Relation, relation};
use crate::rebuild::live_for;
use overdrive_ir::ops::attention::find_score;
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Axis, Binary, Builder, Compare, DType, Expr, Graph, Mesh, Node, Prim, Sharding, TensorType,
    Types, Value,
};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The use of a mesh axis for a node.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum AxisChoice {
    /// Nothing: all its ranks compute the same.
    Same,
    /// Splits this factor.
    Factor(usize),
    /// Lets partial sums pass through.
    Pass,
}

/// The graph of one rank under construction.
pub(super) struct Ranks<'b, 'm> {
    pub(super) b: &'b Builder,
    pub(super) mesh: &'m Mesh,
    pub(super) notes: Vec<Note>,
    /// How ranks that share a sequence are to exchange it; by an estimate if nobody says.
    pub(super) exchange: Option<ContextExchange>,
    /// Values of all heads that were exchanged for all positions, by the ranks of a group and the
    /// times that a head is repeated.
    pub(super) of_heads: BTreeMap<(Value, usize, usize), Expr<'b>>,
    /// The first thing that was asked for and cannot be done.
    pub(super) refused: Option<ShardError>,
}

/// A node with what is known of its operands.
struct NodeCall<'a, 'b> {
    node: &'a Node,
    operands: Vec<Rc<Laid<'b>>>,
    types: Vec<TensorType>,
    results: Vec<TensorType>,
    relation: Relation,
    /// The annotation of its first result.
    wanted: Option<Sharding>,
    /// Whether anybody needs each result.
    needed: Vec<bool>,
}

impl<'b> Ranks<'b, '_> {
    /// Computes the values of `graph` that are `live`, annotated by `shardings`. A collective for
    /// any other would stay. `known` has those of inputs and states.
    pub(super) fn graph(
        &mut self,
        graph: &Graph,
        mut known: BTreeMap<Value, Rc<Laid<'b>>>,
        (shardings, live): (&BTreeMap<Value, Sharding>, &[bool]),
    ) -> BTreeMap<Value, Rc<Laid<'b>>> {
        let is_live = |node: &&Node| node.results.iter().any(|v| live[v.0 as usize]);
        for node in graph.nodes().iter().filter(is_live) {
            let _scope = self.b.scope_path(&node.scope);
            let operands = node.operands.iter().map(|v| known[v].clone()).collect();
            let wanted = node.results.first().and_then(|v| shardings.get(v));
            let needed = node.results.iter().map(|v| live[v.0 as usize]).collect();
            let results = self.node(graph, node, (operands, wanted, needed));
            for (&value, laid) in node.results.iter().zip(results) {
                let Some(mut laid) = laid else { continue };
                if let Some(sharding) = shardings.get(&value) {
                    let expr = laid.at(self.b, self.mesh, sharding);
                    laid = Laid::new(laid.ty.clone(), sharding.clone(), expr);
                }
                known.insert(value, laid);
            }
        }
        known
    }

    /// The results of a node, as far as they are needed.
    fn node(
        &mut self,
        graph: &Graph,
        node: &Node,
        (operands, wanted, needed): (Vec<Rc<Laid<'b>>>, Option<&Sharding>, Vec<bool>),
    ) -> Vec<Option<Rc<Laid<'b>>>> {
        let (types, results) = (graph.types(&node.operands), graph.types(&node.results));
        if let Some(prim) = node.op.prim()
            && let Some(free) = Laid::free(self.b, prim, &operands, &results[0])
        {
            return vec![Some(free)];
        }
        if let Some(laid) = self.context(node, &operands, &results) {
            return laid.into_iter().map(Some).collect();
        }
        let is_split = wanted.is_some()
            || operands.iter().any(|x| x.sharding.split.iter().any(Option::is_some));
        let relation = match is_split || node.op.prim().is_some() {
            true => relation(&node.op, &types, &results, &node.regions),
            false => Relation::whole(&types, &results),
        };
        let wanted = wanted.cloned();
        let call = NodeCall { node, operands, types, results, relation, wanted, needed };
        let choices = self.choices(&call);
        let moved = call.moved(self.mesh, &choices);
        if node.op.prim().is_none() && (moved.is_some() || !call.fits(self.mesh, &choices)) {
            return self.expanded(&call, moved);
        }
        if let Some(axis) = moved {
            self.gathered(node, &axis);
        }
        self.emit(&call, &choices).into_iter().map(Some).collect()
    }

    fn gathered(&mut self, node: &Node, axis: &Axis) {
        let reason = format!("an operand that `{axis}` splits is exchanged or gathered before it");
        let (what, scope) = (format!("sharding of {}", node.op.name()), self.b.current_scope());
        self.notes.push(Note::Declined { what, scope, reason });
    }

    /// The expansion of a composite, sharded in its place.
    fn expanded(
        &mut self,
        call: &NodeCall<'_, 'b>,
        moved: Option<Axis>,
    ) -> Vec<Option<Rc<Laid<'b>>>> {
        let NodeCall { node, operands, types, .. } = call;
        let reason = match moved {
            Some(axis) => format!("`{axis}` splits a dimension that it folds"),
            None => "its attributes hold sizes of the whole".to_owned(),
        };
        let scope = self.b.current_scope();
        self.notes.push(Note::Expanded { op: node.op.name(), scope, reason });
        let expansion = node.op.expansion(types, &node.regions);
        let inputs = expansion.inputs().iter().map(|port| port.value);
        let known = inputs.zip(operands.iter().cloned()).collect();
        let outputs = || expansion.outputs().iter().map(|port| port.value);
        let needed = outputs().zip(&call.needed).filter(|(_, needed)| **needed);
        let live = live_for(&expansion, needed.map(|(value, _)| value));
        // So a sum that the result ends becomes the wanted part at once.
        let wanted = outputs().next().zip(call.wanted.clone()).into_iter().collect();
        let known = self.graph(&expansion, known, (&wanted, &live));
        outputs().map(|value| known.get(&value).cloned()).collect()
    }

    /// The use of each mesh axis, in the mesh's order.
    fn choices(&self, call: &NodeCall<'_, 'b>) -> Vec<AxisChoice> {
        let mut choices: Vec<AxisChoice> = vec![];
        for (axis, ranks) in &self.mesh.axes {
            let mut candidates = call.factors_along(axis, *ranks);
            candidates.retain(|f| !choices.contains(&AxisChoice::Factor(*f)));
            let mut open: Vec<AxisChoice> =
                candidates.into_iter().map(AxisChoice::Factor).collect();
            if call.passes(axis) {
                open.push(AxisChoice::Pass);
            }
            if open.is_empty() || !call.keeps() {
                open.push(AxisChoice::Same);
            }
            let cost = |choice: &AxisChoice| call.cost(self.mesh, axis, *choice);
            let best = open.iter().copied().min_by(|x, y| cost(x).total_cmp(&cost(y)));
            choices.push(best.expect("there is always a choice"));
        }
        choices
    }

    /// The node as one rank computes it.
    fn emit(&mut self, call: &NodeCall<'_, 'b>, choices: &[AxisChoice]) -> Vec<Rc<Laid<'b>>> {
        let (b, mesh) = (self.b, self.mesh);
        let mut operands: Vec<Expr<'b>> = (0..call.operands.len())
            .map(|o| call.operands[o].at(b, mesh, &call.operand(mesh, choices, o)))
            .collect();
        let shardings: Vec<Sharding> =
            (0..call.results.len()).map(|r| call.result(mesh, choices, r)).collect();
        let chosen = |kind: fn(FactorKind) -> bool| {
            mesh.axes.iter().zip(choices).filter_map(move |((axis, _), choice)| match choice {
                AxisChoice::Factor(f) if kind(call.relation.factors[*f]) => Some(axis),
                _ => None,
            })
        };
        let mut results = match call.node.op.prim() {
            Some(prim) => {
                let mut inside = None;
                for axis in chosen(|kind| kind == FactorKind::Looked) {
                    let rows = call.operands[0].ty.sizes();
                    let Prim::Gather { axes } = prim else { unreachable!("only gathers look up") };
                    (operands[1], inside) = rows_here(operands[1], axis, mesh, rows[axes[0]]);
                }
                if matches!(prim, Prim::Scatter { .. }) {
                    for axis in chosen(|kind| kind == FactorKind::Summed) {
                        operands[0] = on_the_first(operands[0], axis);
                    }
                }
                let local = shardings[0].local(&call.results[0].sizes(), mesh);
                let factored: Vec<bool> =
                    call.relation.results[0].iter().map(Option::is_some).collect();
                let prim = rechanneled(localized(prim, &local, &factored), b);
                let mut results = b.node(prim, &operands, call.node.regions.clone());
                if let Some(inside) = inside {
                    let dims: Vec<usize> = (0..inside.rank()).collect();
                    let inside = inside.broadcast_in(&results[0].shape(), &dims);
                    results[0] = inside.select(results[0], results[0].constant(0.0));
                }
                results
            }
            None => {
                let types: Vec<TensorType> = operands.iter().map(|x| x.ty()).collect();
                b.node(call.node.op.clone(), &operands, reading(&call.node.regions, &types))
            }
        };
        for ((axis, _), choice) in mesh.axes.iter().zip(choices) {
            let AxisChoice::Factor(f) = choice else { continue };
            let first = match call.relation.factors[*f] {
                FactorKind::Folded(reducer) => Some((0, reducer)),
                _ => None,
            };
            let declared = call.relation.folds.iter().enumerate();
            let declared = declared.filter_map(|(result, fold)| Some((result, (*fold)?)));
            let folds = first.into_iter().chain(declared);
            for (result, reducer) in folds.filter(|(result, _)| call.needed[*result]) {
                let channel = over(b, mesh, axis);
                results[result] = b.op1(Prim::AllReduce { reducer, channel }, &[results[result]]);
            }
        }
        let laid = shardings.into_iter().zip(results).zip(&call.results);
        laid.map(|((sharding, expr), ty)| Laid::new(ty.clone(), sharding, expr)).collect()
    }
}

impl NodeCall<'_, '_> {
    /// Whether it is a contraction or a lookup, which never gives up a factor.
    fn keeps(&self) -> bool {
        matches!(
            self.node.op.prim(),
            Some(
                Prim::DotGeneral(_)
                    | Prim::Convolution(_)
                    | Prim::Gather { .. }
                    | Prim::Scatter { .. }
            )
        )
    }

    /// Factors that some operand has split along `axis`, or the annotation of the result wants so,
    /// and that its ranks divide everywhere. A contraction of split operands takes none from the
    /// annotation: it would wait for its operands, while its sums are scattered beside later work.
    fn factors_along(&self, axis: &Axis, ranks: usize) -> Vec<usize> {
        let factor = |sharding: &Sharding, dims: &[Option<usize>]| {
            let factor = sharding.dim_of(axis).and_then(|dim| dims[dim]);
            factor.filter(|f| self.divides(*f, ranks))
        };
        let operands = self.operands.iter().zip(&self.relation.operands);
        let found = operands.filter_map(|(x, dims)| factor(&x.sharding, dims));
        let mut found: Vec<usize> = found.collect();
        if let Some(wanted) = self.wanted.as_ref().filter(|_| !self.keeps() || found.is_empty()) {
            found.extend(factor(wanted, &self.relation.results[0]));
        }
        let mut seen = BTreeSet::new();
        found.retain(|factor| seen.insert(*factor));
        found
    }

    fn divides(&self, factor: usize, ranks: usize) -> bool {
        let operands = self.types.iter().zip(&self.relation.operands);
        let results = self.results.iter().zip(&self.relation.results);
        operands.chain(results).all(|(ty, dims)| {
            let sizes = ty.sizes();
            dims.iter().zip(sizes).all(|(f, n)| *f != Some(factor) || n.is_multiple_of(ranks))
        })
    }

    /// Whether partial sums along `axis` stay partial sums. Sums that are known are used: summing
    /// what follows from the parts too would cost the same bytes again.
    fn passes(&self, axis: &Axis) -> bool {
        let partial: Vec<usize> = (0..self.operands.len())
            .filter(|&o| self.operands[o].sharding.partial.contains(axis))
            .collect();
        let others_whole = self.operands.iter().all(|x| x.sharding.dim_of(axis).is_none());
        let is_known = |&o: &usize| self.operands[o].is_summed(axis);
        !partial.is_empty()
            && others_whole
            && !partial.iter().all(is_known)
            && self.relation.linear.contains(&partial)
    }

    /// Bytes on the wire that a choice costs, those of the sums that it leaves among them.
    fn cost(&self, mesh: &Mesh, axis: &Axis, choice: AxisChoice) -> f64 {
        let operand = |(o, x): (usize, &Rc<Laid<'_>>)| {
            let mut to = x.sharding.clone();
            to.split.iter_mut().filter(|a| a.as_ref() == Some(axis)).for_each(|a| *a = None);
            if choice != AxisChoice::Pass {
                to.partial.retain(|other| other != axis);
            }
            if let AxisChoice::Factor(f) = choice
                && let Some(dim) = self.relation.dim(o, f)
            {
                to.split[dim] = Some(axis.clone());
            }
            wire_bytes(x.bytes(), mesh, (&x.sharding, &to))
        };
        let moved: f64 = self.operands.iter().enumerate().map(operand).sum();
        let leaves = match choice {
            AxisChoice::Factor(f) if self.relation.factors[f] != FactorKind::Parallel => {
                2.0 * self.results.iter().map(|ty| ty.bytes() as f64).sum::<f64>()
            }
            _ => 0.0,
        };
        moved + leaves
    }

    /// The first axis that splits an operand otherwise than the choices want it.
    fn moved(&self, mesh: &Mesh, choices: &[AxisChoice]) -> Option<Axis> {
        let is_moved = |(axis, choice): &(&Axis, &AxisChoice)| {
            self.operands.iter().enumerate().any(|(o, x)| {
                let wanted = match choice {
                    AxisChoice::Factor(f) => self.relation.dim(o, *f),
                    _ => None,
                };
                x.sharding.dim_of(axis).is_some_and(|dim| wanted != Some(dim))
            })
        };
        let axes = mesh.axes.iter().map(|(axis, _)| axis).zip(choices);
        axes.into_iter().find(is_moved).map(|(axis, _)| axis.clone())
    }

    /// Whether a composite infers from parts of its operands what would be parts of its results.
    fn fits(&self, mesh: &Mesh, choices: &[AxisChoice]) -> bool {
        let part =
            |ty: &TensorType, sharding: Sharding| ty.with_shape(sharding.local(&ty.sizes(), mesh));
        let operands: Vec<TensorType> = (0..self.types.len())
            .map(|o| part(&self.types[o], self.operand(mesh, choices, o)))
            .collect();
        let results: Vec<TensorType> = (0..self.results.len())
            .map(|r| part(&self.results[r], self.result(mesh, choices, r)))
            .collect();
        let regions = reading(&self.node.regions, &operands);
        let types = Types { operands: &operands, regions: &regions };
        self.node.op.infer(&types).is_ok_and(|inferred| inferred == results)
    }

    /// The sharding that an operand must have.
    fn operand(&self, mesh: &Mesh, choices: &[AxisChoice], operand: usize) -> Sharding {
        let mut to = Sharding::whole(self.types[operand].rank());
        for ((axis, _), choice) in mesh.axes.iter().zip(choices) {
            match choice {
                AxisChoice::Factor(f) => {
                    if let Some(dim) = self.relation.dim(operand, *f) {
                        to.split[dim] = Some(axis.clone());
                    }
                }
                AxisChoice::Pass if self.operands[operand].sharding.partial.contains(axis) => {
                    to.partial.push(axis.clone());
                }
                _ => {}
            }
        }
        to.partial.sort();
        to
    }

    /// The sharding of a result.
    fn result(&self, mesh: &Mesh, choices: &[AxisChoice], result: usize) -> Sharding {
        let mut to = Sharding::whole(self.results[result].rank());
        for ((axis, _), choice) in mesh.axes.iter().zip(choices) {
            match choice {
                AxisChoice::Same => {}
                AxisChoice::Pass => to.partial.push(axis.clone()),
                AxisChoice::Factor(f) => match self.relation.factors[*f] {
                    FactorKind::Summed | FactorKind::Looked => to.partial.push(axis.clone()),
                    FactorKind::Folded(_) => {}
                    FactorKind::Parallel => {
                        let dims = &self.relation.results[result];
                        if let Some(dim) = dims.iter().position(|other| other == &Some(*f)) {
                            to.split[dim] = Some(axis.clone());
                        }
                    }
                },
            }
        }
        to.partial.sort();
        to
    }
}

/// The functions of attention as they read the last of these operands, parts of what they captured.
/// One that does not fit parts stays as it is, and the op then refuses it.
fn reading(regions: &[Graph], operands: &[TensorType]) -> Vec<Graph> {
    let of_parts = |region: &Graph| {
        let b = Builder::new(region.name());
        let own = if find_score(std::slice::from_ref(region)).is_some() { 5 } else { 4 };
        let captures = region.inputs().len().saturating_sub(own);
        let captured = &operands[operands.len().saturating_sub(captures)..];
        let types = region.inputs().iter().take(own).map(|port| region.ty(port.value));
        let named = region.inputs().iter().zip(types.chain(captured));
        let arguments: Vec<_> = named.map(|(port, ty)| b.input(&port.name, ty.clone())).collect();
        for (port, value) in region.outputs().iter().zip(b.inline(region, &arguments)) {
            b.output(&port.name, value);
        }
        b.finish().unwrap_or_else(|_| region.clone())
    };
    regions.iter().map(of_parts).collect()
}

/// Indices `[..., 1]` into this rank's part of `rows` rows, and whether each is in it.
fn rows_here<'b>(
    indices: Expr<'b>,
    axis: &Axis,
    mesh: &Mesh,
    rows: usize,
) -> (Expr<'b>, Option<Expr<'b>>) {
    let b = indices.builder();
    let here = rows / mesh.size(axis);
    let index = indices.convert(DType::I64);
    let index = index.max(index.constant(0.0)).min(index.constant(rows as f64 - 1.0));
    let local = index - position(b, axis) * here as f64;
    let inside = local
        .compare(Compare::Ge, local.constant(0.0))
        .binary(Binary::And, local.compare(Compare::Lt, local.constant(here as f64)));
    let mut leading = inside.shape();
    leading.0.pop();
    (local, Some(inside.reshape(leading)))
}

/// The value on the first rank along `axis`, zeros on the others: a partial sum of itself.
fn on_the_first<'b>(x: Expr<'b>, axis: &Axis) -> Expr<'b> {
    let position = position(x.builder(), axis);
    let first = position.compare(Compare::Eq, position.constant(0.0));
    first.broadcast_in(&x.shape(), &[]).select(x, x.constant(0.0))
}

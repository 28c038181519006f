//! `pipeline`: stages of a model on the ranks along the axis `pipeline`, which work on several
//! batches at once.
//!
//! The forward is built once for each batch. A value that a later stage reads is sent there, by a
//! `permute` between the two. Then come gradients, the optimizer and `shard`, as for any graph: the
//! gradient of a send is a send back. All ranks still have one graph. `Stages::placed` leaves a
//! rank what its stage needs, in the order of `schedule`. Sources: Huang et al., "GPipe",
//! arXiv:1811.06965; Narayanan et al., arXiv:2104.04473.

mod homes;
mod label;
mod order;
mod schedule;
mod send;

use crate::rebuild::{in_order, live_beside};
use crate::shard::ShardError;
use label::{Label, is_gradient};
use overdrive_ir::{
    Builder, Channel, Compare, DType, Expr, Graph, GraphError, Mesh, Node, Prim, Reducer, Tensor,
    Value,
};
pub(crate) use send::{is_send, sends_on};
use std::collections::{BTreeMap, HashMap};

/// The scope of what goes from stage to stage.
const SEND: &str = "send";

/// The name of an input of a graph for several batches.
pub fn of_batch(name: &str, batch: usize, batches: usize) -> String {
    if batches == 1 { name.to_owned() } else { format!("{name}#{batch}") }
}

/// The batch that a node works for, if stages work on several at once.
pub(crate) fn batch(node: &Node) -> Option<usize> {
    Label::of(&node.scope)?.batch
}

/// The parameter that an optimizer keeps a state for: `w` of `optimizer.m.w`.
fn parameter(state: &str) -> Option<&str> {
    state.strip_prefix("optimizer.")?.split_once('.').map(|(_, parameter)| parameter)
}

/// The value where the rank is on this stage, elsewhere zeros.
fn at_stage<'b>(b: &'b Builder, stage: usize, value: Expr<'b>) -> Expr<'b> {
    let own = b.op1(Prim::RankIndex { along: Mesh::PIPELINE.into() }, &[]);
    let is_own = own.compare(Compare::Eq, own.constant(stage as f64));
    is_own.broadcast_in(&value.shape(), &[]).select(value, value.constant(0.0))
}

/// The place of a value: no stage for what inputs and constants alone determine, which each rank
/// computes where it needs it.
#[derive(Copy, Clone, Default)]
struct Place {
    stage: Option<usize>,
    /// Whether it differs from batch to batch.
    varies: bool,
}

/// A node is on the last of the stages whose states it needs.
fn places(graph: &Graph, homes: &BTreeMap<String, usize>) -> Vec<Place> {
    let mut at = vec![Place::default(); graph.value_count()];
    for state in graph.states() {
        // A state that nothing needs stays with the first.
        let stage = homes.get(&state.name).copied().unwrap_or(0);
        at[state.value.0 as usize] = Place { stage: Some(stage), varies: false };
    }
    for port in graph.inputs() {
        at[port.value.0 as usize].varies = true;
    }
    for node in graph.nodes() {
        let of = |v: &Value| at[v.0 as usize];
        let stage = node.operands.iter().filter_map(|v| of(v).stage).max();
        let varies = node.operands.iter().any(|v| of(v).varies);
        node.results.iter().for_each(|v| at[v.0 as usize] = Place { stage, varies });
    }
    at
}

/// The stages under construction.
struct Line<'b> {
    b: &'b Builder,
    stages: usize,
    /// By value, batch and stage, as far as it has them.
    known: BTreeMap<(Value, Option<usize>, Option<usize>), Expr<'b>>,
    at: Vec<Place>,
}

impl<'b> Line<'b> {
    /// The stage that computes a value.
    fn stage(&self, value: Value) -> Option<usize> {
        self.at[value.0 as usize].stage
    }

    fn key(&self, value: Value, batch: Option<usize>) -> (Value, Option<usize>, Option<usize>) {
        let Place { stage, varies } = self.at[value.0 as usize];
        (value, batch.filter(|_| varies), stage)
    }

    fn keep(&mut self, value: Value, batch: Option<usize>, made: Expr<'b>) {
        let key = self.key(value, batch);
        self.known.insert(key, made);
    }

    /// Builds what is the same for all batches, and sends it to the stages that read it.
    fn shared(&mut self, graph: &Graph) {
        let shared: Vec<bool> = self.at.iter().map(|place| !place.varies).collect();
        let is_shared = |value: &Value| shared[value.0 as usize];
        for node in graph.nodes() {
            if node.results.first().is_some_and(is_shared) {
                self.node(node, 0);
            }
        }
        for node in graph.nodes() {
            let Some(stage) = node.results.first().and_then(|&value| self.stage(value)) else {
                continue;
            };
            for &operand in node.operands.iter().filter(|value| is_shared(value)) {
                self.read(operand, 0, Some(stage));
            }
        }
    }

    /// Builds a node for a batch, or for all of them if it is the same.
    fn node(&mut self, node: &Node, batch: usize) {
        let Some(&first) = node.results.first() else { return };
        let key = self.key(first, Some(batch));
        if self.known.contains_key(&key) {
            return;
        }
        let (_, of, stage) = key;
        let operands: Vec<Expr<'b>> =
            node.operands.iter().map(|&v| self.read(v, batch, stage)).collect();
        let _scope = self.b.scope_path(&labelled(&node.scope, of, stage));
        let results = self.b.node(node.op.clone(), &operands, node.regions.clone());
        node.results.iter().zip(results).for_each(|(&v, made)| self.keep(v, Some(batch), made));
    }

    /// A value as a stage has it that reads it: sent there, if another computes it.
    fn read(&mut self, value: Value, batch: usize, stage: Option<usize>) -> Expr<'b> {
        let (_, of, home) = self.key(value, Some(batch));
        let (Some(source), Some(target)) = (home, stage.filter(|_| stage != home)) else {
            return self.get(value, batch);
        };
        if let Some(sent) = self.known.get(&(value, of, stage)) {
            return *sent;
        }
        let x = self.get(value, batch);
        let group = Mesh::new([(Mesh::PIPELINE, self.stages)]);
        let channel = Channel { id: self.b.channel(), group };
        let _scope = self.b.scope_path(&labelled(SEND, of, home));
        let sent = self.b.op1(Prim::Permute { pairs: vec![(source, target)], channel }, &[x]);
        self.known.insert((value, of, stage), sent);
        sent
    }

    /// A value as the stage has it that computes it.
    fn get(&self, value: Value, batch: usize) -> Expr<'b> {
        self.known[&self.key(value, Some(batch))]
    }

    /// An output, which is zero on the other stages.
    fn only(&self, value: Value, expr: Expr<'b>) -> Expr<'b> {
        at_stage(self.b, self.stage(value).unwrap_or(self.stages - 1), expr)
    }
}

fn labelled(scope: &str, batch: Option<usize>, stage: Option<usize>) -> String {
    match (batch, stage) {
        (None, None) => scope.to_owned(),
        (batch, stage) => Label { batch, stage: stage.unwrap_or(0) }.on(scope),
    }
}

/// The stages of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// Their number.
    pub count: usize,
    homes: BTreeMap<String, usize>,
}

impl Stages {
    /// Divides a bound forward graph. The work for its output `y` counts, so that graphs which
    /// differ behind it have the same stages.
    ///
    /// # Errors
    /// When the graph reads too few states for so many stages.
    pub fn divide(graph: &Graph, count: usize) -> Result<Self, ShardError> {
        Ok(Self { count, homes: homes::homes(graph, count)? })
    }

    /// A bound forward graph in these stages, which takes so many batches.
    ///
    /// Inputs are those of each batch, named by [`of_batch`]. For one batch outputs are those of
    /// the graph, for several the means of those that are one float. Each is zero on all stages but
    /// the one that computes it: [`Self::total`] gives it to all.
    ///
    /// # Errors
    /// When the graph changes a state.
    pub fn pipeline(&self, graph: &Graph, batches: usize) -> Result<Graph, ShardError> {
        if let Some(state) = graph.states().iter().find(|state| state.update.is_some()) {
            return Err(ShardError::Annotation {
                value: format!("state `{}`", state.name),
                expected: "states that the model leaves as they are, along `pipeline`".into(),
                found: "one that it changes".into(),
                remedy: "leave `pipeline` out of the mesh".into(),
            });
        }
        let is_taken = |node: &&Node| Label::of(&node.scope).is_some() || is_gradient(&node.scope);
        if let Some(node) = graph.nodes().iter().find(is_taken) {
            return Err(ShardError::Annotation {
                value: format!("scope `{}`", node.scope),
                expected: "scopes without `grad` and without labels, along `pipeline`".into(),
                found: "one that reads as a batch of a stage, or as a gradient".into(),
                remedy: "rename the nodes of the model, or leave `pipeline` out of the mesh".into(),
            });
        }
        let b = Builder::new(graph.name());
        let at = places(graph, &self.homes);
        let mut line = Line { b: &b, stages: self.count, known: BTreeMap::new(), at };
        for state in graph.states() {
            let ty = graph.ty(state.value).clone();
            line.keep(state.value, None, b.state_named(&state.name, ty, state.init.clone()));
        }
        for batch in 0..batches {
            for port in graph.inputs() {
                let name = of_batch(&port.name, batch, batches);
                let ty = graph.ty(port.value).clone();
                line.keep(port.value, Some(batch), b.input(&name, ty));
            }
        }
        // Gradients are built in the opposite order. So sums of them begin with the first batch,
        // and end with what other stages send once a step.
        line.shared(graph);
        for batch in (0..batches).rev() {
            graph.nodes().iter().for_each(|node| line.node(node, batch));
        }
        for port in graph.outputs() {
            let of = |batch: usize| line.get(port.value, batch);
            let ty = graph.ty(port.value);
            if batches == 1 {
                b.output(&port.name, line.only(port.value, of(0)));
            } else if ty.rank() == 0 && ty.dtype.is_float() {
                let sum = (1..batches).map(of).fold(of(0), |sum, value| sum + value);
                b.output(&port.name, line.only(port.value, sum / sum.constant(batches as f64)));
            }
        }
        Ok(crate::dce(&b.finish()?)?)
    }

    /// The same for one batch, with outputs that all stages know.
    ///
    /// # Errors
    /// As [`Self::pipeline`].
    pub fn forward(&self, graph: &Graph) -> Result<Graph, ShardError> {
        let staged = self.pipeline(graph, 1)?;
        let b = Builder::new(staged.name());
        let values = b.append(&staged)?;
        for port in staged.outputs() {
            b.output(&port.name, self.total(values[port.value.0 as usize]));
        }
        Ok(b.finish()?)
    }

    /// Those of a graph; `None` if it has no sends between stages.
    pub fn of(graph: &Graph) -> Option<Self> {
        let sends = graph.nodes().iter().filter_map(|node| node.op.prim().filter(|p| is_send(p)));
        let count = sends.filter_map(Prim::channel).map(Channel::ranks).next()?;
        let mut homes = BTreeMap::new();
        let states = graph.states().iter();
        let states: BTreeMap<Value, &str> = states.map(|s| (s.value, s.name.as_str())).collect();
        for node in graph.nodes().iter().filter(|node| !is_gradient(&node.scope)) {
            let Some(Label { stage, .. }) = Label::of(&node.scope) else { continue };
            for name in node.operands.iter().filter_map(|value| states.get(value)) {
                let name = parameter(name).unwrap_or(name).to_owned();
                homes.entry(name).and_modify(|home| *home = stage.min(*home)).or_insert(stage);
            }
        }
        Some(Self { count, homes })
    }

    /// The stage that alone holds a state of the model, and what an optimizer keeps for it.
    pub fn home(&self, state: &str) -> Option<usize> {
        let of = |name: &str| self.homes.get(name).copied();
        of(state).or_else(|| of(parameter(state)?))
    }

    /// The value on this stage, elsewhere zeros.
    pub fn only<'b>(&self, stage: usize, value: Expr<'b>) -> Expr<'b> {
        at_stage(value.builder(), stage, value)
    }

    /// For all stages what one of them has: the sum of them, or of bools whether any is true.
    pub fn total<'b>(&self, value: Expr<'b>) -> Expr<'b> {
        let is_bool = value.dtype() == DType::Bool;
        let reducer = if is_bool { Reducer::Or } else { Reducer::Sum };
        let b = value.builder();
        let group = Mesh::new([(Mesh::PIPELINE, self.count)]);
        let channel = Channel { id: b.channel(), group };
        b.op1(Prim::AllReduce { reducer, channel }, &[value])
    }

    /// The work of one stage: its own sends and states, and what they need, in the order of the
    /// schedule.
    pub(crate) fn placed(&self, graph: &Graph, own: usize) -> Result<Graph, GraphError> {
        let b = Builder::new(graph.name());
        let mut map: BTreeMap<Value, Expr<'_>> = BTreeMap::new();
        for port in graph.inputs() {
            map.insert(port.value, b.input(&port.name, graph.ty(port.value).clone()));
        }
        let is_own = |name: &str| self.home(name).is_none_or(|home| home == own);
        for state in graph.states() {
            let ty = graph.ty(state.value).clone();
            let made = match is_own(&state.name) {
                true => b.state_named(&state.name, ty, state.init.clone()),
                false => b.full(ty.dtype, ty.shape, 0.0),
            };
            map.insert(state.value, made);
        }
        // A rank that only receives sends zeros to nobody: one tensor of each type for all batches.
        let mut zeros = HashMap::new();
        for node in graph.nodes() {
            let mut operands: Vec<Expr<'_>> = node.operands.iter().map(|v| map[v]).collect();
            let results = match node.op.prim() {
                Some(Prim::RankIndex { along }) if &*along.0 == Mesh::PIPELINE => {
                    vec![b.constant(Tensor::from_ints(DType::I32, [0usize; 0], &[own as i128]))]
                }
                Some(prim @ Prim::Permute { pairs, .. }) if is_send(prim) => {
                    let sends = pairs.iter().any(|(source, _)| *source == own);
                    let gets = pairs.iter().any(|(_, target)| *target == own);
                    if !sends {
                        let (dtype, shape) = (operands[0].dtype(), operands[0].shape());
                        let zero = zeros.entry((dtype, shape.clone()));
                        operands[0] = *zero.or_insert_with(|| b.full(dtype, shape, 0.0));
                    }
                    if sends || gets { b.again(node, &operands) } else { operands }
                }
                _ => b.again(node, &operands),
            };
            map.extend(node.results.iter().copied().zip(results));
        }
        graph.outputs().iter().for_each(|port| b.output(&port.name, map[&port.value]));
        for state in graph.states().iter().filter(|state| is_own(&state.name)) {
            if let Some(update) = state.update {
                b.update(&state.name, map[&update]);
            }
        }
        let graph = needed(&crate::fold(&needed(&b.finish()?)?)?)?;
        order::ordered(&graph, self.count, own)
    }
}

/// The graph without what neither its outputs and updates nor another stage needs. All ranks of a
/// stage have the same graph here, so that collectives between them go too.
fn needed(graph: &Graph) -> Result<Graph, GraphError> {
    let updates = graph.states().iter().filter_map(|state| state.update);
    let wanted = graph.outputs().iter().map(|port| port.value).chain(updates);
    let live = live_beside(graph, wanted, |node| node.op.prim().is_some_and(is_send));
    let is_live = |node: &&Node| node.results.iter().any(|v| live[v.0 as usize]);
    in_order(graph, graph.nodes().iter().filter(is_live))
}

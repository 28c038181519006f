//! The origin of a NaN or an infinity: the first value of a step that is not finite.
//!
//! The step is run again on the same inputs and states, op by op as it stands, with one flag a
//! value added. The answer thus names an op of the model and its scope, and not a fused loop.
//! Nothing is copied: states are read in their place, and moments of the optimizer not at all.
//!
//! Each rank runs its own graph. Ranks then tell each other what they found: the first value that
//! no exchange brought is the origin.

use crate::compiled::Compiled;
use crate::held::is_of_optimizer;
use crate::ranks::Ranks;
use crate::step::OPTIMIZER;
use crate::{Recipe, TrainError};
use overdrive_ir::{
    Backend, Builder, Compare, DType, Expr, Graph, Mode, Node, Origin, Prim, Reducer, State,
    Tensor, Tuning, Unary, Value,
};
use overdrive_passes::Scaling;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A value that is not finite, as a rank found it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct NotFinite {
    /// Whether an exchange brought it: then another rank has its origin, or a sum overflowed.
    is_brought: bool,
    /// Its number among the values of the graph.
    number: u32,
    /// It, in words.
    words: String,
}

/// The first value behind the outputs of `graph` that is not finite; `None` if all are finite.
/// If it `accumulates`, states change as by the graph itself, so that the next batch can follow.
///
/// # Errors
/// When the back end cannot run the graph.
pub(crate) fn first(
    backend: &dyn Backend,
    (graph, accumulates): (&Graph, bool),
    state: &mut State,
    tensors: &[(&str, &Tensor)],
) -> Result<Option<NotFinite>, TrainError> {
    let (flagged, watched) = flagged(graph, accumulates)?;
    let mut flagged = Compiled::in_mode(backend, flagged, Mode::Eager, &Tuning::default())?;
    let flags = flagged.run(backend, state, tensors)?;
    let first = flags.iter().zip(watched).find(|(flag, _)| flag.to_f64()[0] == 0.0);
    Ok(first.map(|(_, value)| NotFinite::of(graph, value)))
}

/// The origin among those that ranks found, in words. All ranks call this at the same time.
///
/// # Errors
/// When another rank has failed.
pub(crate) fn origin(
    ranks: Ranks<'_>,
    own: Option<NotFinite>,
) -> Result<Option<String>, TrainError> {
    let shown = serde_json::to_vec(&own).expect("words are plain data");
    let mut all = vec![];
    ranks.share("the first value that is not finite", &shown, |rank, bytes| {
        let found: Option<NotFinite> =
            serde_json::from_slice(bytes).expect("all ranks have the same version");
        all.extend(found.map(|found| (found, rank)));
    })?;
    if ranks.all_count() == 1 {
        return Ok(own.map(|found| found.words));
    }
    Ok(all.into_iter().min().map(|(found, rank)| format!("on rank {rank} {}", found.words)))
}

impl NotFinite {
    fn of(graph: &Graph, value: Value) -> Self {
        let ty = graph.ty(value);
        let (is_brought, words) = match graph.origin(value) {
            Origin::Input(number) => {
                (false, format!("input `{}` {ty} is not finite", graph.inputs()[number].name))
            }
            Origin::State(number) => {
                (false, format!("state `{}` {ty} is not finite", graph.states()[number].name))
            }
            Origin::Node(..) => {
                let node = graph.producer(value).expect("a node made it");
                let scope = if node.scope.is_empty() { graph.name() } else { &node.scope };
                let (op, of) = (node.op.name(), of_gradients(graph, node));
                let words = format!(
                    "`{op}` at {scope}{of} made the first value that is not finite, in {ty}"
                );
                (is_exchange(node), words)
            }
        };
        Self { is_brought, number: value.0, words }
    }
}

fn is_exchange(node: &Node) -> bool {
    node.op.prim().and_then(Prim::channel).is_some()
}

impl Recipe {
    /// The error of a run whose step is not finite.
    pub(crate) fn diverged(&self, step: u64, first: String) -> TrainError {
        TrainError::NonFinite { step, first, advice: self.remedy() }
    }

    /// Remedies for a run that diverges, but for those that the recipe has already.
    pub(crate) fn remedy(&self) -> String {
        let is_narrow = self.precision != DType::F32 || self.float8.is_some();
        let is_delayed =
            self.float8.as_ref().is_some_and(|codes| codes.scaling == Scaling::Delayed);
        let remedies = [
            (true, "lower the learning rate"),
            (self.schedule.warmup == 0, "warm it up"),
            (self.clip_norm.is_none(), "clip gradients"),
            (is_delayed, "take scales from each tensor itself (fp8-current)"),
            (is_narrow, "train in f32"),
        ];
        let open = remedies.into_iter().filter(|(is_open, _)| *is_open);
        let mut open: Vec<&str> = open.map(|(_, remedy)| remedy).collect();
        let last = open.pop().unwrap_or_default();
        match open.as_slice() {
            [] => last.to_owned(),
            [one] => format!("{one}, or {last}"),
            more => format!("{}, or {last}", more.join(", ")),
        }
    }
}

/// Names the parameters from whose gradients a node of the optimizer alone computes a norm; empty
/// for any other node.
fn of_gradients(graph: &Graph, node: &Node) -> String {
    /// As many names as a line has room for.
    const MOST: usize = 4;
    let is_shared = |node: &Node| &*node.scope == OPTIMIZER;
    let mut behind: Vec<&Node> = Some(node).into_iter().filter(|node| is_shared(node)).collect();
    let mut names = BTreeSet::new();
    while let Some(node) = behind.pop() {
        for value in &node.operands {
            // The update of a parameter, which has a scope of its own, reads its gradient.
            let readers = graph.nodes().iter().filter(|reader| reader.operands.contains(value));
            let of = |reader: &Node| {
                reader.scope.strip_prefix(OPTIMIZER)?.strip_prefix('/').map(str::to_owned)
            };
            let read_by: BTreeSet<String> = readers.filter_map(of).collect();
            match graph.producer(*value) {
                Some(inner) if read_by.is_empty() && is_shared(inner) => behind.push(inner),
                _ => names.extend(read_by),
            }
        }
    }
    let shown: Vec<String> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    match shown.is_empty() {
        true => String::new(),
        false => format!(", from gradients of {}{more},", shown.join(", ")),
    }
}

/// The values that the outputs of a graph come from, and new states where it `accumulates`. Other
/// ranks wait for its part in exchanges, but for those of the optimizer: no rank updates here.
fn needed(graph: &Graph, accumulates: bool) -> BTreeSet<Value> {
    let updates = graph.states().iter().filter_map(|state| state.update);
    let updates = updates.filter(|_| accumulates);
    let mut needed: BTreeSet<Value> = graph.outputs().iter().map(|port| port.value).collect();
    needed.extend(updates);
    for node in graph.nodes().iter().rev() {
        let is_awaited = is_exchange(node) && !is_of_optimizer(node);
        if is_awaited || node.results.iter().any(|result| needed.contains(result)) {
            needed.extend(node.operands.iter().chain(&node.results));
        }
    }
    needed
}

/// The needed part of a graph, with an output for each float value of it: 1 where all of it is
/// finite. Without updates of states, unless it `accumulates`.
fn flagged(graph: &Graph, accumulates: bool) -> Result<(Graph, Vec<Value>), TrainError> {
    let needed = needed(graph, accumulates);
    let b = Builder::new(&format!("{}.finite", graph.name()));
    let mut values: BTreeMap<Value, Expr<'_>> = BTreeMap::new();
    for port in graph.inputs() {
        values.insert(port.value, b.input(&port.name, graph.ty(port.value).clone()));
    }
    for state in graph.states().iter().filter(|state| needed.contains(&state.value)) {
        let ty = graph.ty(state.value).clone();
        values.insert(state.value, b.state_named(&state.name, ty, state.init.clone()));
    }
    for node in graph.nodes() {
        if node.results.iter().any(|result| needed.contains(result)) {
            let operands: Vec<Expr<'_>> = node.operands.iter().map(|v| values[v]).collect();
            values.extend(node.results.iter().copied().zip(b.again(node, &operands)));
        }
    }
    let mut watched = Vec::new();
    for (&value, &x) in values.iter().filter(|(_, x)| x.dtype().is_arithmetic_float()) {
        let axes: Vec<usize> = (0..x.rank()).collect();
        let finite = x.unary(Unary::Abs).compare(Compare::Lt, x.constant(f64::INFINITY));
        let all = finite.convert(DType::F32).reduce(Reducer::Min, &axes);
        b.output(&format!("%{}", value.0), all);
        watched.push(value);
    }
    for state in graph.states().iter().filter(|_| accumulates) {
        if let Some(new) = state.update {
            b.update(&state.name, values[&new]);
        }
    }
    Ok((b.finish()?, watched))
}

#[cfg(test)]
mod tests;

//! `ordered`: the graph of one stage in the order of the schedule.
//!
//! All stages follow one order in time of tasks and sends. The first send that is not done has both
//! of its ranks ready for it. So no two stages wait for each other.

use super::label::{Label, is_gradient};
use super::schedule::{LENGTH, Task, schedule};
use super::send::is_send;
use crate::rebuild::in_order;
use overdrive_ir::{Graph, GraphError, Node, Origin, Prim, Value};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The graph of stage `own`: what a batch needs before what the next one does.
pub(super) fn ordered(graph: &Graph, stages: usize, own: usize) -> Result<Graph, GraphError> {
    let mut order = Order::of(graph);
    let batches = order.of.iter().flatten().map(|work| work.batch + 1).max().unwrap_or(1);
    let all = schedule(stages, batches);
    let sends: Vec<(Send, usize)> = (0..graph.nodes().len())
        .filter_map(|index| Some((Send::of(&graph.nodes()[index])?, index)))
        .collect();
    // Sends before the tasks that begin as they end, on both of their ranks.
    let mut events: BTreeMap<(usize, Event), usize> = BTreeMap::new();
    for &(send, index) in &sends {
        let Some(batch) = send.batch else { continue };
        let task = if send.is_gradient { Task::Backward(batch) } else { Task::Forward(batch) };
        let made = all[send.source].iter().find(|(other, _)| *other == task);
        let (_, began) = made.expect("a stage has every task of every batch");
        events.insert((began + LENGTH, Event::Send(send)), index);
    }
    for &(task, begins) in &all[own] {
        events.insert((begins, Event::Task(task)), 0);
    }
    let shared = |gradient: bool| {
        let of = sends.iter().filter(move |(s, _)| s.batch.is_none() && s.is_gradient == gradient);
        let mut of: Vec<(Send, usize)> = of.copied().collect();
        of.sort_unstable();
        // Gradients go down the stages, and one may need what a later stage sent.
        if gradient {
            of.sort_by_key(|(send, _)| Reverse(send.source));
        }
        of.into_iter().map(|(_, index)| index)
    };
    shared(false).for_each(|index| order.emit(vec![index]));
    for ((_, event), index) in events {
        match event {
            Event::Send(_) => order.emit(vec![index]),
            Event::Task(task) => order.emit(order.goals(task, own)),
        }
    }
    shared(true).for_each(|index| order.emit(vec![index]));
    order.emit((0..graph.nodes().len()).collect());
    in_order(graph, order.taken.iter().map(|&index| &graph.nodes()[index]))
}

/// The things that happen at a time; sends first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(Send),
    Task(Task),
}

/// A value on its way from stage to stage, the same on both.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Send {
    batch: Option<usize>,
    is_gradient: bool,
    source: usize,
    channel: u64,
}

impl Send {
    fn of(node: &Node) -> Option<Self> {
        let Some(Prim::Permute { pairs, channel }) = node.op.prim().filter(|p| is_send(p)) else {
            return None;
        };
        let batch = Label::of(&node.scope)?.batch;
        let is_gradient = is_gradient(&node.scope);
        Some(Self { batch, is_gradient, source: pairs.first()?.0, channel: channel.id })
    }
}

/// The batch that a node works for, and whether in its backward. Later work is larger.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Work {
    is_gradient: bool,
    batch: usize,
}

/// The number of the node that makes a value.
fn maker(graph: &Graph, value: Value) -> Option<usize> {
    match graph.origin(value) {
        Origin::Node(id, _) => Some(id.0 as usize),
        _ => None,
    }
}

struct Order<'g> {
    graph: &'g Graph,
    of: Vec<Option<Work>>,
    is_taken: Vec<bool>,
    taken: Vec<usize>,
}

impl<'g> Order<'g> {
    /// Sums of gradients of several batches have no label: they belong to the last of them. If they
    /// need what another stage sends after all batches, they come then.
    fn of(graph: &'g Graph) -> Self {
        let mut of: Vec<Option<Work>> = vec![];
        let mut is_late: Vec<bool> = vec![];
        for node in graph.nodes() {
            let waits = |v: &Value| maker(graph, *v).is_some_and(|maker| is_late[maker]);
            let is_last = Send::of(node).is_some_and(|s| s.is_gradient && s.batch.is_none());
            let late = is_last || node.operands.iter().any(waits);
            is_late.push(late);
            let label = Label::of(&node.scope);
            let own = label.map(|label| {
                label.batch.map(|batch| Work { is_gradient: is_gradient(&node.scope), batch })
            });
            let is_sum = matches!(node.op.prim(), Some(Prim::Binary { .. }));
            let of_operand =
                |v: &Value| of[maker(graph, *v)?].filter(|work: &Work| work.is_gradient);
            let inherited = || match node.scope.is_empty() && is_sum {
                true => node.operands.iter().filter_map(of_operand).max(),
                false => None,
            };
            of.push(own.unwrap_or_else(inherited).filter(|_| !late));
        }
        let count = graph.nodes().len();
        Self { graph, of, is_taken: vec![false; count], taken: vec![] }
    }

    /// The nodes that a task is there for.
    fn goals(&self, task: Task, own: usize) -> Vec<usize> {
        let nodes = self.graph.nodes();
        let of = |is_gradient: bool, batch: usize| {
            let work = Some(Work { is_gradient, batch });
            let wanted = move |index: &usize| self.of[*index] == work;
            (0..nodes.len()).filter(wanted).filter(|&index| Send::of(&nodes[index]).is_none())
        };
        match task {
            Task::Forward(batch) => of(false, batch).collect(),
            // Nobody waits for the first stage.
            Task::Backward(batch) if own == 0 => of(true, batch).collect(),
            Task::Backward(batch) => {
                let sends = |index: &usize| {
                    let send = Send::of(&nodes[*index]);
                    send.is_some_and(|send| {
                        send.is_gradient && send.source == own && send.batch == Some(batch)
                    })
                };
                let sends = (0..nodes.len()).filter(sends);
                sends.filter_map(|index| maker(self.graph, nodes[index].operands[0])).collect()
            }
            Task::Weights(batch) => of(true, batch).collect(),
        }
    }

    /// Takes these nodes and all that they need, as far as they are not taken, in their old order.
    fn emit(&mut self, goals: Vec<usize>) {
        let (mut open, mut new) = (goals, vec![]);
        while let Some(index) = open.pop() {
            if std::mem::replace(&mut self.is_taken[index], true) {
                continue;
            }
            new.push(index);
            let operands = &self.graph.nodes()[index].operands;
            open.extend(operands.iter().filter_map(|v| maker(self.graph, *v)));
        }
        new.sort_unstable();
        self.taken.append(&mut new);
    }
}

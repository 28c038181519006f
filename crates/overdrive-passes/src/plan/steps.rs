//! From nodes to steps over slots: where each value is, what is computed once, and the step of each
//! node.

use crate::draft::Draft;
use crate::fuse::is_cloned;
use crate::legalize::model_scope;
use crate::lower::lower;
use crate::meeting_order::meets;
use crate::readers::Readers;
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::{
    KernelCall, KernelOp, Layout, Note, Plan, Slot, SlotId, SlotPlace, Step, StepKind, View,
};
use overdrive_ir::{
    Cost, Graph, Mode, Node, NodeId, Operation, Prim, Target, TensorType, Value, row_major,
};
use std::collections::{BTreeSet, HashMap};

/// Turns the nodes of a draft's graph into steps.
pub(crate) fn steps(draft: &mut Draft<'_>) {
    let graph = &draft.graph;
    let mut planner = Planner::new(graph, draft.plan.mode, draft.target);
    planner.plan.notes = std::mem::take(&mut draft.plan.notes);
    for index in 0..graph.nodes().len() as u32 {
        planner.node(NodeId(index));
    }
    planner.finish();
    planner.settle_prepared();
    draft.plan = planner.plan;
}

/// The state of planning.
pub(super) struct Planner<'g> {
    pub(super) graph: &'g Graph,
    pub(super) target: &'g dyn Target,
    pub(super) plan: Plan,
    /// The place of each value, once it is computed.
    pub(super) located: HashMap<Value, View>,
    pub(super) readers: Readers,
    /// Output number of values that are outputs, and whether anything else (a second output, an
    /// update) is too.
    pub(super) results: HashMap<Value, Vec<Option<usize>>>,
    /// Buffers that only `prepare` steps write.
    pub(super) prepared: BTreeSet<SlotId>,
    /// Buffers that steps of each call write.
    called: BTreeSet<SlotId>,
    /// Packed forms already made: (matrix, k, n) by their printed key.
    pub(super) packed: HashMap<String, SlotId>,
}

impl<'g> Planner<'g> {
    fn new(graph: &'g Graph, mode: Mode, target: &'g dyn Target) -> Self {
        let mut results: HashMap<Value, Vec<Option<usize>>> = HashMap::new();
        for (i, port) in graph.outputs().iter().enumerate() {
            results.entry(port.value).or_default().push(Some(i));
        }
        for update in graph.states().iter().filter_map(|s| s.update) {
            results.entry(update).or_default().push(None);
        }
        let plan = Plan { name: graph.name().to_owned(), mode, ..Plan::default() };
        let mut planner = Planner {
            graph,
            target,
            plan,
            located: HashMap::new(),
            readers: Readers::of(graph),
            results,
            prepared: BTreeSet::new(),
            called: BTreeSet::new(),
            packed: HashMap::new(),
        };
        for (i, port) in graph.inputs().iter().enumerate() {
            let slot = planner.slot(graph.ty(port.value), SlotPlace::Input(i));
            planner.plan.inputs.push(slot);
            planner.located.insert(port.value, View::row_major(slot, graph.ty(port.value).clone()));
        }
        for state in graph.states() {
            let slot = planner.slot(graph.ty(state.value), SlotPlace::State(state.name.clone()));
            planner
                .located
                .insert(state.value, View::row_major(slot, graph.ty(state.value).clone()));
        }
        planner
    }

    pub(super) fn slot(&mut self, ty: &TensorType, place: SlotPlace) -> SlotId {
        self.plan.slots.push(Slot { ty: ty.clone(), layout: Default::default(), place });
        SlotId(self.plan.slots.len() as u32 - 1)
    }

    pub(super) fn arena_slot(&mut self, ty: &TensorType) -> SlotId {
        self.slot(ty, SlotPlace::Arena { space: Default::default(), offset: 0 })
    }

    pub(super) fn step(&mut self, kind: StepKind, touched: [Vec<SlotId>; 2], about: About<'_>) {
        let unique = |slots: Vec<SlotId>| -> Vec<SlotId> {
            let mut seen = BTreeSet::new();
            slots.into_iter().filter(|s| seen.insert(*s)).collect()
        };
        let [reads, writes] = touched.map(unique);
        // Ranks meet in every call, whatever each of them has kept from another.
        let meets =
            matches!(kind, StepKind::CollectiveStart { .. } | StepKind::CollectiveDone { .. });
        let is_called = writes.iter().any(|slot| self.called.contains(slot));
        let prepare = !meets && !is_called && self.prepares(&reads, &writes);
        for &slot in &writes {
            if prepare {
                self.prepared.insert(slot);
                self.plan.slots[slot.0 as usize].place =
                    SlotPlace::Persistent { space: Default::default(), offset: 0 };
            } else {
                self.prepared.remove(&slot);
                self.called.insert(slot);
            }
        }
        self.plan.steps.push(Step {
            kind,
            reads,
            writes,
            aliases: vec![],
            stream: 0,
            waits: vec![],
            records: None,
            prepare,
            only_if: None,
            scratch_bytes: 0,
            cost: about.cost,
            name: about.name.to_owned(),
            scope: model_scope(about.scope).to_owned(),
        });
    }

    /// Steps that read only what never changes run once: packing, casts of weights, masks. Mode
    /// eager has none.
    fn prepares(&self, reads: &[SlotId], writes: &[SlotId]) -> bool {
        let own = |s: &SlotId| {
            matches!(
                self.plan.slot(*s).place,
                SlotPlace::Arena { .. } | SlotPlace::Persistent { .. }
            )
        };
        self.plan.mode != Mode::Eager
            && reads.iter().all(|&s| self.is_fixed(s))
            && writes.iter().all(own)
    }

    /// True for buffers that hold the same bytes in every call until somebody replaces a state.
    pub(super) fn is_fixed(&self, slot: SlotId) -> bool {
        match &self.plan.slot(slot).place {
            SlotPlace::Constant(_) => true,
            SlotPlace::State(name) => {
                let changes = |s: &overdrive_ir::StateDecl| s.name == *name && s.update.is_some();
                !self.graph.states().iter().any(changes)
            }
            SlotPlace::Persistent { .. } => self.prepared.contains(&slot),
            _ => false,
        }
    }

    fn node(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        // Other ranks wait for this one's part in a collective, whoever needs the result here.
        let meets = meets(node);
        let is_unused = || node.results.iter().all(|&v| !self.is_used(v));
        // Views, scalars and iotas are located when somebody needs them as a buffer.
        if is_cloned(graph, node) || (!meets && is_unused()) {
            return;
        }
        if let Some(fused) = node.op.composite::<Fused>() {
            let operands: Vec<View> = node.operands.iter().map(|&v| self.locate(v)).collect();
            self.region(&node.regions[0], &operands, &node.results, (&fused.label, node));
            return;
        }
        match &node.op {
            op if crate::fuse::is_step_of_its_own(graph, node, self.target) => {
                let cut = crate::fuse::cut_one(graph, id);
                let operands: Vec<View> = cut.inputs.iter().map(|&v| self.locate(v)).collect();
                self.region(&cut.region, &operands, &node.results, (&op.name(), node));
            }
            Operation::Prim(Prim::Reshape { .. } | Prim::Constant { .. }) => {
                node.results.iter().for_each(|&v| drop(self.locate(v)));
            }
            Operation::Prim(Prim::Pad { pads }) => self.pad(node, pads),
            Operation::Prim(Prim::Concat { axis }) => self.concat(node, *axis),
            Operation::Prim(prim) if meets => self.collective(node, prim),
            op => self.kernel(node, op),
        }
    }

    /// A fused region: one contraction with its epilogue, or one loop nest.
    fn region(
        &mut self,
        region: &Graph,
        operands: &[View],
        values: &[Value],
        (name, node): (&str, &Node),
    ) {
        if crate::lower::contraction(region).is_some() {
            self.contraction(region, operands, values, (name, node));
            return;
        }
        let last = self.are_last(operands);
        let results: Vec<View> = values.iter().map(|&v| self.destination_after(v, last)).collect();
        let cost = self.region_cost(region, operands, &results);
        self.loop_step(region, operands, &results, About { name, scope: &node.scope, cost });
    }

    pub(super) fn region_cost(&self, region: &Graph, operands: &[View], results: &[View]) -> Cost {
        let bytes = operands.iter().chain(results).map(|v| v.ty.bytes() as u64).sum();
        Cost { flops: region.cost().flops, bytes }
    }

    pub(super) fn loop_step(
        &mut self,
        region: &Graph,
        operands: &[View],
        results: &[View],
        about: About<'_>,
    ) {
        let program = lower(region, operands, results).unwrap_or_else(|reason| {
            panic!("`{}` was fused because it lowers: {reason}", about.name)
        });
        let touched = [operands, results].map(|views| views.iter().map(|v| v.slot).collect());
        self.step(StepKind::Loop(program), touched, about);
    }

    pub(super) fn kernel(&mut self, node: &Node, op: &Operation) {
        let operands: Vec<View> = node.operands.iter().map(|&v| self.locate(v)).collect();
        let windowed = matches!(op, Operation::Prim(Prim::ReduceWindow { .. }));
        let last = windowed && self.are_last(&operands);
        let of = |&v: &Value| self.is_used(v).then(|| self.destination_after(v, last));
        let results: Vec<Option<View>> = node.results.iter().map(of).collect();
        let touched = [
            operands.iter().map(|v| v.slot).collect(),
            results.iter().flatten().map(|v| v.slot).collect(),
        ];
        let (name, regions) = (op.name(), node.regions.clone());
        let kernel_op = match op {
            Operation::Prim(prim) => KernelOp::Prim(prim.clone(), regions),
            Operation::Composite(op) => KernelOp::Composite(op.clone(), regions),
        };
        let call = KernelCall { op: kernel_op, operands, results, epilogue: None };
        let types: Vec<_> = node.operands.iter().map(|&v| self.graph.ty(v).clone()).collect();
        let wanted: Vec<bool> = node.results.iter().map(|&v| self.is_used(v)).collect();
        let kind = match self.target.kernel(&overdrive_ir::Call::of(node, &types, &wanted)) {
            Ok(_) => StepKind::Kernel(call),
            Err(decline) => {
                let reason = decline.reason(&self.target.description().device);
                self.plan.notes.push(on_the_host(&name, &node.scope, &reason));
                StepKind::Host(call)
            }
        };
        let cost = self.graph.node_cost(node);
        self.step(kind, touched, About { name: &name, scope: &node.scope, cost });
    }

    /// A buffer that a later step of each call writes too (the fill under a pad, say) is no
    /// preparation.
    fn settle_prepared(&mut self) {
        for step in &mut self.plan.steps {
            if step.prepare && !step.writes.iter().all(|slot| self.prepared.contains(slot)) {
                step.prepare = false;
                for &slot in &step.writes {
                    self.prepared.remove(&slot);
                    self.plan.slots[slot.0 as usize].place =
                        SlotPlace::Arena { space: Default::default(), offset: 0 };
                }
            }
        }
    }

    /// Outputs that are not yet in their slots, and the list of updates.
    fn finish(&mut self) {
        let graph = self.graph;
        for (i, port) in graph.outputs().iter().enumerate() {
            let view = self.locate(port.value);
            let own = self.plan.slot(view.slot).place == SlotPlace::Output(i);
            let slot = if own { view.slot } else { self.slot(&view.ty, SlotPlace::Output(i)) };
            if !own {
                self.copy(&view, &View::row_major(slot, view.ty.clone()), "copy");
            }
            self.plan.outputs.push(slot);
        }
        for state in graph.states() {
            let Some(update) = state.update else { continue };
            let (old, new) = (self.locate(state.value).slot, self.locate(update));
            let own = self.plan.slot(new.slot);
            let is_taken = || self.plan.updates.iter().any(|(.., slot)| *slot == new.slot);
            let is_view = own.ty.dtype == new.ty.dtype
                && own.ty.elements() == new.ty.elements()
                && own.layout == Layout::RowMajor
                && !is_taken();
            let fits = match own.place {
                SlotPlace::Arena { .. } => own.ty == new.ty || is_view,
                SlotPlace::Output(_) => own.ty == new.ty,
                _ => false,
            };
            let slot = match is_dense(&new) && fits {
                true => new.slot,
                false => self.materialize(&new, "copy").slot,
            };
            // Steps know where elements lie. The shape of the buffer is that of the state.
            self.plan.slots[slot.0 as usize].ty = new.ty;
            self.plan.updates.push((state.name.clone(), old, slot));
        }
    }
}

/// The note on a step for which the device has no kernel.
pub(super) fn on_the_host(name: &str, scope: &str, reason: &str) -> Note {
    let reason = format!("{reason}: the f64 reference runs on the host");
    Note::Declined { what: name.to_owned(), scope: scope.to_owned(), reason }
}

/// The description of a step.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) name: &'a str,
    pub(super) scope: &'a str,
    pub(super) cost: Cost,
}

/// True when a view is its whole slot in row-major order.
pub(super) fn is_dense(view: &View) -> bool {
    let sizes = view.ty.sizes();
    view.offset == 0
        && row_major(&sizes)
            .iter()
            .zip(&sizes)
            .zip(&view.strides)
            .all(|((&r, &n), &s)| n <= 1 || r as i64 == s)
}

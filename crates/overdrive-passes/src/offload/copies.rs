//! Planned copies: their slots, and the steps before which they start and end.

use super::ledger::LEAST_BYTES;
use overdrive_ir::Cost;
use overdrive_ir::plan::{Plan, SlotId, Step, StepKind};

/// Direction of a copy. Each direction has a stream, since links carry both at once. So have small
/// copies out, which should not queue behind large ones.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To main memory.
    In,
    /// From it.
    Out,
}

/// One copy.
#[derive(Clone, Debug)]
pub(super) struct OffloadCopy {
    pub(super) way: Way,
    pub(super) from: SlotId,
    pub(super) to: SlotId,
    /// It starts before this step of the plan as it is now.
    pub(super) start: usize,
    /// It has ended before this one.
    pub(super) done: usize,
    /// The copied value: a state, or the step that computed it.
    pub(super) name: String,
    pub(super) scope: String,
}

/// All of a plan.
#[derive(Default)]
pub(super) struct Copies(Vec<OffloadCopy>);

impl Copies {
    pub(super) fn push(&mut self, copy: OffloadCopy) {
        assert!(copy.start <= copy.done, "a copy ends after its start");
        self.0.push(copy);
    }

    /// The slots that something is copied from or to.
    pub(super) fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.0.iter().flat_map(|copy| [copy.from, copy.to])
    }

    /// Puts them into the plan. Between two steps, what leaves comes first, so that its bytes are
    /// free for what comes.
    pub(super) fn insert(mut self, plan: &mut Plan) {
        // A copy that others wait for starts first.
        self.0.sort_by_key(|copy| (copy.start, copy.done));
        let mut added: Vec<(usize, usize, Step)> = Vec::new();
        for copy in &self.0 {
            let (first, then) = match copy.way {
                Way::Out => (0, 1),
                Way::In => (2, 3),
            };
            added.push((copy.start, first, step(plan, copy, StepKind::CopyStart)));
            added.push((copy.done, then, step(plan, copy, StepKind::CopyDone)));
        }
        added.sort_by_key(|(at, rank, _)| (*at, *rank));
        let mut added = added.into_iter().peekable();
        let steps = std::mem::take(&mut plan.steps);
        for (at, step) in steps.into_iter().enumerate() {
            while let Some((_, _, copy)) = added.next_if(|(before, ..)| *before <= at) {
                plan.steps.push(copy);
            }
            plan.steps.push(step);
        }
        plan.steps.extend(added.map(|(_, _, copy)| copy));
    }
}

fn step(plan: &Plan, copy: &OffloadCopy, kind: StepKind) -> Step {
    let starts = matches!(kind, StepKind::CopyStart);
    let stream = match (starts, copy.way) {
        (false, _) => 0,
        (true, Way::In) => 1,
        (true, Way::Out) if plan.slot(copy.from).bytes() >= LEAST_BYTES => 2,
        (true, Way::Out) => 5,
    };
    let bytes = if starts { plan.slot(copy.from).bytes() as u64 } else { 0 };
    let way = if copy.way == Way::In { "in" } else { "out" };
    Step {
        kind,
        reads: vec![copy.from],
        writes: vec![copy.to],
        aliases: vec![],
        stream,
        waits: vec![],
        records: None,
        prepare: false,
        only_if: None,
        scratch_bytes: 0,
        cost: Cost { flops: 0, bytes },
        name: format!("{} {way}", copy.name),
        scope: copy.scope.clone(),
    }
}

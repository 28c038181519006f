//! Placing buffers in the arenas of memory spaces: largest first, each at the lowest offset that is
//! free while it is in use.
//!
//! The algorithm is "greedy by size" of Pisarchyk and Lee, "Efficient memory management for deep
//! neural net inference", 2020. It is within a few percent of the live-bytes bound on real models.
//! Two buffers may share bytes if every use of one ends before the other begins. This follows the
//! partial order of streams and events, which is settled first. Invariant: buffers in use at once
//! never share bytes, except a value that is updated in place.

use overdrive_ir::plan::{LiveRange, PartialOrder, Plan, SlotId, SlotPlace, Space, StepKind};
use std::collections::{BTreeMap, HashMap};

/// Orders the streams by events, and gives every arena and persistent slot its offset, and the plan
/// its sizes. It runs again where a back end has made one step of several: all that the step
/// touches then lives at the same time.
pub fn place(plan: &mut Plan) {
    order_streams(plan);
    let spans = PartialOrder::new(plan).spans(plan);
    let sharing = plan.sharing();
    let space_of = |i: usize| match plan.slots[i].place {
        SlotPlace::Arena { space, .. } if spans[i].is_some() && sharing[i].0 as usize == i => {
            Some(space)
        }
        _ => None,
    };
    let mut order: Vec<(usize, Space)> =
        (0..plan.slots.len()).filter_map(|i| Some((i, space_of(i)?))).collect();
    order.sort_by_key(|&(i, _)| std::cmp::Reverse((plan.slots[i].bytes(), usize::MAX - i)));
    let spaces = order.iter().map(|(_, space)| usize::from(space.0) + 1).fold(1, usize::max);
    let mut placed: Vec<Vec<PlacedBuffer<'_>>> = (0..spaces).map(|_| Vec::new()).collect();
    let mut offsets = vec![0; plan.slots.len()];
    plan.arena_bytes = vec![0; spaces];
    for (i, space) in order {
        let at = usize::from(space.0);
        let span = spans[i].as_ref().expect("filtered above");
        let bytes = aligned(plan.slots[i].bytes());
        let offset = free_offset(&placed[at], bytes, span);
        plan.arena_bytes[at] = plan.arena_bytes[at].max(offset + bytes);
        placed[at].push(PlacedBuffer { offset, bytes, span });
        offsets[i] = offset;
    }
    plan.live_bytes = live_bytes(plan.steps.len(), &placed[0]).into_iter().max().unwrap_or(0);
    plan.persistent_bytes = vec![0; spaces];
    for (i, slot) in plan.slots.iter_mut().enumerate() {
        match slot.place {
            SlotPlace::Arena { space, .. } if spans[i].is_some() => {
                slot.place = SlotPlace::Arena { space, offset: offsets[sharing[i].0 as usize] };
            }
            SlotPlace::Persistent { space, .. } => {
                let end = &mut plan.persistent_bytes[usize::from(space.0)];
                slot.place = SlotPlace::Persistent { space, offset: *end };
                *end += aligned(slot.bytes());
            }
            _ => {}
        }
    }
}

/// A buffer in an arena.
struct PlacedBuffer<'a> {
    offset: usize,
    bytes: usize,
    span: &'a LiveRange,
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(Plan::ALIGNMENT)
}

/// The lowest offset at which so many bytes are free during a span.
fn free_offset(placed: &[PlacedBuffer<'_>], bytes: usize, span: &LiveRange) -> usize {
    let mut busy: Vec<(usize, usize)> = placed
        .iter()
        .filter(|other| !other.span.is_apart(span))
        .map(|other| (other.offset, other.offset + other.bytes))
        .collect();
    busy.sort_unstable();
    let mut offset = 0;
    for (start, end) in busy {
        if start >= offset + bytes {
            break;
        }
        offset = offset.max(end);
    }
    offset
}

/// Bytes of main memory that are in use at each step, as the steps stand in the plan.
fn live_bytes(steps: usize, placed: &[PlacedBuffer<'_>]) -> Vec<usize> {
    let mut live = vec![0; steps];
    for buffer in placed {
        live[buffer.span.first..=buffer.span.last].iter_mut().for_each(|all| *all += buffer.bytes);
    }
    live
}

/// Renumbers the events. A copy, or a collective on a stream of its own, begins once the work
/// before it in the plan has ended. The work after its end waits for it. The places of start and
/// end in the plan thus decide what a slot holds, and when its bytes may serve another.
///
/// Work in other memory waits for no work of the device. It begins once the copies of its operands
/// have ended, and copies of its results begin once it has.
fn order_streams(plan: &mut Plan) {
    let mut next = 0;
    let mut event = || {
        next += 1;
        next - 1
    };
    for step in &mut plan.steps {
        step.waits.clear();
        step.records = None;
    }
    let mut work = None;
    // The last step beside the device's work that writes a slot.
    let mut writers: HashMap<SlotId, usize> = HashMap::new();
    let elsewhere: Vec<bool> =
        plan.steps.iter().map(|step| plan.runs_in(step) != Space::MAIN).collect();
    for at in 0..plan.steps.len() {
        if plan.steps[at].prepare {
            debug_assert_eq!(plan.steps[at].stream, 0, "preparation is work");
            continue;
        }
        let packs = matches!(plan.steps[at].kind, StepKind::Pack { .. } | StepKind::PackFilter(_));
        debug_assert!(!packs, "packing is preparation");
        if plan.steps[at].stream != 0 {
            let before = work.filter(|_| !elsewhere[at]);
            let awaited: Option<u32> = before
                .map(|before: usize| *plan.steps[before].records.get_or_insert_with(&mut event));
            let step = &plan.steps[at];
            // The last writer on a stream ends last.
            let mut handed: BTreeMap<u16, usize> = BTreeMap::new();
            for &writer in step.reads.iter().filter_map(|slot| writers.get(slot)) {
                let stream = plan.steps[writer].stream;
                if stream != step.stream && (elsewhere[at] || elsewhere[writer]) {
                    let last = handed.entry(stream).or_insert(writer);
                    *last = writer.max(*last);
                }
            }
            let handed = handed.into_values().filter_map(|writer| plan.steps[writer].records);
            let waits: Vec<u32> = awaited.into_iter().chain(handed).collect();
            writers.extend(step.writes.iter().map(|&slot| (slot, at)));
            let step = &mut plan.steps[at];
            step.waits.extend(waits);
            step.records = Some(event());
            continue;
        }
        if matches!(plan.steps[at].kind, StepKind::CopyDone | StepKind::CollectiveDone { .. }) {
            let start = plan.steps[..at].iter().rev().find(|step| step.starts(&plan.steps[at]));
            let start = start.expect("what ends has started");
            // Work on the main stream has ended by then.
            let awaited = start.records.filter(|_| start.stream != 0);
            plan.steps[at].waits.extend(awaited);
        }
        work = Some(at);
    }
}

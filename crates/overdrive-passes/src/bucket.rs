//! Bucket: collectives start as soon as their operand is ready and end where their result is read.
//! Small ones of one kind and group are merged into one step.
//!
//! The graph reduces gradients where the optimizer needs them, after the whole backward pass. A
//! device with a stream for collectives can hide them behind the rest of the backward pass, if each
//! starts early. A transport has a cost for each collective, so hundreds of small ones become a few
//! larger ones. PyTorch's DistributedDataParallel does the same (Li et al., 2020, section 3.2.3). A
//! bucket copies nothing: it is one step with several operands and results. Invariants: steps that
//! touch the same bytes keep their order. Plans of all ranks have the same collectives in the same
//! order.

use overdrive_ir::plan::{Plan, SlotId, Step, StepKind};
use overdrive_ir::{Channel, Description, Prim, Reducer};

/// Bytes of a bucket, as in PyTorch: of more, less is hidden by the backward; fewer reach less of
/// the bandwidth.
pub(crate) const BUCKET_BYTES: usize = 25 << 20;

/// The stream of collectives; copies have streams of their own.
const STREAM: u16 = 3;

/// Orders and gathers the collectives of a plan.
pub(crate) fn bucket(plan: &mut Plan, device: &Description, most: usize) {
    if !plan.steps.iter().any(is_start) {
        return;
    }
    let behind = plan.bytes_behind();
    start_early(&mut plan.steps, &behind);
    end_late(&mut plan.steps, &behind);
    gather(plan, most);
    if device.overlaps_collectives {
        let starts = plan.steps.iter_mut().filter(|step| is_start(step));
        starts.for_each(|step| step.stream = STREAM);
    }
}

fn is_start(step: &Step) -> bool {
    matches!(step.kind, StepKind::CollectiveStart { .. })
}

/// Whether one of two steps writes bytes that the other touches.
fn meet(a: &Step, b: &Step, behind: &[SlotId]) -> bool {
    a.meets(b, |x, y| behind[x.0 as usize] == behind[y.0 as usize])
}

/// Whether one of two collectives is a permutation. The work between permutations may be another on
/// each rank (the turns of a ring), so that by moving past them ranks would come to another order.
fn keeps_order(a: &Step, b: &Step) -> bool {
    let permutes =
        |step: &Step| matches!(step.kind, StepKind::CollectiveStart { prim: Prim::Permute { .. } });
    is_start(a) && is_start(b) && (permutes(a) || permutes(b))
}

/// Moves each start up to what it waits for.
fn start_early(steps: &mut [Step], behind: &[SlotId]) {
    for at in 0..steps.len() {
        if is_start(&steps[at]) {
            let meets = |earlier: &Step| {
                meet(earlier, &steps[at], behind) || keeps_order(earlier, &steps[at])
            };
            let first = steps[..at].iter().rposition(meets).map_or(0, |last| last + 1);
            steps[first..=at].rotate_right(1);
        }
    }
}

/// Moves each end down to what waits for it.
fn end_late(steps: &mut [Step], behind: &[SlotId]) {
    for at in (0..steps.len()).rev() {
        if matches!(steps[at].kind, StepKind::CollectiveDone { .. }) {
            let meets = |later: &Step| meet(later, &steps[at], behind);
            let passed = steps[at + 1..].iter().position(meets).unwrap_or(steps.len() - at - 1);
            steps[at..=at + passed].rotate_left(1);
        }
    }
}

/// Collectives that become one.
struct Bucket {
    /// The steps where they start, in the order of the plan.
    starts: Vec<usize>,
    /// The steps where they end.
    ends: Vec<usize>,
    bytes: usize,
}

/// Merges collectives of a kind that are under way at the same time into one step. It starts where
/// the last of them started, and ends where the first was waited for. No step in between touches
/// any of them.
fn gather(plan: &mut Plan, most: usize) {
    let mut open: Vec<Bucket> = vec![];
    let mut buckets = vec![];
    for at in 0..plan.steps.len() {
        let Some((_, channel)) = kind(&plan.steps[at]) else { continue };
        let start = &plan.steps[at];
        let done = StepKind::CollectiveDone { channel: channel.id };
        let ends = |step: &Step| {
            step.kind == done && step.reads == start.reads && step.writes == start.writes
        };
        let end = at + plan.steps[at..].iter().position(ends).expect("a collective ends");
        let bytes = plan.slot(plan.steps[at].reads[0]).bytes();
        let one = Bucket { starts: vec![at], ends: vec![end], bytes };
        let found = open.iter().position(|other| is_alike(plan, other.starts[0], at));
        let Some(found) = found else {
            open.push(one);
            continue;
        };
        let bucket = &mut open[found];
        if bucket.bytes + bytes <= most && bucket.ends.iter().all(|&end| end > at) {
            bucket.starts.push(at);
            bucket.ends.push(end);
            bucket.bytes += bytes;
        } else {
            buckets.push(std::mem::replace(bucket, one));
        }
    }
    buckets.extend(open);
    buckets.retain(|bucket| bucket.starts.len() > 1);
    let mut is_gone = vec![false; plan.steps.len()];
    for bucket in buckets {
        let start = *bucket.starts.last().expect("a bucket has members");
        let end = *bucket.ends.iter().min().expect("a bucket has members");
        for (members, kept) in [(&bucket.starts, start), (&bucket.ends, end)] {
            // Both in the order of starts, so that operands and results stand at the same places.
            let joined = joined(plan, members, kept);
            members.iter().for_each(|&member| is_gone[member] = true);
            is_gone[kept] = false;
            plan.steps[kept] = joined;
        }
    }
    let mut gone = is_gone.into_iter();
    plan.steps.retain(|_| !gone.next().expect("one for each step"));
}

/// The kind of a collective of which several can be merged, and its channel.
fn kind(step: &Step) -> Option<(BucketKind, &Channel)> {
    let StepKind::CollectiveStart { prim } = &step.kind else { return None };
    match prim {
        Prim::AllReduce { reducer, channel } => Some((BucketKind::Reduce(*reducer), channel)),
        Prim::ReduceScatter { reducer, channel, .. } => {
            Some((BucketKind::Scatter(*reducer), channel))
        }
        Prim::AllGather { channel, .. } => Some((BucketKind::Gather, channel)),
        Prim::AllToAll { channel, .. } => Some((BucketKind::Exchange, channel)),
        _ => None,
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum BucketKind {
    Reduce(Reducer),
    Scatter(Reducer),
    Gather,
    Exchange,
}

/// Whether two collectives do the same, over the same group, with elements of the same type.
fn is_alike(plan: &Plan, a: usize, b: usize) -> bool {
    let of = |at: usize| {
        let step = &plan.steps[at];
        let kind = kind(step).map(|(kind, channel)| (kind, &channel.group));
        (kind, plan.slot(step.reads[0]).ty.dtype)
    };
    of(a) == of(b)
}

/// The steps as one, in the place of one of them.
fn joined(plan: &Plan, members: &[usize], kept: usize) -> Step {
    let first = &plan.steps[members[0]];
    // Both ends have the channel of the first.
    let mut step = Step { kind: first.kind.clone(), ..plan.steps[kept].clone() };
    let all = || members.iter().map(|&member| &plan.steps[member]);
    step.reads = all().flat_map(|member| member.reads.clone()).collect();
    step.writes = all().flat_map(|member| member.writes.clone()).collect();
    step.cost.flops = all().map(|member| member.cost.flops).sum();
    step.cost.bytes = all().map(|member| member.cost.bytes).sum();
    step.name = format!("{} x {}", members.len(), first.name);
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use overdrive_ir::{
        Builder, DType, Expr, Graph, Mesh, Mode, TensorType, Tuning, WithoutKernels,
    };

    const SIDE: usize = 32;
    const BYTES: usize = SIDE * SIDE * 4;

    fn reduce(x: Expr<'_>, reducer: Reducer) -> Expr<'_> {
        let b = x.builder();
        let channel = Channel { id: b.channel(), group: Mesh::new([("data", 2)]) };
        b.op1(Prim::AllReduce { reducer, channel }, &[x])
    }

    /// A chain of products whose partial sums are reduced where the end needs them.
    fn backward(layers: usize) -> Graph {
        let b = Builder::new("backward");
        let ty = TensorType::new(DType::F32, [SIDE, SIDE]);
        let mut x = b.input("x", ty.clone());
        let mut sums = vec![];
        for layer in 0..layers {
            let w = b.input(&format!("w{layer}"), ty.clone());
            x = x.matmul(w).tanh();
            sums.push(x.matmul(x));
        }
        let reduced: Vec<_> = sums.iter().map(|sum| reduce(*sum, Reducer::Sum)).collect();
        let largest = reduce(sums[0], Reducer::Max);
        for (layer, sum) in reduced.iter().enumerate() {
            b.output(&format!("y{layer}"), (*sum * largest).tanh());
        }
        b.finish().unwrap()
    }

    fn device(overlaps_collectives: bool) -> Description {
        let dtypes = || [DType::F32].into();
        Description {
            contraction_dtypes: dtypes(),
            loop_dtypes: dtypes(),
            overlaps_collectives,
            ..Description::default()
        }
    }

    /// Operands of each collective, and where it starts and ends.
    fn collectives(plan: &Plan) -> Vec<(usize, usize, usize)> {
        let starts = plan.steps.iter().enumerate().filter(|(_, step)| is_start(step));
        let end = |start: usize| {
            let same = |step: &Step| step.reads == plan.steps[start].reads;
            start + 1 + plan.steps[start + 1..].iter().position(same).unwrap()
        };
        starts.map(|(at, step)| (step.reads.len(), at, end(at))).collect()
    }

    fn planned(device: &Description, most: usize) -> Plan {
        let target = WithoutKernels(device.clone());
        let mut plan = plan(&backward(6), Mode::Jit, &target, &Tuning::default()).unwrap();
        bucket(&mut plan, device, most);
        crate::plan::place(&mut plan);
        assert_eq!(plan.verify(), Ok(()), "{plan}");
        plan
    }

    #[test]
    fn reductions_of_a_kind_are_gathered_up_to_a_size() {
        for (most, expected) in
            [(BYTES, vec![1; 7]), (2 * BYTES, vec![1, 2, 2, 2]), (9 * BYTES, vec![1, 6])]
        {
            let plan = planned(&device(false), most);
            let mut sizes: Vec<_> = collectives(&plan).iter().map(|found| found.0).collect();
            sizes.sort_unstable();
            assert_eq!(sizes, expected, "{plan}");
            for step in plan.steps.iter().filter(|step| is_start(step)) {
                let sizes = |slots: &[SlotId]| -> Vec<usize> {
                    slots.iter().map(|slot| plan.slot(*slot).bytes()).collect()
                };
                assert_eq!(sizes(&step.reads), sizes(&step.writes));
            }
        }
    }

    #[test]
    fn they_run_under_the_work_that_follows() {
        let plan = planned(&device(true), 2 * BYTES);
        let found = collectives(&plan);
        // The first bucket is under way while later layers are computed.
        let (_, start, end) = found[0];
        let is_product = |step: &&Step| matches!(step.kind, StepKind::Gemm(_));
        assert!(plan.steps[start..end].iter().filter(is_product).count() > 3, "{plan}");
        for (_, start, end) in found {
            let (start, end) = (&plan.steps[start], &plan.steps[end]);
            assert_eq!((start.stream, end.stream), (STREAM, 0));
            let event = start.records.expect("its end waits for it");
            assert!(end.waits.contains(&event), "{plan}");
        }
    }
}

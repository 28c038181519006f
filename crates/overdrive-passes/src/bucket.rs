//! Bucket: collectives start as soon as their operand is ready and end where their result is read.
//! Small ones of one kind and group are merged into one step.
//!
//! The graph reduces gradients where the optimizer needs them, after the whole backward pass. A
//! device with a stream for collectives can hide them behind the rest of the backward pass, if each
//! starts early. A transport has a cost for each collective, so hundreds of small ones become a few
//! larger ones. PyTorch's DistributedDataParallel does the same (Li et al., 2020, section 3.2.3). A
//! bucket copies nothing: it is one step with several operands and results. Invariants: steps that
//! touch the same bytes keep their order. Plans of all ranks have the same collectives in the same
//! order; `Ordered` says how far a plan sees to it.
//!
//! Long because its tests build plans by hand.

mod under_way;

use crate::meeting_order::{Ordered, stays};
use crate::pipeline::is_send;
use overdrive_ir::plan::{Plan, Step, StepKind};
use overdrive_ir::{Channel, Description, Prim, Reducer};
use under_way::{end_at_once, end_late, is_end, relay_later, start_early};

/// Bytes of a bucket, as in PyTorch: of more, less is hidden by the backward; fewer reach less of
/// the bandwidth.
pub(crate) const BUCKET_BYTES: usize = 25 << 20;

/// The stream of collectives; copies have streams of their own.
const STREAM: u16 = 3;

/// Orders and gathers the collectives of a plan. `most` is the bytes of a bucket.
pub(crate) fn bucket(plan: &mut Plan, device: &Description, (ordered, most): (Ordered, usize)) {
    if !plan.steps.iter().any(is_start) {
        return;
    }
    let behind = plan.bytes_behind();
    let limits = (ordered, most);
    start_early(plan, &behind, limits, |prim| matches!(prim, Prim::AllToAll { .. }));
    end_at_once(plan);
    relay_later(plan, &behind, most);
    // A device that waits in a collective would wait for the stage before, and leave its own work.
    let is_wanted = match device.overlaps_collectives {
        true => |_: &Prim| true,
        false => |prim: &Prim| !is_send(prim),
    };
    start_early(plan, &behind, limits, is_wanted);
    end_late(plan, &behind, most);
    gather(plan, limits);
    if device.overlaps_collectives {
        let starts = plan.steps.iter_mut().filter(|step| is_start(step));
        starts.for_each(|step| step.stream = STREAM);
    }
}

fn is_start(step: &Step) -> bool {
    matches!(step.kind, StepKind::CollectiveStart { .. })
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
/// any of them, or is one that stays in its place.
fn gather(plan: &mut Plan, (ordered, most): (Ordered, usize)) {
    let mut open: Vec<Bucket> = vec![];
    let mut buckets = vec![];
    for at in 0..plan.steps.len() {
        if stays(&plan.steps[at], ordered) {
            buckets.append(&mut open);
        }
        if kind(&plan.steps[at]).is_none() {
            continue;
        }
        let ends = |step: &Step| is_end(&plan.steps[at], step);
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
    use super::under_way::AHEAD;
    use super::*;
    use crate::plan;
    use overdrive_ir::plan::SlotId;
    use overdrive_ir::{
        Builder, DType, Expr, Graph, Init, Mesh, Mode, TensorType, Tuning, WithoutKernels,
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

    /// Products with weights that are gathered, and updates from gradients that are scattered.
    fn split_step(layers: usize) -> Graph {
        let b = Builder::new("step");
        let channel = || Channel { id: b.channel(), group: Mesh::new([("data", 2)]) };
        let ty = |rows: usize| TensorType::new(DType::F32, [rows, SIDE]);
        let mut x = b.input("x", ty(SIDE));
        let name = |layer: usize| format!("w{layer}");
        let part = |layer: usize| b.state_named(&name(layer), ty(SIDE / 2), Init::ZEROS);
        let parts: Vec<Expr<'_>> = (0..layers).map(part).collect();
        for part in &parts {
            let gather = Prim::AllGather { axis: 0, channel: channel() };
            x = x.matmul(b.op1(gather, &[*part])).tanh();
        }
        let mut scattered = vec![];
        for _ in &parts {
            x = x.matmul(x).tanh();
            let (reducer, channel) = (Reducer::Sum, channel());
            scattered.push(b.op1(Prim::ReduceScatter { reducer, axis: 0, channel }, &[x]));
        }
        for (layer, (part, gradient)) in parts.iter().zip(scattered).enumerate() {
            b.update(&name(layer), *part - gradient);
        }
        b.output("y", x.sum(&[0, 1]));
        b.finish().unwrap()
    }

    fn planned(device: &Description, most: usize) -> Plan {
        planned_of(&backward(6), device, most)
    }

    fn planned_of(graph: &Graph, device: &Description, most: usize) -> Plan {
        let target = WithoutKernels(device.clone());
        let mut plan = plan(graph, Mode::Jit, &target, &Tuning::default()).unwrap();
        bucket(&mut plan, device, (Ordered::Turns, most));
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

    fn starts_of(plan: &Plan, is_kind: fn(&Prim) -> bool) -> Vec<usize> {
        let is_wanted =
            |step: &Step| matches!(&step.kind, StepKind::CollectiveStart { prim } if is_kind(prim));
        (0..plan.steps.len()).filter(|&at| is_wanted(&plan.steps[at])).collect()
    }

    /// Each gather starts before the product before the one that reads it. Gathered weights, and
    /// gradients that are scattered, are whole for a few layers at a time.
    #[test]
    fn split_parameters_are_gathered_a_few_products_ahead() {
        let layers = 3 * AHEAD;
        let plan = planned_of(&split_step(layers), &device(true), 0);
        let products = |from: usize, to: usize| {
            let is_product = |step: &&Step| matches!(step.kind, StepKind::Gemm(_));
            plan.steps[from..to].iter().filter(is_product).count()
        };
        let gathers = starts_of(&plan, |prim| matches!(prim, Prim::AllGather { .. }));
        let order: Vec<SlotId> = gathers.iter().map(|&at| plan.steps[at].reads[0]).collect();
        assert!(order.len() == layers && order.is_sorted(), "{order:?}\n{plan}");
        let reader = |&start: &usize| {
            let reads = |step: &Step| step.reads.contains(&plan.steps[start].writes[0]);
            start + plan.steps[start..].iter().position(reads).unwrap()
        };
        for (layer, start) in gathers.iter().enumerate() {
            let ahead = products(*start, reader(start));
            assert!(ahead >= layer.min(AHEAD - 1) && ahead < AHEAD + 1, "{layer}: {ahead}\n{plan}");
        }
        for at in 0..plan.steps.len() {
            let waits = |start: &&usize| **start <= at && at <= reader(start);
            let held = gathers.iter().filter(waits).count();
            assert!(held <= AHEAD + 1, "{held} at {at}\n{plan}");
        }
        let scatters = starts_of(&plan, |prim| matches!(prim, Prim::ReduceScatter { .. }));
        let end = |start: usize| {
            start + plan.steps[start..].iter().position(|s| is_end(&plan.steps[start], s)).unwrap()
        };
        assert_eq!(scatters.len(), layers);
        for &start in &scatters {
            let since = scatters.iter().filter(|&&other| start <= other && other < end(start));
            assert!(since.count() <= AHEAD, "{plan}");
        }
        // Not each waits at once: the first is under way while later products run.
        assert!(products(scatters[0], end(scatters[0])) >= AHEAD - 1, "{plan}");
    }

    #[test]
    fn small_ones_are_few_buckets_however_many_there_are() {
        let plan = planned_of(&split_step(12), &device(true), 16 * BYTES);
        for is_kind in [
            (|prim: &Prim| matches!(prim, Prim::AllGather { .. })) as fn(&Prim) -> bool,
            |prim: &Prim| matches!(prim, Prim::ReduceScatter { .. }),
        ] {
            assert_eq!(starts_of(&plan, is_kind).len(), 1, "{plan}");
        }
    }

    /// Gradients summed in two hops, where the end of the step needs them.
    fn in_two_hops(layers: usize) -> Graph {
        let b = Builder::new("step");
        let channel = || Channel { id: b.channel(), group: Mesh::new([("data", 2)]) };
        let mut x = b.input("x", TensorType::new(DType::F32, [SIDE, SIDE]));
        let mut gradients = vec![];
        for _ in 0..layers {
            x = x.matmul(x).tanh();
            gradients.push(x.matmul(x));
        }
        let mut sums = vec![];
        for gradient in gradients {
            let parts = gradient.reshape([2, SIDE / 2, SIDE]);
            let exchange = Prim::AllToAll { split: 0, concat: 0, channel: channel() };
            let own = b.op1(exchange, &[parts]).sum(&[0]).reshape([1, SIDE / 2, SIDE]);
            sums.push(b.op1(Prim::AllGather { axis: 0, channel: channel() }, &[own]));
        }
        let norm = sums.iter().map(|sum| (*sum * *sum).sum(&[0, 1, 2])).reduce(|a, b| a + b);
        for (layer, sum) in sums.iter().enumerate() {
            b.output(&format!("y{layer}"), *sum / norm.unwrap());
        }
        b.finish().unwrap()
    }

    /// The sum of an exchange comes after the next has started, and its gather goes at once.
    #[test]
    fn the_second_hop_runs_under_the_work_that_follows() {
        let layers = 8;
        let plan = planned_of(&in_two_hops(layers), &device(true), BYTES);
        let exchanges = starts_of(&plan, |prim| matches!(prim, Prim::AllToAll { .. }));
        let gathers = starts_of(&plan, |prim| matches!(prim, Prim::AllGather { .. }));
        // A part of a gradient is half of its bytes, so that a bucket of gathers has two.
        assert_eq!((exchanges.len(), gathers.len()), (layers, layers / 2), "{plan}");
        for (pair, gather) in gathers.iter().take(layers / 2 - 1).enumerate() {
            assert!(exchanges[2 * pair + 2] < *gather, "{pair}\n{plan}");
            assert!(*gather < exchanges[2 * pair + 3], "{pair}\n{plan}");
        }
    }

    /// Sums of gradients that are split stand where the gradients do, in the order of the graph.
    #[test]
    fn the_first_hop_runs_under_the_work_that_follows() {
        let layers = 8;
        let b = Builder::new("step");
        let mut x = b.input("x", TensorType::new(DType::F32, [SIDE, SIDE]));
        for layer in 0..layers {
            x = x.matmul(x).tanh();
            let channel = Channel { id: b.channel(), group: Mesh::new([("data", 2)]) };
            let parts = x.matmul(x).reshape([2, SIDE / 2, SIDE]);
            let exchange = Prim::AllToAll { split: 0, concat: 0, channel };
            b.output(&format!("y{layer}"), b.op1(exchange, &[parts]).sum(&[0]));
        }
        let plan = planned_of(&b.finish().unwrap(), &device(true), BYTES);
        let found = collectives(&plan);
        assert_eq!(found.len(), layers, "{plan}");
        for (_, start, end) in &found[..layers - 1] {
            let is_product = |step: &&Step| matches!(step.kind, StepKind::Gemm(_));
            assert!(plan.steps[*start..*end].iter().any(|step| is_product(&step)), "{plan}");
        }
    }
}

//! The estimated times of a plan of one rank among several.

use overdrive_ir::plan::{Layout, Pace, Slot, SlotPlace, Space, Step, StepKind, Timeline};
use overdrive_ir::{
    Channel, Cluster, Cost, DType, Description, Fabric, Link, Mesh, Peaks, Plan, Prim, Reducer,
    SlotId, TensorType,
};

/// Bytes of the reduced gradient.
const BYTES: usize = 480;

/// A device that moves 60 bytes a second at the usual share of its peak.
fn device() -> Description {
    Description {
        peaks: Peaks { levels: vec![(1 << 20, 100.0)], ..Peaks::default() },
        ..Description::default()
    }
}

/// Two ranks a host. An all-reduce of `BYTES` over them takes 4 s, and 1 s for the call.
fn fabric() -> Fabric {
    let link = |rate: f64| Link {
        latency_seconds: 0.0,
        ring_bytes_per_second: rate,
        send_bytes_per_second: rate,
    };
    Fabric {
        name: "made up".to_owned(),
        source: "made up".to_owned(),
        ranks_a_host: 2,
        call_seconds: 1.0,
        within: [(2, link(120.0))].into(),
        between: Some(link(60.0)),
        work_beside: 1.0,
    }
}

fn step(kind: StepKind, (reads, writes): (&[u32], &[u32]), seconds: u64) -> Step {
    let ids = |ids: &[u32]| ids.iter().map(|&i| SlotId(i)).collect();
    Step {
        kind,
        reads: ids(reads),
        writes: ids(writes),
        aliases: vec![],
        stream: 0,
        waits: vec![],
        records: None,
        prepare: false,
        only_if: None,
        scratch_bytes: 0,
        cost: Cost { flops: 0, bytes: 60 * seconds },
        name: "step".into(),
        scope: String::new(),
    }
}

/// A backward of 2 s that makes a gradient, `beside` seconds more of it, and an update of 1 s.
/// During `beside` the gradient is reduced over `ranks`. `stream` is that of the collective.
fn plan(ranks: usize, beside: u64, stream: u16) -> Plan {
    let slot = |place| Slot {
        ty: TensorType::new(DType::F32, [BYTES / 4]),
        layout: Layout::RowMajor,
        place,
    };
    let arena = |offset| slot(SlotPlace::Arena { space: Space::MAIN, offset });
    let channel = Channel { id: 1, group: Mesh::new([("data", ranks)]) };
    let reduce = Prim::AllReduce { reducer: Reducer::Sum, channel };
    let work = || StepKind::Loop(Default::default());
    let backward = Step { records: Some(0), ..step(work(), (&[], &[0]), 2) };
    let start = StepKind::CollectiveStart { prim: reduce };
    let mut start = Step { stream, records: Some(1), ..step(start, (&[0], &[1]), 1) };
    let done = StepKind::CollectiveDone { channel: 1 };
    let mut done = step(done, (&[0], &[1]), 0);
    if stream != 0 {
        (start.waits, done.waits) = (vec![0], vec![1]);
    }
    let rest = step(work(), (&[], &[2]), beside);
    let update = step(work(), (&[1, 2], &[3]), 1);
    Plan {
        steps: vec![backward, start, rest, done, update],
        slots: vec![arena(0), arena(512), arena(1024), slot(SlotPlace::Output(0))],
        outputs: vec![SlotId(3)],
        arena_bytes: vec![1536],
        persistent_bytes: vec![0],
        ..Plan::default()
    }
}

fn timed(plan: &Plan, fabric: &Fabric, ranks: usize) -> Timeline {
    let (device, mesh) = (device(), Mesh::new([("data", ranks)]));
    let cluster = Some(Cluster::new(fabric, &mesh).unwrap());
    plan.timeline(&Pace { cluster, ..Pace::of(&device) })
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn a_collective_hides_under_work_that_is_long_enough() {
    let hidden = timed(&plan(2, 6, 3), &fabric(), 2);
    assert_eq!([hidden.seconds, hidden.work_seconds], [9.0, 9.0]);
    assert_eq!([hidden.exchange_seconds, hidden.exposed_seconds], [5.0, 0.0]);
    let kind = hidden.collectives["all_reduce"];
    assert_eq!((kind.count, kind.sent_bytes, kind.seconds), (1, BYTES as f64, 5.0));
    // 2 of its 5 s have nothing to hide under.
    let exposed = timed(&plan(2, 3, 3), &fabric(), 2);
    assert_eq!([exposed.seconds, exposed.work_seconds, exposed.exposed_seconds], [8.0, 6.0, 2.0]);
    // On the stream of work nothing hides.
    let serial = timed(&plan(2, 6, 0), &fabric(), 2);
    assert_eq!([serial.seconds, serial.exposed_seconds], [14.0, 5.0]);
}

#[test]
fn collectives_slow_the_work_beside_them() {
    let slowing = Fabric { work_beside: 0.5, ..fabric() };
    let timeline = timed(&plan(2, 6, 3), &slowing, 2);
    // 5 s at half speed are half lost.
    assert!(is_near(timeline.slowed_seconds, 2.5) && is_near(timeline.seconds, 9.0 + 2.5));
    assert_eq!([timeline.work_seconds, timeline.exposed_seconds], [9.0, 0.0]);
    for beside in [0, 1, 2, 3, 6] {
        let Timeline { seconds, work_seconds, slowed_seconds, exposed_seconds, .. } =
            timed(&plan(2, beside, 3), &slowing, 2);
        assert!(is_near(seconds, work_seconds + slowed_seconds + exposed_seconds), "{beside}");
    }
}

#[test]
fn a_step_takes_longer_on_slower_links_and_on_more_hosts() {
    let mut before = timed(&plan(2, 3, 3), &fabric(), 2).seconds;
    for ranks in [4, 8, 64, 4096] {
        let seconds = timed(&plan(ranks, 3, 3), &fabric(), ranks).seconds;
        assert!(seconds >= before, "{ranks}");
        before = seconds;
    }
    let mut late = fabric();
    late.within.get_mut(&2).unwrap().latency_seconds = 0.5;
    let mut narrow = fabric();
    narrow.within.get_mut(&2).unwrap().ring_bytes_per_second = 60.0;
    let seconds = [fabric(), late, narrow].map(|fabric| timed(&plan(2, 3, 3), &fabric, 2).seconds);
    assert_eq!(seconds, [8.0, 9.0, 12.0], "2 steps of 0.5 s, and 4 s more");
}

#[test]
fn a_measured_step_scales_work_alone() {
    let (device, fabric, mesh) = (device(), fabric(), Mesh::new([("data", 2)]));
    let cluster = Some(Cluster::new(&fabric, &mesh).unwrap());
    let pace = Pace { work_factor: 2.0, cluster, ..Pace::of(&device) };
    let timeline = plan(2, 6, 3).timeline(&pace);
    assert_eq!([timeline.seconds, timeline.exchange_seconds], [18.0, 5.0]);
    // Without a cluster the device reads and writes the bytes, here 60 in a second.
    let alone = plan(2, 3, 0);
    assert_eq!(alone.seconds(&device), 2.0 + 1.0 + 3.0 + 1.0);
}

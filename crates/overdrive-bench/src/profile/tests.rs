//! Tables that add up, and traces that a viewer can open, of plans made by hand.

use super::*;
use overdrive_ir::plan::{Layout, Slot, SlotPlace, Space, StepKind};
use overdrive_ir::{Cost, DType, SlotId, TensorType};
use serde_json::{Value, json};
use testkit::chrome_trace::check;

fn step(name: &str, stream: u16, reads: &[u32], writes: &[u32]) -> overdrive_ir::plan::Step {
    let ids = |slots: &[u32]| slots.iter().map(|&slot| SlotId(slot)).collect();
    overdrive_ir::plan::Step {
        kind: StepKind::CopyDone,
        reads: ids(reads),
        writes: ids(writes),
        aliases: vec![],
        stream,
        waits: vec![],
        records: None,
        prepare: false,
        only_if: None,
        scratch_bytes: 0,
        cost: Cost { flops: 100, bytes: 10 },
        name: name.to_owned(),
        scope: format!("model.{name}"),
    }
}

/// `a` and `b` on stream 0, `c` beside them on stream 2, over arena slots of 64, 128 and 256 bytes.
fn plan() -> Plan {
    let slot = |offset, floats: usize| Slot {
        ty: TensorType::new(DType::F32, [floats]),
        layout: Layout::RowMajor,
        place: SlotPlace::Arena { space: Space(0), offset },
    };
    Plan {
        name: "plan".into(),
        steps: vec![step("a", 0, &[], &[0]), step("c", 2, &[0], &[1]), step("b", 0, &[0], &[2])],
        slots: vec![slot(0, 16), slot(64, 32), slot(192, 64)],
        outputs: vec![SlotId(2)],
        ..Plan::default()
    }
}

fn times(plan: &Plan, spans_ns: [[f64; 2]; 3]) -> Vec<StepProfile> {
    let timed = plan.steps.iter().zip(spans_ns);
    let profile = timed.map(|(step, [start, time])| StepProfile {
        name: step.name.clone(),
        scope: step.scope.clone(),
        start_ns: vec![start; 2],
        time_ns: vec![time; 2],
        flops: step.cost.flops,
        bytes: step.cost.bytes,
        result_bytes: 4,
    });
    profile.collect()
}

/// Two calls of 10 us. Stream 0 works 7 us of that, stream 2 works 3 us beside it.
fn profile() -> Profile {
    let plan = plan();
    let steps = times(&plan, [[1_000.0, 3_000.0], [4_500.0, 3_000.0], [4_200.0, 4_000.0]]);
    Profile { wall_ns: 20_000.0, ..Profile::of(&plan, steps, 2) }
}

#[test]
fn shares_add_up_to_the_total_where_streams_overlap() {
    let table = OperatorTable::of(&profile());
    assert_eq!((table.streams, table.total_ns), (2, 20_000.0));
    // In each call of 10 us a step ran for 7, from 1 to 4 and from 4.2 to 8.2, and two ran for 3.
    assert_eq!((table.unattributed_ns, table.overlapped_ns), (6_000.0, 6_000.0));
    let names: Vec<&str> = table.operators.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["b", "a", "c"], "by self time");
    let shares: f64 = table.operators.iter().map(|row| row.share).sum();
    let rest = table.unattributed_ns - table.overlapped_ns;
    assert!((shares + rest / table.total_ns - 1.0).abs() < 1e-12);
    let b = &table.operators[0];
    assert_eq!((b.calls, b.time_ns, b.mean_ns, b.flops), (2, 8_000.0, 4_000.0, 200.0));
    let text = table.to_string();
    assert!(
        text.contains("(at once)") && text.contains("-30.0 %") && text.contains("100.0 %"),
        "{text}"
    );
}

#[test]
fn live_bytes_follow_the_plan() {
    let profile = profile();
    let live: Vec<u64> = profile.steps.iter().map(|step| step.live_bytes).collect();
    assert_eq!(live, [64, 64 + 128, 64 + 256]);
    assert_eq!(profile.end_live_bytes, 256, "the output");
    let peaks: Vec<u64> =
        OperatorTable::of(&profile).operators.iter().map(|row| row.peak_bytes).collect();
    assert_eq!(peaks, [320, 64, 192]);
}

#[test]
fn a_step_that_did_not_run_has_no_row() {
    let plan = plan();
    let mut steps = times(&plan, [[0.0, 1_000.0]; 3]);
    (steps[1].start_ns, steps[1].time_ns) = (vec![], vec![]);
    let profile = Profile { wall_ns: 2_000.0, ..Profile::of(&plan, steps, 2) };
    let table = OperatorTable::of(&profile);
    assert_eq!((table.streams, table.operators.len()), (1, 2));
    assert_eq!(
        (table.total_ns, table.unattributed_ns),
        (4_000.0, 0.0),
        "never less than its parts"
    );
}

fn events<'t>(trace: &'t Value, kind: &str) -> Vec<&'t Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == kind).collect()
}

#[test]
fn a_trace_keeps_to_the_format_and_has_tracks_counters_and_boundaries() {
    let trace = chrome_trace(&[profile()]);
    check(&trace).unwrap();
    let tracks: Vec<&str> = events(&trace, "M")
        .into_iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(tracks, ["calls", "stream 0", "stream 2"]);
    assert_eq!(events(&trace, "i").len(), 2, "a boundary for each sample");
    assert_eq!(events(&trace, "X").len(), 2 * (3 + 1), "steps and calls");
    let counts: Vec<u64> = events(&trace, "C")
        .iter()
        .map(|event| event["args"]["live bytes"].as_u64().unwrap())
        .collect();
    assert_eq!(counts, [64, 192, 320, 256].repeat(2));
}

#[test]
fn the_check_of_the_format_refuses_what_a_viewer_would_not_draw() {
    let refused = |event: Value| {
        let mut trace = chrome_trace(&[profile()]);
        trace["traceEvents"].as_array_mut().unwrap().push(event);
        check(&trace).unwrap_err()
    };
    let at = json!({ "pid": 1, "tid": 1, "ts": 2.0, "name": "x" });
    let with = |fields: Value| {
        let mut event = at.clone();
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        event
    };
    for (event, word) in [
        (with(json!({ "ph": "X", "dur": 2.5 })), "overlap"),
        (with(json!({ "ph": "X", "dur": -1.0 })), "duration"),
        (with(json!({ "ph": "X" })), "duration"),
        (with(json!({ "ph": "B" })), "not closed"),
        (with(json!({ "ph": "E" })), "nothing is open"),
        (with(json!({ "ph": "C", "args": { "x": "many" } })), "counter"),
        (with(json!({ "ph": "M", "args": {} })), "metadata"),
        (with(json!({ "ph": "X", "dur": 1.0, "tid": 9 })), "no name"),
        (with(json!({ "ph": "?" })), "unknown"),
        (json!({ "ph": "X", "dur": 1.0, "name": "x", "pid": 1, "tid": 1 }), "ts"),
    ] {
        let message = refused(event);
        assert!(message.contains(word), "`{word}` was not said: {message}");
    }
}

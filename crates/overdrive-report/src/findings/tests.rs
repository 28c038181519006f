//! Each rule on results made for it, and the invariant of all of them on random results.
//!
//! Long because each rule has its cases here, and one invariant is held over all rules.

use super::*;
use overdrive_bench::case::Workload;
use overdrive_bench::energy::EnergyUse;
use overdrive_bench::failure::Failure;
use overdrive_bench::memory::{MemoryUse, Peak};
use overdrive_bench::record::Record;
use overdrive_bench::series::{Basis, Conditions, Series};
use overdrive_bench::testing::{conditions, example, record, results, samples};
use overdrive_bench::verdicts::{
    Block, Control, Estimate, Evidence, Flagged, GATE_VERSION, Observed, Program, Side, Verdicts,
};
use overdrive_bench::work::{Items, Work};
use overdrive_gate::block::order;
use overdrive_gate::{derive, from_json};
use proptest::prelude::*;

fn spans(ns: u64) -> Vec<u64> {
    (0..20).map(|i| ns + (i * 7919) % (ns / 100)).collect()
}

fn said(results: &Results, topic: Topic) -> Vec<String> {
    findings(results).into_iter().filter(|f| f.topic == topic).map(|f| f.sentence).collect()
}

fn with(records: Vec<Record>) -> Results {
    Results { records, ..results() }
}

/// A record in a mode, compared with the one in mode `eager`.
fn mode(mode: &str, ns: u64) -> Record {
    let mut record = record(mode, &spans(ns));
    if mode != "eager" {
        record.baseline = Some(overdrive_bench::testing::case("eager").id());
    }
    record
}

fn quantity(mut record: Record, name: &str, value: f64) -> Record {
    record.outcome.measurement_mut().unwrap().quantities.insert(name.into(), value);
    record
}

#[test]
fn the_example_is_told_in_the_protocols_words() {
    let found = findings(&example());
    let text: Vec<String> = found.iter().map(|f| format!("{}: {}", f.topic, f.sentence)).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn the_fastest_is_named_with_its_gain_and_with_what_it_cannot_be_told_from() {
    let found =
        said(&with(vec![mode("eager", 2_000_000), mode("compile", 1_000_000)]), Topic::Latency);
    assert_eq!(found.len(), 1, "{found:?}");
    let words = "the fastest is `cpu compile f32`: on `work x=1` 1.005 ms [1.003, 1.007], \
                 first of 2, 2.001x";
    assert!(found[0].contains(words) && found[0].contains("excellent, measured"), "{found:?}");
    assert!(found[0].ends_with(", over `cpu eager f32`."), "{found:?}");
    let alike = with(vec![mode("eager", 2_000_000), mode("jit", 2_000_500)]);
    assert_eq!(said(&alike, Topic::Latency), [""; 0], "no interval decides");
    let three = vec![mode("eager", 2_000_000), mode("jit", 1_000_000), mode("compile", 1_000_500)];
    let found = said(&with(three), Topic::Latency);
    assert!(found[0].contains("not told apart from `cpu compile f32`"), "{found:?}");
}

#[test]
fn what_no_machine_can_do_is_never_recommended() {
    let mut found = with(vec![mode("eager", 2_000_000), mode("compile", 1_000_000)]);
    let work = Work { flops: 112_000_000_000, bytes: 1, items: None };
    found.records[1].outcome.measurement_mut().unwrap().work = Some(work);
    assert_eq!(said(&found, Topic::Latency), [""; 0], "112 TFLOP/s on one core");
    let far = with(vec![mode("eager", 20_000_000), mode("compile", 1_000_000)]);
    assert_eq!(said(&far, Topic::Latency), [""; 0], "20x that no second method confirmed");
}

#[test]
fn what_is_blocked_or_unproven_is_never_recommended() {
    let mut slow_start = spans(1_000_000);
    slow_start[9] = 900_000_000;
    let mut blocked = record("compile", &slow_start);
    blocked.baseline = Some(overdrive_bench::testing::case("eager").id());
    let mut unproven = mode("jit", 500_000);
    unproven.outcome.measurement_mut().unwrap().agreement = None;
    let results = with(vec![mode("eager", 2_000_000), blocked, unproven]);
    assert_eq!(said(&results, Topic::Latency), [""; 0]);
    let doubts = said(&results, Topic::Doubt);
    assert!(
        doubts[0].contains("one-sample-dominates, no ratio is claimed: `cpu compile f32`"),
        "{doubts:?}"
    );
}

#[test]
fn throughput_is_about_sizes() {
    let sized = |batch: u64, ns| {
        let mut record = mode("eager", ns);
        record.case.workload = Workload::new("mlp", [("B", batch)]);
        let items = Some(Items { per_call: batch, name: "samples".into() });
        record.outcome.measurement_mut().unwrap().work = Some(Work { flops: 1, bytes: 1, items });
        record
    };
    let found = said(&with(vec![sized(1, 1_000_000), sized(32, 4_000_000)]), Topic::Throughput);
    assert!(
        found[0].contains("on `mlp B=32` 7.96 ksamples/s, highest of 2 over its sizes"),
        "{found:?}"
    );
    assert_eq!(said(&with(vec![sized(1, 1_000_000)]), Topic::Throughput), [""; 0]);
    let mut engine = sized(32, 2_000_000);
    engine.case.configuration.backend = "engine".to_owned();
    let found = said(&with(vec![engine.clone(), sized(32, 4_000_000)]), Topic::Throughput);
    assert!(found[0].contains("`engine") && found[0].contains("highest of 2"), "{found:?}");
    // A few slow samples delay everybody behind them: the mean says so, and its interval decides
    // nothing.
    let mut slowed = spans(2_000_000);
    slowed.iter_mut().skip(9).step_by(5).for_each(|span| *span *= 12);
    let mut measurement = record("eager", &slowed).outcome.measurement().unwrap().clone();
    measurement.work = engine.outcome.measurement().unwrap().work.clone();
    assert_eq!(
        measurement.statuses[0].kind,
        overdrive_bench::status::StatusKind::Noisy,
        "{:?}",
        measurement.statuses
    );
    let rate = measurement.throughput().unwrap().per_second;
    let mean = slowed.iter().sum::<u64>() as f64 / 20.0;
    assert!((rate / (32.0 / (mean * 1e-9)) - 1.0).abs() < 1e-9, "{rate}");
    engine.outcome = Ok(measurement).into();
    assert_eq!(said(&with(vec![engine, sized(32, 4_000_000)]), Topic::Throughput), [""; 0]);
}

#[test]
fn memory_is_compared_by_a_witness_that_saw_all() {
    let needing = |name: &str, arena: Option<u64>, heap: u64| {
        let mut record = mode(name, 1_000_000);
        let peak = Some(Peak { before_bytes: 1 << 20, peak_bytes: (1 << 20) + heap });
        let memory = MemoryUse { planned_arena_bytes: arena, heap: peak, ..MemoryUse::default() };
        record.outcome.measurement_mut().unwrap().memory = Some(memory);
        record
    };
    let both = with(vec![needing("eager", Some(4096), 10), needing("jit", Some(2048), 20)]);
    let found = said(&both, Topic::Memory);
    assert!(found[0].contains(
        "the least memory has `cpu jit f32`: on `work x=1` a call adds 2.00 KiB (planned arena)"
    ));
    let one = with(vec![needing("eager", None, 10), needing("jit", Some(2048), 20)]);
    assert!(
        said(&one, Topic::Memory)[0]
            .contains("`cpu eager f32`: on `work x=1` a call adds 10 B (arena and heap)")
    );
    let same = with(vec![needing("eager", None, 10), needing("jit", None, 10)]);
    assert_eq!(said(&same, Topic::Memory), [""; 0], "nothing to choose");
}

/// A model of this accuracy over so many samples, in a file of so many bytes.
fn model(name: &str, percent: f64, n: f64, bytes: f64) -> Record {
    let record =
        quantity(quantity(mode(name, 1_000_000), "top1_percent", percent), "top1_percent.n", n);
    quantity(record, "file_bytes", bytes)
}

#[test]
fn one_sample_of_360_makes_nobody_the_best() {
    let pair = |n| vec![model("eager", 97.78, n, 400.0), model("int4-rtn", 98.06, n, 100.0)];
    let found = said(&with(pair(360.0)), Topic::Quality);
    assert_eq!(found.len(), 1, "{found:?}");
    let words = "the smallest file has `cpu int4-rtn f32`: on `work x=1` 100 B, least of 2 up \
                 to 400 B at top-1 accuracy 98.06 % [96.";
    assert!(found[0].contains(words), "{found:?}");
    let many = said(&with(pair(1e6)), Topic::Quality);
    assert!(many[0].contains("the best top-1 accuracy has `cpu int4-rtn f32`"), "{many:?}");
}

#[test]
fn a_pairwise_interval_decides_where_there_is_one() {
    let lower = |low: f64, high: f64| {
        let record = quantity(model("int8", 97.0, 360.0, 100.0), "top1_percent.change", -0.78);
        quantity(quantity(record, "top1_percent.change.low", low), "top1_percent.change.high", high)
    };
    let float = || model("eager", 97.78, 360.0, 400.0);
    let lost = said(&with(vec![float(), lower(-1.2, -0.3)]), Topic::QualityLost);
    let said_of = "`cpu int8 f32` on `work x=1`: top-1 accuracy fell by 0.78 points [0.30, 1.20]: \
                   97.78 % to 97.00 %";
    assert!(lost[0].contains(said_of), "{lost:?}");
    assert_eq!(said(&with(vec![float(), lower(-1.2, 0.3)]), Topic::QualityLost), [""; 0]);
}

#[test]
fn an_accuracy_that_halved_is_told_though_nobody_recorded_an_interval() {
    let reported = |name: &str, accuracy, bytes| {
        quantity(quantity(mode(name, 1_000_000), "accuracy", accuracy), "file_bytes", bytes)
    };
    let models = [
        reported("eager", 0.8, 2781.0),
        reported("int8", 0.75, 3029.0),
        reported("int4", 0.4, 900.0),
    ];
    let results = with(models.into());
    let lost = said(&results, Topic::QualityLost);
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(
        lost[0].contains(
            "`cpu int4 f32` on `work x=1`: accuracy halved: 0.800 to 0.400, no interval recorded"
        ),
        "{lost:?}"
    );
    assert!(!lost[0].contains("int8"), "{lost:?}");
    let larger = said(&results, Topic::NotCompressed);
    assert!(
        larger[0].contains("`cpu int8 f32` is not compressed on `work x=1`: 3029 B against 2781 B")
    );
}

#[test]
fn what_is_slower_is_told_with_its_interval() {
    let found = said(&with(vec![mode("eager", 1_000_000), mode("jit", 1_300_000)]), Topic::Slower);
    assert!(
        found[0].contains("`cpu jit f32` is slower than `cpu eager f32`: on `work x=1` 0.769x [")
    );
    assert!(found[0].contains("investigate, measured"), "{found:?}");
}

#[test]
fn a_device_that_waits_is_launch_bound() {
    let timed = |device_ns: u64| {
        let mut taken = samples(&spans(1_000_000));
        taken.iter_mut().for_each(|sample| sample.device_ns = Some(device_ns));
        let series =
            Series::new(Conditions { basis: Basis::Device, ..conditions() }, taken).unwrap();
        let mut record = mode("eager", 1_000_000);
        record.outcome.measurement_mut().unwrap().latency = Some(series);
        said(&with(vec![record]), Topic::LaunchBound)
    };
    assert!(
        timed(400_000)[0]
            .contains("`cpu eager f32` on `work x=1` works 400 µs of 1.00 ms end to end")
    );
    assert_eq!(timed(600_000), [""; 0]);
}

/// Evidence of ten blocks in which the current takes this much longer than the baseline, by case.
fn evidence(ratios: &[(String, f64)]) -> Evidence {
    let process = |side: Side, jitter: f64| {
        let observed = ratios.iter().map(|(case, ratio)| {
            let ratio = if side == Side::Current { *ratio } else { 1.0 };
            let mut observed = Observed::of_time(1e6 * ratio * (1.0 + jitter));
            let bytes = if case.contains("eager") && side == Side::Current { 120.0 } else { 100.0 };
            observed.figures.insert("file_bytes".into(), bytes);
            (case.clone(), Ok(observed))
        });
        (side, observed.collect())
    };
    let block = |block: usize| Block {
        runs: (0..6)
            .map(|at| process(order(1, block)[at], 1e-4 * ((7 * block + at) % 5) as f64))
            .collect(),
    };
    Evidence { blocks: (0..10).map(block).collect(), elapsed_s: 60.0, ..Evidence::default() }
}

fn gate(evidence: Evidence) -> Verdicts {
    let program = |name: &str| Program { name: name.into(), commit: None, command: "bench".into() };
    derive(Verdicts {
        gate_version: GATE_VERSION,
        started_unix_s: 0,
        command: "regress".into(),
        seed: 1,
        baseline: program("main"),
        current: program("HEAD"),
        environment: results().environment,
        control: Control::default(),
        cases: Vec::new(),
        evidence,
        notes: Vec::new(),
    })
}

#[test]
fn what_the_gate_found_worse_is_told_where_the_case_is_known() {
    let mut found = with(vec![mode("eager", 2_000_000), mode("compile", 1_000_000)]);
    let [eager, compile] = [0, 1].map(|at| found.records[at].case.id());
    let stranger = "kernels: other: cpu".to_owned();
    let mut session =
        gate(evidence(&[(compile.clone(), 1.1), (eager.clone(), 1.0), (stranger, 1.2)]));
    found.regression = Some(session.clone());
    let told = said(&found, Topic::Regressed);
    assert_eq!(
        told,
        [
            format!(
                "`HEAD` against `main`: `{compile}` regressed: 1.1001x [1.0999, 1.1003] the time, \
                 p 0.006."
            ),
            format!(
                "`HEAD` against `main`: `{eager}` regressed: `file_bytes` grew from 100 to 120, \
                 by more than 1."
            ),
        ]
    );
    let text = serde_json::to_string_pretty(&session).unwrap();
    assert!(Verdicts::claims(&text) && !Verdicts::claims(&overdrive_bench::json::to_json(&found)));
    assert_eq!(from_json(&text).unwrap(), session);
    assert!(
        from_json(&text.replacen('2', "7", 1)).unwrap_err().to_string().contains("gate version 7")
    );
    let edited = text.replacen("\"regressed\"", "\"same\"", 1);
    let refused = from_json(&edited).unwrap_err().to_string();
    assert!(refused.contains("do not follow from the evidence"), "{refused}");
    let change = Estimate::Ratio { value: 1.1, low: 1.0, high: 1.2 };
    session.control.flagged.push(Flagged { case: eager, figure: "median_ns".into(), change });
    found.regression = Some(session);
    assert!(said(&found, Topic::Regressed)[0].contains("advisory only"));
}

/// The records that a strategy drew. If several are of one case, the first is kept.
fn distinct(records: Vec<Record>) -> Results {
    let mut found = results();
    for mut record in records {
        if found.record(&record.case.id()).is_none() {
            let mut baseline = record.case.clone();
            baseline.configuration.mode = "eager".into();
            record.baseline = (baseline != record.case).then(|| baseline.id());
            found.records.push(record);
        }
    }
    let ids = found.records.iter().map(|record| record.case.id());
    found.regression = Some(gate(evidence(&ids.map(|id| (id, 1.1)).collect::<Vec<_>>())));
    found
}

prop_compose! {
    /// A record with any of the things that rules look at.
    fn any_record()(
        study in prop::sample::select(vec!["kernels", "models"]),
        workload in prop::sample::select(vec!["mlp", "conv"]),
        batch in 1_u64..3,
        mode in prop::sample::select(vec!["eager", "jit", "compile"]),
        ns in prop::sample::select(vec![1_000_000_u64, 1_000_500, 1_200_000, 2_000_000]),
        kind in 0..8,
        (items, memory, energy, file) in any::<(bool, Option<u16>, Option<u16>, Option<u8>)>(),
    ) -> Record {
        let mut shape = spans(ns);
        match kind {
            1 => shape[0] = 100 * ns,
            2 => shape.iter_mut().step_by(2).for_each(|span| *span += ns / 7),
            _ => {}
        }
        let mut record = record(mode, &shape);
        record.case.study = study.into();
        record.case.workload = Workload::new(workload, [("B", batch)]);
        let measurement = record.outcome.measurement_mut().unwrap();
        if kind == 3 {
            let mut taken = samples(&shape);
            taken.iter_mut().for_each(|sample| sample.device_ns = Some(sample.host_ns / 3));
            let device = Conditions { basis: Basis::Device, ..conditions() };
            measurement.latency = Some(Series::new(device, taken).unwrap());
        }
        let items = items.then(|| Items { per_call: batch, name: "samples".into() });
        measurement.work = Some(Work { flops: 1, bytes: 1, items });
        measurement.memory = memory.map(|bytes| MemoryUse {
            planned_arena_bytes: Some(bytes.into()),
            ..MemoryUse::default()
        });
        measurement.energy = energy.map(|joules| EnergyUse {
            source: "rapl".into(),
            calls: 7,
            span_ns: 2_000_000_000,
            energy_joules: f64::from(joules) + 1.0,
            idle_watts: 3.0,
        });
        if let Some(bytes) = file {
            measurement.quantities.insert("file_bytes".into(), f64::from(bytes % 4) + 1.0);
            measurement.quantities.insert("accuracy".into(), f64::from(bytes % 3) / 2.0);
            measurement.quantities.insert("top1_percent".into(), 50.0 + f64::from(bytes % 5));
            measurement.quantities.insert("top1_percent.n".into(), 2000.0);
        }
        match kind {
            4 => record.outcome = Failure::unsupported("no GPU").into(),
            5 => measurement.agreement = None,
            _ => {}
        }
        record
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every word and number of a sentence follows from the records that it names, and from no
    /// other. These records alone say the same, and without any one of them nobody says it.
    #[test]
    fn a_sentence_stands_and_falls_with_its_records(
        records in prop::collection::vec(any_record(), 1..24),
    ) {
        let results = distinct(records);
        for finding in findings(&results) {
            let without = |kept: &dyn Fn(&String) -> bool| {
                let kept = results.records.iter().filter(|record| kept(&record.case.id()));
                let records = kept.cloned().collect();
                findings(&Results { records, ..results.clone() })
            };
            let alone = without(&|id| finding.records.contains(id));
            prop_assert!(alone.contains(&finding), "{:?} is not said of its records alone: \
                                                    {:?}", finding, alone);
            for gone in &finding.records {
                let left = without(&|id| id != gone);
                let said = left.iter().any(|other| other.sentence == finding.sentence);
                prop_assert!(!said, "{:?} is said without {}", finding, gone);
            }
        }
    }
}

#[test]
fn without_records_nothing_is_said() {
    assert_eq!(findings(&results()), []);
}

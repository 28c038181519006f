//! Edits of a real session, each contradicting something that was not edited; and version 1 files.

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::json::{JsonError, from_json, to_json};
use crate::measurement::Measurement;
use crate::record::Record;
use crate::results::Results;
use crate::rules::Rules;
use crate::runner::Runner;
use crate::series::{Series, TimedCalls};
use crate::status::gate;
use crate::subject::Subject;
use crate::testing::{Synthetic, SyntheticClock, case, results};
use crate::work::{Items, Work};

/// The records that a run of two subjects leaves, of 1 ms and of 2 ms with a little noise.
fn run() -> Results {
    let clock = SyntheticClock::default();
    clock.advance(5_000_000_000);
    let noise = |made: u64| (made.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 9_000;
    let mut fast = Synthetic::new(&clock, |made| 1_000_000 + noise(made));
    let mut slow = Synthetic::new(&clock, |made| 2_000_000 + noise(made));
    let runner = Runner::new(&clock as &dyn Clock, Rules::full(), 1);
    let mut subjects: [&mut dyn Subject; 2] = [&mut slow, &mut fast];
    let outcomes = runner.compare(&mut subjects);
    let mut found = results();
    for (name, outcome) in ["eager", "compile"].into_iter().zip(outcomes) {
        let (case, command) = (case(name), "overdrive run study".to_owned());
        found.records.push(Record { case, baseline: None, seed: 1, command, outcome });
    }
    found.records[1].baseline = Some(found.records[0].case.id());
    for record in &mut found.records {
        record.case.workload.dimensions.insert("B".into(), 32);
        let items = Some(Items { per_call: 32, name: "samples".into() });
        record.outcome.measurement_mut().unwrap().work =
            Some(Work { flops: 1 << 20, bytes: 1 << 10, items });
    }
    found.records[1].baseline = Some(found.records[0].case.id());
    found
}

/// Edits the second record as a careful forger would: summary, labels and statuses follow from the
/// new samples.
fn forged(edit: impl FnOnce(&mut Series)) -> Results {
    let mut found = run();
    let measurement = found.records[1].outcome.measurement_mut().unwrap();
    let mut series = measurement.latency.clone().unwrap();
    edit(&mut series);
    let rebuilt = Series::new(series.conditions, series.samples).unwrap();
    measurement.statuses = gate(&rebuilt);
    measurement.latency = Some(rebuilt);
    found
}

#[track_caller]
fn refused(found: &Results, word: &str) {
    match from_json(&to_json(found)) {
        Err(JsonError::Content(error)) => {
            assert!(error.to_string().contains(word), "`{word}`: {error}")
        }
        other => panic!("expected `{word}`, found {other:?}"),
    }
}

fn old(found: &Results) -> Results {
    let mut value = serde_json::to_value(found).unwrap();
    value["schema_version"] = json!(1);
    for record in value["records"].as_array_mut().unwrap() {
        let latency = &mut record["outcome"]["ok"]["latency"];
        latency["conditions"].as_object_mut().unwrap().remove("session");
        for sample in latency["samples"].as_array_mut().unwrap() {
            sample.as_object_mut().unwrap().retain(|key, _| key != "start_ns" && key != "end_ns");
        }
    }
    serde_json::from_value(value).unwrap()
}

#[test]
fn what_a_run_leaves_is_believed() {
    let found = run();
    assert_eq!(from_json(&to_json(&found)).unwrap(), found);
    assert_eq!(found.unverifiable(), (0, 2));
    let first = old(&found);
    assert_eq!(from_json(&to_json(&first)).unwrap().unverifiable(), (2, 2));
}

#[test]
fn times_of_another_size_do_not_fit_their_session() {
    for (factor, divisor) in [(10, 1), (1, 6), (1, 1000)] {
        let scale = |series: &mut Series| {
            series
                .samples
                .iter_mut()
                .for_each(|sample| sample.host_ns = sample.host_ns * factor / divisor);
        };
        assert!(from_json(&to_json(&forged(scale))).is_err(), "{factor} / {divisor}");
        let warmed = |series: &mut Series| {
            scale(series);
            series
                .conditions
                .warmup
                .iter_mut()
                .for_each(|span| span.host_ns = span.host_ns * factor / divisor);
        };
        assert!(
            from_json(&to_json(&forged(warmed))).is_err(),
            "{factor} / {divisor}, with the warm-up"
        );
        // In a file of version 1 the warm-up is the only witness.
        refused(&old(&forged(scale)), "warm-up");
    }
}

#[test]
fn a_busy_moment_beside_the_samples_makes_no_honest_file_a_forged_one() {
    let mut found = run();
    let measurement = found.records[1].outcome.measurement_mut().unwrap();
    measurement.sustained = Some(TimedCalls { calls: 5, host_ns: 5 * 12_000_000 });
    assert!(from_json(&to_json(&found)).is_ok());
    refused(&old(&found), "back to back");
}

#[test]
fn samples_left_out_or_doubled_leave_a_gap() {
    let fastest = |series: &mut Series| {
        series.samples.sort_by_key(|sample| sample.host_ns);
        series.samples.truncate(10);
        series.samples.sort_by_key(|sample| sample.index);
    };
    refused(&forged(fastest), "left out");
    refused(&old(&forged(fastest)), "left out");
    let renumbered = |series: &mut Series| {
        fastest(series);
        series.samples.iter_mut().zip(0..).for_each(|(sample, index)| sample.index = index);
    };
    refused(&forged(renumbered), "left out");
    let tenfold = |series: &mut Series| {
        series.samples = vec![series.samples.clone(); 10].concat();
    };
    refused(&forged(tenfold), "left out");
    let whole = |series: &mut Series| {
        series.samples.truncate(10);
        series.conditions.session.as_mut().unwrap().rounds = 10;
    };
    refused(&forged(whole), "calls");
}

#[test]
fn items_follow_from_the_workload() {
    let mut found = run();
    let items = |found: &mut Results, at: usize, per_call| {
        let work = found.records[at].outcome.measurement_mut().unwrap().work.as_mut().unwrap();
        work.items.as_mut().unwrap().per_call = per_call;
    };
    items(&mut found, 1, 3200);
    refused(&found, "3200 samples");
    items(&mut found, 0, 3200);
    refused(&found, "3200 samples");
}

#[test]
fn another_clock_on_one_side_is_seen() {
    let clock = |series: &mut Series| series.conditions.timer.clock = "std::time::Instant".into();
    refused(&forged(clock), "timed by");
    let device = |series: &mut Series| {
        for sample in series.samples.iter_mut().skip(1) {
            sample.device_ns = Some(sample.host_ns / 2);
        }
    };
    assert!(from_json(&to_json(&forged(device))).is_ok(), "some device times change nothing");
    let all = |series: &mut Series| {
        series.samples.iter_mut().for_each(|sample| sample.device_ns = Some(sample.host_ns / 2));
    };
    refused(&forged(all), "clock");
}

#[test]
fn an_impossible_rate_is_refused_unless_it_says_so() {
    let mut found = run();
    let measurement = found.records[1].outcome.measurement_mut().unwrap();
    measurement.work.as_mut().unwrap().flops = 112_000_000_000;
    refused(&found, "cannot be so fast");
    let measurement = found.records[1].outcome.measurement_mut().unwrap();
    let invalid = crate::status::Status::new(crate::status::StatusKind::Invalid, "too fast");
    measurement.statuses.push(invalid);
    assert!(from_json(&to_json(&found)).is_ok());
}

#[test]
fn what_is_derived_is_derived_again() {
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut value = serde_json::to_value(run()).unwrap();
        edit(&mut value["records"][1]["outcome"]["ok"]);
        from_json(&value.to_string())
    };
    assert!(edited(&|ok| ok["latency"]["summary"]["mean_ns"] = json!(900_000.0)).is_err());
    assert!(edited(&|ok| ok["statuses"] = json!([{"kind": "noisy", "detail": ""}])).is_err());
    assert!(edited(&|ok| ok["latency"]["samples"][3]["flags"] = json!(["low_clock"])).is_err());
    // The last bits are those of a mathematical library.
    let confidence = |ok: &mut Value| {
        let told = &mut ok["latency"]["summary"]["median_interval"]["confidence"];
        *told = json!(told.as_f64().unwrap() * (1.0 + 1e-13));
    };
    assert!(edited(&confidence).is_ok());
}

#[test]
fn a_file_of_version_1_is_judged_by_the_rules_of_today() {
    let mut first = old(&run());
    let measurement: &mut Measurement = first.records[1].outcome.measurement_mut().unwrap();
    measurement
        .statuses
        .push(crate::status::Status::new(crate::status::StatusKind::Noisy, "by another rule"));
    let read = from_json(&to_json(&first)).unwrap();
    assert!(read.records[1].outcome.measurement().unwrap().statuses.is_empty());
    first.schema_version = 3;
    assert!(from_json(&to_json(&first)).unwrap_err().to_string().contains("version 3"));
}

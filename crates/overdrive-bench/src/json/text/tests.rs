//! A text that was written is read back equal. A text that was not written like that is refused
//! with a reason.

use super::*;
use crate::results::SCHEMA_VERSION;
use crate::testing::{example, record, results};
use proptest::prelude::*;

fn refusal(change: impl FnOnce(&mut Results)) -> String {
    let mut changed = example();
    change(&mut changed);
    from_json(&to_json(&changed)).unwrap_err().to_string()
}

#[test]
fn results_survive_the_round_trip() {
    assert_eq!(from_json(&to_json(&example())).unwrap(), example());
    assert_eq!(from_json(&to_json(&results())).unwrap(), results());
}

#[test]
fn a_failure_has_a_reason_and_no_number() {
    let text = to_json(&example());
    let start = text.find(r#""failure":"#).unwrap();
    let end = start + text[start..].find('}').unwrap();
    assert_eq!(
        &text[start..=end],
        r#""failure":{"kind":"unsupported","reason":"the device has no graphs | try `compile`"}"#
    );
}

#[test]
fn other_versions_are_named() {
    let message = refusal(|results| results.schema_version = SCHEMA_VERSION + 1);
    assert!(message.contains("schema version 3, expected 1 to 2"), "{message}");
    let older =
        from_json(r#"{"schema_version": 0, "entirely": "different"}"#).unwrap_err().to_string();
    assert!(older.contains("schema version 0"), "{older}");
}

#[test]
fn contradictions_are_refused() {
    let edited = refusal(|results| {
        let measurement = results.records[0].outcome.measurement_mut().unwrap();
        measurement.latency.as_mut().unwrap().summary.median_ns *= 0.5;
    });
    assert!(edited.contains("do not follow from its samples"), "{edited}");
    let excused = refusal(|results| {
        let blocked =
            results.records.iter_mut().filter_map(|record| record.outcome.measurement_mut());
        blocked.for_each(|measurement| measurement.statuses.clear());
    });
    assert!(
        excused.contains("its samples are one-sample-dominates, which it does not say"),
        "{excused}"
    );
    let twice = refusal(|results| results.records.push(results.records[0].clone()));
    assert!(
        twice.contains("two records of the case `models: mlp B=32: cpu eager f32 t1`"),
        "{twice}"
    );
    let dangling = refusal(|results| results.records[0].baseline = Some("nothing".into()));
    assert!(dangling.contains("refers to `nothing`"), "{dangling}");
    let rung = refusal(|results| results.ladders[0].rungs[0].case = "nothing".into());
    assert!(rung.contains("`mlp` refers to `nothing`"), "{rung}");
}

#[test]
fn a_damaged_file_is_an_error_and_never_a_panic() {
    let text = to_json(&example());
    for length in (0..text.len() - 2).step_by(97).filter(|&length| text.is_char_boundary(length)) {
        assert!(from_json(&text[..length]).is_err(), "{length} bytes were accepted");
    }
    let message = from_json("{\"schema_version\": 1,\n \"records\": 5}").unwrap_err().to_string();
    assert!(message.contains("line 2"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_samples_and_quantities_survive(
        spans in prop::collection::vec(1..u64::MAX / 2048, 1..40),
        quantity in any::<f64>().prop_filter("JSON has no NaN", |value| value.is_finite()),
        seed in any::<u64>(),
    ) {
        let mut found = results();
        let mut record = record("eager", &spans);
        record.seed = seed;
        record.outcome.measurement_mut().unwrap().quantities.insert("x".into(), quantity);
        found.records.push(record);
        prop_assert_eq!(from_json(&to_json(&found)).unwrap(), found);
    }
}

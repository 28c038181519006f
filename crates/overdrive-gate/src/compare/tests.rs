//! Verdicts over sessions, and what is refused, on made-up results.

use super::*;
use overdrive_bench::failure::Failure;
use overdrive_bench::testing::{record, results};

fn spans(ns: u64) -> Vec<u64> {
    (0..20).map(|i| ns + (i * 7919) % (ns / 100)).collect()
}

fn pair() -> [Results; 2] {
    let mut first = results();
    first.records = vec![
        record("eager", &spans(2_000_000)),
        record("jit", &spans(1_000_000)),
        record("old", &spans(1000)),
    ];
    let mut second = results();
    second.records = vec![
        record("eager", &spans(1_000_000)),
        record("jit", &spans(1_000_000)),
        record("new", &spans(1000)),
    ];
    second.records[1].outcome = Failure::failed("no such library").into();
    [first, second]
}

#[test]
fn one_session_a_side_has_no_verdict() {
    let [first, second] = pair();
    let (first, second) = ([first], [second]);
    let found = compare(&first, &second);
    let text = found.terminal(160);
    assert!(
        text.contains("2.00x, this session: no verdict") && text.contains("2.011 ms ["),
        "{text}"
    );
    assert!(text.contains("`overdrive regress`") && text.contains("not there"), "{text}");
    assert!(text.contains("failed") && text.contains("no claim"), "{text}");
    for word in ["excellent", "measured", "throughput"] {
        assert!(!text.contains(word), "`{word}` judges: {text}");
    }
    assert_eq!(found.json()["cases"].as_array().unwrap().len(), 4);
}

/// Sessions in which the case takes these times.
fn sessions(medians_ns: &[u64]) -> Vec<Results> {
    let session = |ns: &u64| Results { records: vec![record("eager", &spans(*ns))], ..results() };
    medians_ns.iter().map(session).collect()
}

#[test]
fn an_accuracy_that_halved_is_said_of_imported_files_too() {
    let with = |accuracy: f64| {
        let mut found = pair()[0].clone();
        found.imported = Some("a report of another suite, `q.json`".into());
        let measurement = found.records[0].outcome.measurement_mut().unwrap();
        measurement.latency = None;
        measurement.quantities.insert("accuracy".into(), accuracy);
        [found]
    };
    let text = compare(&with(0.92), &with(0.46)).terminal(160);
    assert!(text.contains("accuracy halved: 0.920 to 0.460, no interval recorded"), "{text}");
    assert!(text.starts_with("Imported, times are shown and not judged"), "{text}");
    let text = compare(&with(0.92), &with(0.91)).terminal(160);
    assert!(!text.contains("accuracy"), "one sample is no loss: {text}");
}

#[test]
fn several_sessions_a_side_give_an_interval_over_sessions() {
    let [first, second] =
        [sessions(&[2_000_000, 2_100_000, 1_950_000]), sessions(&[1_000_000, 1_030_000, 990_000])];
    let found = compare(&first, &second);
    let text = found.terminal(200);
    assert!(text.contains("over 3 and 3 sessions, excellent, measured"), "{text}");
    let Some(Ok(gain)) = &found.rows[0].gain else { panic!("{found:?}") };
    let [low, high] = gain.interval.unwrap();
    assert!(low > 1.8 && low < gain.ratio && gain.ratio < high && high < 2.3, "{gain:?}");
    // Two are not enough.
    assert!(compare(&first[..2], &second).terminal(200).contains("2 and 3 sessions: no verdict"));
}

/// Sessions of one program scatter by more than the interval of any of them: 5 % here, against
/// 0.5 %.
#[test]
fn identical_programs_seldom_get_a_word() {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut draw = |count: usize| {
        let medians: Vec<u64> = (0..count)
            .map(|_| (1e6 * (1.0 + 0.1 * (rng.f64() + rng.f64() - 1.0))) as u64)
            .collect();
        sessions(&medians)
    };
    let (mut pairs, mut several) = (0, 0);
    for _ in 0..100 {
        let is_said = |first: &[Results], second: &[Results]| {
            let text = compare(first, second).terminal(200);
            usize::from(text.contains("measured") && !text.contains("no difference"))
        };
        pairs += is_said(&draw(1), &draw(1));
        several += is_said(&draw(4), &draw(4));
    }
    assert_eq!(pairs, 0);
    assert!(several <= 10, "{several} of 100");
}

#[test]
fn two_machines_are_shown_and_not_judged() {
    let [first, mut second] = pair();
    second.environment.cpu.model = "Another CPU".into();
    let text = compare(&[first], &[second]).terminal(160);
    assert!(text.contains("processor: Some CPU and Another CPU"), "{text}");
    for word in ["excellent", "throughput", "A over B", "claim"] {
        assert!(!text.contains(word), "`{word}` judges: {text}");
    }
    assert!(text.contains("2.011 ms"), "{text}");
}

//! Winners have an interval and agreement, and say what they give up; nobody else wins.

use super::*;
use crate::gallery::gallery;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Results, Variant};
use overdrive_bench::series::Depth;
use overdrive_bench::testing::{example, record, results};

fn spans(ns: u64) -> Vec<u64> {
    (0..20).map(|i| ns + (i * 7919) % (ns / 100)).collect()
}

fn of(records: Vec<Record>) -> Results {
    Results { records, ..results() }
}

/// The cards of the only workload.
fn cards(results: &Results) -> [Card; 3] {
    let mut found = decide(&JudgedResults::new(results)).subjects;
    assert_eq!(found.len(), 1);
    found.remove(0).cards
}

#[test]
fn the_fastest_has_an_interval_and_says_over_what() {
    let [fastest, ..] =
        cards(&of(vec![record("eager", &spans(2_000_000)), record("compile", &spans(1_000_000))]));
    assert_eq!(fastest.winner.as_deref(), Some("cpu compile f32"));
    assert!(fastest.figure.starts_with("1.005 ms ["), "{}", fastest.figure);
    assert!(
        fastest.detail.contains("x [") && fastest.detail.contains("over `cpu eager f32`"),
        "{}",
        fastest.detail
    );
    assert_eq!(fastest.anchors.len(), 2);
}

#[test]
fn without_agreement_or_a_difference_nobody_wins() {
    let mut wrong = record("compile", &spans(1_000_000));
    wrong.outcome.measurement_mut().unwrap().agreement = None;
    let [fastest, smallest, accurate] = cards(&of(vec![wrong]));
    assert!(fastest.winner.is_none() && fastest.detail.contains("agree"), "{}", fastest.detail);
    assert!(smallest.winner.is_none() && accurate.winner.is_none());
    let alike = of(vec![record("eager", &spans(1_000_000)), record("compile", &spans(1_000_100))]);
    let [fastest, ..] = cards(&alike);
    assert!(fastest.winner.is_none(), "{:?}", fastest.winner);
    assert_eq!(fastest.figure, "no winner shown");
}

#[test]
fn what_other_programs_measured_wins_nothing() {
    let mut found =
        of(vec![record("eager", &spans(2_000_000)), record("compile", &spans(1_000_000))]);
    found.imported = Some("a report, `x.json`".into());
    for record in &mut found.records {
        let measurement = record.outcome.measurement_mut().unwrap();
        (measurement.latency, measurement.agreement) = (None, None);
    }
    let [fastest, ..] = cards(&found);
    assert!(fastest.winner.is_none() && fastest.detail.contains("imported"), "{}", fastest.detail);
}

#[test]
fn a_smaller_model_says_what_it_lost() {
    let all = gallery();
    let records = all.records.iter().filter(|record| record.case.study == "quantization");
    let [fastest, smallest, accurate] = cards(&of(records.cloned().collect()));
    assert_eq!(smallest.winner.as_deref(), Some("cpu compile f32 int4"));
    assert!(
        smallest.gives_up.iter().any(|cost| cost.starts_with("top-1 accuracy fell: 97.40 %")),
        "{:?}",
        smallest.gives_up
    );
    assert!(
        smallest.detail.contains("exact") && smallest.detail.ends_with("takes 102 KiB"),
        "{}",
        smallest.detail
    );
    assert!(fastest.winner.is_some() || fastest.figure == "no winner shown");
    assert!(
        accurate.winner.is_none() && accurate.figure.ends_with("of 4 alike"),
        "{}",
        accurate.figure
    );
}

#[test]
fn a_screening_says_that_it_is_one() {
    let mut found = example();
    assert!(decide(&JudgedResults::new(&found)).screening.is_none());
    for record in &mut found.records {
        if let Some(measurement) = record.outcome.measurement_mut() {
            measurement.latency.as_mut().unwrap().conditions.depth = Depth::Screening;
        }
    }
    let decision = decide(&JudgedResults::new(&found));
    assert!(decision.screening.is_some_and(|text| text.starts_with("A quick look, no verdict")));
    assert_eq!(decision.subjects.len(), 3, "a line for each workload");
}

#[test]
fn a_workload_of_two_studies_is_decided_once_and_a_models_other_workloads_follow_it() {
    let [eager, mut int8, mut next] =
        ["eager", "compile", "jit"].map(|mode| record(mode, &spans(2_000_000)));
    int8.case.study = "quantization".into();
    int8.outcome = record("compile", &spans(1_000_000)).outcome;
    next.case.workload.name += ", next token";
    let results = of(vec![eager, next, int8]);
    let decision = decide(&JudgedResults::new(&results));
    let (one, others) = decision.of_one_model().expect("all are of one model");
    assert!(one.study.ends_with(", quantization"), "{}", one.study);
    assert_eq!(one.cards[0].winner.as_deref(), Some("cpu compile f32"));
    assert_eq!(others.len(), 1);
    let beside = &one.beside.as_ref().expect("a baseline and a winner").rows;
    assert_eq!(beside.len(), 2, "{beside:?}");
    assert!(beside[1][1] == "fastest" && beside[1][2].starts_with("1.00"), "{beside:?}");
    assert!(others[0].workload.contains("next token"), "{}", others[0].workload);
}

#[test]
fn the_original_stands_above_what_is_likened_to_it_and_a_winner_says_how_to_make_it() {
    let original = record("compile", &spans(1_000_000));
    let mut made = vec![original.clone()];
    for (variant, cosine) in [("int8-weights", 0.9998), ("int4-rtn", 0.95)] {
        let mut quantized = record("compile", &spans(900_000));
        quantized.case.configuration.variant = Some(variant.into());
        quantized.baseline = Some(original.case.id());
        let measured = quantized.outcome.measurement_mut().unwrap();
        let part = |name: &str, value: f64| (format!("cosine{name}"), value);
        measured.quantities.extend([
            part("", cosine),
            part(".low", cosine - 1e-6),
            part(".high", cosine + 1e-6),
        ]);
        made.push(quantized);
    }
    let mut found = of(made);
    found.variants.push(Variant {
        name: "int8-weights".into(),
        about: "int8 weights".into(),
        made_by: Some("make".into()),
    });
    let [_, _, accurate] = cards(&found);
    assert_eq!(accurate.winner.as_deref(), Some("cpu compile f32 int8-weights"));
    assert_eq!(accurate.figure, "cosine 0.999800 [0.999799, 0.999801]");
    let detail = &accurate.detail;
    assert!(detail.starts_with("after the original, `cpu compile f32`; "), "{detail}");
    assert_eq!(accurate.about.as_deref(), Some("int8 weights"));
    assert_eq!(accurate.made_by.as_deref(), Some("make"));
    assert!(crate::summary(&found, 80).ends_with("\n"));
}

#[test]
fn a_training_run_alone_leaves_nothing_to_decide() {
    let mut trained = record("compile", &spans(1_000_000));
    let measured = trained.outcome.measurement_mut().unwrap();
    (measured.latency, measured.agreement, measured.memory) = (None, None, None);
    measured.quantities.insert("samples_per_second".into(), 1e5);
    let found = of(vec![trained]);
    assert!(decide(&JudgedResults::new(&found)).subjects.is_empty());
    let text = crate::summary(&found, 80);
    assert!(text.contains("1 of 1 cases ran") && !text.contains("no claim"), "{text}");
}

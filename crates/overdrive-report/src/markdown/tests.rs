//! The page, as a reader sees it.

use super::*;
use crate::terminal;
use overdrive_bench::json::{from_json, to_json};
use overdrive_bench::results::Results;
use overdrive_bench::series::Depth;
use overdrive_bench::testing::{example, results};
use proptest::prelude::*;

#[test]
fn the_page_of_everything() {
    insta::assert_snapshot!(markdown(&example()));
}

#[test]
fn one_study_alone_shows_what_is_paid_once() {
    let paid = |results: &Results| terminal(results, 140).contains("Paid once");
    let mut results = example();
    assert!(paid(&results));
    let mut other = results.records[0].clone();
    other.case.study = "another".to_owned();
    results.records.push(other);
    assert!(!paid(&results));
}

#[test]
fn the_summary_of_everything() {
    insta::assert_snapshot!(terminal(&example(), 140));
}

#[test]
fn nothing_measured_says_so() {
    assert!(markdown(&results()).contains("**Nothing was measured.**"));
}

fn rows(page: &str, mode: &str) -> Vec<String> {
    let row = |line: &&str| line.starts_with('|') && line.contains(&format!("| cpu {mode} "));
    page.lines().filter(row).map(str::to_owned).collect()
}

/// The older suite drew a back end that had failed as the fastest one.
#[test]
fn a_failed_case_is_a_row_with_its_reason_and_without_a_number() {
    let page = markdown(&example());
    let graph = rows(&page, "graph").remove(0);
    assert!(graph.contains("unsupported: the device has no graphs \\| try `compile`"), "{graph}");
    assert!(!graph.contains("0.0") && !graph.contains(" ns") && !graph.contains(" ms"), "{graph}");
    assert!(page.contains("7 of 9 ran"), "{page}");
}

#[test]
fn a_blocked_baseline_prints_no_ratio() {
    let page = markdown(&example());
    let row = rows(&page, "compile").into_iter().find(|row| row.contains("transformer")).unwrap();
    assert!(row.contains("no claim") && !row.contains('x'), "{row}");
    assert!(page.contains(
        "No claim for `cpu compile f32` on `transformer B=32`: the baseline is \
         one-sample-dominates"
    ));
}

#[test]
fn a_screening_is_announced_and_gives_no_verdict() {
    let mut screened: Results = example();
    for record in &mut screened.records {
        if let Some(measurement) = record.outcome.measurement_mut() {
            measurement.latency.as_mut().unwrap().conditions.depth = Depth::Screening;
        }
    }
    let page = markdown(&screened);
    assert!(page.contains("> A quick look, no verdict"), "{page}");
    assert!(!page.contains("excellent"), "{page}");
}

#[test]
fn the_same_results_say_the_same_after_the_round_trip() {
    let read = from_json(&to_json(&example())).unwrap();
    assert_eq!(markdown(&read), markdown(&example()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_mutation_of_a_file_is_drawn_or_refused(
        position in any::<prop::sample::Index>(),
        byte in 32_u8..127,
    ) {
        let mut bytes = to_json(&example()).into_bytes();
        let at = position.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = from_json(&text).map(|results| markdown(&results));
        }
    }
}

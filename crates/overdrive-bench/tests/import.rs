//! Files of other programs. Facts that they tell are kept, and facts that they do not tell stay
//! absent. Values that cannot be believed are not claimed, and damage is an error in words.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use overdrive_bench::exit::Exit;
use overdrive_bench::failure::FailureKind;
use overdrive_bench::import::{ImportError, parse, read};
use overdrive_bench::json::{from_json, to_json};
use overdrive_bench::measurement::Measurement;
use overdrive_bench::record::Record;
use overdrive_bench::reported::Kept;
use overdrive_bench::results::Results;
use overdrive_bench::status::StatusKind;
use overdrive_report::{markdown, terminal};
use proptest::prelude::*;

/// Every fixture that is a file of its own.
const FIXTURES: [&str; 9] = [
    "older_suite/quantization_report.json",
    "older_suite/kernel_benchmarks.json",
    "older_suite/compilation.json",
    "pytorch_trace.json",
    "nvbench.json",
    "criterion_messages.json",
    "criterion/linear/gelu/new/sample.json",
    "criterion/linear/gelu/new/estimates.json",
    "criterion/linear/gelu/new/benchmark.json",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Imports a fixture, whose results must survive our own file and have no sample that was made up.
#[track_caller]
fn imported(name: &str) -> Results {
    let mut files = read(&fixture(name)).unwrap();
    let results = files.remove(0);
    assert!(files.is_empty());
    assert_eq!(from_json(&to_json(&results)).unwrap(), results);
    let invented =
        |m: &Measurement| m.latency.is_some() || m.agreement.is_some() || m.memory.is_some();
    assert!(
        !results.records.iter().filter_map(|r| r.outcome.measurement()).any(invented),
        "{results:?}"
    );
    let page = markdown(&results);
    assert!(page.contains("not recorded") && page.contains("imported"), "{page}");
    for said in [&page, &terminal(&results, 160)] {
        assert!(!said.to_lowercase().contains("measured"), "nothing was measured here: {said}");
    }
    results
}

fn find<'r>(results: &'r Results, end: &str) -> &'r Record {
    let found = results.records.iter().find(|record| record.case.id().ends_with(end));
    found.unwrap_or_else(|| panic!("no record ends with `{end}`: {:#?}", results.records))
}

fn statuses(record: &Record) -> Vec<StatusKind> {
    record.outcome.measurement().unwrap().statuses.iter().map(|status| status.kind).collect()
}

#[test]
fn the_fusion_of_15x_is_no_claim_since_one_sample_dominates() {
    let results = imported("older_suite/kernel_benchmarks.json");
    assert_eq!(statuses(find(&results, "linear_gelu: baseline")), [StatusKind::OneSampleDominates]);
    assert_eq!(statuses(find(&results, "linear_gelu: fused")), []);
    let page = markdown(&results);
    let claim = "No claim for `fused` on `fusion linear_gelu`: the baseline is \
                 one-sample-dominates: \
        one of 10 samples holds 91 % of their sum, variation 269 % of at most 300 %";
    assert!(page.contains(claim), "{page}");
    assert!(page.contains("762 µs (mean, imported)") && !page.contains("15."), "{page}");
    assert!(terminal(&results, 160).contains("one-sample-dominates"));
}

#[test]
fn a_variation_of_297_percent_is_one_sample() {
    let results = imported("older_suite/kernel_benchmarks.json");
    for case in ["attention: torch", "tensor_core: 512x512x512"] {
        assert_eq!(statuses(find(&results, case)), [StatusKind::OneSampleDominates], "{case}");
    }
    let detail =
        &find(&results, "attention: torch").outcome.measurement().unwrap().statuses[0].detail;
    assert!(detail.contains("variation 297 % of at most 300 %"), "{detail}");
}

#[test]
fn a_file_that_is_not_smaller_is_not_compressed() {
    let results = imported("older_suite/quantization_report.json");
    for mode in ["int8", "qat", "fp8"] {
        assert_eq!(statuses(find(&results, mode)), [StatusKind::NotCompressed], "{mode}");
    }
    assert_eq!(statuses(find(&results, "baseline")), []);
    let int8 = find(&results, "int8").outcome.measurement().unwrap();
    assert_eq!(int8.statuses[0].detail, "3029 B against 2781 B of `baseline`");
    assert_eq!((int8.quantities["accuracy"], int8.quantities["file_bytes"]), (0.75, 3029.0));
    let page = markdown(&results);
    assert!(page.contains("not-compressed"));
    let halved =
        "imported, quantization: `qat` on `model`: accuracy halved: 0.750 to 0.375, no interval";
    assert!(page.contains(halved), "{page}");
}

#[test]
fn a_back_end_of_no_time_has_failed_and_null_overheads_are_not_recorded() {
    let results = imported("older_suite/compilation.json");
    let failure = find(&results, "torch_compile").outcome.failure().unwrap();
    assert_eq!(failure.kind, FailureKind::Failed);
    assert!(failure.reason.contains("a mean of 0 ns"), "{failure}");
    assert!(find(&results, "onnx").outcome.measurement().unwrap().overhead.is_empty());
    let page = markdown(&results);
    assert!(page.contains("overheads: not recorded"), "{page}");
    assert!(!page.contains(" 0.00") && !page.contains("| 0 ns"), "{page}");
    assert_eq!(results.exit(), Exit::Harness);
}

#[test]
fn a_profilers_trace_gives_operators_with_self_times_and_no_latency() {
    let results = imported("pytorch_trace.json");
    let linear = find(&results, "aten::linear [[32,1024],[1024,1024],[1024]]: pytorch@cpu");
    let linear = linear.outcome.measurement().unwrap();
    assert_eq!(linear.reported.as_ref().unwrap().kept, Kept::Trace);
    assert_eq!(linear.reported.as_ref().unwrap().mean_ns, 50_000.0);
    assert_eq!(linear.quantities["self_total_ns"], 20_000.0, "less the addmm inside of it");
    let kernel =
        find(&results, "sm90_xmma_gemm_bf16: pytorch@cuda:0").outcome.measurement().unwrap();
    assert_eq!(kernel.reported.as_ref().unwrap().samples_ns, [12_500.0, 12_000.0]);
    let copy = find(&results, "Memcpy HtoD: pytorch@cuda:0").outcome.failure().unwrap();
    assert!(copy.reason.contains("shorter than the tracer can tell"), "{copy}");
    assert_eq!(results.environment.devices[0].name, "NVIDIA H100");
    assert!(markdown(&results).contains("1 of `cuda_runtime`"));
}

#[test]
fn nvbench_states_keep_sizes_device_and_spread() {
    let results = imported("nvbench.json");
    let copy = find(&results, "copy Elements=1048576: nvbench@cuda:0 T=F32")
        .outcome
        .measurement()
        .unwrap();
    let reported = copy.reported.as_ref().unwrap();
    assert_eq!((reported.kept, reported.count), (Kept::Summary, Some(1200)));
    assert!((reported.mean_ns - 12_500.0).abs() < 1e-6);
    assert!((reported.standard_deviation_ns.unwrap() - 262.5).abs() < 1e-6);
    assert!((copy.quantities["host_mean_ns"] - 19_000.0).abs() < 1e-6);
    let skipped =
        find(&results, "Elements=1099511627776: nvbench@cuda:0 T=F32").outcome.failure().unwrap();
    assert_eq!(
        (skipped.kind, skipped.reason.as_str()),
        (FailureKind::Skipped, "out of device memory")
    );
}

#[test]
fn criterion_keeps_its_samples_wherever_one_points() {
    let expected = imported("criterion").records;
    let samples = expected[0].outcome.measurement().unwrap().reported.clone().unwrap();
    assert_eq!((samples.samples_ns.len(), samples.samples_ns[1]), (20, 2007.0));
    assert_eq!(expected[0].case.workload.name, "linear/gelu");
    for beside in ["sample.json", "estimates.json"] {
        assert_eq!(
            imported(&format!("criterion/linear/gelu/new/{beside}")).records,
            expected,
            "{beside}"
        );
    }
    let messages = imported("criterion_messages.json");
    assert_eq!(messages.records[0], expected[0]);
    let cycles = messages.records[1].outcome.failure().unwrap();
    assert!(cycles.reason.contains("`cycles`"), "{cycles}");
}

#[test]
fn estimates_alone_are_a_summary() {
    let text =
        std::fs::read_to_string(fixture("criterion/linear/gelu/new/estimates.json")).unwrap();
    let results = parse(&text, Path::new("kept.json")).unwrap();
    let reported = results.records[0].outcome.measurement().unwrap().reported.clone().unwrap();
    assert_eq!((reported.kept, reported.mean_ns, reported.count), (Kept::Summary, 2005.0, None));
}

#[test]
fn our_own_results_are_read_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let mut results = imported("nvbench.json");
    results.command = "something".into();
    std::fs::write(&path, to_json(&results)).unwrap();
    assert_eq!(read(&path).unwrap(), [results.clone()]);
    assert_eq!(read(folder.path()).unwrap(), [results.clone()], "the folder of a report");
    std::fs::write(
        &path,
        to_json(&results).replace("\"schema_version\":2", "\"schema_version\":9"),
    )
    .unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("schema version 9"));
}

#[test]
fn what_is_no_results_file_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |bytes: &[u8]| {
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let message = read(&path).unwrap_err().to_string();
        assert!(message.contains("file"), "{message}");
        message
    };
    assert!(refused(b"").contains("it is empty"));
    assert!(refused(b"{\"a\": 1}").contains("the keys `a`"));
    assert!(refused(&[0x1f, 0x8b, 8, 0]).contains("gunzip"));
    assert!(refused(&[0xff, 0xfe, 0]).contains("not text"));
    assert!(refused(b"{\"traceEvents\": []}").contains("there is no operator"));
    assert!(refused(b"{\"traceEvents\": [{\"ph\": 3}]}").contains("line 1"));
    assert!(
        refused(b"{\"benchmarks\": [], \"meta\": {\"version\": {\"json\": {\"major\": 2}}}}")
            .contains("file version 2, expected 1")
    );
    let deep = [b"{\"a\":".repeat(100_000), b"1".to_vec()].concat();
    assert!(refused(&deep).contains("not JSON"));
    let empty = read(folder.path()).unwrap_err();
    assert!(matches!(empty, ImportError::Empty { .. }), "{empty}");
    assert!(read(&folder.path().join("absent")).unwrap_err().to_string().contains("cannot open"));
}

#[test]
fn a_file_that_ends_too_early_is_an_error() {
    for name in &FIXTURES[..5] {
        let text = std::fs::read_to_string(fixture(name)).unwrap();
        let whole = text.trim_end().len();
        for length in (0..whole).filter(|&length| text.is_char_boundary(length)) {
            let outcome = parse(&text[..length], Path::new(name));
            assert!(outcome.is_err(), "{length} bytes of {name} were accepted");
        }
    }
}

/// Everything that was read can be written, read again and reported.
fn is_sound(text: &str) {
    if let Ok(results) = parse(text, Path::new("mutated.json")) {
        assert_eq!(from_json(&to_json(&results)).unwrap(), results);
        assert!(!markdown(&results).is_empty());
        assert!(!terminal(&results, 100).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_mutation_is_read_or_refused(
        which in 0..FIXTURES.len(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..128), 1..4),
    ) {
        let mut bytes = std::fs::read(fixture(FIXTURES[which])).unwrap();
        for (position, byte) in edits {
            let at = position.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            is_sound(&text);
        }
    }

    /// Numbers are where a file can be valid and absurd.
    #[test]
    fn any_number_is_read_or_refused(
        which in 0..FIXTURES.len(),
        position in any::<prop::sample::Index>(),
        number in prop::sample::select(vec!["0", "-1", "1e308", "-1e308", "1e-320",
            "18446744073709551615", "null", "\"x\"", "[]"]),
    ) {
        let text = std::fs::read_to_string(fixture(FIXTURES[which])).unwrap();
        let digit = |(at, c): (usize, char)| c.is_ascii_digit().then_some(at);
        let digits: Vec<usize> = text.char_indices().filter_map(digit).collect();
        prop_assume!(!digits.is_empty());
        let start = digits[position.index(digits.len())];
        let ends = |c: char| !c.is_ascii_digit() && c != '.';
        let end = start + text[start..].find(ends).unwrap_or(0);
        is_sound(&format!("{}{number}{}", &text[..start], &text[end..]));
    }
}

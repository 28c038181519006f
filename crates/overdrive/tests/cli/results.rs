//! Measurements as results, and models that no memory holds.

use crate::invocation::Folder;
use overdrive::bench::environment::Revision;
use overdrive::bench::failure::FailureKind;
use overdrive::bench::json::{from_json, results_of_page, to_json};
use overdrive::bench::results::Results;

#[test]
fn a_quick_bench_gives_results_that_read_back() {
    let folder = Folder::new();
    let line = "bench digits-mlp --backends cpu --trials 5 --warmup 1 --threads 1 --dtype \
                f32,bf16 --batch 1,3 --out report";
    let outcome = folder.line(&format!("{line} --json"));
    let results = from_json(&outcome.ends(0, &[]).stdout).unwrap();
    // Two batches, two formats, three modes.
    assert_eq!(results.records.len(), 12, "{results:?}");
    for record in &results.records {
        assert!(record.outcome.measurement().is_some(), "{record:?}");
        assert!(
            record.command.ends_with("--out report --json"),
            "what repeats it: {}",
            record.command
        );
    }
    assert_eq!(
        from_json(&std::fs::read_to_string(folder.path("report/results.json")).unwrap()).unwrap(),
        results
    );
    let page = std::fs::read_to_string(folder.path("report/report.html")).unwrap();
    assert_eq!(results_of_page(&page).unwrap(), [results], "the page holds the data");
    assert!(folder.path("report/report.md").is_file() && folder.path("report/plots").is_dir());
    assert_eq!(
        std::fs::read_dir(folder.path("report")).unwrap().count(),
        5,
        "with the list of files, without drafts"
    );
    let redrawn = folder.line("report report/report.html report/results.json --out both");
    redrawn.ends(0, &["1 session of 1 machine side by side"]);
    assert!(
        std::fs::read_to_string(folder.path("both/report.md"))
            .unwrap()
            .contains("shown, never judged")
    );
    assert!(folder.path("both/plots/hardware.svg").is_file());
    std::fs::write(folder.path("other.html"), "<p>nothing").unwrap();
    folder.line("report other.html").ends(2, &["other.html", "not a page"]);
    folder.line("report absent.json").ends(2, &["absent.json"]);
}

#[test]
fn ten_lines_say_what_counts_and_options_say_less_or_more() {
    let folder = Folder::new();
    let line = "bench digits-mlp --backends cpu --trials 20 --threads 1 --out report --force";
    let said = folder.line(line);
    said.ends(0, &["3 of 3 cases ran", "fastest", "smallest", "most accurate", "report: report"]);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines.len() <= 10 && lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    let all = folder.line(&format!("{line} -v"));
    all.ends(0, &["Paid once", "Time per call [95 %]", "fastest"]);
    assert!(all.stdout.lines().count() > 20, "{}", all.stdout);
    let quiet = folder.line(&format!("-q {line}"));
    assert_eq!(
        (quiet.stdout.as_str(), quiet.stderr.as_str()),
        ("report: report/report.html\n", "")
    );
    let json = folder.line(&format!("{line} -q --json"));
    assert!(from_json(&json.stdout).is_ok(), "results alone: {}", json.stdout);
}

#[test]
fn a_resumed_run_takes_no_case_twice_and_refuses_strangers() {
    let folder = Folder::new();
    folder
        .line("run cumulative --quick --ci --threads 1 --out report")
        .ends(0, &["# Overdrive", "eager"]);
    let path = folder.path("report/results.json");
    let first = from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
    folder.line("run cumulative --quick --threads 1 --resume report -v").ends(0, &["eager"]);
    let second = from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((&second.records, &second.ceilings), (&first.records, &first.ceilings));
    assert!(!second.records.is_empty());
    let stranger =
        Results { revision: Revision { commit: Some("0".repeat(40)), ..first.revision }, ..first };
    std::fs::write(&path, to_json(&stranger)).unwrap();
    folder.line("run cumulative --resume report").ends(2, &["cannot resume", "of revision 000"]);
}

#[test]
fn a_profile_adds_up_and_its_trace_parses() {
    let folder = Folder::new();
    let outcome = folder.line("profile digits-mlp --calls 2 --threads 1 --json --trace trace.json");
    let profile: serde_json::Value = serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap();
    let table = &profile["table"];
    let operators = table["operators"].as_array().unwrap();
    let attributed: f64 = operators.iter().map(|o| o["time_ns"].as_f64().unwrap()).sum();
    let time = |name: &str| table[name].as_f64().unwrap();
    let rest = time("unattributed_ns") - time("overlapped_ns");
    let total = time("total_ns");
    assert!(!operators.is_empty() && (attributed + rest - total).abs() < 1e-6 * total, "{profile}");
    let trace = std::fs::read_to_string(folder.path("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    testkit::chrome_trace::check(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let steps = events.iter().filter(|event| event["cat"] == "step").count() as u64;
    let calls = |o: &serde_json::Value| o["calls"].as_u64().unwrap();
    assert_eq!(steps, operators.iter().map(calls).sum::<u64>(), "an event per step of a call");
    assert!(operators.iter().all(|o| calls(o) > 0), "{profile}");
    let live =
        events.iter().filter(|event| event["ph"] == "C").map(|event| &event["args"]["live bytes"]);
    let peak = live.map(|bytes| bytes.as_u64().unwrap()).max().unwrap();
    let arena = profile["memory"]["transient_bytes"].as_u64().unwrap();
    assert!(0 < peak && peak <= arena, "{peak} live bytes do not fit the arena of {arena}");
}

#[test]
fn a_training_step_is_profiled_with_its_optimizer() {
    let folder = Folder::new();
    let profiled = |rest: &str| -> Vec<String> {
        let line = format!("profile digits-mlp --calls 1 --threads 1 --device cpu --json {rest}");
        let profile: serde_json::Value =
            serde_json::from_str(&folder.line(&line).ends(0, &[]).stdout).unwrap();
        let operators = profile["table"]["operators"].as_array().unwrap();
        operators.iter().map(|operator| operator["name"].to_string()).collect()
    };
    let has = |names: &[String], part: &str| names.iter().any(|name| name.contains(part));
    let (forward, training) = (profiled(""), profiled("--training"));
    assert!(training.len() > forward.len(), "{training:?}");
    assert!(has(&training, "adamw") && !has(&forward, "adamw"), "{training:?}");
}

#[test]
fn a_trace_has_all_ranks_of_a_training_step() {
    let folder = Folder::new();
    let line = "profile digits-mlp --training --mesh data=2 --device cpu --threads 2 --calls 3";
    let outcome = folder.line(&format!("{line} --trace trace.json"));
    let told = &outcome.ends(0, &["of 2, the slowest", "digits-mlp compile x 3"]).stdout;
    assert!(told.contains("adamw"), "{told}");
    let trace = std::fs::read_to_string(folder.path("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    testkit::chrome_trace::check(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |rank: u64, category: &str| -> Vec<f64> {
        let of_rank =
            |event: &&serde_json::Value| event["pid"] == rank + 1 && event["cat"] == category;
        events.iter().filter(of_rank).map(|event| event["ts"].as_f64().unwrap()).collect()
    };
    assert_eq!(of(0, "call").len(), 3);
    assert_eq!(of(0, "call"), of(1, "call"), "calls begin together");
    assert!(!of(0, "step").is_empty() && of(0, "step").len() == of(1, "step").len());
    let shares = events.iter().filter(|event| event["pid"] == 2 && event["cat"] == "step");
    let exchanged = |event: &serde_json::Value| event["name"].to_string().contains("all_reduce");
    assert!(shares.into_iter().any(exchanged), "gradients are exchanged");
    folder.line("profile digits-mlp --mesh data=2").ends(2, &["--training"]);
    let ranks = "profile digits-mlp --training --mesh data=7 --batch 32 --device cpu";
    folder.line(ranks).ends(2, &["data", "7"]);
}

#[test]
fn a_model_that_no_memory_holds_says_so_at_once() {
    let folder = Folder::new();
    let most = u32::MAX;
    for model in ["digits-mlp", "gpt-125m"] {
        let line = format!("bench {model} --trials 5 --batch {most} --json");
        let results = from_json(&folder.line(&line).ends(3, &[]).stdout).unwrap();
        assert!(results.records.len() >= 3, "our modes, and every engine that is found");
        for record in &results.records {
            let failure = record.outcome.failure().unwrap();
            assert_eq!(failure.kind, FailureKind::OutOfMemory, "{record:?}");
            assert!(failure.reason.contains("bytes"), "{record:?}");
        }
        folder
            .line(&format!("profile {model} --batch {most}"))
            .ends(2, &["bytes", "smaller batch"]);
    }
    assert!(folder.files().is_empty());
}

//! `compare` and `history`: results beside results, and files that are none.

use crate::invocation::Folder;
use overdrive::bench::json::{from_json, to_json};

/// A folder with `a/results.json` of a quick bench, and its text.
fn measured() -> (Folder, String) {
    let folder = Folder::new();
    folder
        .line(
            "bench digits-mlp --backends cpu --trials 6 --warmup 1 --threads 1 --modes \
               jit,compile --out a",
        )
        .ends(0, &[]);
    let text = std::fs::read_to_string(folder.path("a/results.json")).unwrap();
    (folder, text)
}

#[test]
fn results_are_compared_kept_and_charted() {
    let (folder, text) = measured();
    folder
        .line("compare a a/results.json")
        .ends(0, &["One machine", "A over B", "digits-mlp", "this session", "no verdict"]);
    let json = folder.line("compare a a --json").ends(0, &[]).stdout.clone();
    let comparison: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(comparison["cases"].as_array().unwrap().len(), 2);

    // Three sessions a side, each of its own.
    folder.line("compare a,a a").ends(2, &["`a` twice", "measure again"]);
    for session in 1..=3 {
        let mut later = from_json(&text).unwrap();
        later.started_unix_s += session;
        std::fs::write(folder.path(&format!("{session}.json")), to_json(&later)).unwrap();
    }
    folder
        .line("compare 1.json,2.json,3.json 3.json,2.json,1.json")
        .ends(0, &["several sessions a side"]);

    let mut other = from_json(&text).unwrap();
    other.environment.cpu.model = "Another CPU".into();
    std::fs::write(folder.path("other.json"), to_json(&other)).unwrap();
    let shown = folder.line("compare a other.json");
    shown.ends(0, &["Different machines, shown and not judged", "Another CPU"]);
    assert!(!shown.stdout.contains("A over B"));

    folder
        .line("history --add a")
        .ends(0, &["2 figures added to history.jsonl", "0 changes in 2 series"]);
    folder.line("history --add a").ends(0, &["0 figures added", "2 were there already"]);
    folder.line("history h2.jsonl --add other.json").ends(0, &["Another CPU"]);
    let json = folder
        .line("history history.jsonl h2.jsonl --json --case compile")
        .ends(0, &[])
        .stdout
        .clone();
    let series: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(series.as_array().unwrap().len(), 2, "one case on two machines");
    folder.line("history --case nothing").ends(3, &["no figure of a case with `nothing`"]);
}

/// Every kind of file that `report` takes.
#[test]
fn reports_comparisons_and_histories_read_the_same_files() {
    let (folder, _) = measured();
    let older = r#"{"baseline": {"accuracy": 0.92, "loss": 0.3, "model_size_bytes": 2781},
        "int8": {"accuracy": ACCURACY, "loss": 0.3, "model_size_bytes": 1029}}"#;
    for (name, accuracy) in [("older.json", "0.92"), ("old.json", "0.46")] {
        std::fs::write(folder.path(name), older.replace("ACCURACY", accuracy)).unwrap();
    }
    for file in ["a", "a/results.json", "a/report.html", "older.json"] {
        folder.line(&format!("report {file} -o drawn --force")).ends(0, &["report: drawn"]);
        folder.line(&format!("compare {file} {file}")).ends(0, &["A over B"]);
        folder.line(&format!("history {file}.jsonl --add {file}")).ends(0, &["figures added"]);
    }
    let text = std::fs::read_to_string(folder.path("drawn/report.md")).unwrap();
    assert!(text.contains("2 of 2 cases imported"), "{text}");
    assert!(!text.to_lowercase().contains("measured"), "{text}");

    let halved = "accuracy halved: 0.920 to 0.460";
    folder.line("compare older.json old.json").ends(0, &["Imported, times are shown", halved]);
    folder
        .line("report older.json old.json -o both")
        .ends(0, &["2 imported files side by side", halved]);
    folder
        .line("history kept.jsonl --add older.json")
        .ends(0, &["does not say when it was measured"]);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    std::fs::File::options()
        .append(true)
        .open(folder.path("old.json"))
        .unwrap()
        .set_modified(later)
        .unwrap();
    folder.line("history kept.jsonl --add old.json").ends(0, &[halved]);
}

#[test]
fn files_that_are_no_results_are_named_and_left_alone() {
    let (folder, text) = measured();
    let other_version = text.replacen("\"schema_version\":2", "\"schema_version\":99", 1);
    for (name, content, word) in [
        ("cut.json", &text[..text.len() / 2], "line 1"),
        ("newer.json", other_version.as_str(), "version 99"),
        ("empty.json", "", "it is empty"),
    ] {
        std::fs::write(folder.path(name), content).unwrap();
        folder.line(&format!("compare a {name}")).ends(2, &[name, word]);
        folder.line(&format!("history --add a --add {name}")).ends(2, &[name, word]);
    }
    assert!(!folder.path("history.jsonl").exists(), "all or nothing is added");
    folder
        .line("compare a nowhere")
        .ends(2, &["nowhere", "expected results, or the folder of a report"]);
    std::fs::write(folder.path("gate.json"), "{\"gate_version\": 2}").unwrap();
    folder.line("compare a gate.json").ends(2, &["gate.json", "verdicts of `overdrive regress`"]);
    folder.line("history").ends(2, &["history.jsonl", "--add RESULTS"]);
    folder.line("history x y --add a").ends(2, &["name one FILE"]);
    std::fs::write(folder.path("history.jsonl"), "{\"history_version\": 1,\n").unwrap();
    folder.line("history").ends(2, &["history.jsonl", "line 1"]);
}

//! `compare` and `history`: results beside results, and files that are none.

use crate::invocation::Folder;
use overdrive::bench::report::{from_json, to_json};

/// A folder with `a/results.json` of a quick bench, and its text.
fn measured() -> (Folder, String) {
    let folder = Folder::new();
    folder
        .line("bench digits-mlp --backends cpu --trials 6 --warmup 1 --threads 1 --modes jit,compile --out a")
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
    folder.line("compare 1.json,2.json,3.json 3.json,2.json,1.json").ends(0, &["several sessions a side"]);

    let mut other = from_json(&text).unwrap();
    other.environment.cpu.model = "Another CPU".into();
    std::fs::write(folder.path("other.json"), to_json(&other)).unwrap();
    let shown = folder.line("compare a other.json");
    shown.ends(0, &["Different machines, shown and not judged", "Another CPU"]);
    assert!(!shown.stdout.contains("A over B"));

    folder.line("history --add a").ends(0, &["2 figures added to history.jsonl", "0 changes in 2 series"]);
    folder.line("history --add a").ends(0, &["0 figures added", "2 were there already"]);
    folder.line("history h2.jsonl --add other.json").ends(0, &["Another CPU"]);
    let json =
        folder.line("history history.jsonl h2.jsonl --json --case compile").ends(0, &[]).stdout.clone();
    let series: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(series.as_array().unwrap().len(), 2, "one case on two machines");
    folder.line("history --case nothing").ends(3, &["no figure of a case with `nothing`"]);
}

#[test]
fn files_that_are_no_results_are_named_and_left_alone() {
    let (folder, text) = measured();
    let other_version = text.replacen("\"schema_version\":2", "\"schema_version\":99", 1);
    for (name, content, word) in [
        ("cut.json", &text[..text.len() / 2], "line 1"),
        ("newer.json", other_version.as_str(), "version 99"),
        ("empty.json", "", "not Overdrive results"),
    ] {
        std::fs::write(folder.path(name), content).unwrap();
        folder.line(&format!("compare a {name}")).ends(2, &[name, word]);
        folder.line(&format!("history --add a --add {name}")).ends(2, &[name, word]);
    }
    assert!(!folder.path("history.jsonl").exists(), "all or nothing is added");
    folder.line("compare a nowhere").ends(2, &["nowhere", "expected a results.json or its folder"]);
    folder.line("history").ends(2, &["history.jsonl", "--add RESULTS"]);
    folder.line("history x y --add a").ends(2, &["name one FILE"]);
    std::fs::write(folder.path("history.jsonl"), "{\"history_version\": 1,\n").unwrap();
    folder.line("history").ends(2, &["history.jsonl", "line 1"]);
}

//! The gate as its users meet it: two commands, exit codes, what is written, and what is refused.

use crate::invocation::{Folder, Outcome};
use std::path::Path;
use std::process::Command;

/// A command that prints times of a case around `ns`, differing a little from process to process.
fn printing(case: &str, ns: u64) -> String {
    let times = format!("s=$(( ($$ * 7919) % 97 )); t=$(( {ns} + s * {ns} / 20000 ))");
    let json = format!(
        r#"{{\"overdrive_samples\":1,
        \"cases\":[{{\"name\":\"{case}\",\"times_ns\":[$t,$t,$t,$t,$t]}}]}}"#
    );
    format!("{times}; echo \"{json}\" > \"$OVERDRIVE_RESULTS\"")
}

#[track_caller]
fn gate(folder: &Folder, baseline: &str, current: &str) -> Outcome {
    let arguments = [
        "regress",
        "--baseline-cmd",
        baseline,
        "--current-cmd",
        current,
        "--ci",
        "--out",
        "gate",
        "--force",
    ];
    folder.overdrive(&arguments)
}

#[test]
#[cfg(unix)]
fn two_commands_are_gated() {
    let folder = Folder::new();
    gate(&folder, &printing("bert", 1_000_000), &printing("bert", 1_100_000))
        .ends(1, &["REGRESSED", "1.10", "the control is clean", "gate.json"]);
    let written =
        |name: &str| std::fs::read_to_string(folder.path(&format!("gate/{name}"))).unwrap();
    assert!(written("gate.md").starts_with("## Regression gate: regression"));
    assert!(written("gate.md").contains("--baseline-cmd 's=$(("), "the command can be pasted");
    assert!(written("gate.junit.xml").contains("failures=\"1\""));
    let verdicts: serde_json::Value = serde_json::from_str(&written("gate.json")).unwrap();
    assert_eq!(verdicts["cases"][0]["case"], "bert");
    let raw = std::fs::read_dir(folder.path("gate/processes")).unwrap().count();
    let blocks = verdicts["evidence"]["blocks"].as_array().unwrap().len();
    assert_eq!(
        raw,
        6 * blocks,
        "every process's own results are kept, and no log of one that ended well"
    );
    gate(&folder, &printing("bert", 1_000_000), &printing("bert", 1_000_000)).ends(0, &["1 SAME"]);
}

#[test]
#[cfg(unix)]
fn each_way_to_fail_has_its_code() {
    let folder = Folder::new();
    let fine = printing("a", 1_000_000);
    gate(&folder, &fine, "echo no such library >&2; exit 9")
        .ends(3, &["no such library", "current"]);
    gate(&folder, &fine, "true").ends(3, &["OVERDRIVE_RESULTS"]);
    gate(&folder, &fine, "echo '{\"schema_version\": 1, \"reco' > $OVERDRIVE_RESULTS")
        .ends(3, &["not Overdrive results"]);
    gate(&folder, &fine, &printing("b", 1_000_000)).ends(3, &["MISSING", "NEW"]);
    let says = |cases: &str| {
        format!("echo '{{\"overdrive_samples\":1,\"cases\":[{cases}]}}' > $OVERDRIVE_RESULTS")
    };
    let nothing = says("");
    gate(&folder, &nothing, &nothing).ends(3, &["nothing was compared"]);
    gate(&folder, &fine, &says(r#"{"name":"a","agrees":false}"#)).ends(4, &["WRONG OUTPUTS"]);
    gate(&folder, &fine, &says(r#"{"name":"a","failed":"no GPU"}"#)).ends(3, &["FAILED", "no GPU"]);
}

/// A command that says these things of its case, beside times that vary.
fn saying(times: &str, rest: &str) -> String {
    let json = format!(
        r#"{{\"overdrive_samples\":1,\"cases\":[{{\"name\":\"a\",\"times_ns\":[{times}]{rest}}}]}}"#
    );
    format!(
        "s=$(( ($$ * 7919) % 97 )); t=$(( 1000000 + s * 50 )); \
         echo \"{json}\" > \"$OVERDRIVE_RESULTS\""
    )
}

#[test]
#[cfg(unix)]
fn more_than_the_median_is_judged_and_nothing_may_be_missing() {
    let folder = Folder::new();
    let times = "$t,$t,$t,$t,$t,$t,$t,$t,$t,$t";
    let fine =
        saying(times, r#",\"agrees\":true,\"quantities\":{\"rate\":100,\"top1_percent\":71.2}"#);
    let rest = |rest: &str| saying(times, rest);
    let slow_calls = saying(
        "$t,$t,$t,$t,$t,$t,$t,$((3*t)),$((3*t)),$((3*t))",
        r#",\"agrees\":true,\"quantities\":{\"rate\":100,\"top1_percent\":71.2}"#,
    );
    gate(&folder, &fine, &slow_calls).ends(1, &["mean_ns REGRESSED", "1.6"]);
    let slow_rate = rest(r#",\"agrees\":true,\"quantities\":{\"rate\":10,\"top1_percent\":71.2}"#);
    gate(&folder, &fine, &slow_rate).ends(1, &["rate fell from 100 to 10"]);
    let no_accuracy = rest(r#",\"agrees\":true,\"quantities\":{\"rate\":100}"#);
    gate(&folder, &fine, &no_accuracy).ends(3, &["MISSING", "top1_percent is missing"]);
    gate(&folder, &no_accuracy, &fine).ends(3, &["MISSING", "top1_percent is missing"]);
    let no_agreement = rest(r#",\"quantities\":{\"rate\":100,\"top1_percent\":71.2}"#);
    gate(&folder, &fine, &no_agreement).ends(3, &["whether outputs agree is missing"]);
    gate(&folder, &no_agreement, &fine).ends(3, &["whether outputs agree is missing"]);
}

#[test]
fn half_a_question_is_refused() {
    let folder = Folder::new();
    folder.line("regress").ends(2, &["--baseline REV", "--baseline-cmd CMD"]);
    folder.line("regress --baseline-cmd x").ends(2, &["--current-cmd"]);
    folder.line("regress --baseline main").ends(2, &["not in a git repository", "--repo"]);
    folder
        .line("regress --baseline main --study kernel")
        .ends(2, &["`kernel`", "did you mean `kernels`?"]);
    folder
        .overdrive(&["regress", "--baseline", "main", "--measure", "info"])
        .ends(2, &["`info`", "bench ..."]);
    let own = ["regress", "--baseline", "main", "--measure", "bench mlp --out x"];
    folder.overdrive(&own).ends(2, &["--out is set by the gate"]);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .args(["-c", "user.name=n", "-c", "user.email=e@example.org"])
        .args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A repository that looks like ours to the gate.
fn repository(folder: &Folder, main: &str) {
    let root = folder.path("");
    git(&root, &["init", "--quiet", "--initial-branch", "main"]);
    let package = "[package]\nname = \"overdrive\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    for (path, text) in [
        ("Cargo.toml", "[workspace]\nmembers = [\"crates/overdrive\"]\nresolver = \"3\"\n"),
        ("Cargo.lock", "version = 4\n\n[[package]]\nname = \"overdrive\"\nversion = \"0.1.0\"\n"),
        ("crates/overdrive/Cargo.toml", package),
        (".gitignore", "target\nreports\n"),
    ] {
        std::fs::create_dir_all(folder.path(path).parent().unwrap()).unwrap();
        std::fs::write(folder.path(path), text).unwrap();
    }
    commit(folder, main);
}

/// A revision whose program is this.
fn commit(folder: &Folder, main: &str) {
    let file = folder.path("crates/overdrive/src/main.rs");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, main).unwrap();
    git(&folder.path(""), &["add", "."]);
    git(&folder.path(""), &["commit", "--quiet", "-m", "a revision"]);
}

/// A program that takes `ns` a call, more or less, by what it says.
fn program(ns: u64) -> String {
    format!(
        r#"fn main() {{
    let arguments: Vec<String> = std::env::args().collect();
    let out = &arguments[arguments.iter().position(|word| word == "--out").unwrap() + 1];
    let t = {ns} + u64::from(std::process::id()) * 7919 % 97 * {ns} / 20000;
    let case = format!("{{{{\"name\":\"work\",\"times_ns\":[{{t}},{{t}},{{t}},{{t}},{{t}}]}}}}");
    let json = format!("{{{{\"overdrive_samples\":1,\"cases\":[{{case}}]}}}}");
    std::fs::create_dir_all(out).unwrap();
    std::fs::write(format!("{{out}}/results.json"), json).unwrap();
}}
"#
    )
}

/// Number of worktrees: 1 if the repository's own tree is left alone, and no other one stays.
fn worktrees(folder: &Folder) -> usize {
    let mut command = Command::new("git");
    let listed = command.current_dir(folder.path("")).args(["worktree", "list"]).output().unwrap();
    String::from_utf8_lossy(&listed.stdout).lines().count()
}

#[test]
fn two_revisions_are_built_and_gated() {
    let folder = Folder::new();
    repository(&folder, &program(1_000_000));
    commit(&folder, &program(1_100_000));
    let line = "regress --baseline main~1 --out gate --measure";
    let words: Vec<&str> = line.split(' ').chain(["bench mlp"]).collect();
    folder
        .overdrive(&words)
        .ends(1, &["building main~1", "building HEAD", "REGRESSED", "1.10", "clean"]);
    assert_eq!(worktrees(&folder), 1);
    // Built once: what is kept is not built again.
    let again = folder.overdrive(&[
        "regress",
        "--baseline",
        "HEAD",
        "--out",
        "gate",
        "--force",
        "--measure",
        "bench mlp",
    ]);
    again.ends(0, &["1 SAME", "the same commit"]);
    assert!(!again.stderr.contains("building"), "{again:?}");
    let verdicts = std::fs::read_to_string(folder.path("gate/gate.json")).unwrap();
    let verdicts: serde_json::Value = serde_json::from_str(&verdicts).unwrap();
    assert_eq!(verdicts["baseline"]["commit"], verdicts["current"]["commit"]);
}

#[test]
fn a_repository_is_looked_at_before_anything_is_built() {
    let folder = Folder::new();
    let root = folder.path("");
    git(&root, &["init", "--quiet", "--initial-branch", "main"]);
    git(&root, &["commit", "--quiet", "--allow-empty", "-m", "nothing"]);
    folder.line("regress --baseline main").ends(2, &["not Overdrive's", "--baseline-cmd"]);
    repository(&folder, "fn main() { this does not compile }\n");
    folder.line("regress --baseline mian").ends(2, &["`mian` is no revision", "branch"]);
    folder.line("regress --baseline=--all").ends(2, &["`--all` is no revision"]);
    std::fs::write(folder.path("Cargo.toml"), "").unwrap();
    folder
        .line("regress --baseline main~1")
        .ends(2, &["1 file changed since: Cargo.toml", "commit or stash"]);
    git(&root, &["checkout", "--quiet", "Cargo.toml"]);
    folder
        .line("regress --baseline main")
        .ends(3, &["`main` does not build", "expected one of", "build.log"]);
    assert_eq!(worktrees(&folder), 1, "no worktree is left");
}

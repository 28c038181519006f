//! The action for GitHub: what it names is pinned, what it is given stays data, and its steps do
//! what they say. The steps run here as a runner would run them, without a runner.
#![cfg(unix)]

use crate::invocation::Folder;
use saphyr::{LoadableYamlNode, Yaml};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ACTION: &str = include_str!("../../../../action.yml");
const WORKFLOW: &str = include_str!("../../../../docs/ci/regression.yml");
const PAGE: &str = include_str!("../../../../docs/book/src/gate-my-ci.md");

fn parsed(text: &str) -> Yaml<'_> {
    Yaml::load_from_str(text).unwrap().remove(0)
}

fn text<'a>(node: &'a Yaml<'_>, key: &str) -> Option<&'a str> {
    node.as_mapping_get(key).and_then(|value| value.as_str())
}

/// The workflow of the book's page.
fn of_page() -> &'static str {
    PAGE.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap()
}

/// Every value of this key, however deep.
fn values<'a>(node: &'a Yaml<'_>, key: &str, found: &mut Vec<&'a str>) {
    for (name, value) in node.as_mapping().into_iter().flatten() {
        if name.as_str() == Some(key) {
            found.extend(value.as_str());
        }
        values(value, key, found);
    }
    node.as_sequence().into_iter().flatten().for_each(|value| values(value, key, found));
}

#[test]
fn actions_are_named_by_commits_and_scripts_hold_no_expression() {
    for file in [ACTION, WORKFLOW, of_page()] {
        let file = parsed(file);
        let (mut uses, mut runs) = (Vec::new(), Vec::new());
        values(&file, "uses", &mut uses);
        values(&file, "run", &mut runs);
        assert!(!uses.is_empty());
        for action in uses {
            let commit = action.split_once('@').map_or("", |(_, commit)| commit);
            let is_hash = commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit());
            assert!(is_hash, "`{action}` is named by what can be moved");
        }
        for script in runs {
            assert!(!script.contains("${{"), "data is a part of a script: {script}");
        }
    }
}

#[test]
fn workflows_run_nothing_of_a_fork() {
    for file in [WORKFLOW, of_page()] {
        let file = parsed(file);
        let gate = &file["jobs"]["gate"];
        let condition = "github.event.pull_request.head.repo.full_name == github.repository";
        assert_eq!(text(gate, "if"), Some(condition));
        assert_eq!(
            text(&file, "on"),
            Some("pull_request"),
            "pull_request_target would hand it secrets"
        );
        assert_eq!(text(&file["permissions"], "contents"), Some("read"));
        let checkouts = gate["steps"].as_sequence().unwrap();
        for step in checkouts
            .iter()
            .filter(|step| text(step, "uses").is_some_and(|a| a.contains("checkout")))
        {
            assert_eq!(step["with"]["persist-credentials"].as_bool(), Some(false));
        }
    }
}

#[test]
fn the_page_names_inputs_that_there_are_and_gives_those_that_must_be() {
    let (action, page) = (parsed(ACTION), parsed(of_page()));
    let steps = page["jobs"]["gate"]["steps"].as_sequence().unwrap();
    let ours = steps
        .iter()
        .find(|step| text(step, "uses").is_some_and(|a| a.contains("overdrive")))
        .unwrap();
    let given: Vec<&str> =
        ours["with"].as_mapping().unwrap().keys().filter_map(|key| key.as_str()).collect();
    for (name, input) in action["inputs"].as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        let is_required = input.as_mapping_get("required").is_some();
        assert!(!is_required || given.contains(&name), "{name}");
        assert!(PAGE.contains(name), "the page does not say what `{name}` is");
    }
    for name in given {
        assert!(action["inputs"].as_mapping_get(name).is_some(), "{name}");
    }
}

/// A runner that has these answers to expressions.
struct Runner {
    folder: Folder,
    answers: BTreeMap<String, String>,
    /// Programs of its own, before all others.
    programs: PathBuf,
}

struct Ended {
    code: i32,
    said: String,
}

impl Runner {
    /// A runner in a folder of its own, for a pull request of a branch, with the inputs' defaults.
    fn new() -> Self {
        let folder = Folder::new();
        let programs = folder.path("programs");
        fs::create_dir(&programs).unwrap();
        let mut answers: BTreeMap<String, String> = [
            ("github.event_name", "pull_request"),
            ("github.event.pull_request.head.repo.full_name", "me/model"),
            ("github.repository", "me/model"),
            ("github.action_path", "/the/action"),
            ("runner.environment", "self-hosted"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        answers.insert("runner.temp".to_owned(), folder.path("temp").display().to_string());
        let action = parsed(ACTION);
        for (name, input) in action["inputs"].as_mapping().unwrap() {
            let default = text(input, "default").unwrap_or_default().to_owned();
            answers.insert(format!("inputs.{}", name.as_str().unwrap()), default);
        }
        Self { folder, answers, programs }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        assert!(
            self.answers.insert(name.to_owned(), value.to_owned()).is_some(),
            "{name} is nothing"
        );
        self
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.programs.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn value(&self, template: &str) -> String {
        let mut parts = template.split("${{");
        let mut value = parts.next().unwrap().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once("}}").unwrap();
            value += &self.answers[expression.trim()];
            value += rest;
        }
        value
    }

    /// Runs the step whose name begins so.
    fn run(&self, name: &str) -> Ended {
        let action = parsed(ACTION);
        let steps = action["runs"]["steps"].as_sequence().unwrap();
        let step = steps.iter().find(|step| text(step, "name").unwrap().starts_with(name)).unwrap();
        assert_eq!(text(step, "shell"), Some("bash"));
        let script = self.folder.path("step.sh");
        fs::write(&script, text(step, "run").unwrap()).unwrap();
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(&script);
        let own = Path::new(env!("CARGO_BIN_EXE_overdrive")).parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [self.programs.clone(), own].into_iter().chain(std::env::split_paths(&path));
        command
            .env("PATH", std::env::join_paths(folders).unwrap())
            .current_dir(self.folder.path(""));
        for file in ["GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY"] {
            command.env(file, self.folder.path(file));
        }
        for (name, value) in step["env"].as_mapping().unwrap() {
            command.env(name.as_str().unwrap(), self.value(value.as_str().unwrap()));
        }
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ended { code: output.status.code().unwrap(), said: said.concat() }
    }

    fn written(&self, file: &str) -> String {
        fs::read_to_string(self.folder.path(file)).unwrap_or_default()
    }
}

/// A command that says it took this long.
fn taking(ns: u64) -> String {
    let json = format!(
        r#"{{"overdrive_samples":1,
        "cases":[{{"name":"a","times_ns":[{ns},{ns},{ns},{ns},{ns}]}}]}}"#
    );
    format!("echo '{json}' > \"$OVERDRIVE_RESULTS\"")
}

#[test]
fn a_fork_is_refused_where_its_code_must_not_run() {
    for (event, head, runner, is_refused) in [
        ("pull_request", "me/model", "self-hosted", false),
        ("push", "", "self-hosted", false),
        ("pull_request", "you/model", "github-hosted", false),
        ("pull_request", "you/model", "self-hosted", true),
        ("pull_request", "", "self-hosted", true),
        ("pull_request", "you/model", "", true),
        ("pull_request_target", "you/model", "github-hosted", true),
    ] {
        let runner = Runner::new()
            .with("github.event_name", event)
            .with("github.event.pull_request.head.repo.full_name", head)
            .with("runner.environment", runner);
        let ended = runner.run("Refuse forks");
        assert_eq!(ended.code, i32::from(is_refused), "{event} of `{head}`: {}", ended.said);
        assert_eq!(ended.said.contains("::error::expected a branch of me/model"), is_refused);
    }
}

#[test]
fn the_exit_code_of_the_gate_is_that_of_the_step() {
    let gate = |current: &str| {
        Runner::new().with("inputs.baseline", &taking(1_000_000)).with("inputs.current", current)
    };
    let same = gate(&taking(1_000_000));
    let ended = same.run("Gate");
    assert_eq!(ended.code, 0, "{}", ended.said);
    assert_eq!(same.written("GITHUB_OUTPUT"), "exit-code=0\n");
    assert!(same.written("GITHUB_STEP_SUMMARY").starts_with("## Regression gate"));
    // A second time over the first one's folder.
    assert_eq!(same.run("Gate").code, 0);
    let slower = gate(&taking(1_200_000));
    assert_eq!(
        (slower.run("Gate").code, slower.written("GITHUB_OUTPUT").as_str()),
        (1, "exit-code=1\n")
    );
    assert_eq!(gate("exit 9").run("Gate").code, 3);
}

#[test]
fn an_undecided_gate_warns_or_fails_as_asked() {
    for (input, expected) in [("warn", 0), ("fail", 5), ("shrug", 2)] {
        let runner = Runner::new().with("inputs.on-undecided", input);
        runner.program("overdrive", "exit 5");
        let ended = runner.run("Gate");
        assert_eq!(ended.code, expected, "{}", ended.said);
        assert_eq!(ended.said.contains("::warning::"), expected == 0, "{}", ended.said);
    }
}

#[test]
fn what_is_given_is_data() {
    let hostile = "60; touch hacked $(touch hacked) `touch hacked` \" ' --json";
    let runner = Runner::new();
    runner.program("overdrive", "for word; do echo \"<$word>\"; done");
    let runner =
        ["inputs.budget", "inputs.timeout", "inputs.out", "inputs.baseline", "inputs.current"]
            .into_iter()
            .fold(runner, |runner, name| runner.with(name, hostile));
    let ended = runner.run("Gate");
    assert_eq!(ended.said.matches(hostile).count(), 5, "{}", ended.said);
    assert!(!runner.folder.files().contains(&"hacked".to_owned()));
}

#[test]
fn a_version_is_built_found_or_fetched_by_its_hash() {
    let install = |version: &str| {
        let runner = Runner::new().with("inputs.version", version);
        runner.program("cargo", "echo cargo \"$@\"");
        // A virtual environment whose interpreter only prints its arguments.
        let python = "mkdir -p \"$3/bin\"; \
                      printf '#!/bin/sh\\necho python \"$@\"\\n' > \"$3/bin/python\"; \
                      chmod 755 \"$3/bin/python\"";
        runner.program("python3", python);
        let ended = runner.run("Install");
        (
            ended.code,
            ended.said,
            runner.written("GITHUB_PATH").trim_end().ends_with("temp/overdrive-program/bin"),
        )
    };
    let (code, said, is_on_path) = install("source");
    assert_eq!((code, is_on_path), (0, true), "{said}");
    assert!(said.contains("install --locked --path /the/action/crates/overdrive --root"), "{said}");
    let wheel = "https://example.org/overdrive-1.whl#sha256=00";
    let (code, said, is_on_path) = install(wheel);
    assert_eq!((code, is_on_path), (0, true), "{said}");
    assert!(
        said.contains(&format!("python -m pip install --no-index --no-deps {wheel}")),
        "{said}"
    );
    let (code, _, is_on_path) = install("installed");
    assert_eq!((code, is_on_path), (0, false));
    for wrong in
        ["https://example.org/overdrive-1.whl", "missing.whl", "1.2.3", "http://example.org/a", ""]
    {
        let (code, said, is_on_path) = install(wrong);
        assert_eq!((code, is_on_path), (1, false), "{wrong}: {said}");
        assert!(said.contains("::error::version: expected"), "{said}");
    }
}

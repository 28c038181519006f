//! Signals: 130 and 143 in every command, what is done is kept, and nothing that we started lives
//! on.
//!
//! Every test waits for something that the program does (a line, a file), never for time to pass.

#![cfg(unix)]

use crate::invocation::{Folder, Outcome};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A command under way.
pub(crate) struct Underway {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    err: BufReader<std::process::ChildStderr>,
    /// The text read from standard error.
    said: String,
}

impl Underway {
    pub(crate) fn start(folder: &Folder, words: &[&str]) -> Self {
        Self::with(folder, env!("CARGO_BIN_EXE_overdrive"), words, &[])
    }

    /// By the words of a line, as `Folder::line`.
    pub(crate) fn line(folder: &Folder, line: &str) -> Self {
        Self::start(folder, &line.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn with(
        folder: &Folder,
        program: &str,
        words: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(program);
        command.args(words).current_dir(folder.path("")).env("NO_COLOR", "1");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, out, err, said: String::new() }
    }

    /// Waits for a line on standard error that contains this.
    pub(crate) fn says(&mut self, part: &str) {
        loop {
            let start = self.said.len();
            let read = self.err.read_line(&mut self.said).unwrap();
            assert!(read > 0, "it ended without saying `{part}`: {}", self.said);
            if self.said[start..].contains(part) {
                return;
            }
        }
    }

    /// Waits for the first byte on standard output.
    pub(crate) fn prints(&mut self) {
        assert!(!self.out.fill_buf().unwrap().is_empty(), "it ended without printing");
    }

    /// Waits for a file with something in it.
    fn writes(&mut self, file: &Path) -> String {
        loop {
            match std::fs::read_to_string(file) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => assert!(
                    self.child.try_wait().unwrap().is_none(),
                    "it ended without {}",
                    file.display()
                ),
            }
            std::thread::yield_now();
        }
    }

    /// Waits for a file or a folder.
    pub(crate) fn makes(&mut self, path: &Path) {
        while !path.exists() {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "it ended without {}",
                path.display()
            );
            std::thread::yield_now();
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, signal: &str) -> &mut Self {
        send(signal, self.child.id());
        self
    }

    /// Kills it, which nothing heeds; false if it had ended.
    pub(crate) fn kill(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        self.child.kill().unwrap();
        self.child.wait().unwrap().signal().is_some()
    }

    pub(crate) fn end(&mut self) -> Outcome {
        let mut stdout = String::new();
        self.out.read_to_string(&mut stdout).unwrap();
        self.err.read_to_string(&mut self.said).unwrap();
        let code = self.child.wait().unwrap().code();
        Outcome {
            code: code.expect("a signal that is heeded leaves a code"),
            stdout,
            stderr: self.said.clone(),
        }
    }
}

pub(crate) fn send(signal: &str, process: u32) {
    let line = format!("kill -s {signal} {process}");
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
}

/// Waits for the end of a process that is not our child.
pub(crate) fn is_gone(process: &str) {
    let stat = format!("/proc/{process}/stat");
    // A zombie has ended; who reaps it is the system's affair.
    while std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z ")) {
        std::thread::yield_now();
    }
}

const LONG: &str =
    "train digits-mlp --data digits --batch 8 --steps 1000000000 --threads 1 -o model";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn training_keeps_the_last_whole_step_and_says_how_to_go_on() {
    let folder = Folder::new();
    let mut first = Underway::start(&folder, &words(LONG));
    first.says("validation loss");
    first
        .send("TERM")
        .end()
        .ends(143, &["interrupted", "model.checkpoint", "go on with", "--resume"]);
    assert_eq!(folder.files(), ["model.checkpoint"]);
    for (signal, code) in [("INT", 130), ("HUP", 143)] {
        let mut again = Underway::start(&folder, &words(&format!("{LONG} --resume")));
        again.says("validation loss");
        again.send(signal).end().ends(code, &["go on with: overdrive train", "--resume"]);
    }
}

/// The scores of a model take as long as many of its steps.
#[test]
fn scoring_says_so_and_ends_with_its_steps_kept() {
    let folder = Folder::new();
    let lines = (0..6000).map(|i| format!("{i} ships came home by the light of day {}.\n", i * i));
    std::fs::write(folder.path("ships.txt"), lines.collect::<String>()).unwrap();
    let line = "train text-transformer --data ships.txt --batch 2 --steps 1 --device cpu \
                --threads 1 -o model";
    let mut first = Underway::line(&folder, line);
    first.says("validation loss");
    first.says("scoring ");
    let kept = ["1 of 1 steps are done and kept in `model.checkpoint`, but", "--resume"];
    first.send("TERM").end().ends(143, &kept);
    assert_eq!(folder.files(), ["model.checkpoint", "ships.txt"]);
    // The model has no room: its 4.3 MB are more than 4,000 blocks of 512 bytes.
    let full = folder.shell(&format!("ulimit -f 4000; overdrive {line} --resume"));
    let kept = ["model.safetensors", "File too large", "All steps are kept in `model.checkpoint`"];
    full.ends(2, &kept).ends(2, &["once there is room, go on with: overdrive train", "--resume"]);
    assert_eq!(folder.files(), ["model.checkpoint", "ships.txt"], "nothing is half written");
    let again = folder.line(&format!("{line} --resume"));
    again.ends(0, &["scoring ", "text-transformer after 1 steps"]);
    assert!(!again.stderr.contains("validation loss"), "no step was left: {again:?}");
    let results = std::fs::read_to_string(folder.path("model/results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let quantities = &results["records"][0]["outcome"]["ok"]["quantities"];
    assert_eq!(quantities["resumed_from_step"], 1.0, "{results}");
    assert!(quantities["validation_loss_nats"].as_f64() > Some(0.0), "{results}");
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let folder = Folder::new();
    let line = format!("trap '' INT HUP; exec {} {LONG}", env!("CARGO_BIN_EXE_overdrive"));
    let mut underway = Underway::with(&folder, "sh", &["-c", &line], &[]);
    underway.says("validation loss");
    underway.send("INT").send("HUP").says("validation loss");
    underway.says("validation loss");
    underway.send("TERM").end().ends(143, &["--resume"]);
}

#[test]
fn a_run_keeps_its_sessions() {
    let folder = Folder::new();
    let mut run =
        Underway::start(&folder, &words("run kernels --quick --device cpu --threads 1 --out kept"));
    run.makes(&folder.path("kept/results.json"));
    let ended = run.send("INT").end();
    ended.ends(130, &["go on with: overdrive run kernels --quick", "--resume kept", "report.html"]);
    assert!(!ended.stderr.contains("--out"), "{ended:?}");
    assert!(folder.path("kept/report.html").exists());
}

#[test]
fn what_measured_nothing_leaves_nothing() {
    let folder = Folder::new();
    let mut bench = Underway::start(
        &folder,
        &words("bench transformer --device cpu --backends cpu --out kept"),
    );
    bench.makes(&folder.path("kept"));
    bench.send("TERM").end().ends(143, &["nothing was measured"]);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[test]
fn a_text_ends_where_it_is() {
    let folder = Folder::new();
    let line =
        "generate text-transformer --device cpu --threads 1 --max-tokens 1000000 --prompt hello";
    let mut generate = Underway::start(&folder, &words(line));
    generate.prints();
    generate.send("INT").end().ends(130, &["of 1000000 tokens were made"]);
}

#[test]
fn quantizing_ends_at_once_and_a_search_shows_what_it_found() {
    let folder = Folder::new();
    let mut plain =
        Underway::start(&folder, &words("quantize digits-mlp --mode int4-gptq --data digits -o q"));
    plain.prints();
    let ended = plain.send("TERM").end();
    // Whether it had written by then is a matter of luck; that it is whole or absent is not.
    ended.ends(143, &["interrupted"]);
    assert!(folder.files().is_empty() || folder.files() == ["q"], "{:?}", folder.files());
    let folder = Folder::new();
    let line = "quantize digits-mlp --search --data digits --threads 1 --trials 10000 -o q";
    let mut search = Underway::start(&folder, &words(line));
    search.says_on_output("layer, alone");
    search.send("INT").end().ends(130, &["stand above; nothing was written"]);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[test]
fn a_search_for_the_form_to_deploy_keeps_its_record() {
    let folder = Folder::new();
    let line = "optimize digits-mlp --data digits --device cpu --threads 1 --minutes 60 -o out";
    let mut first = Underway::line(&folder, line);
    first.says("timing 2 of ");
    let ended = first.send("INT").end();
    ended.ends(130, &["interrupted", "out/decision.json", "overdrive optimize", "--resume` goes"]);
    assert!(folder.path("out/report.md").is_file() && !folder.path("out/model").exists());
    // The first format is not timed again.
    let mut again = Underway::line(&folder, &format!("{line} --resume"));
    again.says("timing ");
    let ended = again.send("TERM").end();
    ended.ends(143, &["timing 2 of ", "--resume` goes"]);
    assert!(!ended.stderr.contains("timing 1 of "), "{ended:?}");
}

impl Underway {
    /// Waits for a line on standard output that contains this.
    fn says_on_output(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert!(
                self.out.read_line(&mut line).unwrap() > 0,
                "it ended without printing `{part}`"
            );
        }
    }
}

fn regress(folder: &Folder, command: &str) -> Underway {
    let words = ["regress", "--baseline-cmd", command, "--current-cmd", command, "--out", "gate"];
    Underway::start(folder, &words)
}

#[test]
fn the_gate_ends_with_what_it_started() {
    let folder = Folder::new();
    let mut gate = regress(&folder, "sleep 600 & echo $! > process; wait");
    let process = gate.writes(&folder.path("process"));
    gate.send("TERM").end().ends(143, &["kept in `gate`"]);
    is_gone(&process);
    assert!(folder.path("gate/gate.json").exists());
}

#[test]
fn a_second_signal_ends_at_once_even_what_is_deaf() {
    let folder = Folder::new();
    let mut gate = regress(&folder, "trap '' TERM; sleep 600 & echo $! > process; sleep 600");
    let process = gate.writes(&folder.path("process"));
    gate.send("INT").says("a second signal ends at once");
    gate.send("INT").end().ends(130, &[]);
    is_gone(&process);
}

/// An interpreter that is a shell script.
fn interpreter(folder: &Folder, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let file = folder.path("python");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn no_interpreter_is_left_behind() {
    let hello = r#"echo '{"version":"1","device":"cpu","threads":1}'; read line"#;
    let wait = "sleep 600 & echo $! > \"$NOTE\"; wait";
    for (script, line, word) in [
        (
            format!("{hello}; {wait}"),
            "bench digits-mlp --backends cpu --peers",
            "nothing was measured",
        ),
        (wait.to_owned(), "info --install onnxruntime", "nothing was installed"),
    ] {
        let folder = Folder::new();
        let python = interpreter(&folder, &script);
        let (note, cache) = (folder.path("process"), folder.path("cache"));
        // Engines ask the interpreter for its folders first, which this one does not tell.
        let asked = format!("case \"$*\" in *sys.path:*) exit 1;; esac; {script}");
        assert_eq!(interpreter(&folder, &asked), python);
        let variables = [
            ("PYTHON", python.as_str()),
            ("NOTE", note.to_str().unwrap()),
            ("OVERDRIVE_CACHE", cache.to_str().unwrap()),
        ];
        let program = env!("CARGO_BIN_EXE_overdrive");
        let mut underway = Underway::with(&folder, program, &words(line), &variables);
        let process = underway.writes(&note);
        underway.send("TERM").end().ends(143, &[word]);
        is_gone(&process);
        let left = std::fs::read_dir(cache.join("engines")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "nothing unfinished is left");
    }
}

//! Standard output and standard error that cannot be written: an end or an error, never a panic.

#![cfg(unix)]

use crate::invocation::Folder;
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Commands that only print.
const PRINTS: [&str; 8] = [
    "info",
    "info --json",
    "models",
    "models --json",
    "--help",
    "bench --help",
    "--version",
    "completions bash",
];

fn call(folder: &Folder, line: &str, out: Stdio, err: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overdrive"));
    command
        .args(line.split(' '))
        .current_dir(folder.path(""))
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err);
    command.spawn().unwrap().wait_with_output().unwrap()
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (_, write) = std::io::pipe().unwrap();
    write.into()
}

#[test]
fn a_reader_that_went_away_ends_it_quietly() {
    let folder = Folder::new();
    for line in PRINTS {
        let ended = call(&folder, line, closed(), Stdio::piped());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), said.as_str()), (Some(141), ""), "{line}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let folder = Folder::new();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for line in PRINTS {
        let ended = call(&folder, line, full(), Stdio::piped());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(3), "{line}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "{line}: {said}");
    }
    // Only notes are lost, nothing else.
    assert_eq!(call(&folder, "models", Stdio::null(), full()).status.code(), Some(0));
    assert_eq!(call(&folder, "bench nothing", Stdio::null(), full()).status.code(), Some(2));
    let train = "train digits-mlp --data digits --steps 20 -o m";
    assert_eq!(call(&folder, train, Stdio::null(), closed()).status.code(), Some(0));
    assert_eq!(folder.files(), ["m"]);
}

/// Runs a command line that may write no file larger than so many blocks of 512 bytes.
fn limited(folder: &Folder, blocks: u32, line: &str) -> Output {
    let script = format!("ulimit -f {blocks}; exec \"$0\" {line}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_overdrive")]).current_dir(folder.path(""));
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn room_that_is_lacking_is_known_before_the_work() {
    let folder = Folder::new();
    for (blocks, line) in [
        (200, "train digits-mlp --data digits --steps 200 -o m --device cpu --threads 1"),
        (200, "bench digits-mlp --trials 5 -o report"),
        (200, "run cumulative --quick"),
    ] {
        let ended = limited(&folder, blocks, line);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("no room for") && said.contains("found 102400"), "{line}: {said}");
        assert_eq!(folder.files(), Vec::<String>::new(), "{line}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn what_a_limit_cuts_short_is_an_error_and_says_what_is_kept() {
    let folder = Folder::new();
    // Results fit, the page does not.
    let ended =
        limited(&folder, 1200, "bench digits-mlp --backends cpu --modes jit --trials 5 -o report");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(
        said.contains("File too large") && said.contains("kept in `report/results.json`"),
        "{said}"
    );
    folder.line("report report/results.json --force").ends(0, &["report: report/report.html"]);
}

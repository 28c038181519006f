//! Records what a results file must tell of the build: compiler, target, flags, commit.

use std::env;
use std::process::Command;

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let rustc = output(&variable("RUSTC"), &["--version"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=OVERDRIVE_RUSTC={rustc}");
    println!("cargo::rustc-env=OVERDRIVE_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=OVERDRIVE_PROFILE={}", variable("PROFILE"));
    let flags = variable("CARGO_ENCODED_RUSTFLAGS").replace('\u{1f}', " ");
    println!("cargo::rustc-env=OVERDRIVE_RUSTFLAGS={flags}");
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(commit) = output("git", &["rev-parse", "HEAD"]) {
        println!("cargo::rustc-env=OVERDRIVE_COMMIT={commit}");
        // Every commit and checkout appends to the log of HEAD.
        if let Some(log) =
            output("git", &["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        {
            println!("cargo::rerun-if-changed={log}");
        }
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

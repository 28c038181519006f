//! Some code stays free of the outside world. A graph thus means the same everywhere, a report can
//! be drawn again from records alone, and every test of either repeats. Models, passes and training
//! know no vendor.

use super::rule::{Finding, Rule};
use super::tree::{Token, Tree};

/// Folders that touch no file, clock, thread, environment or device.
const PURE: &[&str] = &[
    "crates/overdrive-ir/src/",
    "crates/overdrive-report/src/",
    "crates/overdrive-bench/src/json",
    "crates/overdrive-bench/src/quality",
    "crates/overdrive-bench/src/table",
    "crates/overdrive-bench/src/verdicts",
];
/// Charts become files on threads of their own: their engine needs a deep stack.
const DRAWING: &str = "crates/overdrive-report/src/drawing";
/// Modules of `std` that reach out of the process, or start threads in it.
const OUTSIDE: &[&str] = &["fs", "net", "process", "env", "thread"];
/// Types that read a clock. `Duration` is a plain number and may stay.
const CLOCKS: &[&str] = &["Instant", "SystemTime"];
/// Crates that know a device only by its `Target`, if at all.
const VENDOR_FREE: &[&str] =
    &["overdrive-ir", "overdrive-passes", "overdrive-models", "overdrive-train"];

pub(super) const RULE: Rule = Rule { name: "purity", check };

/// The pure folder, or the beginning of a name, that a file belongs to.
fn pure(path: &str) -> Option<&'static str> {
    let within = |folder: &&&str| path.starts_with(**folder) && !path.starts_with(DRAWING);
    PURE.iter().find(within).copied()
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let tokens = file.tokens();
        if let Some(folder) = pure(&file.path) {
            let outside = std_modules(&tokens)
                .into_iter()
                .filter(|token| OUTSIDE.contains(&token.text.as_str()));
            let clocks = tokens.iter().filter(|token| CLOCKS.contains(&token.text.as_str()));
            findings.extend(outside.chain(clocks).map(|token| {
                let message = format!(
                    "`{}`: {folder} touches no file, clock, thread, environment or device",
                    token.text
                );
                Finding::line(&file.path, token.line, message)
            }));
        }
        if VENDOR_FREE.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/"))) {
            let vendors = tokens
                .iter()
                .filter(|token| is_identifier(token) && token.text.to_lowercase().contains("cuda"));
            findings.extend(vendors.map(|token| {
                let message = format!(
                    "`{}`: this crate knows no vendor; ask a property of `Target`",
                    token.text
                );
                Finding::line(&file.path, token.line, message)
            }));
        }
    }
    findings
}

/// The names that follow `std::`, also those inside `std::{..}`.
fn std_modules(tokens: &[Token]) -> Vec<&Token> {
    let mut found = Vec::new();
    for (at, window) in tokens.windows(4).enumerate() {
        let [root, first, second, next] = window else { unreachable!("a window of four") };
        if root.text != "std" || first.text != ":" || second.text != ":" {
            continue;
        }
        if next.text == "{" {
            let group = tokens[at + 4..].iter().take_while(|token| token.text != ";");
            found.extend(group.filter(|token| is_identifier(token)));
        } else {
            found.push(next);
        }
    }
    found
}

fn is_identifier(token: &Token) -> bool {
    token.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ir_and_reports_touch_nothing() {
        let code = [
            "use std::fs;",
            "use std::{fmt, fs::File};",
            "fn f() { std::env::var(\"X\"); }",
            "use std::time::Instant;",
            "fn f() { std::thread::spawn(g); }",
        ];
        for text in code {
            assert_eq!(
                check(&Tree::of(&[("crates/overdrive-ir/src/a.rs", text)])).len(),
                1,
                "{text}"
            );
            assert_eq!(
                check(&Tree::of(&[("crates/overdrive-report/src/a.rs", text)])).len(),
                1,
                "{text}"
            );
            for free in
                ["crates/overdrive-bench/src/a.rs", "crates/overdrive-report/src/drawing/a.rs"]
            {
                assert_eq!(check(&Tree::of(&[(free, text)])), [], "{free}: {text}");
            }
        }
        let pure = "//! Reads no fs.\nuse std::{fmt, time::Duration};\n\
                    fn fs() { let process = \"std::fs\"; }";
        assert_eq!(check(&Tree::of(&[("crates/overdrive-ir/src/a.rs", pure)])), []);
    }

    #[test]
    fn models_passes_and_training_know_no_vendor() {
        let text = "fn f() { if device.is_cuda() {} }";
        assert_eq!(check(&Tree::of(&[("crates/overdrive-train/src/a.rs", text)])).len(), 1);
        assert_eq!(check(&Tree::of(&[("crates/overdrive/src/a.rs", text)])), []);
        assert_eq!(
            check(&Tree::of(&[(
                "crates/overdrive-models/src/a.rs",
                "//! As cuda does.\nfn f() {}"
            )])),
            []
        );
    }
}

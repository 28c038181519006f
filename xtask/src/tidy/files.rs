//! A file that a user names is opened in one way, which refuses pipes and devices, bounds what it
//! reads and says what is wrong: `overdrive-files`. A second way would be the one that hangs.

use super::rule::{Finding, Rule};
use super::tree::{Token, Tree};

/// Files that are not the user's: the system's own, those of our caches, and the one way itself.
const FREE: &[&str] = &[
    "crates/overdrive-files/src/",
    "crates/overdrive-bench/src/energy/rapl.rs",
    "crates/overdrive-bench/src/environment.rs",
    "crates/overdrive-bench/src/environment/",
    "crates/overdrive-bench/src/memory/resident.rs",
    "crates/overdrive-cpu/src/memory/available.rs",
    "crates/overdrive-cpu/src/peaks.rs",
    "crates/overdrive-cuda/src/cache.rs",
    "crates/overdrive-cuda/src/device.rs",
    "crates/overdrive-cuda/src/host_memory.rs",
    "crates/overdrive/src/signals.rs",
];

/// Functions of `std::fs` that read a whole file.
const READERS: &[&str] = &["read", "read_to_string"];

pub(super) const RULE: Rule = Rule { name: "files", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let shipped = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    let bound = |path: &str| shipped(path) && !FREE.iter().any(|free| path.starts_with(free));
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| bound(&file.path)) {
        let tokens = file.tokens();
        findings.extend(shipped_part(&tokens).windows(4).filter_map(opener).map(|token| {
            let message = format!(
                "`{}` of `std::fs`: open what a user names by `overdrive_files`",
                token.text
            );
            Finding::line(&file.path, token.line, message)
        }));
    }
    findings
}

/// The tokens before the unit tests, which stand last in a file.
fn shipped_part(tokens: &[Token]) -> &[Token] {
    // `cfg(test)`, and `cfg(all(test, unix))`.
    let is_test = |window: &[Token]| {
        window[0].text == "cfg"
            && window[1].text == "("
            && window.iter().any(|token| token.text == "test")
    };
    let end = tokens.windows(5).position(is_test).unwrap_or(tokens.len());
    &tokens[..end]
}

/// `fs::read`, `fs::read_to_string`, `File::open`.
fn opener(window: &[Token]) -> Option<&Token> {
    let [root, first, second, name] = window else { unreachable!("a window of four") };
    let path = first.text == ":" && second.text == ":";
    let reads = root.text == "fs" && READERS.contains(&name.text.as_str());
    let opens = root.text == "File" && ["open", "options"].contains(&name.text.as_str());
    (path && (reads || opens)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_way_to_open_a_file_is_refused() {
        for text in [
            "fn f() { std::fs::read(p); }",
            "fn f() { fs::read_to_string(p); }",
            "use std::fs::File;\nfn f() { File::open(p); }",
        ] {
            assert_eq!(check(&Tree::of(&[("crates/overdrive/src/a.rs", text)])).len(), 1, "{text}");
            assert_eq!(check(&Tree::of(&[("crates/overdrive-files/src/open.rs", text)])), []);
            assert_eq!(check(&Tree::of(&[("crates/overdrive/tests/a.rs", text)])), []);
        }
    }

    #[test]
    fn folders_writing_and_tests_pass() {
        let text = "fn f() { fs::read_dir(p); fs::write(p, b); overdrive_files::read(p, 1); }\n\
                    #[cfg(test)]\nmod tests { fn g() { fs::read(p); } }";
        assert_eq!(check(&Tree::of(&[("crates/overdrive/src/a.rs", text)])), []);
    }
}

//! The text that users see is written in one file, which knows what to do where it cannot be
//! written: `println!` panics there. Tests, their `testkit`, benches, examples and this tool may
//! print, and modules of tests at the end of a file.

use super::rule::{Finding, Rule};
use super::tree::{Token, Tree};

/// The file that prints.
const PLACE: &str = "crates/overdrive/src/terminal.rs";
const MACROS: [&str; 4] = ["print", "println", "eprint", "eprintln"];
const STREAMS: [&str; 2] = ["stdout", "stderr"];

pub(super) const RULE: Rule = Rule { name: "prints", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let shipped =
        |path: &str| path.starts_with("crates/") && path.contains("/src/") && !may_print(path);
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| shipped(&file.path)) {
        let tokens = file.tokens();
        let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
        let is_test =
            |at: usize| word(at) == "test" || (word(at) == "all" && word(at + 2) == "test");
        let opens = |&at: &usize| word(at) == "cfg" && word(at + 1) == "(" && is_test(at + 2);
        let end = (0..tokens.len()).find(opens);
        for pair in tokens[..end.unwrap_or(tokens.len())].windows(2) {
            let prints = MACROS.contains(&pair[0].text.as_str()) && is(&pair[1], "!");
            let writes = STREAMS.contains(&pair[0].text.as_str())
                && is(&pair[1], "(")
                && !asks(&tokens, pair);
            if prints || writes {
                let message =
                    format!("`{}` writes: use `say!` and `note!` of {PLACE}", pair[0].text);
                findings.push(Finding::line(&file.path, pair[0].line, message));
            }
        }
    }
    findings
}

/// The file that prints, and what only tests use.
fn may_print(path: &str) -> bool {
    path == PLACE || path.starts_with("crates/testkit/")
}

fn is(token: &Token, text: &str) -> bool {
    token.text == text
}

/// Whether a stream is only queried, or is a setting of a child process: `stdout().is_terminal()`,
/// `.stdout(pipe)`.
fn asks(tokens: &[Token], pair: &[Token]) -> bool {
    let at = tokens.iter().position(|token| std::ptr::eq(token, &pair[0])).unwrap_or(0);
    let before = at.checked_sub(1).is_some_and(|at| is(&tokens[at], "."));
    before || tokens.get(at + 4).is_some_and(|token| is(token, "is_terminal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, body: &str) -> usize {
        check(&Tree::of(&[(path, &format!("//! A.\nfn f() {{ {body} }}\n"))])).len()
    }

    #[test]
    fn what_prints_elsewhere_is_refused() {
        for body in [
            "println!(\"a\");",
            "eprint!(\"a\");",
            "std::io::stdout().flush();",
            "let e = stderr();",
        ] {
            assert_eq!(found("crates/overdrive/src/a.rs", body), 1, "{body}");
            assert_eq!(found("crates/overdrive-bench/src/a/b.rs", body), 1, "{body}");
            assert_eq!(found(PLACE, body), 0, "{body}");
            assert_eq!(found("crates/overdrive/tests/a.rs", body), 0, "{body}");
        }
    }

    #[test]
    fn questions_children_and_tests_pass() {
        let path = "crates/overdrive/src/a.rs";
        assert_eq!(found(path, "std::io::stderr().is_terminal(); command.stdout(pipe);"), 0);
        assert_eq!(found(path, "} #[cfg(test)] mod tests { fn g() { println!(); }"), 0);
        assert_eq!(found(path, "let println = 1; // println!()"), 0);
    }
}

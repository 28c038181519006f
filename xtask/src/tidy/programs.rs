//! A crate has one program of tests, `tests/all/`, since each program links the workspace again. A
//! second one says in its docs why it is a program of its own.
//!
//! A file there that `main.rs` does not list would never run, and nothing else would say so.

use std::collections::BTreeMap;

use super::rule::{Finding, Rule};
use super::tree::{File, Tree};

pub(super) const RULE: Rule = Rule { name: "programs", check };

/// The words in the docs of a second program, beside the reason.
const OWN: &str = "program of its own";
/// The most programs that say nothing: of so few, one gains little.
const FEW: usize = 2;

/// The programs of a crate and the files of `tests/all/`.
#[derive(Default)]
struct Tests<'t> {
    all: Option<&'t File>,
    listed: Vec<&'t File>,
    others: Vec<&'t File>,
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Tests<'_>> = BTreeMap::new();
    for file in tree.rust() {
        let Some((folder, inside)) = file.path.split_once("/tests/") else { continue };
        // Modules of a library's own tests are no programs.
        if folder.contains("/src") {
            continue;
        }
        let tests = crates.entry(folder).or_default();
        match inside.split('/').collect::<Vec<_>>()[..] {
            ["all", "main.rs"] => tests.all = Some(file),
            ["all", _] | ["all", _, "mod.rs"] => tests.listed.push(file),
            [_] | [_, "main.rs"] => tests.others.push(file),
            _ => {}
        }
    }
    crates.values().flat_map(findings).collect()
}

fn findings(tests: &Tests<'_>) -> Vec<Finding> {
    let lists = |file: &File| tests.all.is_some_and(|all| declares(all, module(file)));
    let unlisted = tests.listed.iter().filter(|file| !lists(file)).map(|file| {
        let message = format!("its tests never run: add `mod {};` to `main.rs`", module(file));
        Finding::file(&file.path, message)
    });
    let plain: Vec<&&File> = tests.others.iter().filter(|file| !says_why(file)).collect();
    let most = if tests.all.is_some() { 0 } else { FEW };
    let many = plain.iter().filter(|_| plain.len() > most).map(|file| {
        let message = format!(
            "one more program that links the workspace: move it to `tests/all/`, or write why it \
             is a {OWN}"
        );
        Finding::file(&file.path, message)
    });
    unlisted.chain(many).collect()
}

/// The module that a file is: `a` of `all/a.rs` and of `all/a/mod.rs`.
fn module(file: &File) -> &str {
    let path = file.path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    path.rsplit('/').next().unwrap_or(path)
}

fn declares(main: &File, module: &str) -> bool {
    let tokens = main.tokens();
    tokens.windows(2).any(|pair| pair[0].text == "mod" && pair[1].text == module)
}

/// Whether the docs say why, on one line or across two.
fn says_why(file: &File) -> bool {
    let docs: Vec<&str> = file.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    docs.join(" ").split_whitespace().collect::<Vec<_>>().join(" ").contains(OWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (&str, &str) = ("crates/a/tests/all/main.rs", "//! All.\nmod one;\nmod support;\n");

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_file_that_is_not_listed_is_found() {
        let listed = [
            ALL,
            ("crates/a/tests/all/one.rs", "//! One.\n"),
            ("crates/a/tests/all/one/part.rs", "//! A part, which one.rs lists.\n"),
            ("crates/a/tests/all/support/mod.rs", "//! Shared.\n"),
            ("crates/a/tests/fixture/model.rs", "//! No program.\n"),
            ("crates/a/src/tests/one.rs", "//! Of the library.\n"),
            ("crates/a/src/b/tests/all/two.rs", "//! Of the library.\n"),
        ];
        assert_eq!(found(&listed), [""; 0]);
        for forgotten in ["crates/a/tests/all/two.rs", "crates/a/tests/all/two/mod.rs"] {
            let found = found(&[&listed[..], &[(forgotten, "//! mod two;\n")]].concat());
            assert!(found.len() == 1 && found[0].contains("mod two;"), "{found:?}");
        }
    }

    #[test]
    fn a_program_that_does_not_say_why_is_found() {
        let own = ("crates/a/tests/own.rs", "//! Counts. A program\n//! of its own: it counts.\n");
        assert_eq!(found(&[ALL, own]), [""; 0]);
        let code = ("crates/a/tests/own.rs", "//! Counts.\n// A program of its own.\n");
        assert_eq!(found(&[ALL, code]).len(), 1);
        assert_eq!(found(&[ALL, ("crates/a/tests/cli/main.rs", "//! Lines.\n")]).len(), 1);
    }

    #[test]
    fn few_programs_need_no_common_one() {
        let paths = ["crates/a/tests/a.rs", "crates/a/tests/b.rs", "crates/a/tests/c/main.rs"];
        let files = paths.map(|path| (path, "//! Tests.\n"));
        assert_eq!(found(&files[..2]), [""; 0]);
        assert_eq!(found(&files).len(), 3);
    }
}

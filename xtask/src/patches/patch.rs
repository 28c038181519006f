//! A patch with its header: the lines before its first `diff --git`, which git passes over.
//!
//! The header answers what a reviewer would ask: what the patch adds, how many files that may
//! touch, which tests prove it. It also says how to see the first of them fail. Other lines are for
//! the reader.
//!
//! ```text
//! Adds: an op
//! Files: 2
//! Test: testkit op_harness
//! Wrong: crates/overdrive-ir/src/ops/softplus.rs: x.exp().ln_1p() => x.exp()
//! Says: Softplus
//! ```

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result, ensure};

/// The required header of a patch, for errors.
const HEADER: &str = "`Adds: QUESTION`, `Files: AT_MOST`, `Test: PACKAGE TARGET [FILTER]` once or \
                      more, `Wrong: FILE: FROM => TO` and `Says: TEXT`";

/// One kind of addition.
#[derive(Debug)]
pub(super) struct Patch {
    /// Its file's name without the ending.
    pub(super) name: String,
    /// From the root of the checkout.
    pub(super) path: String,
    /// The question that it answers, as ARCHITECTURE.md asks it.
    pub(super) adds: String,
    /// The most files that it may touch, tests included.
    pub(super) at_most: usize,
    /// The tests that prove it, at least one.
    pub(super) tests: Vec<Test>,
    /// How to break it, so that its first test must fail.
    pub(super) wrong: Wrong,
    /// The text that the test then prints.
    pub(super) says: String,
}

/// Tests of an integration test's binary.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) package: String,
    pub(super) target: String,
    /// Part of the names of those that run; all of them where it is absent.
    pub(super) filter: Option<String>,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.target)?;
        self.filter.as_ref().map_or(Ok(()), |filter| write!(f, " {filter}"))
    }
}

/// A text of a file, and what makes it wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) file: String,
    pub(super) from: String,
    pub(super) to: String,
}

impl Patch {
    /// # Errors
    /// When the header lacks something, or a line of it cannot be read.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self> {
        let header = text.split("diff --git").next().unwrap_or_default();
        let all = |key: &str| {
            let prefix = format!("{key}: ");
            let values = header.lines().filter_map(|line| line.strip_prefix(&prefix));
            values.map(|value| value.trim().to_owned()).collect::<Vec<_>>()
        };
        let one = |key: &str| {
            let found = all(key);
            ensure!(
                found.len() == 1,
                "expected one line `{key}: ...` before the first `diff --git`, found {}, in \
                 {path}: a header has {HEADER}",
                found.len()
            );
            Ok(found.into_iter().next().unwrap_or_default())
        };
        let files = one("Files")?;
        let tests: Vec<Test> = all("Test")
            .iter()
            .map(|line| test(line).with_context(|| unread(path, "Test", line)))
            .collect::<Result<_>>()?;
        ensure!(!tests.is_empty(), "expected a test, found none, in {path}: a header has {HEADER}");
        let wrong = one("Wrong")?;
        Ok(Self {
            name: path.rsplit('/').next().unwrap_or(path).trim_end_matches(".patch").to_owned(),
            path: path.to_owned(),
            adds: one("Adds")?,
            at_most: files.parse().with_context(|| unread(path, "Files", &files))?,
            tests,
            wrong: wrong_of(&wrong).with_context(|| unread(path, "Wrong", &wrong))?,
            says: one("Says")?,
        })
    }

    /// Errs unless it answers one of the questions.
    pub(super) fn answers(&self, questions: &[&str]) -> Result<()> {
        ensure!(
            questions.contains(&self.adds.as_str()),
            "expected a question of ARCHITECTURE.md, found `{}`, in {}: write one of {questions:?} \
             behind `Adds:`, or add the question there",
            self.adds,
            self.path
        );
        Ok(())
    }

    /// Errs where it touches more files than it may.
    pub(super) fn fits(&self, files: &BTreeSet<String>) -> Result<()> {
        ensure!(
            files.len() <= self.at_most,
            "expected at most {} files for {}, found {} {files:?}, in {}: bring what it needs back \
             to one place, or raise `Files:` and say in ARCHITECTURE.md what has grown",
            self.at_most,
            self.adds,
            files.len(),
            self.path
        );
        Ok(())
    }
}

fn unread(path: &str, key: &str, found: &str) -> String {
    format!("expected a line as in {HEADER}, found `{key}: {found}`, in {path}: correct it")
}

fn test(line: &str) -> Result<Test> {
    let words: Vec<&str> = line.split_whitespace().collect();
    ensure!((2..=3).contains(&words.len()), "{} words", words.len());
    let filter = words.get(2).map(|&word| word.to_owned());
    Ok(Test { package: words[0].to_owned(), target: words[1].to_owned(), filter })
}

fn wrong_of(line: &str) -> Result<Wrong> {
    let (file, change) = line.split_once(": ").context("no file")?;
    let (from, to) = change.split_once(" => ").context("no change")?;
    Ok(Wrong { file: file.to_owned(), from: from.to_owned(), to: to.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: &str = "Softplus.\n\
                      Adds: an op\n\
                      Files: 2\n\
                      Test: testkit ops\n\
                      Test: cpu softplus one\n\
                      Wrong: ops/softplus.rs: x.exp() => x\n\
                      Says: Softplus\n\
                      diff --git a/a b/a\n\
                      Files: 9\n";

    fn op() -> Patch {
        Patch::parse("xtask/patches/op.patch", OP).expect("a patch")
    }

    #[test]
    fn a_header_is_read_up_to_the_first_file() {
        let op = op();
        assert_eq!((op.name.as_str(), op.adds.as_str(), op.at_most), ("op", "an op", 2));
        let tests: Vec<String> = op.tests.iter().map(Test::to_string).collect();
        assert_eq!(tests, ["testkit ops", "cpu softplus one"]);
        let Wrong { file, from, to } = op.wrong;
        assert_eq!([file, from, to, op.says], ["ops/softplus.rs", "x.exp()", "x", "Softplus"]);
    }

    #[test]
    fn a_header_that_lacks_a_line_or_has_an_odd_one_is_refused() {
        for (line, instead) in [
            ("Adds: an op\n", ""),
            ("Files: 2\n", ""),
            ("Files: 2\n", "Files: two\n"),
            ("Files: 2\n", "Files: 2\nFiles: 3\n"),
            ("Test: testkit ops\nTest: cpu softplus one\n", ""),
            ("Test: testkit ops\n", "Test: testkit\n"),
            (" => x\n", "\n"),
            ("Says: Softplus\n", ""),
        ] {
            let text = OP.replacen(line, instead, 1);
            let error = Patch::parse("xtask/patches/op.patch", &text).expect_err(&text);
            assert!(format!("{error:#}").contains("xtask/patches/op.patch"), "{error:#}");
        }
    }

    #[test]
    fn a_patch_that_touches_more_files_or_answers_nothing_is_refused() {
        let files = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        op().fits(&files(&["a", "b"])).expect("two files");
        op().fits(&files(&["a"])).expect("one file is less than two");
        let error = op().fits(&files(&["a", "b", "c"])).expect_err("a third file").to_string();
        assert!(error.contains("at most 2") && error.contains("found 3"), "{error}");
        op().answers(&["a pass", "an op"]).expect("a question");
        assert!(op().answers(&["a pass"]).is_err());
    }
}

//! `cargo xtask patches`: proves what ARCHITECTURE.md answers to "Where do I add ...".
//!
//! `patches/` has one patch for each kind of addition. Each applies to the checkout alone and
//! touches no more files than it says. Then all of them are applied to one copy of the checkout,
//! which is built once, and each patch's tests run there. At last all that they add is broken, as
//! each patch says, and their tests must fail: one that passes has never looked. The patches live
//! outside the tree, so that an example never becomes a feature. Invariant: the checkout itself is
//! not touched.

mod build;
mod copy;
mod patch;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::step::Tally;
use crate::workspace::Workspace;
use build::{Built, Ran};
use patch::{Patch, Wrong};

/// Folder of the patches, from the root of the checkout.
const FOLDER: &str = "xtask/patches";
/// Path of the copy. It is kept between runs, so that only what changed is built again.
const COPY: &str = "target/patches";
/// The page whose answers are proved, and how a question begins there.
const PAGE: &str = "ARCHITECTURE.md";
const QUESTION: &str = "**... ";

/// Checks the patches one by one, then builds all of them together and runs their tests.
pub(crate) fn run(workspace: &Workspace) -> Result<Tally> {
    let page = fs::read_to_string(workspace.root().join(PAGE))
        .with_context(|| format!("cannot read {PAGE}"))?;
    let asked = questions(&page);
    let patches = read(workspace)?;
    for patch in &patches {
        patch.answers(&asked)?;
        patch.fits(&touched(workspace, patch)?)?;
        applies_alone(workspace, patch)?;
    }
    let copy = Workspace::at(&workspace.root().join(COPY));
    copy::refresh(workspace, copy.root())?;
    for patch in &patches {
        // Without `--unidiff-zero`, what a list gains would have to be its end.
        workspace
            .output("git", &["apply", "--unidiff-zero", "--directory", COPY, &patch.path])
            .with_context(|| {
                format!(
                    "expected a patch that applies beside the others, found one that conflicts, in \
                     {}: let it add at another place",
                    patch.path
                )
            })?;
    }
    let built = Built::new(workspace, &copy, &targets(&patches))?;
    ensure!(
        built.said.is_empty(),
        "expected patches that build without a warning, found:\n{}\nin {FOLDER}: they are examples",
        built.said
    );
    let (mut rows, mut tally, mut failures) = (Vec::new(), Tally::default(), Vec::new());
    for patch in &patches {
        let ran = run_all(&built, patch)?;
        tally += ran.tally;
        failures.extend(failure(patch, &ran));
        rows.push(Row::of(patch, touched(workspace, patch)?.len(), &ran));
    }
    for patch in &patches {
        spoil(&copy, patch)?;
    }
    let built = Built::new(workspace, &copy, &targets(&patches))?;
    for (patch, row) in patches.iter().zip(&mut rows) {
        let outcome = rejects(&built, patch);
        row.rejects = outcome.is_ok();
        failures.extend(outcome.err().map(|error| format!("{error:#}")));
    }
    println!("\n{}", table(&rows));
    let left: Vec<&str> =
        asked.into_iter().filter(|asked| patches.iter().all(|p| p.adds != *asked)).collect();
    println!("without a patch: {}", left.join(", "));
    ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(tally)
}

/// The questions of the page, such as `an op`.
fn questions(page: &str) -> Vec<&str> {
    page.lines()
        .filter_map(|line| Some(line.strip_prefix(QUESTION)?.split_once("?**")?.0))
        .collect()
}

/// Every patch, in the order of their names.
fn read(workspace: &Workspace) -> Result<Vec<Patch>> {
    let folder = workspace.root().join(FOLDER);
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {folder:?}"))? {
        let name = entry.with_context(|| format!("cannot list {folder:?}"))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    let patches = names.iter().map(|name| {
        let path = format!("{FOLDER}/{name}");
        let text = fs::read_to_string(workspace.root().join(&path))
            .with_context(|| format!("cannot read {path}"))?;
        Patch::parse(&path, &text)
    });
    patches.collect()
}

/// The files that a patch adds or changes, as git sees them.
fn touched(workspace: &Workspace, patch: &Patch) -> Result<BTreeSet<String>> {
    let listed = workspace.output("git", &["apply", "--numstat", "--unidiff-zero", &patch.path])?;
    Ok(files_of(&listed))
}

/// `numstat` has a line a file: lines added, lines removed and the path.
fn files_of(numstat: &str) -> BTreeSet<String> {
    numstat.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

/// Errs unless the patch applies to the checkout with no other patch; nothing is written.
fn applies_alone(workspace: &Workspace, patch: &Patch) -> Result<()> {
    let applied = workspace.output("git", &["apply", "--check", "--unidiff-zero", &patch.path]);
    applied.map(drop).with_context(|| {
        format!(
            "expected a patch that applies to the checkout, found that a line beside which it adds \
             is gone, in {}: copy that line from the file as it is now",
            patch.path
        )
    })
}

/// The integration tests of the patches.
fn targets(patches: &[Patch]) -> BTreeSet<&str> {
    patches.iter().flat_map(|patch| &patch.tests).map(|test| test.target.as_str()).collect()
}

/// Runs the tests of a patch.
fn run_all(built: &Built, patch: &Patch) -> Result<Ran> {
    let mut all = Ran::default();
    for test in &patch.tests {
        all.add(built.run(test)?);
    }
    Ok(all)
}

/// The message for a patch whose tests did not pass.
fn failure(patch: &Patch, ran: &Ran) -> Option<String> {
    (!ran.success).then(|| {
        format!(
            "expected the tests of {} to pass, found:\n{}\nmend the patch, or what it shows to be \
             broken",
            patch.path,
            ran.said.trim()
        )
    })
}

/// Breaks what a patch has added to the copy.
fn spoil(copy: &Workspace, patch: &Patch) -> Result<()> {
    let Wrong { file, from, to } = &patch.wrong;
    let path = copy.root().join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
    ensure!(
        text.matches(from).count() == 1,
        "expected `{from}` once in {file}, to break it, found it {} times: correct `Wrong:` in {}",
        text.matches(from).count(),
        patch.path
    );
    fs::write(&path, text.replace(from, to)).with_context(|| format!("cannot write {path:?}"))
}

/// Errs unless the first test of a patch fails where what it adds is wrong, and says so.
fn rejects(built: &Built, patch: &Patch) -> Result<()> {
    let (test, Wrong { file, to, .. }) = (&patch.tests[0], &patch.wrong);
    let ran = built.run(test)?;
    ensure!(
        !ran.success && ran.said.contains(&patch.says),
        "expected `{test}` to reject `{to}` in {file} and to say `{}`, found:\n{}\nin {}: let the \
         test look at it",
        patch.says,
        ran.said.trim(),
        patch.path
    );
    Ok(())
}

/// A line of the table.
struct Row {
    patch: String,
    files: usize,
    at_most: usize,
    tests: String,
    /// Whether its first test failed where what it adds was wrong.
    rejects: bool,
    seconds: f64,
}

impl Row {
    fn of(patch: &Patch, files: usize, ran: &Ran) -> Self {
        let Tally { passed, failed, .. } = ran.tally;
        let tests = if ran.success { format!("{passed} ok") } else { format!("{failed} FAILED") };
        let (patch, at_most) = (patch.name.clone(), patch.at_most);
        Self { patch, files, at_most, tests, rejects: false, seconds: ran.seconds }
    }
}

fn table(rows: &[Row]) -> String {
    let line = |patch: &str, [files, at_most, tests, wrong, s]: [&str; 5]| {
        format!("{patch:<18} {files:>5} {at_most:>7}  {tests:<9} {wrong:<10} {s:>5}")
    };
    let head = line("patch", ["files", "at most", "tests", "wrong one", "s"]);
    let lines = rows.iter().map(|row| {
        let numbers = [row.files, row.at_most].map(|number| number.to_string());
        let wrong = if row.rejects { "rejected" } else { "NOT SEEN" };
        let seconds = format!("{:.1}", row.seconds);
        line(&row.patch, [&numbers[0], &numbers[1], &row.tests, wrong, &seconds])
    });
    [head].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_those_of_the_page() {
        let page =
            "**... an op?** One file.\ntext\n**... a faster version of an op on CUDA?** Two\n";
        assert_eq!(questions(page), ["an op", "a faster version of an op on CUDA"]);
    }

    #[test]
    fn the_page_says_how_many_of_its_answers_are_proved() {
        let page = include_str!("../../ARCHITECTURE.md");
        let patches = read(&Workspace::of_this_build()).expect("patches");
        let proved: BTreeSet<&str> = patches.iter().map(|patch| patch.adds.as_str()).collect();
        let said = format!("CI proves {} of these {} answers", proved.len(), questions(page).len());
        assert!(page.contains(&said), "expected `{said}` in {PAGE}");
    }

    #[test]
    fn each_file_counts_once() {
        let listed = "1\t0\tcrates/a.rs\n80\t0\tcrates/b.rs\n2\t2\tcrates/a.rs\n";
        assert_eq!(files_of(listed), ["crates/a.rs", "crates/b.rs"].map(str::to_owned).into());
    }

    #[test]
    fn a_patch_that_no_longer_applies_is_an_error_and_changes_nothing() {
        let root = std::env::temp_dir().join(format!("overdrive-patches-{}", std::process::id()));
        fs::create_dir_all(&root).expect("writable");
        let workspace = Workspace::at(&root);
        workspace.output("git", &["init", "--quiet"]).expect("git");
        let patch = "Adds: an op\nFiles: 1\nTest: p t\nWrong: list: softplus => relu\nSays: no\n\
                     diff --git a/list b/list\n--- a/list\n+++ b/list\n\
                     @@ -1,1 +1,2 @@\n relu\n+softplus\n";
        fs::write(root.join("op.patch"), patch).expect("writable");
        let patch = Patch::parse("op.patch", patch).expect("a patch");
        // The line has moved since the patch was written.
        fs::write(root.join("list"), "gelu\nrelu\nsilu\n").expect("writable");
        applies_alone(&workspace, &patch).expect("its line is there");
        assert_eq!(touched(&workspace, &patch).expect("a file"), ["list".to_owned()].into());
        assert_eq!(fs::read_to_string(root.join("list")).expect("there"), "gelu\nrelu\nsilu\n");
        fs::write(root.join("list"), "gelu\nsilu\n").expect("writable");
        let said =
            format!("{:#}", applies_alone(&workspace, &patch).expect_err("its line is gone"));
        assert!(said.contains("op.patch"), "{said}");
        fs::remove_dir_all(&root).expect("removable");
    }
}

//! Lines of code, comments and docs end at 100 columns, so that two files fit beside each other.
//! Manifests, scripts of CI and the sources of pages are code.
//!
//! Lines that cannot be broken are free:
//! - a single word (an address, a link);
//! - a row of a table;
//! - an image;
//! - a line of a fenced block of Markdown, which is copied whole.

use super::rule::{Finding, Rule};
use super::tree::{File, Tree};

const WIDTH: usize = 100;
/// Languages that people write here, prose among them, by extension.
/// `run` is `.ci/run`, whose name has no extension.
const WRITTEN: &[&str] =
    &["rs", "cu", "cuh", "py", "js", "css", "html", "toml", "md", "sh", "yml", "run"];
/// The marks that may stand in front of the words of a line: comments, list items, quotes.
const LEADS: &[&str] = &["//!", "///", "//", "#", "-", "*", ">"];

pub(super) const RULE: Rule = Rule { name: "columns", check };

fn check(tree: &Tree) -> Vec<Finding> {
    tree.written(WRITTEN).flat_map(too_wide).collect()
}

fn too_wide(file: &File) -> Vec<Finding> {
    let is_prose = file.path.ends_with(".md");
    let mut fenced = false;
    let mut findings = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        fenced ^= is_prose && line.trim_start().starts_with("```");
        let columns = line.chars().count();
        if columns > WIDTH && !fenced && !is_whole(line) {
            let message = format!("{columns} columns, {WIDTH} at most: break the line");
            findings.push(Finding::line(&file.path, number + 1, message));
        }
    }
    findings
}

/// Whether a line has no place to be broken: one word, an image, or a row of a table.
fn is_whole(line: &str) -> bool {
    let words = LEADS.iter().fold(line.trim(), |rest, lead| {
        rest.strip_prefix(lead).filter(|rest| rest.starts_with(' ')).unwrap_or(rest).trim_start()
    });
    let is_row = words.starts_with('|') && words.ends_with('|');
    is_row || words.starts_with("![") || !words.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<Option<usize>> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_column_after_the_last_is_refused_in_every_language() {
        let fits = format!("// {}", "word ".repeat(20))[..WIDTH].to_owned();
        let wide = format!("{fits}é");
        for extension in WRITTEN {
            let path = format!("src/a.{extension}");
            assert_eq!(lines(&path, &format!("{fits}\n{wide}\n")), [Some(2)], "{path}");
        }
        let report = "crates/overdrive-report";
        assert_eq!(lines(&format!("{report}/assets/ours.css"), &wide), [Some(1)]);
        assert_eq!(lines(&format!("{report}/assets/roboto.css"), &wide), [], "it came from others");
        assert_eq!(lines("results/h200/report.html", &wide), [], "a run wrote it");
        assert_eq!(lines(".ci/run", &wide), [Some(1)]);
        assert_eq!(lines("data.json", &wide), [], "data are not written by people");
    }

    #[test]
    fn lines_that_cannot_be_broken_pass() {
        let word = "x".repeat(WIDTH);
        for line in [format!("//! <https://{word}>"), format!("| a | {word} |"), word.clone()] {
            assert_eq!(lines("src/a.rs", &format!("{line}\n")), [], "{line}");
        }
        let page = format!(
            "![a picture](docs/{word}.svg)\n- {word}\n```sh\nrun {word}\n```\nsay {word}\n"
        );
        assert_eq!(lines("docs/a.md", &page), [Some(6)]);
        for code in [format!("|| {word}()"), format!("!{word} && {word}")] {
            assert_eq!(lines("src/a.js", &code), [Some(1)], "neither a row nor an image: {code}");
        }
    }
}

//! The book can be built as it stands. Every page is in its table of contents, and links stay
//! within it. A link to a part of a page names a heading that exists. A reader who follows a link
//! to nothing reads no further.

use super::rule::{Finding, Rule};
use super::tree::{File, Tree};

const FOLDER: &str = "docs/book/src/";
const CONTENTS: &str = "docs/book/src/SUMMARY.md";

pub(super) const RULE: Rule = Rule { name: "book", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let pages: Vec<&File> =
        tree.files.iter().filter(|file| file.path.starts_with(FOLDER)).collect();
    let Some(contents) = tree.file(CONTENTS) else {
        return pages
            .iter()
            .map(|page| Finding::file(&page.path, format!("{CONTENTS} is missing")))
            .collect();
    };
    let mut findings = Vec::new();
    let listed: Vec<String> = links(&contents.text).into_iter().map(|(_, target)| target).collect();
    for page in pages.iter().filter(|page| page.path != CONTENTS && page.path.ends_with(".md")) {
        let count = listed.iter().filter(|target| format!("{FOLDER}{target}") == page.path).count();
        if count != 1 {
            findings.push(Finding::file(
                &page.path,
                format!("{count} times in SUMMARY.md, once is right"),
            ));
        }
    }
    for page in &pages {
        for (line, target) in links(&page.text) {
            findings.extend(
                wrong(tree, page, &target).map(|message| Finding::line(&page.path, line, message)),
            );
        }
    }
    findings
}

/// The fault of a link, if it has one. That its file exists is the rule `architecture`.
fn wrong(tree: &Tree, page: &File, target: &str) -> Option<String> {
    let (path, part) = target.split_once('#').unwrap_or((target, ""));
    if path.contains(':') {
        return None;
    }
    if path.split('/').any(|step| step == "..") || path.starts_with('/') {
        return Some(format!(
            "`{target}` leads out of the book: quote the path, or name an address"
        ));
    }
    if part.is_empty() {
        return None;
    }
    let text =
        if path.is_empty() { &page.text } else { &tree.file(&format!("{FOLDER}{path}"))?.text };
    let is_there = prose(text).any(|(_, line)| line.starts_with('#') && anchor(line) == part);
    (!is_there).then(|| format!("`{target}`: no heading there is called `{part}`"))
}

/// Lines outside blocks of code, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((at + 1, line))
    })
}

/// Targets of links with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let of_line = |(at, line): (usize, &str)| -> Vec<(usize, String)> {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets.map(|target| (at, target.to_owned())).collect()
    };
    prose(text).flat_map(of_line).collect()
}

/// The anchor that mdBook gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str) -> usize {
        let summary = "- [A](a.md)\n- [B](b.md)\n";
        let path = |name: &str| format!("{FOLDER}{name}");
        let [a, b, contents] = [path("a.md"), path("b.md"), CONTENTS.to_owned()];
        check(&Tree::of(&[(&a, page), (&b, "## Is it right?\n"), (&contents, summary)])).len()
    }

    #[test]
    fn links_within_the_book_and_outward_pass() {
        let page = "# A\n[b](b.md) [part](b.md#is-it-right) [a](#a) [x](https://example.org/y#z)\n\
                    ```sh\necho [x](../gone.md)\n```\n";
        assert_eq!(findings(page), 0);
    }

    #[test]
    fn a_link_to_nothing_is_refused() {
        for page in ["[b](b.md#is-it-wrong)", "[a](#b)", "[up](../ci.md)", "[root](/a.md)"] {
            assert_eq!(findings(page), 1, "{page}");
        }
    }

    #[test]
    fn every_page_is_in_the_contents() {
        let [lone, contents] = [format!("{FOLDER}lone.md"), CONTENTS.to_owned()];
        assert_eq!(check(&Tree::of(&[(&lone, "# Lone"), (&contents, "")])).len(), 1);
        assert_eq!(check(&Tree::of(&[(&lone, "# Lone")])).len(), 1, "no contents at all");
        assert_eq!(
            check(&Tree::of(&[(&lone, ""), (&contents, "[a](lone.md) [a](lone.md)")])).len(),
            1
        );
    }
}

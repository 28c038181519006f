//! A sentence is short enough to be read once. Prose is comments, docstrings and pages.

use super::prose::{LANGUAGES, sentences};
use super::rule::{Finding, Rule};
use super::tree::Tree;

/// A sentence has no more of them. Text in backticks is one.
const WORDS: usize = 25;

pub(super) const RULE: Rule = Rule { name: "sentences", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.written(LANGUAGES) {
        let long = sentences(file).into_iter().filter(|sentence| sentence.words.len() > WORDS);
        findings.extend(long.map(|sentence| {
            let (count, start) = (sentence.words.len(), sentence.words[..4].join(" "));
            let message =
                format!("{count} words, {WORDS} at most, after `{start}`: make two of it");
            Finding::line(&file.path, sentence.line, message)
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_after_the_last_is_refused_in_every_language() {
        let fits = format!("Short. A {}\n", "word ".repeat(WORDS - 1));
        let long = format!("{}more.\n", fits.trim_end_matches('\n'));
        for (path, lead) in [("src/a.rs", "/// "), ("a.cu", "// "), ("a.py", "# "), ("a.md", "")] {
            let text = format!("{lead}{fits}\n{lead}{long}");
            let findings = check(&Tree::of(&[(path, &text)]));
            assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [Some(3)], "{path}");
        }
    }

    #[test]
    fn text_in_backticks_is_one_word() {
        let text = format!("//! It is `{}`.\n", "word ".repeat(2 * WORDS));
        assert_eq!(check(&Tree::of(&[("src/a.rs", &text)])), []);
    }
}

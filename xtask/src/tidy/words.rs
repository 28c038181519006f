//! A note to do something later belongs in an issue, where it is seen; a debugging print belongs
//! nowhere. Comments are read too.

use super::rule::{Finding, Rule};
use super::tree::Tree;

/// In two pieces, so that this file keeps its own rule.
const BANNED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("db", "g!"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
];

pub(super) const RULE: Rule = Rule { name: "words", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.sources() {
        for (number, line) in file.text.lines().enumerate() {
            let banned = BANNED.iter().filter(|word| has_word(line, word));
            findings.extend(banned.map(|word| {
                Finding::line(
                    &file.path,
                    number + 1,
                    format!("`{word}`: do it now or open an issue"),
                )
            }));
        }
    }
    findings
}

/// Whether `word` stands in `line` as a word of its own.
fn has_word(line: &str, word: &str) -> bool {
    let in_word = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_banned_word_is_found_wherever_it_stands() {
        for word in BANNED {
            let text = format!("//! A.\n    // {word}: later\n");
            let findings = check(&Tree::of(&[("src/a.rs", &text), ("kernel.cu", &text)]));
            assert_eq!(findings.len(), 2, "{word}");
            assert_eq!(findings[0].line, Some(2));
        }
    }

    #[test]
    fn longer_words_pass() {
        let text = format!("let {0}S = MY{0};", BANNED[0]);
        assert_eq!(check(&Tree::of(&[("src/a.rs", &text)])), []);
    }
}

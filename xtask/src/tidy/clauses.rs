//! A sentence names its things. Clauses such as `what ... is what` and `that which` are correct
//! English, and a reader has to guess their subject and their object.

use super::prose::{LANGUAGES, Sentence, sentences};
use super::rule::{Finding, Rule};
use super::tree::Tree;

pub(super) const RULE: Rule = Rule { name: "clauses", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.written(LANGUAGES) {
        for sentence in sentences(file) {
            findings.extend(obscure(&sentence).map(|clause| {
                let message = format!("`{clause}`: name the thing, as subject, verb, object");
                Finding::line(&file.path, sentence.line, message)
            }));
        }
    }
    findings
}

/// The clause that names nothing, if the sentence has one.
fn obscure(sentence: &Sentence<'_>) -> Option<&'static str> {
    let words: Vec<String> = sentence.words.iter().map(|word| word.to_lowercase()).collect();
    let at = |first: &[&str], second: &str| {
        words.windows(2).position(|pair| first.contains(&pair[0].as_str()) && pair[1] == second)
    };
    if at(&["that", "those"], "which").is_some() {
        return Some("that which");
    }
    let equated = at(&["is", "are", "was", "were", "not"], "what")?;
    words[..equated].iter().any(|word| word == "what").then_some("what ... is what")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(said: &str) -> usize {
        check(&Tree::of(&[("src/a.rs", &format!("//! {said}\n"))])).len()
    }

    #[test]
    fn what_is_what_and_that_which_are_refused() {
        for said in [
            "Here what was won is what was lost.",
            "What it saw of the call is not what it took.",
            "Without one, that which came nearest.",
            "Sizes are those\n//! which others publish.",
        ] {
            assert_eq!(found(said), 1, "{said}");
        }
    }

    #[test]
    fn sentences_that_name_a_thing_pass() {
        for said in [
            "The file is not what its header says.",
            "What a step leaves behind. The bytes are what it wrote.",
            "The size that, which is rare, differs.",
            "`what it is what`",
        ] {
            assert_eq!(found(said), 0, "{said}");
        }
    }
}

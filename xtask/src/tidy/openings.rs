//! A sentence opens with its subject. One that opens with `What`, `Where` or `Of` has its subject
//! later or nowhere, so that a reader must read it twice.
//!
//! Questions pass, and so does text in quotes or backticks, which is somebody else's.

use super::prose::{LANGUAGES, Sentence, sentences};
use super::rule::{Finding, Rule};
use super::tree::Tree;

/// Words that open no sentence, and how to say the same plainly.
const OPENINGS: &[(&str, &str)] = &[
    ("What", "name the thing"),
    ("Where", "name the place, or begin a condition with `If`"),
    ("Of", "name the thing that it is of"),
];

pub(super) const RULE: Rule = Rule { name: "openings", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.written(LANGUAGES) {
        for sentence in sentences(file) {
            findings.extend(hidden(&sentence).map(|(word, remedy)| {
                let message = format!("a sentence begins with `{word}`: {remedy}");
                Finding::line(&file.path, sentence.line, message)
            }));
        }
    }
    findings
}

/// The entry of [`OPENINGS`] that the sentence begins with, unless it is a question.
fn hidden(sentence: &Sentence<'_>) -> Option<(&'static str, &'static str)> {
    let first = sentence.words.first()?.trim_start_matches(['(', '[', '*', '_']);
    // `What's`, `Where.` and `Of:` begin with the same words.
    let first = first.split(|c: char| !c.is_alphanumeric()).next()?;
    let found = OPENINGS.iter().find(|(word, _)| *word == first)?;
    (!sentence.is_question).then_some(*found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<Option<usize>> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn sentences_that_hide_their_subject_are_refused_in_every_language() {
        for said in [
            "What was found.",
            "What: a text.",
            "What's left is kept.",
            "Where.",
            "Where rows are adjacent, sums wait there.",
            "Of a group, query by channel.",
            "(Of a group.)",
            "**What bounds it.** Memory.",
        ] {
            for (path, lead) in
                [("src/a.rs", "/// "), ("a.cu", "// "), ("a.py", "# "), ("a.md", "")]
            {
                let text = format!("{lead}A first one. It\n{lead}ends. {said}\n");
                assert_eq!(lines(path, &text), [Some(2)], "{path}: {said}");
            }
        }
        assert_eq!(lines("a.md", "- Of an item.\n- A thing.\n"), [Some(1)]);
    }

    #[test]
    fn questions_quotes_and_other_places_of_the_words_pass() {
        for said in [
            "What does it share?",
            "Where do I add ...?",
            "Where is `a b`?",
            "\"Where do I add it\" is a heading.",
            "`Of` is a type.",
            "`What it is` stands there.",
            "Offsets of what is where it was.",
            "Whatever it is. Whereas it is not.",
        ] {
            assert_eq!(lines("src/a.rs", &format!("//! {said}\n")), [], "{said}");
        }
    }

    #[test]
    fn headings_cells_and_code_pass() {
        let page = "# What it is\n\n| Where | it is |\n|---|---|\n| Of us | so |\n\n\
                    ```sh\nOf code.\n```\n";
        assert_eq!(lines("docs/a.md", page), []);
        assert_eq!(lines("src/a.rs", "fn f() { say(\"What it is.\"); }\n"), []);
    }
}

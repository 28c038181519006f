//! The prose of a file as sentences: comments of code, docstrings of Python, pages of Markdown.
//!
//! Headings, tables, fenced blocks and code itself are no prose. Text in backticks is one word. A
//! sentence ends at a mark that a capital, a digit, a bracket or a quote follows.

use super::tree::File;

/// Languages with prose, by extension.
pub(super) const LANGUAGES: &[&str] = &["rs", "cu", "cuh", "py", "md"];

/// A sentence by its words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sentence<'a> {
    /// The line that it begins on, from 1.
    pub(super) line: usize,
    /// Text in backticks stands for its first word. Signs alone are no words.
    pub(super) words: Vec<&'a str>,
    /// True if it ends with a question mark.
    pub(super) is_question: bool,
}

/// Every sentence of a file in one of the [`LANGUAGES`], in their order.
pub(super) fn sentences(file: &File) -> Vec<Sentence<'_>> {
    paragraphs(&file.text, lines_of(&file.path)).iter().flat_map(|words| split(words)).collect()
}

/// Gives the prose of the next line, and the kind of comment that it stands in.
type Lines = for<'a> fn(&'a str, &mut bool) -> Option<(&'static str, &'a str)>;

fn lines_of(path: &str) -> Lines {
    match path.rsplit('.').next() {
        Some("md") => |line, _| Some(("", line)),
        Some("py") => python,
        _ => |line, _| {
            let comments = ["//!", "///", "//"];
            comments.into_iter().find_map(|kind| Some((kind, line.strip_prefix(kind)?)))
        },
    }
}

/// Comments and docstrings; `is_inside` says that a string of three quotes is open.
fn python<'a>(line: &'a str, is_inside: &mut bool) -> Option<(&'static str, &'a str)> {
    const QUOTES: &str = "\"\"\"";
    let was_inside = *is_inside;
    *is_inside ^= line.matches(QUOTES).count() % 2 == 1;
    let opened = line.trim_start_matches(['r', 'f']).strip_prefix(QUOTES);
    let Some(said) = (if was_inside { Some(line) } else { opened }) else {
        return Some(("#", line.strip_prefix('#')?));
    };
    Some((QUOTES, said.split(QUOTES).next().unwrap_or_default()))
}

/// The words of each paragraph with their lines. An item of a list is a paragraph of its own.
fn paragraphs(text: &str, lines: Lines) -> Vec<Vec<(usize, &str)>> {
    let mut all = vec![Vec::new()];
    let (mut kind, mut is_fenced, mut is_inside) = ("", false, false);
    for (number, line) in text.lines().enumerate() {
        let prose = lines(line.trim(), &mut is_inside);
        let (this, said) = prose.unwrap_or(("", ""));
        // A block of code ends with the comment that it stands in.
        is_fenced &= this == kind;
        let said = said.trim_start_matches([' ', '>']);
        let is_fence = said.starts_with("```");
        let item = after_marker(said);
        let is_other =
            is_fence || is_fenced || said.is_empty() || said.starts_with(['#', '|', '<']);
        if is_other || item.is_some() || this != kind {
            all.push(Vec::new());
        }
        is_fenced ^= is_fence;
        kind = this;
        if !is_other {
            let words = item.unwrap_or(said).split_whitespace().map(|word| (number + 1, word));
            all.last_mut().expect("one was there first").extend(words);
        }
    }
    all
}

/// The text after the sign or the number of an item.
fn after_marker(line: &str) -> Option<&str> {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < line.len();
    let rest =
        if is_numbered { after_number.strip_prefix('.') } else { line.strip_prefix(['-', '*']) };
    rest?.strip_prefix(' ')
}

fn split<'a>(paragraph: &[(usize, &'a str)]) -> Vec<Sentence<'a>> {
    let mut all: Vec<Sentence<'_>> = Vec::new();
    let (mut is_code, mut has_ended) = (false, true);
    for &(line, word) in paragraph {
        let is_inside = is_code;
        is_code ^= word.matches('`').count() % 2 == 1;
        if has_ended && !is_inside && begins(word) || all.is_empty() {
            all.push(Sentence { line, words: Vec::new(), is_question: false });
        }
        let sentence = all.last_mut().expect("one was begun");
        if !is_inside && word.contains(char::is_alphanumeric) {
            sentence.words.push(word);
        }
        let mark = word.trim_end_matches(['"', ')', '*', '_', '”']);
        sentence.is_question = !is_code && mark.ends_with('?');
        has_ended = !is_code && mark.ends_with(['.', '!', '?', ':', ';']);
    }
    all
}

/// Whether a word may be the first of a sentence. Symbols such as `α` may.
fn begins(word: &str) -> bool {
    let may = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || !c.is_ascii();
    word.starts_with(|c: char| may(c) || "\"(['`*_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line and number of words of each sentence.
    fn counts(path: &str, text: &str) -> Vec<(usize, usize)> {
        let file = File { path: path.into(), text: text.into() };
        let of = |sentence: &Sentence<'_>| (sentence.line, sentence.words.len());
        sentences(&file).iter().map(of).collect()
    }

    #[test]
    fn sentences_go_on_over_lines_and_end_at_marks() {
        let text = "//! One two\n//! three. Four (five `six of code;\n//! more` seven). 8 nine:\n\
                    //! it is one. Ten.\nfn f() {} // no line of its own\n    // Indented.\n";
        assert_eq!(counts("src/a.rs", text), [(1, 3), (2, 4), (3, 5), (4, 1), (6, 1)]);
        assert_eq!(counts("a.cuh", "// e.g. this a.b is one - dash, 1.5 of them"), [(1, 9)]);
    }

    #[test]
    fn a_question_ends_with_its_mark() {
        let text = "Is it `a b`? It is (why?). Where is ...?\n".to_owned();
        let file = File { path: "a.md".into(), text };
        let found: Vec<bool> = sentences(&file).iter().map(|s| s.is_question).collect();
        assert_eq!(found, [true, false, true]);
    }

    #[test]
    fn kinds_of_comments_and_items_of_lists_are_apart() {
        let text = "//! One two\n/// three\n// four\n// - five six\n//   seven\n// 12. eight\n";
        assert_eq!(counts("src/a.rs", text), [(1, 2), (2, 1), (3, 1), (4, 3), (6, 1)]);
    }

    #[test]
    fn only_prose_of_pages_counts() {
        let page = "# A heading\nA [link to it](docs/a.md).\n\n| a | row |\n```sh\nrun this\n```\n\
                    <img src=\"a.svg\">\n> Quoted words.\n";
        assert_eq!(counts("docs/a.md", page), [(2, 4), (9, 2)]);
        assert_eq!(counts("src/a.rs", "/// ```\n/// let a\nfn f() {}\n/// After it.\n"), [(4, 2)]);
    }

    #[test]
    fn python_says_it_in_docstrings_and_comments() {
        let text = "'First line.\nSecond\n\nthird.'\nx = 1\n# A comment.\n    'One.'\ny = 2\n\
                    z = '\nText.\n'\nw = 3\n";
        let text = &text.replace('\'', "\"\"\"");
        assert_eq!(counts("peers/a.py", text), [(1, 2), (2, 1), (4, 1), (6, 2), (7, 1), (10, 1)]);
    }
}

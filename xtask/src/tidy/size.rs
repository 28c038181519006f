//! A file is short enough to be read in one go. It has 700 lines at most, and past 400 its module
//! docs say why it is long.

use super::rule::{Finding, Rule};
use super::tree::{File, Tree};

const LIMIT: usize = 700;
const EXPLAIN_ABOVE: usize = 400;
/// How the line of the module docs that explains a long file begins.
const EXPLANATION: &str = "//! Long because ";

pub(super) const RULE: Rule = Rule { name: "size", check };

fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources().filter_map(finding).collect()
}

fn finding(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let explained = file.text.lines().any(|line| line.starts_with(EXPLANATION));
    if lines > LIMIT {
        Some(Finding::file(&file.path, format!("{lines} lines, {LIMIT} at most: split it")))
    } else if lines > EXPLAIN_ABOVE && file.path.ends_with(".rs") && !explained {
        let message = format!(
            "{lines} lines: past {EXPLAIN_ABOVE}, a line of the module docs says `Long because \
             ...`, or split it"
        );
        Some(Finding::file(&file.path, message))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, opening: &str, lines: usize) -> Vec<Finding> {
        let text = format!("{opening}\n{}", "\n".repeat(lines - 1));
        check(&Tree::of(&[(path, &text)]))
    }

    #[test]
    fn past_the_limit_no_reason_helps() {
        assert_eq!(findings("a.rs", "//! Long because of tables.", 701).len(), 1);
        assert_eq!(findings("kernel.cu", "// A kernel.", 701).len(), 1);
        assert!(findings("notes.md", "Notes.", 701).is_empty(), "prose has no limit");
    }

    #[test]
    fn past_four_hundred_a_reason_is_due() {
        assert_eq!(findings("a.rs", "//! A table.", 401).len(), 1);
        assert!(findings("a.rs", "//! Long because it is one table.", 700).is_empty());
        assert!(findings("a.rs", "//! A table.", 400).is_empty());
    }
}

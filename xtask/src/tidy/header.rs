//! Every Rust file opens with `//!`: what it is, why, which invariant. A reader never has to guess
//! what a file is for.

use super::rule::{Finding, Rule};
use super::tree::Tree;

pub(super) const RULE: Rule = Rule { name: "header", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let headless = tree.rust().filter(|file| !file.text.starts_with("//! "));
    headless
        .map(|file| {
            Finding::line(
                &file.path,
                1,
                "open with `//! `: what this file is, why, which invariant it keeps",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_module_docs_on_its_first_line_is_refused() {
        for text in ["", "use std::fmt;\n", "// A comment.\n", "\n//! Too late.\n", "//!\n"] {
            assert_eq!(check(&Tree::of(&[("src/a.rs", text)])).len(), 1, "{text:?}");
        }
        assert_eq!(check(&Tree::of(&[("src/a.rs", "//! A thing.\n"), ("a.py", "import x\n")])), []);
    }
}

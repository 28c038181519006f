//! A file or module is named after what it holds. Words that fit anything hide where a thing is. A
//! `v2` beside a first version means that two ways of doing one thing live on.

use syn::visit::Visit;

use super::rule::{Finding, Rule};
use super::tree::Tree;

const BANNED: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "manager", "managers", "misc", "v2"];

pub(super) const RULE: Rule = Rule { name: "names", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.sources() {
        for part in file.path.split('/') {
            let stem = part.split('.').next().unwrap_or(part);
            findings.extend(
                banned_word(stem).map(|word| Finding::file(&file.path, complaint(stem, word))),
            );
        }
    }
    for file in tree.rust() {
        // A file that does not parse is the compiler's business.
        let Ok(syntax) = syn::parse_file(&file.text) else { continue };
        let mut modules = InlineModules::default();
        modules.visit_file(&syntax);
        for (name, line) in modules.found {
            findings.extend(
                banned_word(&name)
                    .map(|word| Finding::line(&file.path, line, complaint(&name, word))),
            );
        }
    }
    findings
}

fn banned_word(name: &str) -> Option<&'static str> {
    name.split(['_', '-'])
        .find_map(|word| BANNED.iter().find(|banned| **banned == word.to_lowercase()))
        .copied()
}

fn complaint(name: &str, word: &str) -> String {
    format!("`{word}` in `{name}` says nothing about what is inside: name it after what it holds")
}

/// Modules with a body in the file; the others are seen as files.
#[derive(Default)]
struct InlineModules {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for InlineModules {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_some() {
            self.found.push((module.ident.to_string(), module.ident.span().start().line));
        }
        syn::visit::visit_item_mod(self, module);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_fit_anything_are_refused() {
        for path in [
            "src/utils.rs",
            "src/gemm_helper.rs",
            "common/mod.rs",
            "src/pool-manager/x.rs",
            "src/gemm_v2.rs",
            "peers/util.py",
        ] {
            assert_eq!(check(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
        let nested = check(&Tree::of(&[("src/a.rs", "mod outer {\n    mod helpers {}\n}\n")]));
        assert_eq!(nested.len(), 1);
        assert_eq!(nested[0].line, Some(2));
    }

    #[test]
    fn names_that_only_contain_such_letters_pass() {
        let tree = Tree::of(&[
            ("src/commonality.rs", "mod v20 {}"),
            ("docs/utils.md", ""),
            ("src/futile.rs", ""),
        ]);
        assert_eq!(check(&tree), []);
    }
}

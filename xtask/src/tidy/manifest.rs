//! Every member takes its lints and its dependencies' versions from the workspace: one place to
//! read them, one place to change them.

use super::rule::{Finding, Rule};
use super::tree::Tree;
use crate::workspace::Package;

pub(super) const RULE: Rule = Rule { name: "manifest", check };

fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages.iter().flat_map(findings).collect()
}

fn findings(package: &Package) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut table = "";
    let mut has_lints = false;
    for (number, line) in package.manifest_text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or(line).trim();
        if line.starts_with('[') {
            table = line;
        } else if table == "[lints]" && line == "workspace = true" {
            has_lints = true;
        } else if table.ends_with("dependencies]") && !line.is_empty() && !inherits(line) {
            let message = format!(
                "`{line}`: put the version under [workspace.dependencies] and write `.workspace = \
                 true` here"
            );
            findings.push(Finding::line(&package.manifest, number + 1, message));
        }
    }
    if !has_lints {
        findings.push(Finding::file(&package.manifest, "add `[lints] workspace = true`"));
    }
    findings
}

/// `name.workspace = true` or `name = { workspace = true, .. }`
fn inherits(line: &str) -> bool {
    line.ends_with(".workspace = true") || line.contains("{ workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(text: &str) -> Vec<Finding> {
        let package = Package {
            name: "a".into(),
            manifest: "a/Cargo.toml".into(),
            manifest_text: text.into(),
            dependencies: Vec::new(),
        };
        check(&Tree { files: Vec::new(), packages: vec![package] })
    }

    #[test]
    fn a_crate_of_its_own_ways_is_refused() {
        assert_eq!(check_text("[package]\nname = \"a\"\n").len(), 1, "no lints");
        let own =
            check_text("[lints]\nworkspace = true\n[dev-dependencies]\nserde = \"1\" # why\n");
        assert_eq!(own.len(), 1, "a version of its own");
        assert_eq!(own[0].line, Some(4));
    }

    #[test]
    fn inherited_lints_and_versions_pass() {
        let text = "[lints]\nworkspace = true\n\n[dependencies]\n# Why.\nserde.workspace = \
                    true\nort = { workspace = true, optional = true }\n";
        assert_eq!(check_text(text), []);
    }
}

//! A crate imports only what its row of ARCHITECTURE.md allows, so that the page is the rule and
//! cannot fall behind the code. Dev-dependencies are free: a test may look at a crate from anywhere
//! above it.

use super::architecture::code_map;
use super::rule::{Finding, Rule};
use super::tree::Tree;
use crate::workspace::Kind;

pub(super) const RULE: Rule = Rule { name: "layers", check };

fn check(tree: &Tree) -> Vec<Finding> {
    let rows = code_map(tree);
    let mut findings = Vec::new();
    for package in &tree.packages {
        // A crate without a row is a finding of the `architecture` rule.
        let Some(row) = rows.iter().find(|row| row.name == package.name) else { continue };
        let ours = package.dependencies.iter().filter(|dependency| {
            dependency.kind == Kind::Shipped
                && tree.packages.iter().any(|candidate| candidate.name == dependency.name)
        });
        findings.extend(ours.filter(|dependency| !row.may_import(&dependency.name)).map(
            |dependency| {
                let message = format!(
                    "imports `{}`; its row of ARCHITECTURE.md allows: {}",
                    dependency.name, row.imports
                );
                Finding::file(&package.manifest, message)
            },
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::{Dependency, Package};

    const MAP: &str = "\
| crate | purpose | may import |
|---|---|---|
| `overdrive-ir` | graphs | nothing |
| `overdrive-passes` | steps | ir |
| `overdrive` | the binary | all |
| `testkit` | tests | all |
";

    fn importing(name: &str, dependency: &str, kind: Kind) -> Vec<Finding> {
        let mut tree = Tree::of(&[("ARCHITECTURE.md", MAP)]);
        tree.packages =
            ["overdrive-ir", "overdrive-passes", "overdrive", "testkit"].map(package).to_vec();
        let package =
            tree.packages.iter_mut().find(|package| package.name == name).expect("a known crate");
        package.dependencies.push(Dependency { name: dependency.into(), kind });
        check(&tree)
    }

    fn package(name: &str) -> Package {
        let manifest = format!("crates/{name}/Cargo.toml");
        Package {
            name: name.into(),
            manifest,
            manifest_text: String::new(),
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn an_import_against_the_order_is_refused() {
        assert_eq!(importing("overdrive-ir", "overdrive-passes", Kind::Shipped).len(), 1);
        assert_eq!(importing("overdrive-passes", "overdrive", Kind::Shipped).len(), 1);
        assert_eq!(
            importing("overdrive", "testkit", Kind::Shipped).len(),
            1,
            "`all` means all that ships"
        );
    }

    #[test]
    fn allowed_foreign_and_test_imports_pass() {
        assert_eq!(importing("overdrive-passes", "overdrive-ir", Kind::Shipped), []);
        assert_eq!(importing("overdrive", "overdrive-passes", Kind::Shipped), []);
        assert_eq!(importing("overdrive-ir", "serde", Kind::Shipped), []);
        assert_eq!(importing("overdrive-ir", "testkit", Kind::Dev), []);
    }
}

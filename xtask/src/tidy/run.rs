//! Runs every rule over the checkout.

use anyhow::{Result, bail};

use super::rule::Rule;
use super::tree::Tree;
use super::{
    architecture, book, circles, clauses, columns, declarations, files, header, layers, manifest,
    names, openings, prints, programs, purity, sentences, size, unsafety, words,
};
use crate::workspace::Workspace;

/// Every rule, in the order of STYLE.md.
const RULES: &[Rule] = &[
    size::RULE,
    columns::RULE,
    names::RULE,
    header::RULE,
    declarations::RULE,
    words::RULE,
    prints::RULE,
    unsafety::RULE,
    purity::RULE,
    files::RULE,
    manifest::RULE,
    layers::RULE,
    circles::RULE,
    architecture::RULE,
    book::RULE,
    programs::RULE,
    sentences::RULE,
    clauses::RULE,
    openings::RULE,
];

/// Fails with every finding of every rule.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let tree = Tree::read(workspace)?;
    let mut complaints = Vec::new();
    for rule in RULES {
        complaints
            .extend((rule.check)(&tree).iter().map(|finding| format!("{finding} [{}]", rule.name)));
    }
    if !complaints.is_empty() {
        bail!(
            "{}\nfindings: {}; STYLE.md has each rule with its reason",
            complaints.join("\n"),
            complaints.len()
        );
    }
    println!("{} files keep {} rules", tree.files.len(), RULES.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_md_gives_every_rule_with_its_reason() {
        let style = include_str!("../../../STYLE.md");
        for rule in RULES {
            assert!(
                style.contains(&format!("`tidy: {}`", rule.name)),
                "STYLE.md does not explain `tidy: {}`",
                rule.name
            );
        }
    }
}

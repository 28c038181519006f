//! Files of a crate that import each other in a circle can only be understood together. Some are
//! so by nature; the list of them is here, and a new one is a finding.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::Crate;
use super::rule::{Finding, Rule};
use super::tree::Tree;

/// A circle that stays: one of its files, how many it has at most, and why.
struct Natural {
    heart: &'static str,
    files: usize,
    why: &'static str,
}

const NATURAL: &[Natural] = &[
    Natural {
        heart: "crates/overdrive-cpu/src/kernels/named.rs",
        files: 4,
        why: "the table of kernels and lines of it",
    },
    Natural {
        heart: "crates/overdrive-ir/src/op.rs",
        files: 25,
        why: "a graph holds ops, whose regions, samples and gradients are graphs",
    },
    Natural {
        heart: "crates/overdrive-formats/src/onnx/item.rs",
        files: 2,
        why: "a value may be codes, which are values",
    },
    Natural {
        heart: "crates/overdrive-formats/src/onnx/walk.rs",
        files: 4,
        why: "control flow holds graphs, which are walked",
    },
    Natural {
        heart: "crates/overdrive-studies/src/pretrained/architecture.rs",
        files: 8,
        why: "an enum and its variants",
    },
    Natural {
        heart: "crates/overdrive-train/src/checkpoint.rs",
        files: 4,
        why: "a checkpoint is read from files, which tell of one",
    },
];

pub(super) const RULE: Rule = Rule { name: "circles", check };

fn check(tree: &Tree) -> Vec<Finding> {
    against(tree, NATURAL)
}

fn against(tree: &Tree, natural: &[Natural]) -> Vec<Finding> {
    let circles: Vec<BTreeSet<&str>> =
        Crate::all(tree).iter().flat_map(|of| circles(&of.edges())).collect();
    let mut findings = Vec::new();
    for circle in &circles {
        let known = natural.iter().find(|known| circle.contains(known.heart));
        if known.is_some_and(|known| circle.len() <= known.files) {
            continue;
        }
        let first = circle.first().expect("a circle has files");
        let names: Vec<&str> = circle.iter().copied().collect();
        let message = match known {
            Some(known) => format!(
                "its circle ({}) has {} files, expected at most {}: {}; cut the new ones out",
                known.why,
                circle.len(),
                known.files,
                names.join(", ")
            ),
            None => format!(
                "files import each other: {}; move what they share into a file of its own, or \
                 write down in xtask/src/tidy/circles.rs why the circle is natural",
                names.join(", ")
            ),
        };
        findings.push(Finding::file(first, message));
    }
    let gone = natural.iter().filter(|known| {
        tree.has(known.heart) && !circles.iter().any(|circle| circle.contains(known.heart))
    });
    findings.extend(gone.map(|known| {
        Finding::file(known.heart, "is in no circle any more: take it off the list of natural ones")
    }));
    findings
}

/// The largest sets of files that all reach each other.
fn circles<'t>(edges: &BTreeMap<&'t str, BTreeSet<&'t str>>) -> BTreeSet<BTreeSet<&'t str>> {
    let reached: BTreeMap<&str, BTreeSet<&'t str>> =
        edges.keys().map(|file| (*file, reached(edges, file))).collect();
    let of = |file: &&'t str| -> BTreeSet<&'t str> {
        let both = |other: &&&str| reached.get(*other).is_some_and(|back| back.contains(file));
        reached[file].iter().filter(both).copied().collect()
    };
    edges.keys().map(of).filter(|circle| circle.len() > 1).collect()
}

/// The files that can be reached from one.
fn reached<'t>(edges: &BTreeMap<&'t str, BTreeSet<&'t str>>, from: &'t str) -> BTreeSet<&'t str> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(file) = pending.pop() {
        let next = edges.get(file).into_iter().flatten();
        pending.extend(next.filter(|other| seen.insert(**other)));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: (&str, &str) = ("crates/a/src/lib.rs", "mod one;\nmod two;\npub use two::Two;\n");

    fn findings(one: &str, two: &str) -> usize {
        let files = [LIB, ("crates/a/src/one.rs", one), ("crates/a/src/two.rs", two)];
        against(&Tree::of(&files), &[]).len()
    }

    #[test]
    fn files_that_import_each_other_are_found() {
        let two = "use crate::one::One;\npub struct Two(One);\n";
        assert_eq!(findings("use crate::two::Two;\npub struct One(Two);", two), 1);
        assert_eq!(findings("use crate::Two;\npub struct One(Two);", two), 1, "by a re-export");
        assert_eq!(findings("pub struct One(super::two::Two);", two), 1, "by a path");
        assert_eq!(findings("use crate::{two::{Two as T}};\npub struct One(T);", two), 1);
    }

    #[test]
    fn one_way_and_tests_pass() {
        let two = "use crate::one::One;\npub struct Two(One);\n";
        assert_eq!(findings("pub struct One;", two), 0);
        let test = "pub struct One;\n#[cfg(test)]\nmod tests {\n    use crate::two::Two;\n}\n";
        assert_eq!(findings(test, two), 0);
        let words = "//! crate::two::Two\npub struct One { two: u8 }\n";
        assert_eq!(findings(words, two), 0);
    }

    #[test]
    fn a_parent_may_hand_on_what_its_children_have() {
        let parent = "mod child;\npub use child::Child;\npub struct Parent;\n";
        let child = "use super::Parent;\npub struct Child(Parent);\n";
        let files = |parent| {
            let tree = [("crates/a/src/p.rs", parent), ("crates/a/src/p/child.rs", child)];
            against(&Tree::of(&tree), &[]).len()
        };
        assert_eq!(files(parent), 0);
        assert_eq!(files("mod child;\npub use child::Child;\npub struct Parent(Child);\n"), 1);
    }

    #[test]
    fn the_list_is_held_to_the_code() {
        let files = [
            ("crates/a/src/one.rs", "use crate::two::Two;\npub struct One(Two);"),
            ("crates/a/src/two.rs", "use crate::one::One;\npub struct Two(One);"),
            ("crates/a/src/three.rs", ""),
        ];
        let natural = |heart, files| [Natural { heart, files, why: "a pair" }];
        let found = |list: &[Natural]| against(&Tree::of(&files), list).len();
        assert_eq!(found(&natural("crates/a/src/two.rs", 2)), 0);
        assert_eq!(found(&natural("crates/a/src/two.rs", 1)), 1, "it grew");
        assert_eq!(found(&natural("crates/a/src/three.rs", 2)), 2, "and the entry is stale");
    }
}

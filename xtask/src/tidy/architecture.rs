//! ARCHITECTURE.md agrees with the workspace. Its code map has a row for every crate and no other,
//! and every path that a page mentions exists. A map with a wrong street is worse than none.

use std::collections::BTreeSet;

use super::rule::{Finding, Rule};
use super::tree::{File, Tree};

const PAGE: &str = "ARCHITECTURE.md";
/// How the code map begins.
const HEADING: &str = "| crate | purpose | may import |";
/// Crates that nothing but tests and automation may import.
const DEVELOPMENT: &[&str] = &["testkit", "xtask"];

pub(super) const RULE: Rule = Rule { name: "architecture", check };

/// A row of the code map.
pub(super) struct Row {
    pub(super) name: String,
    /// The third column as written: `nothing`, `all`, or names without their `overdrive-`,
    /// separated by commas.
    pub(super) imports: String,
    line: usize,
}

impl Row {
    /// Whether the row lets its crate ship with `name` as a dependency.
    pub(super) fn may_import(&self, name: &str) -> bool {
        let listed =
            self.imports.split(',').any(|short| format!("overdrive-{}", short.trim()) == name);
        listed || (self.imports == "all" && !DEVELOPMENT.contains(&name))
    }
}

/// The rows of the table that begins with [`HEADING`]; none where the page or the table is missing.
pub(super) fn code_map(tree: &Tree) -> Vec<Row> {
    let text = tree.file(PAGE).map_or("", |page| page.text.as_str());
    let table = text
        .lines()
        .enumerate()
        .skip_while(|(_, line)| *line != HEADING)
        .take_while(|(_, line)| line.starts_with('|'));
    let cells = table.skip(2).map(|(at, line)| {
        (at + 1, line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>())
    });
    cells
        .filter_map(|(line, cells)| match cells[..] {
            [name, _, imports] => {
                Some(Row { name: name.trim_matches('`').into(), imports: imports.into(), line })
            }
            _ => None,
        })
        .collect()
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = crates(tree);
    for page in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (number, line) in page.text.lines().enumerate() {
            let missing = mentions(page, line).into_iter().filter(|path| !tree.has(path));
            findings.extend(missing.map(|path| {
                Finding::line(&page.path, number + 1, format!("`{path}` does not exist"))
            }));
        }
    }
    findings
}

/// The code map against the members of the workspace.
fn crates(tree: &Tree) -> Vec<Finding> {
    let rows = code_map(tree);
    let mapped: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let members: BTreeSet<&str> =
        tree.packages.iter().map(|package| package.name.as_str()).collect();
    let unmapped = members
        .difference(&mapped)
        .map(|name| Finding::file(PAGE, format!("no row of the code map for `{name}`")));
    let gone = rows.iter().filter(|row| !members.contains(row.name.as_str()));
    let gone = gone.map(|row| {
        Finding::line(PAGE, row.line, format!("`{}` is no crate of this workspace", row.name))
    });
    let astray = tree.packages.iter().filter(|package| {
        let folder = package.manifest.trim_end_matches("/Cargo.toml");
        folder.rsplit('/').next() != Some(package.name.as_str())
    });
    let astray = astray.map(|package| {
        Finding::file(&package.manifest, format!("the folder is not called `{}`", package.name))
    });
    unmapped.chain(gone).chain(astray).collect()
}

/// The paths of this checkout that a line of Markdown mentions: the targets of its links, and what
/// it quotes from `crates/`, `docs/` or `xtask/`. A placeholder (`ops/<op>.rs`) stands for
/// anything: the folder before it has to exist.
fn mentions(page: &File, line: &str) -> Vec<String> {
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let links = links
        .filter_map(|target| target.split('#').next())
        .filter(|target| !target.is_empty() && !target.contains(':'));
    let links = links.map(|target| resolve(folder, target));
    let quoted = line.split('`').skip(1).step_by(2).filter(|quote| {
        ["crates/", "docs/", "xtask/"].iter().any(|start| quote.starts_with(start))
            && !quote.contains(char::is_whitespace)
    });
    let quoted = quoted.map(|quote| match quote.split_once('<') {
        Some((known, _)) => known.rsplit_once('/').map_or(known, |(folder, _)| folder).into(),
        None => quote.trim_end_matches('/').into(),
    });
    links.chain(quoted).collect()
}

/// `target` as seen from `folder`, from the root of the checkout.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    const MAP: &str =
        "| crate | purpose | may import |\n|---|---|---|\n| `a` | all there is | nothing |\n";

    fn check_map(map: &str, crates: &[&str]) -> Vec<Finding> {
        let mut tree = Tree::of(&[(PAGE, map)]);
        tree.packages = crates
            .iter()
            .map(|path| Package {
                name: path.rsplit('/').next().expect("a name").replace("astray", "a"),
                manifest: format!("{path}/Cargo.toml"),
                manifest_text: String::new(),
                dependencies: Vec::new(),
            })
            .collect();
        check(&tree)
    }

    #[test]
    fn the_map_has_every_crate_and_no_other() {
        assert_eq!(check_map(MAP, &["crates/a"]), []);
        assert_eq!(check_map(MAP, &["crates/a", "crates/b"]).len(), 1, "a crate without a row");
        assert_eq!(check_map(MAP, &[]).len(), 1, "a row without a crate");
        assert_eq!(check_map("", &["crates/a"]).len(), 1, "no map");
        assert_eq!(check_map(MAP, &["crates/astray"]).len(), 1, "a folder with another name");
    }

    #[test]
    fn a_path_that_is_not_there_is_refused() {
        let broken = [
            "[x](gone.md)",
            "`crates/a/src/gone.rs`",
            "`crates/gone/<op>.rs`",
            "see [y](../gone.md#part)",
        ];
        for line in broken {
            assert_eq!(check(&Tree::of(&[("docs/page.md", line)])).len(), 1, "{line}");
        }
    }

    #[test]
    fn paths_that_are_there_links_outward_and_commands_pass() {
        let page = "[x](other.md#part) [y](../crates/a/src) [z](https://example.org/gone) \
                    [w](#part)\n\
                    `crates/a/src/<op>.rs` `crates/a/` `docs/page.md` `crates/a b` `a/b`\n";
        let tree = Tree::of(&[
            ("docs/page.md", page),
            ("docs/other.md", ""),
            ("crates/a/src/lib.rs", "//! A."),
        ]);
        assert_eq!(check(&tree), []);
    }
}

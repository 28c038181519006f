//! The licences of every crate that is linked into the program, with their texts, since most of
//! them require the text to be included.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::target::Target;
use crate::workspace::Workspace;

/// How names of such files begin, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// A crate with the texts of its licences.
#[derive(Debug)]
struct Crate {
    /// `serde 1.0.0 (MIT OR Apache-2.0)`
    title: String,
    texts: Vec<String>,
}

/// Whether a file of the checkout is the licence of an asset of reports.
pub(super) fn is_of_assets(path: &str) -> bool {
    let name = path.strip_prefix("crates/overdrive-report/assets/").unwrap_or_default();
    name.contains(".LICENSE") || name.ends_with(".NOTICE")
}

/// The licences of every crate from elsewhere that the program for `target` is linked from.
pub(super) fn of_crates(workspace: &Workspace, target: &Target) -> Result<String> {
    let arguments =
        ["metadata", "--locked", "--format-version", "1", "--filter-platform", &target.triple];
    let metadata = workspace.output("cargo", &arguments)?;
    let metadata: Value =
        serde_json::from_str(&metadata).context("`cargo metadata` printed no JSON")?;
    let linked = linked(&metadata).context("`cargo metadata` has no tree of dependencies")?;
    let mut crates = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let is_ours = package["source"].is_null();
        if is_ours || !package["id"].as_str().is_some_and(|id| linked.contains(id)) {
            continue;
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let field = |name: &str| package[name].as_str().unwrap_or("unknown").to_owned();
        let title = format!("{} {} ({})", field("name"), field("version"), field("license"));
        let folder = manifest.parent().context("a package without a folder")?;
        let mut texts = texts(folder)?;
        if texts.is_empty() {
            // One that carries somebody's sources in C has the licence beside those.
            for entry in
                fs::read_dir(folder)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir())
            {
                texts.extend(self::texts(&entry.path())?);
            }
        }
        crates.push(Crate { title, texts });
    }
    Ok(text(&crates))
}

/// The ids of the packages that `overdrive` reaches by dependencies that are neither for tests nor
/// for builds.
fn linked(metadata: &Value) -> Option<BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let of: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, &node["deps"]))).collect();
    let packages = metadata["packages"].as_array()?;
    let own = |package: &&Value| package["name"] == "overdrive" && package["source"].is_null();
    let mut open = vec![packages.iter().find(own)?["id"].as_str()?];
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        for dependency in of.get(id)?.as_array()? {
            let kinds = dependency["dep_kinds"].as_array()?;
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                open.push(dependency["pkg"].as_str()?);
            }
        }
    }
    Some(found)
}

fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            found.push(String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim().to_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Each text once, below the crates that it is of.
fn text(crates: &[Crate]) -> String {
    let mut of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut without = BTreeSet::new();
    for one in crates {
        for text in &one.texts {
            of.entry(text).or_default().insert(&one.title);
        }
        if one.texts.is_empty() {
            without.insert(one.title.as_str());
        }
    }
    let mut sections: Vec<_> = of.into_iter().collect();
    sections.sort_by(|a, b| a.1.cmp(&b.1));
    let line = "=".repeat(80);
    let mut all =
        "Crates that this program is linked from, each with the texts of its licence.\n".to_owned();
    for (text, titles) in sections {
        let titles: Vec<&str> = titles.into_iter().collect();
        all += &format!("\n{line}\n{}\n{line}\n\n{text}\n", titles.join("\n"));
    }
    if !without.is_empty() {
        let titles: Vec<&str> = without.into_iter().collect();
        all += &format!(
            "\n{line}\nTheir packages hold no text, only the name of the licence:\n{}\n",
            titles.join("\n")
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(title: &str, texts: &[&str]) -> Crate {
        Crate {
            title: title.to_owned(),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    #[test]
    fn each_text_stands_once_below_all_its_crates() {
        let crates = [
            named("b 1 (MIT)", &["Apache text", "MIT text of b"]),
            named("a 1 (Apache-2.0)", &["Apache text"]),
            named("c 1 (ISC)", &[]),
        ];
        let text = text(&crates);
        assert_eq!(text.matches("Apache text").count(), 1);
        assert!(text.contains("a 1 (Apache-2.0)\nb 1 (MIT)\n"), "{text}");
        assert!(text.contains("MIT text of b"), "{text}");
        let last = text.rsplit("only the name").next().unwrap_or_default();
        assert!(last.contains("c 1 (ISC)"), "a crate without a text is not left out: {text}");
    }

    #[test]
    fn what_only_tests_or_builds_need_is_not_inside() {
        let node = |id: &str, deps: &[(&str, Option<&str>)]| {
            let deps: Vec<_> = deps
                .iter()
                .map(|(id, kind)| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] }))
                .collect();
            json!({ "id": id, "deps": deps })
        };
        let metadata = json!({
            "packages": [{ "id": "o", "name": "overdrive", "source": null }],
            "resolve": { "nodes": [
                node("o", &[("a", None), ("t", Some("dev"))]),
                node("a", &[("b", None), ("cc", Some("build")), ("o", None)]),
                node("b", &[]), node("cc", &[]), node("t", &[]),
            ] },
        });
        let linked: Vec<&str> = linked(&metadata).expect("it is whole").into_iter().collect();
        assert_eq!(linked, ["a", "b", "o"]);
    }
}

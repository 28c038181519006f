//! Files that a program writes: each has one function that produces it, and `check` fails where the
//! file on disk differs.
//!
//! They are committed, so that they can be read on the web and reviewed in a diff; they are never
//! edited by hand.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// A generated file and the function that produces its whole text.
pub(crate) struct Generated {
    /// From the root of the workspace.
    pub(crate) path: &'static str,
    pub(crate) produce: fn() -> String,
}

/// Every generated file. Adding one is a line here.
pub(crate) const GENERATED: &[Generated] = &[
    Generated { path: "docs/ops.md", produce: crate::ops_page::ops_page },
    Generated {
        path: "crates/overdrive-formats/src/onnx/proto.rs",
        produce: crate::protobuf::onnx,
    },
    Generated { path: "docs/gate.schema.json", produce: overdrive_bench::verdicts::schema },
    Generated { path: "docs/results.schema.json", produce: overdrive_bench::results::schema },
];

/// Writes the files that differ.
pub(crate) fn write(workspace: &Workspace, generated: &[Generated]) -> Result<()> {
    for file in stale(workspace, generated) {
        let path = workspace.root().join(file.path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {folder:?}"))?;
        }
        fs::write(&path, (file.produce)()).with_context(|| format!("cannot write {path:?}"))?;
        println!("wrote {}", file.path);
    }
    Ok(())
}

/// Fails with the names of the files that are missing or differ, and writes nothing.
pub(crate) fn compare(workspace: &Workspace, generated: &[Generated]) -> Result<()> {
    let stale: Vec<&str> = stale(workspace, generated).map(|file| file.path).collect();
    if stale.is_empty() {
        return Ok(());
    }
    bail!("out of date: {}; run `cargo xtask generate` and commit the result", stale.join(", "))
}

fn stale<'a>(
    workspace: &'a Workspace,
    generated: &'a [Generated],
) -> impl Iterator<Item = &'a Generated> {
    generated.iter().filter(|file| {
        // A file that cannot be read is stale: `write` then names the obstacle.
        fs::read_to_string(workspace.root().join(file.path)).ok() != Some((file.produce)())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &[Generated] = &[Generated { path: "docs/page.md", produce: || "one\n".into() }];

    #[test]
    fn a_missing_or_edited_file_is_stale_until_written() {
        let root = std::env::temp_dir().join(format!("overdrive-generate-{}", std::process::id()));
        let workspace = Workspace::at(&root);
        let complaint = compare(&workspace, PAGE).expect_err("missing").to_string();
        assert!(complaint.contains("docs/page.md"), "{complaint}");
        write(&workspace, PAGE).expect("writable");
        compare(&workspace, PAGE).expect("fresh");
        fs::write(root.join("docs/page.md"), "two\n").expect("writable");
        assert!(compare(&workspace, PAGE).is_err(), "an edit goes unnoticed");
        fs::remove_dir_all(&root).expect("removable");
    }
}

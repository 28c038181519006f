//! `cargo xtask container`: the image of `Dockerfile`, built and tried as its users run it.
//!
//! Invariant: without a runtime that answers nothing is built, and the caller is told so. The image
//! of CUDA is built by the same file, but tried only by who has a GPU.

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;

const RUNTIMES: [&str; 2] = ["docker", "podman"];
const IMAGE: &str = "overdrive-check";

/// Commands to try in the image, and a word of the expected output.
const TRIALS: [(&[&str], &str); 3] = [
    (&["info"], "processor"),
    (&["bench", "digits-mlp", "--trials", "5", "--backends", "cpu"], "compile"),
    (&["completions", "bash"], "complete"),
];

/// The runtime whose daemon answers, if there is one.
pub(crate) fn runtime(workspace: &Workspace) -> Option<&'static str> {
    RUNTIMES.into_iter().find(|name| workspace.output(name, &["info"]).is_ok())
}

/// Builds and tries the image for processors.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let Some(runtime) = runtime(workspace) else {
        bail!("expected {} whose daemon answers, found none", RUNTIMES.join(" or "))
    };
    let arguments = ["build", "--target", "cpu", "--tag", IMAGE, "."];
    let status =
        workspace.command(runtime).args(arguments).status().context("cannot run the runtime")?;
    ensure!(status.success(), "`{runtime} {}` failed", arguments.join(" "));
    for (arguments, word) in TRIALS {
        let said = workspace.output(runtime, &[&["run", "--rm", IMAGE], arguments].concat())?;
        ensure!(
            said.contains(word),
            "overdrive {}: expected `{word}`, found:\n{said}",
            arguments.join(" ")
        );
    }
    println!("{IMAGE}: info, bench and completions work in it");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instructions of the file, comments and continued lines aside, by stage.
    fn stages() -> Vec<(String, Vec<String>)> {
        let path = Workspace::of_this_build().root().join("Dockerfile");
        let text = std::fs::read_to_string(path).expect("it is there").replace("\\\n", " ");
        let mut stages: Vec<(String, Vec<String>)> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once(" AS ").filter(|_| line.starts_with("FROM ")) {
                Some((_, name)) => stages.push((name.to_owned(), vec![line.to_owned()])),
                None => stages.last_mut().expect("it begins with FROM").1.push(line.to_owned()),
            }
        }
        stages
    }

    #[test]
    fn the_image_for_processors_is_what_is_built_where_none_is_named() {
        let stages = stages();
        let names: Vec<&str> = stages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["build", "cuda", "cpu"]);
        for (name, lines) in stages.iter().filter(|(name, _)| name != "build") {
            let has = |start: &str| lines.iter().any(|line| line.starts_with(start));
            assert!(has("USER 1000"), "{name} runs as root");
            assert!(has("COPY --from=build /licences"), "{name} has no licences");
            assert!(has("ENTRYPOINT [\"overdrive\"]"), "{name} is no overdrive");
            assert!(
                has("ENV OVERDRIVE_CACHE=/cache"),
                "{name} has no place that any user can write"
            );
        }
    }

    #[test]
    fn the_image_has_the_toolchain_of_the_checkout() {
        let root = Workspace::of_this_build().root().to_owned();
        let toolchain =
            std::fs::read_to_string(root.join("rust-toolchain.toml")).expect("it is there");
        let version = toolchain.split('"').nth(1).expect("it names a channel");
        let (_, build) = stages().remove(0);
        assert!(build[0].starts_with(&format!("FROM rust:{version}-")), "{}", build[0]);
        assert!(build.contains(&format!("ENV RUSTUP_TOOLCHAIN={version}")), "{build:?}");
    }

    #[test]
    fn what_a_build_reads_is_not_left_out_of_its_context() {
        let workspace = Workspace::of_this_build();
        let ignored =
            std::fs::read_to_string(workspace.root().join(".dockerignore")).expect("it is there");
        let folders: Vec<&str> =
            ignored.lines().filter_map(|line| line.strip_prefix('/')).collect();
        assert_eq!(folders, [".git", "dist", "reports", "target"]);
        for path in workspace.files().expect("it is a checkout") {
            let top = path.split('/').next().unwrap_or_default();
            assert!(
                !folders.contains(&top) && !path.ends_with(".tmp"),
                "{path} is missing from the image"
            );
        }
    }
}

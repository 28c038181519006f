//! The checkout as the rules see it: texts, tokens, packages; nothing that touches the disk after
//! it is read.

use std::fs;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::generate::GENERATED;
use crate::workspace::{Package, Workspace};

/// Languages that people write here, by extension.
const SOURCE: &[&str] = &["rs", "cu", "cuh", "py"];
/// Files that stay as they came: from others, or as a run wrote them.
const KEPT: &[&str] = &[
    "crates/overdrive-report/assets/echarts.min.js",
    "crates/overdrive-report/assets/roboto.css",
    "results/h200/report.html",
];

/// A checkout in memory.
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    pub(super) packages: Vec<Package>,
}

/// A file with its path from the root, `/` on every system. Files that are not text have an empty
/// text.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

/// A word, a literal, a delimiter or a punctuation sign of Rust, outside comments.
pub(super) struct Token {
    pub(super) text: String,
    /// From 1.
    pub(super) line: usize,
}

impl Tree {
    /// Reads every file that git would track.
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let mut files = Vec::new();
        for path in workspace.files()? {
            let bytes = fs::read(workspace.root().join(&path))
                .with_context(|| format!("cannot read {path}"))?;
            files.push(File { path, text: String::from_utf8(bytes).unwrap_or_default() });
        }
        Ok(Self { files, packages: workspace.packages()? })
    }

    /// The files that people write, in any language of code.
    pub(super) fn sources(&self) -> impl Iterator<Item = &File> {
        self.written(SOURCE)
    }

    /// The files with one of these extensions that people write here: no program, nobody else.
    pub(super) fn written(
        &self,
        extensions: &'static [&'static str],
    ) -> impl Iterator<Item = &File> {
        let is_written = |file: &&File| extensions.contains(&file.extension());
        self.files.iter().filter(is_written).filter(|file| !file.is_generated() && !file.is_kept())
    }

    /// The Rust files that people write.
    pub(super) fn rust(&self) -> impl Iterator<Item = &File> {
        self.sources().filter(|file| file.extension() == "rs")
    }

    /// The file at `path`.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether a file or a folder stands at `path`.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }
}

impl File {
    /// The file's name without its folders.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The tokens of a Rust file in reading order; none where it does not parse, which the compiler
    /// says better.
    pub(super) fn tokens(&self) -> Vec<Token> {
        let mut tokens = Vec::new();
        if let Ok(stream) = self.text.parse() {
            flatten(stream, &mut tokens);
        }
        tokens
    }

    fn extension(&self) -> &str {
        self.name().rsplit('.').next().unwrap_or_default()
    }

    fn is_generated(&self) -> bool {
        GENERATED.iter().any(|generated| generated.path == self.path)
    }

    fn is_kept(&self) -> bool {
        KEPT.contains(&self.path.as_str())
    }
}

fn flatten(stream: TokenStream, into: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let TokenTree::Group(group) = tree else {
            into.push(Token { text: tree.to_string(), line });
            continue;
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::None => ("", ""),
        };
        into.push(Token { text: open.into(), line });
        flatten(group.stream(), into);
        into.push(Token { text: close.into(), line: group.span_close().start().line });
    }
}

#[cfg(test)]
impl Tree {
    /// A tree of texts at paths, without packages.
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| File { path: (*path).into(), text: (*text).into() })
            .collect();
        Self { files, packages: Vec::new() }
    }
}

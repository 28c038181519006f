//! `Contents`: the description of our folders and files.

use std::path::Path;

/// The name of the manifest in its folder.
pub const MANIFEST: &str = "overdrive-files.json";

/// The description of a folder of ours.
#[derive(Copy, Clone, Debug)]
pub struct Contents {
    /// In the manifest and in messages: `a model`.
    pub name: &'static str,
    /// Whether the writer makes a file of this path; of a folder, with a `/` behind, whether it has
    /// files in it.
    pub writes: fn(&str) -> bool,
    /// Whether a folder without a manifest is ours, from before there were manifests.
    pub is_ours: fn(&Path) -> bool,
}

/// How a place is filled.
#[derive(Copy, Clone, Debug)]
pub(crate) enum PlaceKind {
    /// With one file.
    File,
    /// With a folder that appears whole.
    Folder(Contents),
    /// With files that appear one by one, among which others may lie.
    Files(Contents),
}

impl PlaceKind {
    pub(crate) fn contents(self) -> Contents {
        match self {
            Self::File => Contents { name: "a file", writes: |_| false, is_ours: |_| false },
            Self::Folder(contents) | Self::Files(contents) => contents,
        }
    }
}

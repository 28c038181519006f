//! The manifest of a folder while files appear in it.

use crate::checksum::Checksum;
use crate::contents::Contents;
use crate::manifest::Manifest;

/// The text that a folder's manifest is to have at the end, and the one that it has now.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) manifest: Manifest,
    pub(crate) written: Manifest,
}

impl Ledger {
    /// The ledger of a folder with this manifest. Files that will be written are without a checksum
    /// until they are.
    pub(crate) fn new(found: Option<Manifest>, contents: Contents) -> Self {
        let written = found.unwrap_or_else(|| Manifest::new(contents.name));
        let mut manifest = written.clone();
        let writes = |(name, _): &(&String, &mut Option<Checksum>)| (contents.writes)(name);
        manifest.files.iter_mut().filter(writes).for_each(|(_, sum)| *sum = None);
        Self { manifest, written }
    }
}

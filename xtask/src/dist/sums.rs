//! `SHA256SUMS`, which `sha256sum -c` reads: a line for each archive and wheel of the folder.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Its name.
pub(super) const FILE: &str = "SHA256SUMS";

/// Writes the sums of all packages in `folder`, also those of earlier calls.
pub(super) fn write(folder: &Path) -> Result<()> {
    let mut named = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".tar.gz") || name.ends_with(".whl") {
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            named.push((name, bytes));
        }
    }
    let path = folder.join(FILE);
    fs::write(&path, text(named)).with_context(|| format!("cannot write {}", path.display()))
}

fn text(mut files: Vec<(String, Vec<u8>)>) -> String {
    files.sort();
    let line = |(name, bytes): &(String, Vec<u8>)| {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}  {name}\n")
    };
    files.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_sha256sum() {
        let files =
            vec![("b.whl".to_owned(), b"abc".to_vec()), ("a.tar.gz".to_owned(), Vec::new())];
        // FIPS 180-2, appendix B.1, and the hash of nothing.
        let expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  \
                        a.tar.gz\n\
                        ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b.whl\n";
        assert_eq!(text(files), expected);
    }
}

//! A `.tar.gz` with one folder inside. Equal members give equal bytes, whoever packs them, when and
//! where, so that two builds of one commit can be compared.

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// A file of an archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Below the archive's folder.
    path: String,
    bytes: Vec<u8>,
    mode: u32,
}

impl Member {
    pub(super) fn data(path: String, bytes: Vec<u8>) -> Self {
        Self { path, bytes, mode: 0o644 }
    }

    pub(super) fn program(path: String, bytes: Vec<u8>) -> Self {
        Self { path, bytes, mode: 0o755 }
    }
}

/// The archive of `members` in `folder`, in the order of their names.
pub(super) fn compressed(folder: &str, members: &[Member], modified_s: u64) -> Result<Vec<u8>> {
    let mut members: Vec<&Member> = members.iter().collect();
    members.sort_by(|a, b| a.path.cmp(&b.path));
    let mut builder =
        Builder::new(GzBuilder::new().mtime(0).write(Vec::new(), Compression::best()));
    for member in members {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_size(member.bytes.len() as u64);
        header.set_mode(member.mode);
        header.set_mtime(modified_s);
        header.set_uid(0);
        header.set_gid(0);
        let path = format!("{folder}/{}", member.path);
        builder
            .append_data(&mut header, &path, &member.bytes[..])
            .with_context(|| format!("cannot pack {path}"))?;
    }
    let packed = builder.into_inner().context("cannot end the archive")?;
    packed.finish().context("cannot end the archive")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    fn members() -> Vec<Member> {
        vec![
            Member::program("overdrive".to_owned(), b"\x7fELF".to_vec()),
            Member::data("completions/_overdrive".to_owned(), b"#compdef".to_vec()),
        ]
    }

    #[test]
    fn what_was_packed_comes_out() {
        let bytes = compressed("overdrive-1.2.3-a-b-c", &members(), 7).expect("it is packed");
        let mut archive = tar::Archive::new(GzDecoder::new(&bytes[..]));
        let mut found = Vec::new();
        for entry in archive.entries().expect("it is an archive") {
            let mut entry = entry.expect("it is whole");
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("it is whole");
            let path = entry.path().expect("it is text").display().to_string();
            let header = entry.header();
            let numbers = (header.mode(), header.mtime(), header.uid(), header.gid());
            found.push((path, content, numbers.0.expect("a mode")));
            assert_eq!(
                (numbers.1.ok(), numbers.2.ok(), numbers.3.ok()),
                (Some(7), Some(0), Some(0))
            );
        }
        let expected = [
            ("overdrive-1.2.3-a-b-c/completions/_overdrive", &b"#compdef"[..], 0o644),
            ("overdrive-1.2.3-a-b-c/overdrive", &b"\x7fELF"[..], 0o755),
        ];
        assert_eq!(
            found,
            expected.map(|(path, content, mode)| (path.to_owned(), content.to_vec(), mode))
        );
    }

    #[test]
    fn the_order_in_which_files_were_found_does_not_show() {
        let mut reversed = members();
        reversed.reverse();
        let pack = |members: &[Member]| compressed("a", members, 7).expect("it is packed");
        assert_eq!(pack(&members()), pack(&reversed));
        assert_ne!(pack(&members()), compressed("a", &members(), 8).expect("it is packed"));
    }
}

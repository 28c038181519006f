//! `OpenedSafetensors`: a file whose tensors are read one at a time or in parts, so that no more of
//! it is in memory.
//!
//! Parts are read and not mapped, for the reasons in `file.rs`.

use super::{header, our_type};
use crate::FormatError;
use overdrive_ir::TensorType;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file that stays open. Threads may read from it at the same time.
#[derive(Debug)]
pub struct OpenedSafetensors {
    path: PathBuf,
    file: Mutex<File>,
    /// Types, and the first bytes in the file.
    tensors: BTreeMap<String, (TensorType, u64)>,
    metadata: BTreeMap<String, String>,
}

impl OpenedSafetensors {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When the file cannot be read, or its header is damaged or does not fit its size.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let file = Mutex::new(overdrive_files::open(path)?);
        let (start, Some(found)) = header(path)? else {
            let expected = "JSON with dtype, shape and data_offsets of each tensor";
            return Err(FormatError::damaged(path, "header", expected, "something else"));
        };
        let mut tensors = BTreeMap::new();
        for (name, info) in found.tensors() {
            let ty = our_type(path, &name, (info.dtype, &info.shape[..]))?;
            tensors.insert(name, (ty, start + info.data_offsets.0 as u64));
        }
        let metadata = found.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Self { path: path.to_owned(), file, tensors, metadata })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names and types of its tensors.
    pub fn types(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.tensors.iter().map(|(name, (ty, _))| (name.as_str(), ty))
    }

    /// Facts of the file that types and shapes do not tell.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Fills `into` with the bytes of a tensor, from byte `from` of it.
    ///
    /// # Errors
    /// When there is no such tensor, or the system refuses.
    pub fn read(&self, name: &str, from: usize, into: &mut [u8]) -> Result<(), FormatError> {
        let Some((_, start)) = self.tensors.get(name) else {
            return Err(FormatError::damaged(&self.path, name, "this tensor", "none of its name"));
        };
        // A panic of another thread leaves a file that can be read.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let found = file.seek(SeekFrom::Start(start + from as u64));
        let read = found.and_then(|_| file.read_exact(into));
        read.map_err(FormatError::io(&self.path, "read"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::Tensor;

    #[test]
    fn parts_are_those_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.safetensors");
        let [a, b] = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]].map(|x| Tensor::from_f32([3usize], &x));
        let tensors = [("a".to_owned(), a), ("b".to_owned(), b.clone())].into();
        let metadata: BTreeMap<_, _> = [("step".to_owned(), "7".to_owned())].into();
        super::super::write_described(&path, &tensors, metadata.clone()).unwrap();
        let opened = OpenedSafetensors::open(&path).unwrap();
        assert_eq!(opened.metadata(), &metadata);
        assert_eq!(opened.types().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
        let mut part = [0; 8];
        opened.read("b", 4, &mut part).unwrap();
        assert_eq!(part, b.bytes()[4..12]);
        let said = opened.read("c", 0, &mut part).unwrap_err().to_string();
        assert!(said.contains("c: expected this tensor"), "{said}");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let said = OpenedSafetensors::open(&path).unwrap_err().to_string();
        assert!(said.contains("as the header says"), "{said}");
    }
}

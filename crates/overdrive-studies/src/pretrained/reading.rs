//! Reads a folder or a file as a model, and says which model it is.
//!
//! The files of a folder that Overdrive wrote are compared with its list meanwhile. So a file that
//! was damaged since is an error and not a wrong result.

use super::part::RankPart;
use super::{Pretrained, PretrainedError, source};
use overdrive_formats::huggingface;
use overdrive_ir::Mesh;
use std::path::Path;

impl Pretrained {
    /// Whether a folder or a file means to be such a model.
    pub fn is_at(place: &Path) -> bool {
        source::is_at(place)
    }

    /// Reads a folder, or a file of GGUF.
    ///
    /// # Errors
    /// When a file is absent or damaged, or when the architecture is unknown (the known ones are
    /// listed). Also when the weights differ from what it needs (every difference is listed).
    pub fn read(place: &Path) -> Result<Self, PretrainedError> {
        huggingface::checked(place, [0, 1], || Self::read_as(place, None))?
    }

    /// Reads the part of a decoder that one rank of a mesh holds: with N ranks about 1/N of the
    /// weights. It decodes with the other ranks, as a
    /// [`LanguageModel`](overdrive_decoding::LanguageModel), and does nothing else. The ranks share
    /// out the checksums of files.
    ///
    /// # Errors
    /// As [`Self::read`]. When the ranks along `tensor` do not divide the layers; when the folder
    /// has codes, or no decoder.
    pub fn read_part(place: &Path, (mesh, rank): (&Mesh, usize)) -> Result<Self, PretrainedError> {
        let read = || Self::read_as(place, Some((mesh, rank)));
        huggingface::checked(place, [rank, mesh.ranks()], read)?
    }

    /// A checksum of the config, and of name, type and first bytes of each tensor in the files. It
    /// tells apart models that ranks have read in parts.
    pub fn digest(&self) -> Option<&str> {
        self.part.as_ref().map(RankPart::digest)
    }

    /// A checksum of the config, and of name, type and first bytes of each weight: whether two
    /// models that were read whole are the same.
    pub fn checksum(&self) -> String {
        huggingface::checksum(&self.described, &self.weights)
    }
}

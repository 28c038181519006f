//! `SavedState`: a state of a checkpoint, which lies in files, whole or in parts.
//!
//! Whoever reads it takes only the elements that it needs, whatever ranks wrote them. Invariant:
//! pieces cover the state, each element once.

use super::region::Region;
use crate::TrainError;
use overdrive_formats::safetensors::OpenedSafetensors;
use overdrive_ir::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// States of a checkpoint by name.
pub type SavedStates = BTreeMap<String, SavedState>;

/// A state in files.
#[derive(Clone, Debug)]
pub struct SavedState {
    ty: TensorType,
    pieces: Vec<Piece>,
}

/// A part of it: a tensor of a file.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) file: Arc<OpenedSafetensors>,
    /// The name of the tensor.
    pub(super) name: String,
    pub(super) region: Region,
}

impl SavedState {
    /// One of this whole type without pieces.
    pub(super) fn new(ty: TensorType) -> Self {
        Self { ty, pieces: vec![] }
    }

    pub(super) fn push(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Errs unless pieces have every element.
    pub(super) fn check(&self, name: &str, checkpoint: &Path) -> Result<(), TrainError> {
        let found: usize = self.pieces.iter().map(|piece| piece.region.elements()).sum();
        if found == self.ty.elements() {
            return Ok(());
        }
        let place = format!("{}, `{name}` {}", checkpoint.display(), self.ty);
        let expected = format!("parts of {} elements in all", self.ty.elements());
        Err(TrainError::invalid(place, expected, found, super::DAMAGED))
    }

    /// The type of the whole state.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The whole state.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(&self) -> Result<Tensor, TrainError> {
        self.part(&Region::whole(self.ty.sizes()))
    }

    /// A part of it, of which nothing else is read.
    pub(crate) fn part(&self, region: &Region) -> Result<Tensor, TrainError> {
        let ty = self.ty.with_shape(region.sizes.clone());
        // Whole states of less than a byte an element are read as they lie.
        let mut bytes = vec![0; ty.bytes()];
        let width = self.ty.dtype.bits();
        for piece in &self.pieces {
            region.runs(&piece.region, &mut |at, from, count| {
                let into = &mut bytes[at * width / 8..(at + count) * width / 8];
                piece.file.read(&piece.name, from * width / 8, into)
            })?;
        }
        Ok(Tensor::from_bytes(ty, bytes).expect("the bytes are of the type"))
    }
}

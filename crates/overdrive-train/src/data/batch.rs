//! `Split`: a part of a data set; `Batch`: some of its samples as tensors.

use super::Target;
use crate::TrainError;
use overdrive_ir::Tensor;

/// Samples as a model takes them.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// Inputs, `[B, ...]`: f32 features or i32 token ids.
    pub x: Tensor,
    /// For texts of several lengths: i32 `[B, T]`, 1 for tokens and 0 for padding.
    pub mask: Option<Tensor>,
    /// The expected answer to each: i32 `[B]` classes or `[B, T]` next tokens, or f32 `[B]`
    /// quantities.
    pub labels: Tensor,
    /// How many bytes of text the labels of each sample stand for; empty where labels are not text.
    pub text_bytes: Vec<u64>,
}

impl Batch {
    /// The inputs of a model by name, in their order.
    pub fn inputs(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        [("x", &self.x)].into_iter().chain(self.mask.as_ref().map(|mask| ("mask", mask)))
    }
}

/// A part of a data set: training, validation or test.
pub trait Split: Send + Sync {
    /// Number of samples.
    fn len(&self) -> u64;

    /// The kind of the labels of its batches.
    fn target(&self) -> Target {
        Target::Classes
    }

    /// True when there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples of these numbers, each below `len`, in this order. A number may repeat.
    ///
    /// # Errors
    /// When the data lies in a file that cannot be read any more.
    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError>;

    /// SHA-256 of the part's content in its order, in hexadecimal: two runs learnt from the same if
    /// these are equal. Blocks of a token file stand in it by their checksums.
    ///
    /// # Errors
    /// As `batch`.
    fn hash(&self) -> Result<String, TrainError>;
}

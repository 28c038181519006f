//! A part of a text as samples: windows of T tokens, each labelled with the tokens one place
//! further on.

use super::labelled::hex;
use super::{Batch, Split, Tokens};
use crate::TrainError;
use overdrive_ir::{DType, Tensor};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;

/// Windows into a range of tokens.
#[derive(Clone, Debug)]
pub struct Windows {
    tokens: Arc<Tokens>,
    range: Range<u64>,
    context: usize,
    stride: usize,
}

impl Windows {
    /// Windows of `context` tokens whose starts are `stride` apart. The range must hold one and its
    /// labels.
    pub(super) fn new(
        tokens: Arc<Tokens>,
        range: Range<u64>,
        [context, stride]: [usize; 2],
    ) -> Self {
        assert!(range.end - range.start > context as u64, "a window and its labels fit the range");
        Self { tokens, range, context, stride }
    }
}

impl Split for Windows {
    fn len(&self) -> u64 {
        (self.range.end - self.range.start - self.context as u64 - 1) / self.stride as u64 + 1
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let (mut x, mut labels, mut text_bytes) = (Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            let start = self.range.start + sample * self.stride as u64;
            let tokens = self.tokens.tokens(start, self.context + 1)?;
            x.extend(tokens[..self.context].iter().map(|&(id, _)| i128::from(id)));
            labels.extend(tokens[1..].iter().map(|&(id, _)| i128::from(id)));
            text_bytes.push(tokens[1..].iter().map(|&(_, bytes)| u64::from(bytes)).sum());
        }
        let tensor =
            |values: &[i128]| Tensor::from_ints(DType::I32, [samples.len(), self.context], values);
        Ok(Batch { x: tensor(&x), mask: None, labels: tensor(&labels), text_bytes })
    }

    fn hash(&self) -> Result<String, TrainError> {
        let mut hash = Sha256::new();
        self.tokens.hash(self.range.clone(), &mut hash)?;
        Ok(hex(hash))
    }
}

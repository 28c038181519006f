//! Targets of samples: a class each, or a quantity each.

use overdrive_ir::{DType, Tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The kind of a sample's target, which decides the loss.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A class, or the next token: cross entropy of logits.
    #[default]
    Classes,
    /// A number (regression): squared error of the one output.
    Quantity,
}

/// The targets of all samples of a data set.
#[derive(Clone, PartialEq, Debug)]
pub enum Targets {
    /// The class of each, of so many.
    Classes {
        /// Below `count`.
        of: Vec<u32>,
        /// How many there are; some may have no sample.
        count: usize,
    },
    /// A finite number for each.
    Quantities(Vec<f32>),
}

impl Targets {
    /// Their kind.
    pub fn kind(&self) -> Target {
        match self {
            Self::Classes { .. } => Target::Classes,
            Self::Quantities(_) => Target::Quantity,
        }
    }

    /// One for each sample.
    pub fn len(&self) -> usize {
        match self {
            Self::Classes { of, .. } => of.len(),
            Self::Quantities(of) => of.len(),
        }
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The classes; none of quantities.
    pub fn classes(&self) -> &[u32] {
        match self {
            Self::Classes { of, .. } => of,
            Self::Quantities(_) => &[],
        }
    }

    /// How many outputs a model needs for them.
    pub fn outputs(&self) -> usize {
        match self {
            Self::Classes { count, .. } => *count,
            Self::Quantities(_) => 1,
        }
    }

    /// Those of some samples: i32 classes or f32 quantities, `[B]`.
    pub(super) fn of(&self, members: &[usize]) -> Tensor {
        match self {
            Self::Classes { of, .. } => {
                let classes: Vec<i128> = members.iter().map(|&i| i128::from(of[i])).collect();
                Tensor::from_ints(DType::I32, [members.len()], &classes)
            }
            Self::Quantities(of) => {
                let values: Vec<f32> = members.iter().map(|&i| of[i]).collect();
                Tensor::from_f32([members.len()], &values)
            }
        }
    }

    pub(super) fn hash(&self, member: usize, hash: &mut Sha256) {
        match self {
            Self::Classes { of, .. } => hash.update(of[member].to_le_bytes()),
            Self::Quantities(of) => hash.update(of[member].to_le_bytes()),
        }
    }
}

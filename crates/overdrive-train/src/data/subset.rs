//! Some samples of a part: spread evenly over it, enough to calibrate on or for a first look, or
//! those that a caller picked.

use super::{Batch, Split, Target};
use crate::TrainError;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Some of a part's samples.
#[derive(Clone)]
pub struct Subset {
    split: Arc<dyn Split>,
    members: Vec<u64>,
}

impl Subset {
    /// `count` samples of a part, or all where it has fewer.
    pub fn evenly(split: Arc<dyn Split>, count: u64) -> Self {
        let count = count.min(split.len());
        let place =
            |i: u64| (u128::from(i) * u128::from(split.len()) / u128::from(count.max(1))) as u64;
        Self { members: (0..count).map(place).collect(), split }
    }

    /// The samples of these numbers.
    ///
    /// # Panics
    /// When a number is not below the part's length.
    pub fn of(split: Arc<dyn Split>, members: Vec<u64>) -> Self {
        assert!(members.iter().all(|member| *member < split.len()), "members are of the part");
        Self { split, members }
    }

    /// Numbers of these samples in the split.
    fn among(&self, samples: &[u64]) -> Vec<u64> {
        samples.iter().map(|&i| self.members[i as usize]).collect()
    }
}

impl Split for Subset {
    fn len(&self) -> u64 {
        self.members.len() as u64
    }

    fn target(&self) -> Target {
        self.split.target()
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        self.split.batch(&self.among(samples))
    }

    fn hash(&self) -> Result<String, TrainError> {
        let mut hash = Sha256::new();
        hash.update(self.split.hash()?);
        self.members.iter().for_each(|member| hash.update(member.to_le_bytes()));
        Ok(super::labelled::hex(hash))
    }
}

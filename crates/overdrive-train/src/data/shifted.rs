//! Images that also appear moved by one pixel: a stroke means the same a pixel further, and a small
//! set does not show that.

use super::{Batch, Split, Target};
use crate::TrainError;
use overdrive_ir::Tensor;
use sha2::{Digest, Sha256};

/// The source of the pixel at an image's place: the same place, or a neighbour.
const MOVES: [[i64; 2]; 5] = [[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]];

/// A part whose images `[.., H, W]` appear as they are and moved by one pixel in each direction;
/// what comes in is 0.
#[derive(Copy, Clone)]
pub struct Shifted<'a>(&'a dyn Split);

impl<'a> Shifted<'a> {
    /// Five of each sample.
    ///
    /// # Errors
    /// When a sample is no image.
    pub fn new(split: &'a dyn Split) -> Result<Self, TrainError> {
        let x = split.batch(&[0])?.x;
        if x.ty().rank() < 3 || !x.ty().dtype.is_float() {
            let remedy = "shift images only: a recipe without it";
            return Err(TrainError::invalid(
                "recipe, augmentation",
                "images [.., H, W]",
                x.ty(),
                remedy,
            ));
        }
        Ok(Self(split))
    }
}

impl Split for Shifted<'_> {
    fn len(&self) -> u64 {
        self.0.len() * MOVES.len() as u64
    }

    fn target(&self) -> Target {
        self.0.target()
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let own: Vec<u64> = samples.iter().map(|sample| sample % self.0.len()).collect();
        let Batch { x, labels, text_bytes, mask } = self.0.batch(&own)?;
        let sizes = x.ty().sizes();
        let [.., height, width] = sizes[..] else {
            unreachable!("`new` has seen that samples are images")
        };
        let mut values = x.to_f32();
        let of_sample = values.len() / samples.len().max(1);
        for (sample, image) in samples.iter().zip(values.chunks_mut(of_sample.max(1))) {
            let by = MOVES[(sample / self.0.len()) as usize];
            image.chunks_mut(height * width).for_each(|plane| shift(plane, width, by));
        }
        Ok(Batch { x: Tensor::from_f32(sizes, &values), labels, text_bytes, mask })
    }

    fn hash(&self) -> Result<String, TrainError> {
        let mut hash = Sha256::new();
        hash.update(self.0.hash()?);
        MOVES.iter().flatten().for_each(|step| hash.update(step.to_le_bytes()));
        Ok(super::labelled::hex(hash))
    }
}

/// Replaces every pixel by the one that is `rows` and `columns` further, or by 0 if there is none.
fn shift(plane: &mut [f32], width: usize, [rows, columns]: [i64; 2]) {
    let before = plane.to_vec();
    let height = before.len() / width;
    let from = |place: usize, by: i64, size: usize| {
        usize::try_from(place as i64 + by).ok().filter(|place| *place < size)
    };
    for (at, pixel) in plane.iter_mut().enumerate() {
        let place = from(at / width, rows, height).zip(from(at % width, columns, width));
        *pixel = place.map_or(0.0, |(row, column)| before[row * width + column]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_on_one_side_does_not_come_back_on_the_other() {
        let image = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let moved = |by| {
            let mut plane = image;
            shift(&mut plane, 3, by);
            plane
        };
        assert_eq!(moved([0, 0]), image);
        assert_eq!(moved([0, 1]), [2.0, 3.0, 0.0, 5.0, 6.0, 0.0]);
        assert_eq!(moved([0, -1]), [0.0, 1.0, 2.0, 0.0, 4.0, 5.0]);
        assert_eq!(moved([1, 0]), [4.0, 5.0, 6.0, 0.0, 0.0, 0.0]);
        assert_eq!(moved([-1, 0]), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    }
}

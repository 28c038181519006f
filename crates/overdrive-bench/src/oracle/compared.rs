//! The part that is compared of an output with millions of rows and columns: some of its rows,
//! spread over all of it.
//!
//! The logits of a batch are 100 million numbers. Comparing them all, each with a scale of its own,
//! took a minute on the host after milliseconds on the device. A wrong kernel is wrong in a whole
//! tile, and a tile has more rows than are skipped between two compared ones.

use overdrive_ir::{Tensor, TensorType, eval::philox};
use std::borrow::Cow;

/// Elements of an output that are compared, about.
const COMPARED: usize = 1 << 23;

/// The rows of the last axis that are compared, of a type with too many elements to compare all.
/// They are the first, the last, and one drawn from each stretch between.
pub fn compared_rows(ty: &TensorType) -> Option<Vec<usize>> {
    let width = ty.sizes().last().copied().filter(|width| *width > 0)?;
    let rows = ty.elements() / width;
    let count = (COMPARED / width).max(2);
    // Rows that share a byte cannot be separated.
    if rows <= count || ty.elements() <= COMPARED || !(ty.dtype.bits() * width).is_multiple_of(8) {
        return None;
    }
    let start = |stretch: usize| stretch * rows / count;
    let drawn = philox::uniforms(rows as u64, 0).take(count).enumerate().map(|(stretch, u)| {
        let (from, to) = (start(stretch), start(stretch + 1));
        match stretch {
            0 => 0,
            last if last + 1 == count => rows - 1,
            _ => from + (u * (to - from) as f64) as usize,
        }
    });
    Some(drawn.collect())
}

/// The part of an output that is compared, as a matrix of rows where it is not all.
pub fn compared(output: Tensor) -> Tensor {
    let Some(rows) = compared_rows(output.ty()) else { return output };
    let width = output.ty().sizes().last().copied().unwrap_or(1);
    let bytes = output.ty().dtype.bytes_for(width);
    let part: Vec<u8> =
        rows.iter().flat_map(|row| &output.bytes()[row * bytes..][..bytes]).copied().collect();
    let ty = output.ty().with_shape([rows.len(), width]);
    Tensor::from_bytes(ty, part).expect("rows are whole bytes")
}

/// The same of an output of this type as numbers, which may have been picked already.
pub(super) fn compared_values<'v>(values: &'v [f64], ty: &TensorType) -> Cow<'v, [f64]> {
    match compared_rows(ty).filter(|_| values.len() == ty.elements()) {
        None => Cow::Borrowed(values),
        Some(rows) => {
            let width = ty.sizes().last().copied().unwrap_or(1);
            rows.iter().flat_map(|row| &values[row * width..][..width]).copied().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;

    #[test]
    fn small_outputs_are_compared_whole_and_large_ones_in_every_tile() {
        let ty = |shape: [usize; 3]| TensorType::new(DType::BF16, shape);
        assert_eq!(compared_rows(&ty([4, 2048, 1024])), None);
        let rows = compared_rows(&ty([2, 1024, 50257])).unwrap();
        assert_eq!(rows.len(), COMPARED / 50257);
        assert_eq!((rows[0], rows[rows.len() - 1]), (0, 2047));
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] < 32));
    }

    #[test]
    fn tensors_and_numbers_are_picked_alike() {
        let ty = TensorType::new(DType::F32, [3, 700, 8192]);
        let values: Vec<f64> = (0..ty.elements()).map(|i| (i / 8192) as f64).collect();
        let tensor = compared(Tensor::from_f64(DType::F32, ty.shape.clone(), &values));
        assert_eq!(tensor.ty().sizes(), [1024, 8192]);
        assert_eq!(tensor.to_f64(), compared_values(&values, &ty).into_owned());
    }
}

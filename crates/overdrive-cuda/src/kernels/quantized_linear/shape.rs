//! What of `quantized_linear` the kernel takes, and how it shares the work.
//!
//! Codes are read once whatever the rows of x are, so that a few rows cost little more than one; on an H200 products of
//! weights that were dequantized before are faster from 32 rows on. Invariant: what `declines` lets through, `Shape` has a place for.

use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::{DType, OpRef, TensorType};

/// Most rows of x.
pub(super) const ROWS: usize = 16;
/// Bits that a thread reads of a row of codes.
const LOAD_BITS: usize = 128;
/// Fewest codes under a scale: those of a piece of x.
const PIECE: usize = 8;
/// Lanes that lie along the contracted index.
const LANES: usize = 4;
/// Warps that hide a multiprocessor's memory.
const RESIDENT_WARPS: usize = 16;
/// Most warps of a block along the contracted index.
const MOST_ALONG: usize = 8;
/// Shared memory that the blocks of a multiprocessor may have together, and that one may have.
const SHARED_BYTES: usize = 200 << 10;

/// Why `op` over operands of these types is not for the kernel; `None` where it is.
pub(in crate::kernels) fn declines(op: &OpRef, types: &[TensorType]) -> Option<String> {
    let op = op.downcast::<QuantizedLinear>()?;
    let names = op.operands();
    let of = |name: &str| names.iter().position(|n| *n == name).and_then(|at| types.get(at));
    let (x, codes, scale) = (of("x")?, of("codes")?, of("scale")?);
    let expanded = "the weights are dequantized before the product";
    let half = |dtype| matches!(dtype, DType::BF16 | DType::F16);
    if !half(x.dtype) {
        return Some(format!("its kernel multiplies bf16 and f16, not {}: {expanded}", x.dtype));
    }
    if !matches!(codes.dtype, DType::I4 | DType::I8 | DType::F4E2M1) {
        return Some(format!("its kernel reads codes of i4, i8 and f4e2m1, not {}: {expanded}", codes.dtype));
    }
    let (sizes, [n, k]) = (x.sizes(), [codes.sizes()[0], codes.sizes()[1]]);
    let rows: usize = sizes[..sizes.len() - 1].iter().product();
    if rows > ROWS {
        return Some(format!("its kernel is for up to {ROWS} rows, not {rows}: {expanded}"));
    }
    if rows == 0 || n == 0 || k == 0 || n.max(k) > i32::MAX as usize / 2 {
        return Some(format!("nothing to compute, or too much for one launch: {expanded}"));
    }
    let (at_once, group) = (LOAD_BITS / codes.dtype.bits(), k / scale.sizes()[1].max(1));
    let grouped =
        group == k || group.is_multiple_of(at_once) || at_once.is_multiple_of(group) && group >= PIECE;
    if !k.is_multiple_of(at_once) || !grouped {
        let found = format!("{k} in groups of {group}");
        return Some(format!("its kernel reads {at_once} codes at a time, not {found}: {expanded}"));
    }
    let number = |ty: &TensorType| ty.dtype.bits() >= 8 && ty.dtype != DType::F64;
    let kept = [Some(scale), of("zero"), of("tensor_scale")].into_iter().flatten();
    let other = kept.into_iter().find(|ty| !number(ty) && ty.dtype != DType::I4)?;
    Some(format!("its kernel knows no scales of {}: {expanded}", other.dtype))
}

/// How the kernel shares the work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Warps of a block along rows of the weights, sixteen each, and along k.
    pub(super) warps: [usize; 2],
    /// Tiles of eight rows of x.
    pub(super) tiles: usize,
    /// Pairs of loads under way in each thread.
    pub(super) depth: usize,
    /// Steps of all warps whose x is in shared memory at once.
    pub(super) steps_at_once: usize,
    /// How often that much of x has room.
    pub(super) buffers: usize,
    pub(super) blocks: usize,
    pub(super) shared_bytes: usize,
}

impl Shape {
    /// For `rows` rows of x by `[n, k]` codes of `bits` bits.
    pub(super) fn new(rows: usize, [n, k]: [usize; 2], bits: usize, multiprocessors: usize) -> Self {
        let chunk = LANES * LOAD_BITS / bits;
        let blocks = |across: usize| n.div_ceil(16 * across);
        // x is read once a block, so blocks are wide where there are enough of them.
        let across = [4, 2].into_iter().find(|&w| 10 * blocks(w) >= 9 * multiprocessors).unwrap_or(1);
        let blocks = blocks(across);
        let each = blocks.div_ceil(multiprocessors);
        let wanted = (RESIDENT_WARPS / (across * each)).clamp(1, MOST_ALONG);
        let tiles = rows.div_ceil(8).next_power_of_two();
        let mut along = (1 << wanted.ilog2()).min(k.div_ceil(chunk).next_power_of_two());
        let padding = if bits == 4 { 64 } else { 16 };
        let bytes = |along: usize, steps: usize| rows * (steps * along * chunk * 2 + padding);
        while along > 1 && 2 * bytes(along, 1) > SHARED_BYTES {
            along /= 2;
        }
        let steps = k.div_ceil(chunk * along);
        let budget = SHARED_BYTES * across * along / RESIDENT_WARPS;
        let (steps_at_once, buffers) = if bytes(along, steps) <= budget {
            (steps, 1)
        } else {
            ((1..=steps).take_while(|&at_once| 2 * bytes(along, at_once) <= budget).last().unwrap_or(1), 2)
        };
        let sums = along * tiles * 8 * (across * 16 + 4) * size_of::<f32>();
        Self {
            warps: [across, along],
            tiles,
            depth: if tiles <= 2 { 4 } else { 2 },
            steps_at_once,
            buffers,
            blocks,
            shared_bytes: sums.max(buffers * bytes(along, steps_at_once)),
        }
    }

    pub(super) fn threads(&self) -> usize {
        32 * self.warps[0] * self.warps[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_fits_a_multiprocessor() {
        for rows in [1, 2, 7, 8, 9, 16] {
            for [n, k] in [[8192, 8192], [16, 32], [4096, 14336], [28672, 4096], [100, 96]] {
                for bits in [4, 8] {
                    let shape = Shape::new(rows, [n, k], bits, 132);
                    assert!(shape.shared_bytes <= SHARED_BYTES && shape.threads() <= 512, "{shape:?}");
                    assert!(shape.tiles * 8 >= rows && shape.blocks * shape.warps[0] * 16 >= n, "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn a_row_by_a_large_matrix_fills_the_machine() {
        let shape = Shape::new(1, [8192, 8192], 4, 132);
        assert_eq!((shape.warps, shape.blocks, shape.buffers), ([4, 4], 128, 1));
    }
}

//! The cases of `quantized_linear` that the kernel takes, and how it shares the work.
//!
//! Codes are read once however many rows x has, so that a few rows cost little more than one. On an
//! H200, products of weights that were dequantized before are faster from 33 rows on. Invariant:
//! `QuantizedLinearShape` has a place for everything that `declines` lets through.

use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{DType, Decline, Operation, TensorType};

/// Most rows of x.
const ROWS: usize = 32;
/// Bytes of a row of codes that four lanes read at a time.
pub(super) const LINE_BYTES: usize = 64;
/// Bits that a thread reads of a row of codes.
const LOAD_BITS: usize = 128;
/// Fewest codes under a scale: those of a piece of x.
const PIECE: usize = 8;
/// Warps of a block, along the contracted index.
const WARPS: usize = 8;
/// Rows of x up to which two halves of a chunk leave room for enough of them.
const ROWS_OF_TWO_HALVES: usize = 4;
/// Most chunks of a warp that are under way.
const MOST_AHEAD: usize = 4;
/// Shared memory of a block. The first is the bytes under way beyond which more only wait for each
/// other (measured on an H200), the second all that there is.
const SHARED_BYTES: [usize; 2] = [150 << 10, 226 << 10];
/// Before the rings.
const BARRIER_BYTES: usize = 1024;

/// Why `op` over operands of these types is not for the kernel; `None` where it is.
pub(super) fn declines(op: &Operation, types: &[TensorType]) -> Option<Decline> {
    let op = op.composite::<QuantizedLinear>()?;
    // With codes on both sides it is a product of codes, with an epilogue.
    if op.activations != Activations::Float {
        return Some(Decline::NoKernel);
    }
    declined(op, types).map(Decline::Because)
}

fn declined(op: &QuantizedLinear, types: &[TensorType]) -> Option<String> {
    let names = op.operands();
    let of = |name: &str| names.iter().position(|n| *n == name).and_then(|at| types.get(at));
    let (x, codes, scale) = (of("x")?, of("codes")?, of("scale")?);
    let expanded = "the weights are dequantized before the product";
    let half = |dtype| matches!(dtype, DType::BF16 | DType::F16);
    if !half(x.dtype) {
        return Some(format!("its kernel multiplies bf16 and f16, not {}: {expanded}", x.dtype));
    }
    if !matches!(codes.dtype, DType::I4 | DType::I8 | DType::F4E2M1) {
        return Some(format!(
            "its kernel reads codes of i4, i8 and f4e2m1, not {}: {expanded}",
            codes.dtype
        ));
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
    let grouped = group == k
        || group.is_multiple_of(at_once)
        || at_once.is_multiple_of(group) && group >= PIECE;
    if !k.is_multiple_of(at_once) || !grouped {
        let found = format!("{k} in groups of {group}");
        return Some(format!(
            "its kernel reads {at_once} codes at a time, not {found}: {expanded}"
        ));
    }
    let number = |ty: &TensorType| ty.dtype.bits() >= 8 && ty.dtype != DType::F64;
    let kept = [Some(scale), of("zero"), of("tensor_scale")].into_iter().flatten();
    let other = kept.into_iter().find(|ty| !number(ty) && ty.dtype != DType::I4)?;
    Some(format!("its kernel knows no scales of {}: {expanded}", other.dtype))
}

/// How the kernel shares the work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct QuantizedLinearShape {
    /// Rows of x.
    pub(super) rows: usize,
    /// Warps of a block, along k.
    pub(super) warps: usize,
    /// Tiles of sixteen rows of the weights.
    pub(super) weight_tiles: usize,
    /// Tiles of eight rows of x.
    pub(super) tiles: usize,
    /// Lines of a row of codes in a chunk.
    pub(super) halves: usize,
    /// Chunks of each warp that are under way.
    pub(super) ahead: usize,
    pub(super) blocks: usize,
    pub(super) shared_bytes: usize,
}

impl QuantizedLinearShape {
    /// For `rows` rows of x by `[n, k]` codes of `bits` bits.
    pub(super) fn new(
        rows: usize,
        [n, k]: [usize; 2],
        bits: usize,
        multiprocessors: usize,
    ) -> Self {
        let blocks = |tiles: usize| n.div_ceil(16 * tiles);
        // x is read once a block, so blocks are wide where there are enough of them.
        let weight_tiles =
            [4, 2].into_iter().find(|&t| 10 * blocks(t) >= 9 * multiprocessors).unwrap_or(1);
        let tiles = rows.div_ceil(8).next_power_of_two();
        let halves = if rows <= ROWS_OF_TWO_HALVES { 2 } else { 1 };
        let chunk = halves * LINE_BYTES * 8 / bits;
        let warps = WARPS.min(k.div_ceil(chunk).next_power_of_two());
        let slot = weight_tiles * 16 * halves * LINE_BYTES + rows * chunk * size_of::<u16>();
        let bytes = |ahead: usize| BARRIER_BYTES + warps * ahead * slot;
        let steps = k.div_ceil(chunk * warps);
        let fits = |ahead: &usize| bytes(*ahead) <= SHARED_BYTES[usize::from(*ahead <= 2)];
        let ahead = (2..=MOST_AHEAD.min(steps)).rev().find(fits).unwrap_or(1);
        let sums = BARRIER_BYTES + warps * tiles * 8 * (weight_tiles * 16 + 4) * size_of::<f32>();
        Self {
            rows,
            warps,
            weight_tiles,
            tiles,
            halves,
            ahead,
            blocks: blocks(weight_tiles),
            shared_bytes: sums.max(bytes(ahead)),
        }
    }

    pub(super) fn threads(&self) -> usize {
        32 * self.warps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_fits_a_multiprocessor() {
        for rows in [1, 2, 7, 8, 9, 16, 17, 32] {
            for [n, k] in [[8192, 8192], [16, 32], [4096, 14336], [28672, 4096], [100, 96]] {
                for bits in [4, 8] {
                    let shape = QuantizedLinearShape::new(rows, [n, k], bits, 132);
                    assert!(
                        shape.shared_bytes <= SHARED_BYTES[1] && shape.threads() <= 256,
                        "{shape:?}"
                    );
                    assert!(
                        shape.tiles * 8 >= rows && shape.blocks * shape.weight_tiles * 16 >= n,
                        "{shape:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_row_by_a_large_matrix_fills_the_machine() {
        let shape = QuantizedLinearShape::new(1, [8192, 8192], 4, 132);
        assert_eq!((shape.warps, shape.weight_tiles, shape.blocks, shape.ahead), (8, 4, 128, 2));
    }
}

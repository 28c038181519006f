//! The cases of `quantized_linear` that the kernel takes, and how it shares the work.
//!
//! Codes are read once however many rows x has, so that a few rows cost little more than one. On an
//! H200, products of weights that were dequantized before are faster from 33 rows on. Invariant:
//! `QuantizedLinearShape` has a place for everything that `declines` lets through.

use crate::gemm::led::RowsSource;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{DType, Decline, Operation, TensorType};

/// Most rows of x.
const ROWS: usize = 32;
/// Rows of x up to which two blocks share a multiprocessor. So the codes of the next product are on
/// their way while this one finishes.
const FEW_ROWS: usize = 8;
/// Bytes of a row of codes that four lanes read at a time.
pub(super) const LINE_BYTES: usize = 64;
/// Bits of a row of codes that are copied at once.
const LOAD_BITS: usize = 128;
/// Codes of a piece, and fewest codes under a scale: those of a lane in a piece.
const PIECE: usize = 32;
const FEWEST: usize = 8;
/// Warps of a block, along the contracted index.
const WARPS: usize = 8;
/// Rows of x up to which two halves of a chunk leave room for enough of them.
const ROWS_OF_TWO_HALVES: usize = 4;
/// The most bytes of scales that a lane keeps for a half of a row then.
const SCALE_BYTES_OF_TWO_HALVES: usize = 8;
/// Most chunks of a warp that are under way.
const MOST_AHEAD: usize = 6;
/// Shared memory of one of two blocks of a multiprocessor. Ada's blocks have no more either.
const SHARED_BYTES_OF_TWO: usize = 96 << 10;
/// Shared memory of a block alone. The first is the bytes under way beyond which more only wait for
/// each other (measured on an H200), the second all that there is.
const SHARED_BYTES: [usize; 2] = [150 << 10, 226 << 10];
/// For bringing the first ring to its alignment.
const SLACK: usize = 1024;

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
    let grouped =
        group == k || group.is_multiple_of(PIECE) || PIECE.is_multiple_of(group) && group >= FEWEST;
    if !k.is_multiple_of(at_once) || !grouped {
        let found = format!("{k} in groups of {group}");
        return Some(format!(
            "its kernel reads {at_once} codes at a time, not {found}: {expanded}"
        ));
    }
    let number = |ty: &TensorType| (8..=32).contains(&ty.dtype.bits());
    let kept = [Some(scale), of("zero"), of("tensor_scale")].into_iter().flatten();
    // A scalar has no neighbours that share its byte.
    let packed = |ty: &TensorType| ty.dtype == DType::I4 && ty.rank() > 0;
    let other = kept.into_iter().find(|ty| !number(ty) && !packed(ty))?;
    Some(format!("its kernel knows no scales of {}: {expanded}", other.dtype))
}

/// The products of a launch, as far as its shape depends on them.
#[derive(Copy, Clone, Debug)]
pub(super) struct Extents<'a> {
    /// Rows of x, and of the contracted index.
    pub(super) rows: usize,
    pub(super) k: usize,
    /// Bits of a code.
    pub(super) bits: usize,
    /// Bytes of the scales and zero points of 64 bytes of codes.
    pub(super) scale_bytes: usize,
    /// Outputs of the first product of each tile.
    pub(super) outputs: &'a [usize],
    /// The most products that share a tile.
    pub(super) parts: usize,
    /// The source of x in a block.
    pub(super) source: RowsSource,
}

impl Extents<'_> {
    /// Codes of a row that four lanes read at a time.
    pub(super) fn half(bits: usize) -> usize {
        LINE_BYTES * 8 / bits
    }

    fn halves(&self) -> usize {
        let two = self.rows <= ROWS_OF_TWO_HALVES && self.scale_bytes <= SCALE_BYTES_OF_TWO_HALVES;
        if two { 2 } else { 1 }
    }

    /// Codes of a row in a chunk.
    fn chunk(&self) -> usize {
        self.halves() * Self::half(self.bits)
    }

    /// Warps of a block, whatever else the launch does.
    pub(super) fn warps(&self) -> usize {
        WARPS.min(self.k.div_ceil(self.chunk()).next_power_of_two())
    }
}

/// How the kernel shares the work.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct QuantizedLinearShape {
    /// Warps of a block, along k.
    pub(super) warps: usize,
    /// Tiles of sixteen rows of the weights, of each product of a tile.
    pub(super) weight_tiles: usize,
    /// Lines of a row of codes in a chunk.
    pub(super) halves: usize,
    /// Chunks of each warp that are under way.
    pub(super) ahead: usize,
    /// The most products that share a tile.
    pub(super) parts: usize,
    pub(super) blocks: usize,
    /// Blocks that a multiprocessor has room for.
    pub(super) beside: usize,
    pub(super) shared_bytes: usize,
}

impl QuantizedLinearShape {
    /// `None` where a block has no room for several products, or for the x that it computes.
    pub(super) fn new(of: Extents<'_>, multiprocessors: usize) -> Option<Self> {
        let is_few = of.rows <= FEW_ROWS;
        let budgets = if is_few { [SHARED_BYTES_OF_TWO; 2] } else { SHARED_BYTES };
        let blocks = |tiles: usize| of.outputs.iter().map(|n| n.div_ceil(16 * tiles)).sum();
        // x is read once a block, so blocks are wide where there are enough of them.
        let wide: &[usize] = if is_few { &[2] } else { &[4, 2] };
        let fills = |tiles: &usize| 10 * blocks(*tiles) >= 9 * multiprocessors;
        let weight_tiles = wide.iter().copied().find(fills).unwrap_or(1);
        let (halves, chunk, warps) = (of.halves(), of.chunk(), of.warps());
        let codes = of.parts * weight_tiles * 16 * halves * LINE_BYTES;
        let x = |elements: usize| of.rows * elements * size_of::<u16>();
        let bytes = |ahead: usize| {
            let (in_rings, led) = match of.source {
                RowsSource::Given => (x(chunk), 0),
                RowsSource::Led => (0, x(of.k)),
            };
            SLACK + warps * ahead * (codes + in_rings) + led
        };
        let steps = of.k.div_ceil(chunk * warps);
        let fits = |ahead: &usize| bytes(*ahead) <= budgets[usize::from(*ahead <= 2)];
        let ahead = (1..=MOST_AHEAD.min(steps)).rev().find(fits)?;
        let line = of.parts * weight_tiles * 16 + 4;
        let sums = SLACK + warps * of.rows * line * size_of::<f32>();
        Some(Self {
            warps,
            weight_tiles,
            halves,
            ahead,
            parts: of.parts,
            blocks: blocks(weight_tiles),
            beside: if is_few { 2 } else { 1 },
            shared_bytes: sums.max(bytes(ahead)),
        })
    }

    pub(super) fn threads(&self) -> usize {
        32 * self.warps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(rows: usize, outputs: &[usize], k: usize, bits: usize) -> Extents<'_> {
        Extents { rows, k, bits, scale_bytes: 2, outputs, parts: 1, source: RowsSource::Given }
    }

    #[test]
    fn every_shape_fits_a_multiprocessor() {
        for rows in [1, 2, 7, 8, 9, 16, 17, 32] {
            for [n, k] in [[8192, 8192], [16, 32], [4096, 14336], [28672, 4096], [100, 96]] {
                for bits in [4, 8] {
                    let shape = QuantizedLinearShape::new(alone(rows, &[n], k, bits), 132);
                    let shape = shape.expect("one product always has room");
                    let room = if rows <= FEW_ROWS { SHARED_BYTES_OF_TWO } else { SHARED_BYTES[1] };
                    assert!(shape.shared_bytes <= room && shape.threads() <= 256, "{shape:?}");
                    assert!(shape.blocks * shape.weight_tiles * 16 >= n, "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn a_row_by_a_large_matrix_fills_the_machine() {
        let shape = QuantizedLinearShape::new(alone(1, &[8192], 8192, 4), 132).expect("room");
        let QuantizedLinearShape { warps, weight_tiles, blocks, ahead, .. } = shape;
        assert_eq!((warps, weight_tiles, blocks, ahead), (8, 2, 256, 2));
        // Two blocks of a multiprocessor have 128 KiB of codes under way.
        assert_eq!(warps * ahead * weight_tiles * 16 * shape.halves * LINE_BYTES, 64 << 10);
    }

    #[test]
    fn x_that_has_no_room_is_not_led() {
        let gate = Extents { parts: 2, source: RowsSource::Led, ..alone(8, &[5632], 8192, 4) };
        assert_eq!(QuantizedLinearShape::new(gate, 132), None);
        assert!(QuantizedLinearShape::new(Extents { rows: 1, ..gate }, 132).is_some());
    }
}

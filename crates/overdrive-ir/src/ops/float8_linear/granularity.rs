//! How much one scale covers, and matrices on codes under scales of blocks.
//!
//! The last axis of a matrix here is the contracted one. A block at its end may be smaller: where
//! the block does not divide an extent, zeros fill it up, which change no largest magnitude.
//! Invariant: an axis that is no longer than a block is one block.

use crate::ops::block_scale::ScaleFormat;
use crate::ops::quantize::code;
use crate::{Array, DType, Dim, Expr, Pad, Shape};
use serde::{Deserialize, Serialize};

/// How much one scale covers.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Float8Granularity {
    /// A tensor, in all its products.
    #[default]
    Tensor,
    /// A row along the contracted axis, so that each product of a tensor has scales of its own.
    Row,
    /// 128 elements of x and dy along the contracted axis, and 128 by 128 of w.
    Block,
    /// 32 elements of x, dy and w along the contracted axis: MXFP8.
    Mx,
}

/// Elements along a side of a block.
const SIDE: Option<usize> = Some(128);
/// Elements under a scale of MXFP8 (OCP Microscaling Formats 1.0, 5.2).
const MX: Option<usize> = Some(32);

impl Float8Granularity {
    /// Whether scales may be delayed, that is, come from steps before. A tensor's may, those of its
    /// parts are current.
    pub fn may_be_delayed(self) -> bool {
        self == Self::Tensor
    }

    /// Whether products are of the numbers that codes stand for: without a kernel for its blocks, a
    /// device multiplies no codes.
    pub fn multiplies_numbers(self) -> bool {
        matches!(self, Self::Block | Self::Mx)
    }

    /// The blocks of x and dy, and those of w; none where a scale covers a tensor.
    pub(super) fn blocks(self) -> Option<[ScaleBlock; 2]> {
        match self {
            Self::Tensor => None,
            Self::Row => Some([ScaleBlock([Some(1), None]); 2]),
            Self::Block => Some([ScaleBlock([Some(1), SIDE]), ScaleBlock([SIDE, SIDE])]),
            Self::Mx => Some([ScaleBlock([Some(1), MX]); 2]),
        }
    }
}

/// How scales are rounded: up to a power of two, so that nothing is clipped. NVIDIA's Transformer
/// Engine rounds scales of MXFP8 so too (Mishra et al., arXiv:2506.08027). The rule of OCP rounds
/// down, and clips up to an eighth of what is largest.
pub(super) const SCALE: ScaleFormat = ScaleFormat::E8m0Up;

/// The part of a matrix that a scale covers: its extent along each axis, `None` for the whole axis.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) struct ScaleBlock([Option<usize>; 2]);

impl ScaleBlock {
    /// The shape of the scales of a matrix; `None` where it depends on a size that is not known.
    pub(super) fn scales(self, sizes: [Option<Dim>; 2]) -> Option<Shape> {
        let count = |(block, size): (Option<usize>, Option<Dim>)| match (block, size) {
            (None, _) => Some(Dim::Size(1)),
            (Some(1), size) => size,
            (Some(block), Some(Dim::Size(size))) => Some(Dim::Size(size.div_ceil(block).max(1))),
            (Some(_), _) => None,
        };
        self.0.into_iter().zip(sizes).map(count).collect::<Option<_>>().map(Shape)
    }

    /// The extents of a block in a matrix.
    fn within(self, sizes: &[usize]) -> [Option<usize>; 2] {
        let whole = |block: &usize, size: usize| *block > 1 && *block >= size;
        std::array::from_fn(|axis| self.0[axis].filter(|block| !whole(block, sizes[axis])))
    }

    /// A matrix with zeros behind it, so that blocks divide it.
    fn filled<'b>(self, a: Expr<'b>) -> Expr<'b> {
        let sizes = a.sizes();
        let missing = |(block, &size): (Option<usize>, &usize)| {
            block.map_or(0, |block| size.next_multiple_of(block) - size)
        };
        let missing: Vec<usize> =
            self.within(&sizes).into_iter().zip(&sizes).map(missing).collect();
        if missing.iter().all(|&elements| elements == 0) {
            return a;
        }
        let pad = |&high: &usize| Pad { low: 0, high: high as i64, interior: 0 };
        a.pad(missing.iter().map(pad).collect(), 0.0)
    }

    /// The codes of a matrix and their scales, and those of the matrix turned.
    pub(super) fn code_both<'b>(self, a: Expr<'b>, to: DType) -> [[Expr<'b>; 2]; 2] {
        match self.0 {
            // One op makes both.
            [Some(1), None] => {
                let scales = [[Some(1), None], [None, Some(1)]]
                    .map(|block| a.block_scale(&block, to, SCALE));
                let [codes, turned] = a.cast_lines(scales, to);
                [[codes, scales[0]], [turned, scales[1].t()]]
            }
            // A square covers the same elements of the matrix turned.
            [rows, columns] if rows == columns => {
                let code = self.code(a, to);
                [code, code.map(Expr::t)]
            }
            _ => [self.code(a, to), self.code(a.t(), to)],
        }
    }

    /// The codes of a matrix and their scales.
    fn code<'b>(self, a: Expr<'b>, to: DType) -> [Expr<'b>; 2] {
        let (sizes, filled) = (a.sizes(), self.filled(a));
        let scale = filled.block_scale(&self.within(&sizes), to, SCALE);
        [cut(filled.quantize(scale, None, to), &sizes), scale]
    }

    /// The numbers that codes stand for, in bf16. It holds every product of a code of fp8 by a
    /// power of two, but for magnitudes below 2^-133.
    pub(super) fn decode<'b>(self, [codes, scale]: [Expr<'b>; 2]) -> Expr<'b> {
        let numbers = self.filled(codes).dequantize(scale, None).convert(DType::BF16);
        cut(numbers, &codes.sizes())
    }

    /// `code` by its meaning.
    pub(super) fn eval_code(self, a: &Array, to: DType) -> [Array; 2] {
        let ([rows, columns], extents) = ([a.shape[0], a.shape[1]], self.extents(&a.shape));
        let counts = self.scales([rows, columns].map(|size| Some(Dim::Size(size))));
        let counts = counts.and_then(|shape| shape.known()).expect("sizes are known");
        let mut largest = vec![0.0; counts.iter().product()];
        for place in 0..a.len() {
            let at = [place / columns / extents[0], place % columns / extents[1]];
            let (most, magnitude) = (&mut largest[at[0] * counts[1] + at[1]], a.get(place).abs());
            *most = if magnitude.is_nan() || magnitude > *most { magnitude } else { *most };
        }
        let scales = largest.iter().map(|&most| SCALE.of(most, to)).collect();
        let scales = Array::float(DType::E8M0, &counts, scales);
        let under = |at: &[usize]| scales.at(&[at[0] / extents[0], at[1] / extents[1]]);
        [Array::build(to, &a.shape, |at| code(to, a.at(at) / under(at), 0.0)), scales]
    }

    /// `decode` by its meaning.
    pub(super) fn eval_decode(self, [codes, scales]: &[Array; 2]) -> Array {
        let extents = self.extents(&codes.shape);
        let under = |at: &[usize]| scales.at(&[at[0] / extents[0], at[1] / extents[1]]);
        Array::build(DType::F64, &codes.shape, |at| codes.at(at) * under(at))
    }

    fn extents(self, sizes: &[usize]) -> [usize; 2] {
        let within = self.within(sizes);
        std::array::from_fn(|axis| within[axis].unwrap_or(sizes[axis].max(1)))
    }
}

/// The first elements of a matrix, as many as these along each axis.
fn cut<'b>(a: Expr<'b>, sizes: &[usize]) -> Expr<'b> {
    let found = a.sizes();
    let longer = (0..sizes.len()).filter(|&axis| found[axis] > sizes[axis]);
    longer.fold(a, |a, axis| a.slice_axis(axis, 0, sizes[axis]))
}

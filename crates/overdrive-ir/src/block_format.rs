//! `BlockFormat`: a matrix as codes of a small type with scales, on the host: the integer, MX and
//! NVFP4 formats by one rule.
//!
//! A format is an element type, a block that shares a scale, how scales are rounded, and whether
//! there are zero points. Invariant: codes and scales are bit for bit those of the ops
//! `block_scale` and `quantize`, and `decode` is `dequantize`.

use crate::ops::block_scale::ScaleFormat;
use crate::ops::quantize::code;
use crate::{DType, Mismatch, Overflow, Tensor};
use serde::{Deserialize, Serialize};

/// The elements that share a scale in a matrix `[N, K]`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// The whole matrix.
    Tensor,
    /// A row.
    Channel,
    /// This many consecutive elements of a row; a shorter row is one group.
    Group(usize),
}

impl Granularity {
    /// Rows and groups of a row that have a scale of their own.
    ///
    /// # Errors
    /// When groups do not divide the row.
    pub fn counts(self, [n, k]: [usize; 2]) -> Result<[usize; 2], Mismatch> {
        match self {
            Granularity::Tensor => Ok([1, 1]),
            Granularity::Channel => Ok([n, 1]),
            Granularity::Group(size) if size > 0 && k <= size => Ok([n, 1]),
            Granularity::Group(size) if size > 0 && k.is_multiple_of(size) => Ok([n, k / size]),
            Granularity::Group(size) => {
                Err(Mismatch::new(format!("rows of a multiple of {size} elements"), format!("{k}"))
                    .remedy("take a group size that divides the rows"))
            }
        }
    }
}

/// Whether zero has the code zero.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symmetry {
    /// It has.
    #[default]
    Symmetric,
    /// Each block has a zero point of the element type, so that its range need not be centred.
    Asymmetric,
}

/// How a matrix is held.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BlockFormat {
    /// The type of the codes.
    pub element: DType,
    /// The elements that share a scale.
    pub block: Granularity,
    /// The type of the scales. With `F8e4m3` the matrix has an f32 scale besides, by which its
    /// largest magnitude gets the largest scale.
    pub scale: ScaleFormat,
    /// Whether there are zero points.
    pub symmetry: Symmetry,
}

/// A matrix `[N, K]` in a format.
#[derive(Clone, PartialEq, Debug)]
pub struct Encoded {
    /// `[N, K]`.
    pub codes: Tensor,
    /// `[N or 1, G]`.
    pub scale: Tensor,
    /// Like the scale.
    pub zero: Option<Tensor>,
    /// `[]`.
    pub tensor_scale: Option<Tensor>,
}

/// Scale and zero point of a block, as stored.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Grid {
    /// The factor on codes, including the tensor's scale.
    pub scale: f64,
    /// The code of 0.
    pub zero: f64,
}

impl BlockFormat {
    /// Symmetric codes of `element` with scales of the type that sums use.
    pub const fn plain(element: DType, block: Granularity) -> Self {
        Self { element, block, scale: ScaleFormat::Wide, symmetry: Symmetry::Symmetric }
    }

    /// A microscaling format: blocks of 32 with power-of-two scales (OCP Microscaling Formats 1.0).
    pub const fn mx(element: DType, scale: ScaleFormat) -> Self {
        Self { element, block: Granularity::Group(32), scale, symmetry: Symmetry::Symmetric }
    }

    /// NVIDIA's four-bit format: f4e2m1 in blocks of 16 with e4m3 scales and a tensor scale
    /// (arXiv:2509.25149).
    pub const NVFP4: Self = Self {
        element: DType::F4E2M1,
        block: Granularity::Group(16),
        scale: ScaleFormat::F8e4m3,
        symmetry: Symmetry::Symmetric,
    };

    /// The format with zero points.
    pub const fn asymmetric(self) -> Self {
        Self { symmetry: Symmetry::Asymmetric, ..self }
    }

    /// The scale of the whole matrix, for formats that have one.
    pub fn tensor_scale(&self, values: &[f64]) -> Option<f64> {
        let largest = || values.iter().fold(0.0f64, |a, x| a.max(x.abs()));
        let levels = self.element.max_value() * DType::F8E4M3.max_value();
        let narrow = |x: f64| DType::F32.round(x, Overflow::Saturate);
        // The reciprocal of an f32, since files of other programs store that f32.
        (self.scale == ScaleFormat::F8e4m3).then(|| {
            narrow(1.0 / narrow((levels / largest()).min(f64::from(1.0 / f32::MIN_POSITIVE))))
        })
    }

    /// Scale and zero point for values between `low` and `high`; `tensor_scale` is 1 for formats
    /// without.
    pub fn grid(&self, [low, high]: [f64; 2], tensor_scale: f64) -> Grid {
        let narrow = |x: f64| DType::F32.round(x, Overflow::Saturate);
        if let (Symmetry::Asymmetric, Some((least, most))) =
            (self.symmetry, self.element.int_range())
        {
            let (low, high) = (low.min(0.0), high.max(0.0));
            let scale =
                narrow(((high - low) / (most - least) as f64).max(f64::from(f32::MIN_POSITIVE)));
            return Grid { scale, zero: code(self.element, -low / scale, least as f64) };
        }
        let scale = self.scale.of(low.abs().max(high.abs()) / tensor_scale, self.element);
        Grid {
            scale: if self.scale == ScaleFormat::Wide {
                narrow(scale)
            } else {
                scale * tensor_scale
            },
            zero: 0.0,
        }
    }

    /// The code of a value.
    pub fn code(&self, x: f64, grid: Grid) -> f64 {
        code(self.element, x / grid.scale, grid.zero)
    }

    /// The value of a code.
    pub fn value(&self, code: f64, grid: Grid) -> f64 {
        (code - grid.zero) * grid.scale
    }

    /// Rows and groups of a row of a matrix `[N, K]` that can be held so.
    ///
    /// # Errors
    /// When blocks do not divide the matrix, or a value is not finite.
    pub fn check(&self, values: &[f64], shape: [usize; 2]) -> Result<[usize; 2], Mismatch> {
        let counts = self.block.counts(shape)?;
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            let found = format!("{} at element {at}", values[at]);
            return Err(Mismatch::new("finite values", found)
                .remedy("mend the weights: nothing finite stands for these"));
        }
        Ok(counts)
    }

    /// Rounds a matrix `[N, K]` to nearest, each block by its own range.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn encode(&self, values: &[f64], shape: [usize; 2]) -> Result<Encoded, Mismatch> {
        let counts = self.check(values, shape)?;
        let tensor_scale = self.tensor_scale(values);
        let ranges = ranges(values, shape, counts);
        let grids: Vec<Grid> =
            ranges.iter().map(|&range| self.grid(range, tensor_scale.unwrap_or(1.0))).collect();
        let blocks = BlockIndex::new(shape, counts);
        let codes: Vec<f64> =
            values.iter().enumerate().map(|(i, &x)| self.code(x, grids[blocks.at(i)])).collect();
        Ok(self.assemble(&codes, &grids, shape, tensor_scale))
    }

    /// Tensors of codes and grids that were computed one by one.
    ///
    /// # Panics
    /// When their numbers do not fit the shape.
    pub fn assemble(
        &self,
        codes: &[f64],
        grids: &[Grid],
        shape: [usize; 2],
        tensor_scale: Option<f64>,
    ) -> Encoded {
        let counts = self.block.counts(shape).expect("the caller has asked for the counts");
        let scales: Vec<f64> =
            grids.iter().map(|grid| grid.scale / tensor_scale.unwrap_or(1.0)).collect();
        let zero = || {
            Tensor::from_f64(
                self.element,
                counts.to_vec(),
                &grids.iter().map(|g| g.zero).collect::<Vec<_>>(),
            )
        };
        Encoded {
            codes: Tensor::from_f64(self.element, shape.to_vec(), codes),
            scale: Tensor::from_f64(self.scale.dtype(DType::F32), counts.to_vec(), &scales),
            zero: (self.symmetry == Symmetry::Asymmetric).then(zero),
            tensor_scale: tensor_scale.map(|scale| Tensor::scalar(DType::F32, scale)),
        }
    }
}

impl Encoded {
    /// The values, exactly as `dequantize` defines them.
    pub fn decode(&self) -> Vec<f64> {
        let sizes = |t: &Tensor| -> [usize; 2] {
            t.ty().sizes().try_into().expect("a matrix has two extents")
        };
        let blocks = BlockIndex::new(sizes(&self.codes), sizes(&self.scale));
        let (codes, scales) = (self.codes.to_f64(), self.scale.to_f64());
        let zeros = self.zero.as_ref().map(Tensor::to_f64);
        let all = self.tensor_scale.as_ref().map_or(1.0, |scale| scale.to_f64()[0]);
        let value = |(i, code): (usize, &f64)| {
            let block = blocks.at(i);
            (code - zeros.as_ref().map_or(0.0, |zeros| zeros[block])) * scales[block] * all
        };
        codes.iter().enumerate().map(value).collect()
    }

    /// Bytes of codes, and of scales and zero points.
    pub fn bytes(&self) -> [usize; 2] {
        let beside = [Some(&self.scale), self.zero.as_ref(), self.tensor_scale.as_ref()];
        [self.codes.bytes().len(), beside.into_iter().flatten().map(|t| t.bytes().len()).sum()]
    }
}

/// From the position of an element to that of its block.
#[derive(Debug)]
pub struct BlockIndex {
    columns: usize,
    counts: [usize; 2],
    block: [usize; 2],
}

impl BlockIndex {
    /// The grid of a matrix of `shape` in `counts` blocks.
    pub fn new(shape: [usize; 2], counts: [usize; 2]) -> Self {
        let block = [0, 1].map(|axis| shape[axis].checked_div(counts[axis]).unwrap_or(1).max(1));
        Self { columns: shape[1], counts, block }
    }

    /// The block of the element at a row-major position.
    pub fn at(&self, position: usize) -> usize {
        let (row, column) = (position / self.columns, position % self.columns);
        row / self.block[0] * self.counts[1] + column / self.block[1]
    }
}

/// Smallest and largest element of each block.
fn ranges(values: &[f64], shape: [usize; 2], counts: [usize; 2]) -> Vec<[f64; 2]> {
    let index = BlockIndex::new(shape, counts);
    let mut ranges = vec![[f64::INFINITY, f64::NEG_INFINITY]; counts[0] * counts[1]];
    for (i, &x) in values.iter().enumerate() {
        let range = &mut ranges[index.at(i)];
        *range = [range[0].min(x), range[1].max(x)];
    }
    ranges
        .into_iter()
        .map(|[low, high]| if low <= high { [low, high] } else { [0.0, 0.0] })
        .collect()
}

#[cfg(test)]
mod tests;

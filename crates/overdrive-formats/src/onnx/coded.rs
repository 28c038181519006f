//! `Coded`: numbers that a file makes of codes, until something asks for them.
//!
//! `(codes - zero) scale`, from DequantizeLinear or written out (Cast, Sub, Mul, which is how
//! fractional zero points have to be said). A product takes the codes as they are: weights are the
//! larger part of a model, and kernels read them packed. Whoever else asks gets the numbers.
//! Invariant: parameters of the graph are made when they are asked for, so that a model holds its
//! weights once.

use super::item::{ItemValue, KnownTensor};
use super::rearrange::{is_movable, reshaped, turned};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{Builder, DType, Expr, Pad};

/// Numbers and their codes.
#[derive(Clone, Debug)]
pub(super) struct Coded<'b> {
    /// Codes in the order of the numbers.
    pub(super) codes: ItemValue<'b>,
    /// `None` is 1.
    pub(super) scale: Option<ItemValue<'b>>,
    /// `None` is 0.
    pub(super) zero: Option<ItemValue<'b>>,
    /// The shape of the codes.
    pub(super) shape: Vec<usize>,
    /// Extents of scale and zero along each axis. Each element is for equally many numbers.
    pub(super) counts: Vec<usize>,
    /// Extents of the numbers: the first of `shape` along each axis. The rest fills up the last
    /// block.
    pub(super) kept: Vec<usize>,
    /// The type of the numbers.
    pub(super) dtype: DType,
}

/// The axis of a matrix that a product sums over.
#[derive(Copy, Clone, PartialEq)]
pub(super) enum Summed {
    /// `[K, N]`
    Rows,
    /// `[N, K]`
    Columns,
}

impl<'b> Coded<'b> {
    /// Codes without scale or zero point yet, which will become numbers of `dtype`.
    pub(super) fn bare(codes: ItemValue<'b>, shape: Vec<usize>, dtype: DType) -> Self {
        let (counts, kept) = (vec![1; shape.len()], shape.clone());
        Self { codes, scale: None, zero: None, shape, counts, kept, dtype }
    }

    /// The numbers.
    pub(super) fn numbers(&self, b: &'b Builder) -> Expr<'b> {
        let parameter = |value: &ItemValue<'b>| value.expr(b).reshape(self.counts.clone());
        let codes = self.codes.expr(b).reshape(self.shape.clone());
        let zero = self.zero.as_ref().map(parameter);
        let numbers = match (&self.scale, zero) {
            (Some(scale), zero) => codes.dequantize(parameter(scale), zero),
            (None, Some(zero)) => {
                codes.dequantize(b.full(self.dtype, self.counts.clone(), 1.0), Some(zero))
            }
            (None, None) => codes,
        };
        let trimmed = (0..self.shape.len()).filter(|&axis| self.kept[axis] < self.shape[axis]);
        trimmed.fold(numbers.convert(self.dtype), |x, axis| x.slice_axis(axis, 0, self.kept[axis]))
    }

    /// The same numbers under another shape, where blocks stay blocks.
    pub(super) fn reshaped(&self, shape: &[usize]) -> Option<Self> {
        if self.kept != self.shape || self.shape.contains(&0) {
            return None;
        }
        let mut counts = vec![1; shape.len()];
        if self.scale.is_some() || self.zero.is_some() {
            // Each parameter is for so many numbers that follow each other.
            let several = (0..self.shape.len()).rfind(|&axis| self.counts[axis] > 1);
            let whole = several.is_none_or(|last| self.counts[..last] == self.shape[..last]);
            let mut block =
                self.shape.iter().product::<usize>() / self.counts.iter().product::<usize>();
            for axis in (0..shape.len()).rev() {
                if block.is_multiple_of(shape[axis]) {
                    block /= shape[axis];
                } else if shape[axis].is_multiple_of(block) {
                    counts[axis] = shape[axis] / std::mem::replace(&mut block, 1);
                } else {
                    return None;
                }
            }
            if !whole || block != 1 {
                return None;
            }
        }
        Some(Self { shape: shape.to_vec(), kept: shape.to_vec(), counts, ..self.clone() })
    }

    /// The numbers less `zero`, or times `scale`, whose extents are `counts`, where nothing of the
    /// kind is known yet.
    pub(super) fn with(&self, parameter: Parameter<'b>, counts: Vec<usize>) -> Option<Self> {
        let covers = counts.iter().zip(&self.shape).all(|(&n, &size)| n == 1 || n == size);
        let alike = counts == self.counts || self.zero.is_none();
        if !covers || !alike || counts.len() != self.shape.len() || self.scale.is_some() {
            return None;
        }
        match parameter {
            Parameter::Zero(_) if self.zero.is_some() => None,
            Parameter::Zero(zero) => Some(Self { zero: Some(zero), counts, ..self.clone() }),
            Parameter::Scale(scale) => Some(Self { scale: Some(scale), counts, ..self.clone() }),
        }
    }

    /// `x W`, or `x Wᵀ`, of codes; `None` where the numbers have to be multiplied.
    pub(super) fn product(&self, x: Expr<'b>, summed: Summed) -> Option<Expr<'b>> {
        let &[rows, across] = self.shape.as_slice() else { return None };
        let (inner, outer) = if summed == Summed::Rows { (0, 1) } else { (1, 0) };
        let scaled = matches!(self.counts[outer], 1) || self.counts[outer] == self.shape[outer];
        let whole = self.kept[outer] == self.shape[outer] && rows * across > 0;
        let fits = x.dtype() == self.dtype && x.shape().0.last()?.size() == Some(self.kept[inner]);
        if !scaled || !whole || !fits {
            return None;
        }
        let scale = self.scale.as_ref()?;
        let parts: Option<Vec<Expr<'b>>> = [(&self.codes, &self.shape), (scale, &self.counts)]
            .into_iter()
            .chain(self.zero.as_ref().map(|zero| (zero, &self.counts)))
            .map(|(value, shape)| by_rows(x.builder(), value, ([shape[0], shape[1]], summed)))
            .collect();
        let weights =
            if self.zero.is_some() { WeightScales::Asymmetric } else { WeightScales::Symmetric };
        let op = QuantizedLinear { weights, activations: Activations::Float };
        let filled = self.shape[inner] - self.kept[inner];
        // Numbers after the last of x meet codes that fill up the last block: zeros, so that they
        // count for nothing.
        let mut pads = vec![Pad::default(); x.rank()];
        pads.last_mut()?.high = filled as i64;
        let x = if filled == 0 { x } else { x.pad(pads, 0.0) };
        Some(x.quantized_linear(op, &parts?))
    }
}

/// The known parameters of codes.
pub(super) enum Parameter<'b> {
    /// Zero point, which is subtracted first.
    Zero(ItemValue<'b>),
    /// Scale, which multiplies last.
    Scale(ItemValue<'b>),
}

/// A matrix as a product reads it: a row for each output.
fn by_rows<'b>(
    b: &'b Builder,
    value: &ItemValue<'b>,
    (shape, summed): ([usize; 2], Summed),
) -> Option<Expr<'b>> {
    match value {
        ItemValue::Known(known) => known.in_rows(b, shape, summed),
        _ if summed == Summed::Columns => Some(value.expr(b).reshape(shape)),
        _ => None,
    }
}

impl KnownTensor {
    fn in_rows<'b>(&self, b: &'b Builder, shape: [usize; 2], summed: Summed) -> Option<Expr<'b>> {
        let tensor = &self.tensor;
        match summed {
            Summed::Columns if tensor.ty().sizes() == shape => Some(self.expr(b)),
            // Halves of bytes are not reshaped by every device.
            Summed::Columns if tensor.ty().dtype.bits() < 8 => {
                Some(self.rearranged(b, reshaped(tensor, &shape)))
            }
            Summed::Columns => Some(self.expr(b).reshape(shape)),
            Summed::Rows if is_movable(tensor.ty().dtype) => {
                Some(self.rearranged(b, turned(tensor, shape)))
            }
            Summed::Rows => None,
        }
    }
}

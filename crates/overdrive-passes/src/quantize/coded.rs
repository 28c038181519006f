//! A layer's products in the graph of codes: the states that they read, and the nodes.

use super::held::LayerKind;
use super::layers::Layer;
use super::scheme::Scheme;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_linear::{Activations, QuantizedLinear, WeightScales};
use overdrive_ir::ops::{Conv2d, Embedding};
use overdrive_ir::{Builder, DType, Expr, Init, Mismatch, Node, TensorType};
use std::ops::Range;

/// A product of a layer, in the graph that is built.
pub(super) struct LayerProduct<'b, 'n> {
    /// The node that it stands for.
    pub(super) node: &'n Node,
    /// The rows of the weight that it multiplies by.
    pub(super) rows: &'n Range<usize>,
    /// The other operand of the product; the indices of an embedding.
    pub(super) x: Expr<'b>,
    pub(super) bias: Option<Expr<'b>>,
}

/// A state: its type, and what it begins as.
type CodedState = (TensorType, Init);

/// A layer with the states of its codes.
pub(super) struct Coded<'a> {
    pub(super) layer: &'a Layer,
    pub(super) scheme: &'a Scheme,
    pub(super) codes: CodedState,
    pub(super) scale: CodedState,
    pub(super) zero: Option<CodedState>,
    pub(super) tensor_scale: Option<CodedState>,
    /// Scale and zero point of static activations.
    pub(super) input: Option<(CodedState, Option<CodedState>)>,
}

impl<'a> Coded<'a> {
    /// A layer whose states begin as zeros, to be loaded.
    ///
    /// # Errors
    /// When the layer cannot take the scheme.
    pub(super) fn unloaded(layer: &'a Layer, scheme: &'a Scheme) -> Result<Self, Mismatch> {
        if scheme.rotation.is_some() && layer.kind != LayerKind::Linear {
            let expected = "a linear layer, whose inputs a rotation turns";
            return Err(Mismatch::new(expected, "a convolution"));
        }
        let format = &scheme.weights;
        let zeros = |dtype: DType, sizes: Vec<usize>| (TensorType::new(dtype, sizes), Init::ZEROS);
        let counts = format.block.counts(layer.shape)?.to_vec();
        let input = match scheme.activations {
            Activations::Static(element) => {
                let zero = element.is_int().then(|| zeros(element, vec![]));
                Some((zeros(DType::F32, vec![]), zero))
            }
            _ => None,
        };
        Ok(Self {
            layer,
            scheme,
            codes: zeros(format.element, layer.shape.to_vec()),
            scale: zeros(format.scale.dtype(DType::F32), counts.clone()),
            zero: scheme.rounding.zero(format).map(|dtype| zeros(dtype, counts)),
            tensor_scale: (format.scale == ScaleFormat::F8e4m3).then(|| zeros(DType::F32, vec![])),
            input,
        })
    }

    /// The op of its products.
    pub(super) fn op(&self) -> QuantizedLinear {
        let weights = match (self.zero.is_some(), self.tensor_scale.is_some()) {
            (true, _) => WeightScales::Asymmetric,
            (false, true) => WeightScales::TwoLevel,
            (false, false) => WeightScales::Symmetric,
        };
        QuantizedLinear { weights, activations: self.scheme.activations }
    }

    /// A product of the layer.
    pub(super) fn build<'b>(
        &self,
        LayerProduct { node, rows, x, bias }: LayerProduct<'b, '_>,
    ) -> Expr<'b> {
        let b = x.builder();
        let state = |name: String, (ty, init): &CodedState| shared(b, &name, ty, || init.clone());
        let weight = &self.layer.weight;
        let codes = rows_of(state(weight.clone(), &self.codes), rows);
        let scale = rows_of(state(format!("{weight}_scale"), &self.scale), rows);
        if node.op.composite::<Embedding>().is_some() {
            return picked(codes, x).dequantize(picked(scale, x), None);
        }
        let zero = self.zero.as_ref();
        let zero = zero.map(|zero| rows_of(state(format!("{weight}_zero_point"), zero), rows));
        let tensor_scale = self.tensor_scale.as_ref();
        let tensor_scale = tensor_scale.map(|scale| state(format!("{weight}_tensor_scale"), scale));
        let input = self.input.as_ref().map(|(scale, zero)| {
            let zero = zero.as_ref().map(|zero| state(self.layer.input("zero_point"), zero));
            (state(self.layer.input("scale"), scale), zero)
        });
        match self.layer.kind {
            LayerKind::Linear => {
                let beside = [Some(codes), Some(scale), zero, tensor_scale];
                let of_input = input.into_iter().flat_map(|(scale, zero)| [Some(scale), zero]);
                let operands: Vec<Expr<'b>> =
                    beside.into_iter().chain(of_input).flatten().collect();
                let y = self.scheme.rotated(x).quantized_linear(self.op(), &operands);
                bias.map_or(y, |bias| y + bias)
            }
            LayerKind::Convolution => {
                let values = codes.dequantize(scale, zero);
                let values = tensor_scale.map_or(values, |scale| values * scale);
                let geometry =
                    node.op.composite::<Conv2d>().expect("a convolution layer is a conv2d");
                let sizes = self.layer.held.sizes.clone();
                rounded((self.layer.kind, self.scheme), x, input).conv2d(
                    values.reshape(sizes),
                    bias,
                    geometry.clone(),
                )
            }
        }
    }
}

/// Rows of a matrix at these indices.
fn picked<'b>(matrix: Expr<'b>, indices: Expr<'b>) -> Expr<'b> {
    let mut shape = indices.shape();
    shape.0.push(1.into());
    matrix.gather(indices.reshape(shape), &[0])
}

/// x as its codes stand for it: a scale for each row of a product, for each sample of a
/// convolution, or the static one.
pub(super) fn rounded<'b>(
    (kind, scheme): (LayerKind, &Scheme),
    x: Expr<'b>,
    input: Option<(Expr<'b>, Option<Expr<'b>>)>,
) -> Expr<'b> {
    let ones = vec![1usize; x.rank()];
    match (scheme.activations, input) {
        (Activations::Static(element), Some((scale, zero))) => {
            let scale = scale.reshape(ones.clone());
            let zero = zero.map(|zero| zero.reshape(ones));
            x.quantize(scale, zero, element).dequantize(scale, zero)
        }
        (Activations::Dynamic(element), _) => {
            let apart = |axis: usize| match kind {
                LayerKind::Linear => axis + 1 < x.rank(),
                LayerKind::Convolution => axis == 0,
            };
            let block: Vec<Option<usize>> =
                (0..x.rank()).map(|axis| apart(axis).then_some(1)).collect();
            let scale = x.block_scale(&block, element, ScaleFormat::Wide);
            x.quantize(scale, None, element).dequantize(scale, None)
        }
        _ => x,
    }
}

/// The state of this name in the graph that is built: parts of a layer share it.
pub(super) fn shared<'b>(
    b: &'b Builder,
    name: &str,
    ty: &TensorType,
    init: impl FnOnce() -> Init,
) -> Expr<'b> {
    b.find_state(name).unwrap_or_else(|| b.state_named(name, ty.clone(), init()))
}

/// Rows of a matrix, or all of it where it has one row for all.
pub(super) fn rows_of<'b>(matrix: Expr<'b>, rows: &Range<usize>) -> Expr<'b> {
    let all = matrix.is_poison() || matrix.size(0) == 1 || *rows == (0..matrix.size(0));
    if all { matrix } else { matrix.slice_axis(0, rows.start, rows.end) }
}

//! Quantized composites as QuantizeLinear and DequantizeLinear: per tensor, per channel and in
//! blocks.
//!
//! A layer of quantized weights is a DequantizeLinear of its codes before a Gemm. Static
//! activations go through a pair of both (QDQ). Engines fuse these into integer products. Zero
//! points that are fractions are written out. Opset 23 cannot say scales of two axes, or zero
//! points of another integer type, in this way. These are left to the expansion of the op, and so
//! are activations whose scales are computed.

use super::microscaling::steps;
use super::signature::Signature;
use super::writer::{Writer, float, int};
use crate::onnx::types::theirs;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::ops::{Dequantize, Quantize, QuantizedLinear};
use overdrive_ir::{DType, Operation, TensorType};

/// The result, or `None` where it is to be expanded.
pub(super) fn write(
    op: &Operation,
    w: &mut Writer,
    x: &[String],
    types: &Signature,
) -> Option<String> {
    if let Some(quantize) = op.composite::<Quantize>() {
        return pair_up(w, x, &types.operands)?.quantize(w, quantize.to);
    }
    if op.composite::<Dequantize>().is_some() {
        return pair_up(w, x, &types.operands)?.dequantize(w);
    }
    let linear = op.composite::<QuantizedLinear>()?;
    let static_of = match linear.activations {
        Activations::Float => None,
        Activations::Static(dtype) => Some(dtype),
        Activations::Dynamic(_) | Activations::Blocks(..) => return None,
    };
    if types.operands[0].dtype == DType::F64 || types.operands[0].elements() == 0 {
        return None;
    }
    let names = linear.operands();
    let at = |name: &str| names.iter().position(|n| *n == name);
    let beside = |names: &[&str]| -> (Vec<String>, Vec<TensorType>) {
        names
            .iter()
            .filter_map(|name| at(name))
            .map(|i| (x[i].clone(), types.operands[i].clone()))
            .unzip()
    };
    let (of_weights, weight_types) = beside(&["codes", "scale", "zero"]);
    let fractions = weight_types.get(2).is_some_and(|zero| zero.dtype.is_arithmetic_float());
    let mut weights = if fractions {
        written_out(w, &of_weights, &weight_types)?
    } else {
        pair_up(w, &of_weights, &weight_types)?.dequantize(w)?
    };
    if linear.weights == WeightScales::TwoLevel {
        let scale = w.cast(&x[at("tensor_scale")?], DType::F32).ok()?;
        weights = w.one("Mul", &[&weights, &scale], vec![]);
    }
    // Flat before it is quantized: nothing stands between the pair and the product.
    let flat = vec![types.operands[0].elements() / types.sizes(1)[1], types.sizes(1)[1]];
    let wide = w.cast(&x[0], DType::F32).ok()?;
    let mut left = w.reshape(&wide, &flat);
    if let Some(dtype) = static_of {
        let (names, mut scalars) = beside(&["x_scale", "x_zero"]);
        // A scalar scales the whole tensor: one block of every axis.
        scalars.iter_mut().for_each(|ty| *ty = ty.with_shape(vec![1; flat.len()]));
        let names: Vec<String> = [left.clone()].into_iter().chain(names).collect();
        let of_x: Vec<TensorType> =
            [TensorType::new(DType::F32, flat)].into_iter().chain(scalars).collect();
        let mut pair = pair_up(w, &names, &of_x)?;
        pair.x = pair.quantize(w, dtype)?;
        pair.dtype = dtype;
        left = pair.dequantize(w)?;
    }
    let attributes =
        vec![float("alpha", 1.0), float("beta", 1.0), int("transA", 0), int("transB", 1)];
    let product = w.one("Gemm", &[&left, &weights], attributes);
    let y = w.reshape(&product, &types.results[0].sizes());
    w.cast(&y, types.results[0].dtype).ok()
}

/// `(codes - zero) scale` in f32 of zero points that are fractions, which no op takes: groups get
/// an axis of their own.
fn written_out(w: &mut Writer, x: &[String], types: &[TensorType]) -> Option<String> {
    let ([n, k], [rows, groups]) = (matrix(&types[0])?, matrix(&types[1])?);
    if types[1..].iter().any(|ty| ty.dtype == DType::F64) || k.checked_rem(groups)? != 0 {
        return None;
    }
    let several = groups > 1;
    let mut wide = |name: &String, shape: &[usize]| {
        let wide = w.cast(name, DType::F32).ok()?;
        Some(if several { w.reshape(&wide, shape) } else { wide })
    };
    let codes = wide(&x[0], &[n, groups, k / groups])?;
    let [scale, zero] = [&x[1], &x[2]].map(|name| wide(name, &[rows, groups, 1]));
    let centred = w.one("Sub", &[&codes, &zero?], vec![]);
    let numbers = w.one("Mul", &[&centred, &scale?], vec![]);
    Some(if several { w.reshape(&numbers, &[n, k]) } else { numbers })
}

fn matrix(ty: &TensorType) -> Option<[usize; 2]> {
    ty.sizes().try_into().ok()
}

/// Inputs of QuantizeLinear and DequantizeLinear.
struct Pair {
    x: String,
    dtype: DType,
    scale: String,
    zero: Option<(String, DType)>,
    axis: usize,
    block: usize,
    /// Whether one scale is for all.
    whole: bool,
}

/// A tensor, its scale and perhaps its zero point as ONNX wants them.
fn pair_up(w: &mut Writer, x: &[String], types: &[TensorType]) -> Option<Pair> {
    let (sizes, counts) = (types[0].sizes(), types[1].sizes());
    if types[1].dtype == DType::F64 || types.get(2).is_some_and(|zero| zero.sizes() != counts) {
        return None;
    }
    let Along { axis, block, shape } = along(&sizes, &counts)?;
    // ONNX Runtime reshapes nothing of 4 bits.
    if shape != counts && types.get(2).is_some_and(|zero| zero.dtype.bits() < 8) {
        return None;
    }
    let mut shaped =
        |name: &str| if shape == counts { name.to_owned() } else { w.reshape(name, &shape) };
    let zero = x.get(2).map(|zero| (shaped(zero), types[2].dtype));
    let scale = shaped(&x[1]);
    let mut scale =
        if types[1].dtype == DType::F32 { scale } else { w.cast(&scale, DType::F32).ok()? };
    let (mut x, mut dtype) = (x[0].clone(), types[0].dtype);
    if let Some((codes, small)) = w.steps.get(&x).cloned() {
        let (integer, step) = steps(small)?;
        let step = w.number(DType::F32, step).ok()?;
        scale = w.one("Mul", &[&scale, &step], vec![]);
        (x, dtype) = (codes, integer);
    }
    Some(Pair { x, dtype, scale, zero, axis, block, whole: shape.is_empty() })
}

/// How scales lie: along one axis, in blocks of it, or one for all; and the shape that says so.
#[derive(Debug, PartialEq)]
struct Along {
    axis: usize,
    block: usize,
    shape: Vec<usize>,
}

fn along(sizes: &[usize], counts: &[usize]) -> Option<Along> {
    if sizes.contains(&0) {
        return None;
    }
    let several: Vec<usize> = (0..counts.len()).filter(|&a| counts[a] > 1).collect();
    match several[..] {
        [] => return Some(Along { axis: 0, block: 0, shape: vec![] }),
        [axis] if counts[axis] == sizes[axis] => {
            return Some(Along { axis, block: 0, shape: vec![sizes[axis]] });
        }
        _ => {}
    }
    let partial: Vec<usize> = (0..counts.len()).filter(|&a| counts[a] != sizes[a]).collect();
    match partial[..] {
        [] => Some(Along { axis: counts.len() - 1, block: 1, shape: counts.to_vec() }),
        [axis] => Some(Along { axis, block: sizes[axis] / counts[axis], shape: counts.to_vec() }),
        _ => None,
    }
}

impl Pair {
    fn attributes(&self) -> Vec<crate::onnx::proto::AttributeProto> {
        vec![int("axis", self.axis as i64), int("block_size", self.block as i64)]
    }

    fn quantize(&self, w: &mut Writer, to: DType) -> Option<String> {
        // QuantizeLinear saturates infinities, which ours keeps in f8e5m2.
        let codes = matches!(
            to,
            DType::I4 | DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::F8E4M3
        );
        if !codes
            || self.dtype == DType::F64
            || self.zero.as_ref().is_some_and(|(_, dtype)| *dtype != to)
        {
            return None;
        }
        let mut attributes = self.attributes();
        attributes.push(int("saturate", 1));
        let zero = self.zero_of(w, to);
        // The zero point has the type, and rewriters of engines that change it forget the
        // attribute.
        if zero.is_none() {
            attributes.push(int("output_dtype", theirs(to)? as i64));
        }
        let x = w.cast(&self.x, DType::F32).ok()?;
        Some(w.one("QuantizeLinear", &inputs(&x, &self.scale, zero.as_ref()), attributes))
    }

    fn dequantize(&self, w: &mut Writer) -> Option<String> {
        let codes = matches!(
            self.dtype,
            DType::I4
                | DType::I8
                | DType::U8
                | DType::I16
                | DType::U16
                | DType::F8E4M3
                | DType::F8E5M2
        );
        if !codes || self.zero.as_ref().is_some_and(|(_, dtype)| *dtype != self.dtype) {
            return None;
        }
        let zero = self.zero_of(w, self.dtype);
        Some(w.one(
            "DequantizeLinear",
            &inputs(&self.x, &self.scale, zero.as_ref()),
            self.attributes(),
        ))
    }

    /// The zero point, written even where it is 0 for a whole tensor of bytes. Engines that fuse
    /// ops of codes take a missing zero point for one of u8, whatever the codes are.
    fn zero_of(&self, w: &mut Writer, codes: DType) -> Option<String> {
        match &self.zero {
            Some((name, _)) => Some(name.clone()),
            None if self.whole && matches!(codes, DType::I8 | DType::U8) => {
                w.number(codes, 0.0).ok()
            }
            None => None,
        }
    }
}

fn inputs<'a>(x: &'a str, scale: &'a str, zero: Option<&'a String>) -> Vec<&'a str> {
    [x, scale].into_iter().chain(zero.map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_per_tensor_per_channel_or_in_blocks() {
        let found = |sizes: &[usize], counts: &[usize]| {
            along(sizes, counts).map(|a| (a.axis, a.block, a.shape))
        };
        assert_eq!(found(&[4, 6], &[1, 1]), Some((0, 0, vec![])));
        assert_eq!(found(&[4, 6], &[4, 1]), Some((0, 0, vec![4])));
        assert_eq!(found(&[4, 6], &[1, 6]), Some((1, 0, vec![6])));
        assert_eq!(found(&[4, 6], &[4, 2]), Some((1, 3, vec![4, 2])));
        assert_eq!(found(&[2, 3, 8], &[2, 3, 1]), Some((2, 8, vec![2, 3, 1])));
        assert_eq!(found(&[4, 6], &[2, 2]), None);
        assert_eq!(found(&[0, 6], &[1, 1]), None);
    }
}

//! Contractions and convolutions.

use super::convert::convert;
use super::literal::{array, list, pairs};
use super::writer::{Term, Writer};
use overdrive_ir::{Convolution, DType, DotGeneral, Overflow, Precision, TensorType};

/// The types in which a contraction is given to XLA.
struct Types {
    operands: [DType; 2],
    result: DType,
}

impl Types {
    /// XLA sums products of short floats in f32 and rounds the sum once, whatever short float the
    /// result is.
    fn of([a, b]: [DType; 2], accumulate: DType, out: DType) -> Self {
        let native = |dtype: DType| dtype.is_arithmetic_float() || dtype.is_fp8();
        if !a.is_float() {
            let short = a == DType::I8 && accumulate == DType::I32;
            let operand = if short { a } else { accumulate };
            return Self { operands: [operand; 2], result: accumulate };
        }
        if !native(a) || !native(b) || accumulate == DType::F64 {
            return Self { operands: [accumulate; 2], result: accumulate };
        }
        let direct = out.is_arithmetic_float();
        Self { operands: [a, b], result: if direct { out } else { accumulate } }
    }

    fn precision(&self, precision: Precision) -> String {
        let short =
            self.operands.iter().all(|d| matches!(d, DType::F16 | DType::BF16) || !d.is_float());
        let name = if precision == Precision::Exact && !short { "HIGHEST" } else { "DEFAULT" };
        format!("precision_config = [#stablehlo<precision {name}>, #stablehlo<precision {name}>]")
    }
}

pub(super) fn dot(w: &mut Writer, x: [&Term; 2], dot: &DotGeneral, ty: TensorType) -> Term {
    let types = Types::of(x.map(Term::dtype), dot.accumulate, dot.out);
    let [a, b] = [w.cast(x[0], types.operands[0]), w.cast(x[1], types.operands[1])];
    let side = |pairs: &[(usize, usize)], pick: fn(&(usize, usize)) -> usize| {
        list(&pairs.iter().map(pick).collect::<Vec<usize>>())
    };
    let attributes = format!(
        "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [{}], \
         rhs_batching_dimensions = [{}], \
         lhs_contracting_dimensions = [{}], rhs_contracting_dimensions = [{}]>, {}",
        side(&dot.batch, |p| p.0),
        side(&dot.batch, |p| p.1),
        side(&dot.contract, |p| p.0),
        side(&dot.contract, |p| p.1),
        types.precision(dot.precision)
    );
    let result = w.apply("dot_general", &[&a, &b], &attributes, ty.with_dtype(types.result));
    convert(w, &result, dot.out, Overflow::Ieee)
}

pub(super) fn convolution(
    w: &mut Writer,
    x: [&Term; 2],
    conv: &Convolution,
    ty: TensorType,
) -> Term {
    let types = Types::of(x.map(Term::dtype), conv.accumulate, conv.out);
    let [a, b] = [w.cast(x[0], types.operands[0]), w.cast(x[1], types.operands[1])];
    let each = |f: fn(&overdrive_ir::plan::WindowDimension) -> usize| {
        array(&conv.window.iter().map(f).collect::<Vec<usize>>())
    };
    let edges: Vec<[i64; 2]> = conv.window.iter().map(|d| [d.pad_low, d.pad_high]).collect();
    let spatial: String = (0..conv.window.len()).map(|d| format!(", {d}")).collect();
    let reversal = vec!["false"; conv.window.len()];
    let reversal = if reversal.is_empty() {
        "array<i1>".into()
    } else {
        format!("array<i1: {}>", list(&reversal))
    };
    let attributes = format!(
        "batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f{spatial}]x[o, \
         i{spatial}]->[b, f{spatial}]>, \
         feature_group_count = {} : i64, lhs_dilation = {}, padding = {}, {}, rhs_dilation = {}, \
         window_reversal = {reversal}, window_strides = {}",
        conv.groups,
        each(|d| d.input_dilation),
        pairs(&edges),
        types.precision(Precision::Exact),
        each(|d| d.kernel_dilation),
        each(|d| d.stride)
    );
    let result = w.apply("convolution", &[&a, &b], &attributes, ty.with_dtype(types.result));
    convert(w, &result, conv.out, Overflow::Ieee)
}

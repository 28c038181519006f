//! Primitives as nodes of the default domain. Those whose positions are data stand in `indexing`,
//! products in `contraction`.

use super::pad::{pad, slice};
use super::signature::Signature;
use super::writer::{Unsaid, Writer, extents, int, text};
use super::{contraction, convert, indexing};
use crate::onnx::types::theirs;
use overdrive_ir::{Binary, Compare, DType, Prim, Reducer, SortOrder, Unary, Window};

pub(super) fn write(
    prim: &Prim,
    w: &mut Writer,
    x: &[String],
    types: &Signature,
) -> Result<Vec<String>, Unsaid> {
    let dtype = types.operands.first().map_or(DType::F32, |ty| ty.dtype);
    let one = |name: String| Ok(vec![name]);
    match prim {
        Prim::Constant { value } => one(w.tensor(value)?),
        Prim::Unary { kind } => one(unary(*kind, w, &x[0], dtype)?),
        Prim::Binary { kind } => one(binary(*kind, w, [&x[0], &x[1]], dtype)?),
        Prim::Compare { kind } => {
            let op = match kind {
                Compare::Eq | Compare::Ne => "Equal",
                Compare::Lt => "Less",
                Compare::Le => "LessOrEqual",
                Compare::Gt => "Greater",
                Compare::Ge => "GreaterOrEqual",
            };
            let holds = w.one(op, &[&x[0], &x[1]], vec![]);
            one(if *kind == Compare::Ne { w.one("Not", &[&holds], vec![]) } else { holds })
        }
        Prim::Select => one(w.one("Where", &[&x[0], &x[1], &x[2]], vec![])),
        Prim::Convert { to, overflow } => one(convert::write(w, &x[0], dtype, (*to, *overflow))?),
        Prim::Broadcast { shape, dims } => {
            let (from, to) = (types.sizes(0), shape.known().unwrap_or_default());
            let mut thin = vec![1; to.len()];
            dims.iter().zip(from).for_each(|(&d, n)| thin[d] = n);
            let thin = w.reshape(&x[0], &thin);
            let shape = w.sizes(&to);
            one(w.one("Expand", &[&thin, &shape], vec![]))
        }
        Prim::Reshape { shape } => one(w.reshape(&x[0], &shape.known().unwrap_or_default())),
        Prim::Transpose { perm } => one(w.transpose(&x[0], perm)),
        Prim::Slice { start, limit, stride } => one(slice(w, &x[0], [start, limit, stride])),
        Prim::Pad { pads } => one(pad(w, [&x[0], &x[1]], &types.sizes(0), pads)),
        Prim::Concat { axis } => {
            let parts: Vec<&str> = x.iter().map(String::as_str).collect();
            one(w.one("Concat", &parts, vec![int("axis", *axis as i64)]))
        }
        Prim::Iota { dtype, shape, axis } => {
            let shape = shape.known().unwrap_or_default();
            let count: Vec<f64> = vec![0.0, shape[*axis] as f64, 1.0];
            let ends = count
                .into_iter()
                .map(|n| w.number(DType::I64, n))
                .collect::<Result<Vec<_>, _>>()?;
            let steps = w.one("Range", &[&ends[0], &ends[1], &ends[2]], vec![]);
            let steps = w.cast(&steps, *dtype)?;
            let mut thin = vec![1; shape.len()];
            thin[*axis] = shape[*axis];
            let (thin, whole) = (w.reshape(&steps, &thin), w.sizes(&shape));
            one(w.one("Expand", &[&thin, &whole], vec![]))
        }
        Prim::Reduce { reducer, axes } => one(reduce(w, &x[0], (*reducer, axes), dtype)?),
        Prim::ReduceWindow { reducer, windows } => {
            one(reduce_window(w, &x[0], *reducer, (windows, types))?)
        }
        Prim::DotGeneral(dot) => one(contraction::contraction(w, [&x[0], &x[1]], dot, types)?),
        Prim::Convolution(conv) => one(contraction::convolution(w, [&x[0], &x[1]], conv, types)?),
        Prim::Gather { axes } => one(indexing::gather(w, [&x[0], &x[1]], axes, types)?),
        Prim::Scatter { axes, reducer } => {
            one(indexing::scatter(w, [&x[0], &x[1], &x[2]], (axes, *reducer), types)?)
        }
        Prim::DynamicSlice { sizes } => {
            one(indexing::dynamic_slice(w, [&x[0], &x[1]], sizes, types)?)
        }
        Prim::DynamicUpdateSlice => one(indexing::dynamic_update(w, [&x[0], &x[1], &x[2]], types)?),
        Prim::Sort { axis, order } => {
            let count = w.sizes(&[types.sizes(0)[*axis]]);
            let largest = i64::from(*order == SortOrder::Descending);
            let attributes =
                vec![int("axis", *axis as i64), int("largest", largest), int("sorted", 1)];
            let sorted = w.many("TopK", &[&x[0], &count], attributes, 2);
            Ok(vec![sorted[0].clone(), w.cast(&sorted[1], DType::I32)?])
        }
        Prim::Bitcast { to, .. } if to.bits() == dtype.bits() => {
            let code = theirs(*to).ok_or_else(|| Unsaid(format!("no element type for {to}")))?;
            one(w.one("BitCast", &[&x[0]], vec![int("to", code as i64)]))
        }
        Prim::Bitcast { to, .. } => {
            Err(Unsaid(format!("no reading of {dtype} as {to}, of another width")))
        }
        Prim::RandomBits { .. } => Err(Unsaid("ONNX leaves its random numbers open".into())),
        Prim::If | Prim::While { .. } => Err(Unsaid("control flow is not written".into())),
        Prim::RankIndex { .. }
        | Prim::AllReduce { .. }
        | Prim::AllGather { .. }
        | Prim::ReduceScatter { .. }
        | Prim::AllToAll { .. }
        | Prim::Permute { .. } => Err(Unsaid("ONNX has no ranks".into())),
    }
}

fn unary(kind: Unary, w: &mut Writer, x: &str, dtype: DType) -> Result<String, Unsaid> {
    let op = match kind {
        Unary::Neg => "Neg",
        Unary::Abs => "Abs",
        Unary::Sign => "Sign",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sqrt => "Sqrt",
        Unary::Reciprocal => "Reciprocal",
        Unary::Sin => "Sin",
        Unary::Cos => "Cos",
        Unary::Tanh => "Tanh",
        Unary::Erf => "Erf",
        Unary::Logistic => "Sigmoid",
        Unary::Floor => "Floor",
        Unary::Ceil => "Ceil",
        Unary::Round => "Round",
        Unary::Not if dtype == DType::Bool => "Not",
        Unary::Not => "BitwiseNot",
        Unary::Rsqrt => {
            let root = w.one("Sqrt", &[x], vec![]);
            return Ok(w.one("Reciprocal", &[&root], vec![]));
        }
        Unary::Expm1 | Unary::Log1p => return near_zero(kind, w, x, dtype),
    };
    Ok(w.one(op, &[x], vec![]))
}

/// `eˣ - 1 = 2t / (1 - t)` with `t = tanh(x/2)`, and `log(1 + x) = 2 artanh(x / (2 + x))`. They are
/// exact near 0, where the plain forms cancel. Further out, the plain forms are written.
fn near_zero(kind: Unary, w: &mut Writer, x: &str, dtype: DType) -> Result<String, Unsaid> {
    let (one, two, half) = (w.number(dtype, 1.0)?, w.number(dtype, 2.0)?, w.number(dtype, 0.5)?);
    let size = w.one("Abs", &[x], vec![]);
    let small = w.one("Less", &[&size, &half], vec![]);
    let (close, far) = if kind == Unary::Expm1 {
        let halved = w.one("Mul", &[x, &half], vec![]);
        let t = w.one("Tanh", &[&halved], vec![]);
        let (doubled, rest) =
            (w.one("Mul", &[&t, &two], vec![]), w.one("Sub", &[&one, &t], vec![]));
        let power = w.one("Exp", &[x], vec![]);
        (w.one("Div", &[&doubled, &rest], vec![]), w.one("Sub", &[&power, &one], vec![]))
    } else {
        let more = w.one("Add", &[x, &two], vec![]);
        let ratio = w.one("Div", &[x, &more], vec![]);
        let turned = w.one("Atanh", &[&ratio], vec![]);
        let sum = w.one("Add", &[x, &one], vec![]);
        (w.one("Mul", &[&turned, &two], vec![]), w.one("Log", &[&sum], vec![]))
    };
    Ok(w.one("Where", &[&small, &close, &far], vec![]))
}

fn binary(kind: Binary, w: &mut Writer, x: [&str; 2], dtype: DType) -> Result<String, Unsaid> {
    let logical = dtype == DType::Bool;
    let (op, attributes) = match kind {
        Binary::Add => ("Add", vec![]),
        Binary::Sub => ("Sub", vec![]),
        Binary::Mul => ("Mul", vec![]),
        Binary::Div => ("Div", vec![]),
        Binary::Rem => ("Mod", vec![int("fmod", 1)]),
        Binary::Pow => ("Pow", vec![]),
        Binary::Max => ("Max", vec![]),
        Binary::Min => ("Min", vec![]),
        Binary::And => (if logical { "And" } else { "BitwiseAnd" }, vec![]),
        Binary::Or => (if logical { "Or" } else { "BitwiseOr" }, vec![]),
        Binary::Xor => (if logical { "Xor" } else { "BitwiseXor" }, vec![]),
        Binary::Shl | Binary::Shr if dtype.int_range().is_none_or(|(low, _)| low < 0) => {
            return Err(Unsaid(format!("no shift of {dtype}")));
        }
        Binary::Shl => ("BitShift", vec![text("direction", "LEFT")]),
        Binary::Shr => ("BitShift", vec![text("direction", "RIGHT")]),
    };
    Ok(w.one(op, &x, attributes))
}

fn reduce(
    w: &mut Writer,
    x: &str,
    (reducer, axes): (Reducer, &[usize]),
    dtype: DType,
) -> Result<String, Unsaid> {
    let list = w.sizes(axes);
    let attributes = || vec![int("keepdims", 0), int("noop_with_empty_axes", 1)];
    let op = match reducer {
        Reducer::Sum => "ReduceSum",
        Reducer::Prod => "ReduceProd",
        Reducer::Max | Reducer::Or => "ReduceMax",
        Reducer::Min | Reducer::And => "ReduceMin",
    };
    if !matches!(reducer, Reducer::And | Reducer::Or) {
        return Ok(w.one(op, &[x, &list], attributes()));
    }
    if dtype != DType::Bool {
        return Err(Unsaid(format!("no bitwise reduction of {dtype}")));
    }
    let number = w.cast(x, DType::I32)?;
    let folded = w.one(op, &[&number, &list], attributes());
    w.cast(&folded, DType::Bool)
}

/// As a pooling over the axes that have windows; the others are one batch.
fn reduce_window(
    w: &mut Writer,
    x: &str,
    reducer: Reducer,
    (windows, types): (&[Window], &Signature),
) -> Result<String, Unsaid> {
    let plain = Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 };
    let active: Vec<usize> = (0..windows.len()).filter(|&a| windows[a] != plain).collect();
    if active.is_empty() {
        return Ok(x.to_owned());
    }
    let (from, to) = (types.sizes(0), types.results[0].sizes());
    let rest: Vec<usize> = (0..windows.len()).filter(|a| !active.contains(a)).collect();
    let perm: Vec<usize> = rest.iter().chain(&active).copied().collect();
    let pooled = |sizes: &[usize]| -> Vec<usize> {
        let batch = rest.iter().map(|&a| sizes[a]).product();
        [batch, 1].into_iter().chain(active.iter().map(|&a| sizes[a])).collect()
    };
    let turned = w.transpose(x, &perm);
    let flat = w.reshape(&turned, &pooled(&from));
    let each = |f: fn(&Window) -> usize| -> Vec<usize> {
        active.iter().map(|&a| f(&windows[a])).collect()
    };
    let pads = [each(|w| w.pad_low), each(|w| w.pad_high)].concat();
    let attributes = vec![
        extents("kernel_shape", &each(|w| w.size)),
        extents("strides", &each(|w| w.stride)),
        extents("dilations", &each(|w| w.dilation)),
        extents("pads", &pads),
        int("ceil_mode", 0),
        text("auto_pad", "NOTSET"),
    ];
    let dtype = types.operands[0].dtype;
    let y = match reducer {
        Reducer::Max => {
            w.one("MaxPool", &[&flat], [attributes, vec![int("storage_order", 0)]].concat())
        }
        Reducer::Min => {
            let negative = w.one("Neg", &[&flat], vec![]);
            let y = w.one(
                "MaxPool",
                &[&negative],
                [attributes, vec![int("storage_order", 0)]].concat(),
            );
            w.one("Neg", &[&y], vec![])
        }
        Reducer::Sum if dtype.is_arithmetic_float() => {
            let mean = w.one(
                "AveragePool",
                &[&flat],
                [attributes, vec![int("count_include_pad", 1)]].concat(),
            );
            let count = w.number(dtype, each(|w| w.size).iter().map(|&n| n as f64).product())?;
            w.one("Mul", &[&mean, &count], vec![])
        }
        _ => return Err(Unsaid(format!("no pooling by {reducer:?} of {dtype}"))),
    };
    let apart = w.reshape(&y, &perm.iter().map(|&a| to[a]).collect::<Vec<usize>>());
    let back: Vec<usize> =
        (0..perm.len()).map(|a| perm.iter().position(|&p| p == a).unwrap_or(a)).collect();
    Ok(w.transpose(&apart, &back))
}

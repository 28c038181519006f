//! Reductions. Sums and products of the short floats run in f32, as the reference accumulates them.

use super::elementwise::binary;
use super::literal::{array, pairs};
use super::writer::{Application, Term, Writer};
use overdrive_ir::{DType, Reducer, TensorType, Window};

pub(super) fn reduce(w: &mut Writer, x: &Term, reducer: Reducer, axes: &[usize]) -> Term {
    if axes.is_empty() {
        return x.clone();
    }
    let sizes = x.sizes();
    let kept: Vec<usize> =
        (0..sizes.len()).filter(|axis| !axes.contains(axis)).map(|axis| sizes[axis]).collect();
    let ty = x.ty.with_shape(kept);
    folded(w, x, (reducer, ty), ("stablehlo.reduce", &format!("dimensions = {}", array(axes))))
}

pub(super) fn reduce_window(
    w: &mut Writer,
    x: &Term,
    (reducer, windows): (Reducer, &[Window]),
    ty: TensorType,
) -> Term {
    if windows.is_empty() {
        return x.clone();
    }
    let each = |f: fn(&Window) -> usize| array(&windows.iter().map(f).collect::<Vec<usize>>());
    let edges: Vec<[i64; 2]> =
        windows.iter().map(|w| [w.pad_low as i64, w.pad_high as i64]).collect();
    let attributes = format!(
        "base_dilations = {}, padding = {}, window_dilations = {}, window_dimensions = {}, \
         window_strides = {}",
        each(|_| 1),
        pairs(&edges),
        each(|w| w.dilation),
        each(|w| w.size),
        each(|w| w.stride)
    );
    folded(w, x, (reducer, ty), ("stablehlo.reduce_window", &attributes))
}

/// `op` with its fold as region and the identity as start.
fn folded(
    w: &mut Writer,
    x: &Term,
    (reducer, ty): (Reducer, TensorType),
    (op, attributes): (&str, &str),
) -> Term {
    let wide = accumulation(reducer, x.dtype());
    let terms = w.cast(x, wide);
    let start = identity(w, reducer, wide);
    let regions = vec![combination(w, Some(reducer), wide)];
    let results = vec![ty.with_dtype(wide)];
    let operands = &[&terms, &start];
    let result = w.apply_all(Application { op, operands, regions, attributes, results }).remove(0);
    w.cast(&result, x.dtype())
}

/// The type in which values are combined.
pub(super) fn accumulation(reducer: Reducer, dtype: DType) -> DType {
    let rounds = matches!(reducer, Reducer::Sum | Reducer::Prod);
    if rounds && dtype.is_float() { dtype.accumulation() } else { dtype }
}

/// The region that combines an old value and a new one; `None` keeps the new one.
pub(super) fn combination(w: &mut Writer, reducer: Option<Reducer>, dtype: DType) -> String {
    let one = TensorType::scalar(dtype);
    w.region(&[one.clone(), one], |w, x| match reducer {
        Some(reducer) => vec![binary(reducer.binary(), w, &x[0], &x[1])],
        None => vec![x[1].clone()],
    })
}

/// The value that changes nothing.
fn identity(w: &mut Writer, reducer: Reducer, dtype: DType) -> Term {
    let ty = TensorType::scalar(dtype);
    match (reducer, dtype.int_range()) {
        (Reducer::Max, Some((low, _))) => w.full_int(&ty, low),
        (Reducer::Min, Some((_, high))) => w.full_int(&ty, high),
        (Reducer::And, Some(_)) => w.full_int(&ty, -1),
        _ => w.full(&ty, reducer.identity()),
    }
}

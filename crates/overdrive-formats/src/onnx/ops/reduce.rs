//! Reductions, running sums and products, and what picks by size: arg-max, top-k.

use crate::onnx::axes::{axes, axis, extent, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use overdrive_ir::{Compare, DType, Expr, Pad, Prim, Reducer, Shape, SortOrder, Tensor, Unary};

/// The axes that fold away, from an operand or an attribute, and whether they stay with extent 1.
struct Folding {
    axes: Vec<usize>,
    keep: bool,
}

impl Folding {
    fn of(c: &Call<'_, '_>, rank: usize) -> Result<Self, Fault> {
        let keep = c.flag("keepdims", 1);
        let given = if c.has(1) { c.maybe_ints(1)? } else { c.list("axes") };
        let nothing = c.flag("noop_with_empty_axes", 0);
        let axes = match given.filter(|list| !list.is_empty()) {
            Some(list) => axes(&list, rank)?,
            None if nothing => vec![],
            None => (0..rank).collect(),
        };
        Ok(Self { axes, keep })
    }

    fn apply<'b>(&self, x: Expr<'b>, reducer: Reducer) -> Expr<'b> {
        match (self.axes.is_empty(), self.keep) {
            (true, _) => x,
            (_, true) => x.reduce_keep(reducer, &self.axes),
            (_, false) => x.reduce(reducer, &self.axes),
        }
    }

    fn count(&self, shape: &[usize]) -> f64 {
        self.axes.iter().map(|&a| shape[a] as f64).product()
    }
}

/// Sum, product, largest, smallest: of any arithmetic type, and of bool where that has an order.
pub(super) fn plain<'b>(c: &Call<'_, 'b>, reducer: Reducer) -> Outcome<'b> {
    let x = c.x(0)?;
    let folding = Folding::of(c, x.rank())?;
    one(match x.dtype() {
        DType::Bool => folding.apply(x.convert(DType::U8), reducer).convert(DType::Bool),
        _ => folding.apply(x, reducer),
    })
}

/// `after(fold(before(x)))` in the accumulation type, or in f64 for integers.
fn composed<'b>(
    c: &Call<'_, 'b>,
    before: impl FnOnce(Expr<'b>) -> Expr<'b>,
    after: impl FnOnce(Expr<'b>, f64) -> Expr<'b>,
) -> Outcome<'b> {
    let x = c.x(0)?;
    let folding = Folding::of(c, x.rank())?;
    let count = folding.count(&sizes(x)?);
    let wide = if x.dtype().is_float() { x.widen() } else { x.convert(DType::F64) };
    one(after(folding.apply(before(wide), Reducer::Sum), count).convert(x.dtype()))
}

pub(super) fn mean<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    composed(c, |x| x, |sum, count| sum / count)
}

pub(super) fn l1<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    composed(c, |x| x.unary(Unary::Abs), |sum, _| sum)
}

pub(super) fn l2<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    composed(c, |x| x * x, |sum, _| sum.sqrt())
}

pub(super) fn log_sum<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    composed(c, |x| x, |sum, _| sum.log())
}

pub(super) fn sum_square<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    composed(c, |x| x * x, |sum, _| sum)
}

/// With the largest element taken out, so that no exponential overflows; an infinite one stays in.
pub(super) fn log_sum_exp<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let folding = Folding::of(c, x.rank())?;
    let kept = Folding { keep: true, axes: folding.axes.clone() };
    let wide = if x.dtype().is_float() { x.widen() } else { x.convert(DType::F64) };
    let largest = kept.apply(wide, Reducer::Max);
    let finite = largest.unary(Unary::Abs).compare(Compare::Lt, largest.constant(f64::INFINITY));
    let shift = finite.select(largest, largest.constant(0.0));
    let sum = kept.apply((wide - shift).exp(), Reducer::Sum).log() + shift;
    let shape: Vec<usize> = sizes(x)?
        .iter()
        .enumerate()
        .filter(|(axis, _)| folding.keep || !folding.axes.contains(axis))
        .map(|(axis, &n)| if folding.axes.contains(&axis) { 1 } else { n })
        .collect();
    one(sum.reshape(shape).convert(x.dtype()))
}

/// Position of the first largest (or smallest) element along an axis, as i64, the axis kept with
/// extent 1.
pub(super) fn first_of<'b>(x: Expr<'b>, axis: usize, reducer: Reducer) -> Result<Expr<'b>, Fault> {
    hit(x, axis, (reducer, Reducer::Min))
}

fn hit<'b>(
    x: Expr<'b>,
    axis: usize,
    (reducer, pick): (Reducer, Reducer),
) -> Result<Expr<'b>, Fault> {
    let n = sizes(x)?[axis];
    let best = x.reduce_keep(reducer, &[axis]);
    let positions = x.builder().iota(DType::I64, x.shape(), axis);
    let none = positions.constant(if pick == Reducer::Min { n as f64 } else { -1.0 });
    Ok(x.compare(Compare::Eq, best).select(positions, none).reduce_keep(pick, &[axis]))
}

pub(super) fn arg<'b>(c: &Call<'_, 'b>, reducer: Reducer) -> Outcome<'b> {
    let x = c.x(0)?;
    let mut shape = sizes(x)?;
    let along = axis(c.int_or("axis", 0), shape.len())?;
    let pick = if c.flag("select_last_index", 0) { Reducer::Max } else { Reducer::Min };
    let found = hit(x, along, (reducer, pick))?;
    if c.flag("keepdims", 1) {
        return one(found);
    }
    shape.remove(along);
    one(found.reshape(shape))
}

/// Running sums or products by doubling: log2(n) steps over the whole, whatever n is.
pub(super) fn running<'b>(c: &Call<'_, 'b>, reducer: Reducer) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let along = axis(c.integer(1)?, shape.len())?;
    let (exclusive, backwards) = (c.flag("exclusive", 0), c.flag("reverse", 0));
    let identity = reducer.identity();
    let shifted = |x: Expr<'b>, by: usize| {
        let by = by as i64;
        let (low, high) = if backwards { (-by, by) } else { (by, -by) };
        let mut pads = vec![Pad::default(); shape.len()];
        pads[along] = Pad { low, high, interior: 0 };
        x.pad(pads, identity)
    };
    let wide = if x.dtype().is_float() { x.widen() } else { x };
    let mut sum = if exclusive && shape[along] > 0 { shifted(wide, 1) } else { wide };
    let mut step = 1;
    while step < shape[along] {
        sum = sum.binary(reducer.binary(), shifted(sum, step));
        step *= 2;
    }
    one(sum.convert(x.dtype()))
}

pub(super) fn top_k<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let along = axis(c.int_or("axis", -1), shape.len())?;
    let k = extent(if c.has(1) { c.integer(1)? } else { c.int_or("k", -1) })?;
    c.ignore(&["sorted"]);
    if k > shape[along] {
        return Err(invalid(format!("k of at most {}", shape[along]), k.to_string()));
    }
    let order = if c.flag("largest", 1) { SortOrder::Descending } else { SortOrder::Ascending };
    let sorted = c.b.op(Prim::Sort { axis: along, order }, &[x]);
    let [values, indices] = [0, 1].map(|i| sorted[i].slice_axis(along, 0, k));
    Ok(vec![values.into(), indices.convert(DType::I64).into()])
}

/// `1, 0` patterns from positions: `depth` classes along a new axis.
pub(super) fn one_hot<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (indices, values) = (c.x(0)?, c.x(2)?);
    let depth = extent(c.number(1)? as i64)?;
    let mut shape = sizes(indices)?;
    let rank = shape.len() + 1;
    let along = axis(c.int_or("axis", -1), rank)?;
    if sizes(values)? != [2] {
        return Err(invalid("values of [2]: off and on", values.ty().to_string()));
    }
    let dims: Vec<usize> = (0..rank).filter(|&a| a != along).collect();
    shape.insert(along, depth);
    let indices = indices.convert(DType::I64);
    let zero = indices.constant(0.0);
    let depth_value =
        c.b.constant(Tensor::from_ints(DType::I64, Shape::default(), &[depth as i128]));
    let wrapped = indices.compare(Compare::Lt, zero).select(indices + depth_value, indices);
    let spread = wrapped.broadcast_in(&Shape::from(&shape[..]), &dims);
    let classes = c.b.iota(DType::I64, shape, along);
    let value = |i: usize| values.slice_axis(0, i, i + 1).reshape(Shape::default());
    one(spread.compare(Compare::Eq, classes).select(value(1), value(0)))
}

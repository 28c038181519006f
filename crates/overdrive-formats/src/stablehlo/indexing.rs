//! Primitives whose positions are data. XLA clamps what it reads and drops what it would write out
//! of range. Here both are clamped, and of several writes to one place the last one stays.

use super::literal::{array, list};
use super::reductions::{accumulation, combination};
use super::writer::{Application, Term, Writer};
use overdrive_ir::{DType, Reducer, SortOrder, TensorType};

pub(super) fn gather(
    w: &mut Writer,
    [x, indices]: [&Term; 2],
    axes: &[usize],
    ty: TensorType,
) -> Term {
    let sizes = x.sizes();
    if x.ty.elements() == 0 {
        return w.full(&ty, 0.0);
    }
    let indices = wide(w, indices);
    let outer = indices.ty.rank() - 1;
    let offsets: Vec<usize> = (outer..ty.rank()).collect();
    let extents: Vec<usize> = sizes
        .iter()
        .enumerate()
        .map(|(axis, &n)| if axes.contains(&axis) { 1 } else { n })
        .collect();
    let axes = list(axes);
    let attributes = format!(
        "dimension_numbers = #stablehlo.gather<offset_dims = [{}], collapsed_slice_dims = \
         [{axes}], \
         start_index_map = [{axes}], index_vector_dim = {outer}>, indices_are_sorted = false, \
         slice_sizes = {}",
        list(&offsets),
        array(&extents)
    );
    w.apply("gather", &[x, &indices], &attributes, ty)
}

pub(super) fn scatter(
    w: &mut Writer,
    [x, indices, updates]: [&Term; 3],
    axes: &[usize],
    reducer: Option<Reducer>,
) -> Term {
    if x.ty.elements() == 0 || updates.ty.elements() == 0 {
        return x.clone();
    }
    let indices = wide(w, indices);
    let mut indices = clamped(w, &indices, axes, &x.sizes());
    if reducer.is_none() {
        indices = only_last(w, &indices, axes, &x.sizes());
    }
    let dtype = reducer.map_or(x.dtype(), |reducer| accumulation(reducer, x.dtype()));
    let (operand, updates) = (w.cast(x, dtype), w.cast(updates, dtype));
    let result = write(w, [&operand, &indices, &updates], axes, reducer);
    w.cast(&result, x.dtype())
}

/// XLA's own scatter: drops what is out of range, in no order.
fn write(
    w: &mut Writer,
    [x, indices, updates]: [&Term; 3],
    axes: &[usize],
    reducer: Option<Reducer>,
) -> Term {
    let outer = indices.ty.rank() - 1;
    let windows: Vec<usize> = (outer..updates.ty.rank()).collect();
    let axes = list(axes);
    let attributes = format!(
        "indices_are_sorted = false, scatter_dimension_numbers = \
         #stablehlo.scatter<update_window_dims = [{}], \
         inserted_window_dims = [{axes}], scatter_dims_to_operand_dims = [{axes}], \
         index_vector_dim = {outer}>, \
         unique_indices = false",
        list(&windows)
    );
    let regions = vec![combination(w, reducer, x.dtype())];
    let (op, operands, results) = ("stablehlo.scatter", &[x, indices, updates], vec![x.ty.clone()]);
    w.apply_all(Application { op, operands, regions, attributes: &attributes, results }).remove(0)
}

/// Indices in a type that can be compared with any extent.
fn wide(w: &mut Writer, indices: &Term) -> Term {
    if indices.dtype() == DType::I32 { indices.clone() } else { w.cast(indices, DType::I64) }
}

/// `[rows..., k]` indices moved into the range of their axis.
fn clamped(w: &mut Writer, indices: &Term, axes: &[usize], sizes: &[usize]) -> Term {
    let zero = w.full(&indices.ty, 0.0);
    let last: Vec<i128> = axes.iter().map(|&axis| sizes[axis] as i128 - 1).collect();
    let last = w.constant(&overdrive_ir::Tensor::from_ints(indices.dtype(), [axes.len()], &last));
    let attribute = format!("broadcast_dimensions = array<i64: {}>", indices.ty.rank() - 1);
    let last = w.apply("broadcast_in_dim", &[&last], &attribute, indices.ty.clone());
    w.apply("clamp", &[&zero, indices, &last], "", indices.ty.clone())
}

/// The indices, with -1 for those that a later row repeats, so that only the last write is left.
fn only_last(w: &mut Writer, indices: &Term, axes: &[usize], sizes: &[usize]) -> Term {
    let outer: Vec<usize> = indices.sizes()[..indices.ty.rank() - 1].to_vec();
    let rows: usize = outer.iter().product();
    let number = TensorType::new(DType::I32, [rows]);
    let order = w.apply("iota", &[], "iota_dimension = 0 : i64", number.clone());
    let flat = w.reshape(indices, &[rows, axes.len()]);
    let table =
        TensorType::new(DType::I32, axes.iter().map(|&axis| sizes[axis]).collect::<Vec<usize>>());
    let nobody = w.full(&table, -1.0);
    let all: Vec<usize> = (0..axes.len()).collect();
    let last = write(w, [&nobody, &flat, &order], &all, Some(Reducer::Max));
    let writer = gather(w, [&last, &flat], &all, number);
    let stays = w.compare("EQ", &writer, &order);
    let stays = w.reshape(&stays, &outer);
    let dims: Vec<usize> = (0..outer.len()).collect();
    let attribute = format!("broadcast_dimensions = {}", array(&dims));
    let stays =
        w.apply("broadcast_in_dim", &[&stays], &attribute, indices.ty.with_dtype(DType::Bool));
    let nowhere = w.full(&indices.ty, -1.0);
    w.select(&stays, indices, &nowhere)
}

pub(super) fn dynamic_slice(w: &mut Writer, [x, starts]: [&Term; 2], sizes: &[usize]) -> Term {
    let starts = scalars(w, starts);
    let operands: Vec<&Term> = std::iter::once(x).chain(&starts).collect();
    let attribute = format!("slice_sizes = {}", array(sizes));
    w.apply("dynamic_slice", &operands, &attribute, x.ty.with_shape(sizes.to_vec()))
}

pub(super) fn dynamic_update_slice(w: &mut Writer, [x, update, starts]: [&Term; 3]) -> Term {
    let starts = scalars(w, starts);
    let operands: Vec<&Term> = [x, update].into_iter().chain(&starts).collect();
    w.apply("dynamic_update_slice", &operands, "", x.ty.clone())
}

/// Each element of a vector as a scalar.
fn scalars(w: &mut Writer, vector: &Term) -> Vec<Term> {
    let count = vector.ty.elements();
    let element = |i: usize| {
        let attributes = format!(
            "limit_indices = array<i64: {}>, start_indices = array<i64: {i}>, strides = \
             array<i64: 1>",
            i + 1
        );
        let one = w.apply("slice", &[vector], &attributes, vector.ty.with_shape([1usize]));
        w.reshape(&one, &[])
    };
    (0..count).map(element).collect()
}

/// Stable; NaN last ascending, first descending. The indices are sorted along.
pub(super) fn sort(w: &mut Writer, x: &Term, axis: usize, order: SortOrder) -> Vec<Term> {
    let numbers = x.ty.with_dtype(DType::I32);
    let index = w.apply("iota", &[], &format!("iota_dimension = {axis} : i64"), numbers.clone());
    let one = TensorType::scalar(x.dtype());
    let place = TensorType::scalar(DType::I32);
    let comparator = w.region(&[one.clone(), one, place.clone(), place], |w, values| {
        let narrow = x.dtype().is_float() && !x.dtype().is_arithmetic_float();
        let wide = if narrow { DType::F32 } else { x.dtype() };
        let (a, b) = (w.cast(&values[0], wide), w.cast(&values[1], wide));
        let (before, number, other) = match order {
            SortOrder::Ascending => (w.compare("LT", &a, &b), &a, &b),
            SortOrder::Descending => (w.compare("GT", &a, &b), &b, &a),
        };
        if !wide.is_float() {
            return vec![before];
        }
        let (is_number, is_nan) = (w.compare("EQ", number, number), w.compare("NE", other, other));
        let nan_after = w.map("and", &[&is_number, &is_nan]);
        vec![w.map("or", &[&before, &nan_after])]
    });
    w.apply_all(Application {
        op: "stablehlo.sort",
        operands: &[x, &index],
        regions: vec![comparator],
        attributes: &format!("dimension = {axis} : i64, is_stable = true"),
        results: vec![x.ty.clone(), numbers],
    })
}

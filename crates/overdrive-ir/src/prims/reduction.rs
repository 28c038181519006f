//! `reduce` and `reduce_window`.

use super::{check_axes, known};
use crate::eval::{for_each_index, scalar};
use crate::{Array, DType, Dim, Mismatch, Prim, Reducer, Shape, TensorType, Types, Window};

fn check_dtype(reducer: Reducer, dtype: DType) -> Result<(), Mismatch> {
    let logical = matches!(reducer, Reducer::And | Reducer::Or);
    let takes =
        if logical { !dtype.is_float() } else { dtype.is_arithmetic_float() || dtype.is_int() };
    if takes {
        return Ok(());
    }
    let expected = if logical { "bool or an integer type" } else { "an arithmetic type" };
    Err(Mismatch::new(expected, dtype.to_string()).remedy("convert it first"))
}

pub(super) fn infer(prim: &Prim, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    let [a] = types.exactly()?;
    match prim {
        Prim::Reduce { reducer, axes } => {
            check_axes(axes, &a.shape)?;
            check_dtype(*reducer, a.dtype)?;
            let kept =
                (0..a.rank()).filter(|axis| !axes.contains(axis)).map(|axis| a.shape[axis].clone());
            Ok(a.with_shape(Shape(kept.collect())))
        }
        Prim::ReduceWindow { reducer, windows } => {
            check_dtype(*reducer, a.dtype)?;
            if windows.len() != a.rank() {
                return Err(Mismatch::new(
                    format!("{} windows", a.rank()),
                    windows.len().to_string(),
                ));
            }
            let identity = Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 };
            let mut dims = Vec::with_capacity(windows.len());
            for (window, dim) in windows.iter().zip(&a.shape.0) {
                if *window == identity {
                    dims.push(dim.clone());
                    continue;
                }
                let size = known(&a.with_shape(vec![dim.clone()]))?[0];
                let (padded, span) = (padded(size, window), reach(window));
                if window.size == 0 || window.stride == 0 || window.dilation == 0 || span > padded {
                    let expected =
                        format!("a window of 1 to {padded} with stride and dilation of at least 1");
                    return Err(Mismatch::new(expected, format!("{window:?}")));
                }
                dims.push(Dim::Size((padded - span) / window.stride + 1));
            }
            Ok(a.with_shape(Shape(dims)))
        }
        _ => unreachable!("`{}` folds nothing", prim.name()),
    }
}

/// Elements that a dilated window covers.
fn reach(window: &Window) -> usize {
    window.size.saturating_sub(1).saturating_mul(window.dilation).saturating_add(1)
}

/// Extent with its padding.
fn padded(size: usize, window: &Window) -> usize {
    size.saturating_add(window.pad_low).saturating_add(window.pad_high)
}

/// A running fold that is exact for integers.
struct Fold {
    reducer: Reducer,
    dtype: DType,
    float: f64,
    int: i128,
}

impl Fold {
    fn new(reducer: Reducer, dtype: DType) -> Self {
        let identity = reducer.identity();
        let int = match dtype.int_range() {
            Some(_) if reducer == Reducer::And && dtype != DType::Bool => -1,
            Some((lo, hi)) => (identity.clamp(lo as f64, hi as f64) as i128).clamp(lo, hi),
            None => 0,
        };
        Self { reducer, dtype, float: identity, int }
    }

    fn add(&mut self, a: &Array, position: usize) {
        match &a.data {
            crate::eval::Data::Float(v) => {
                self.float = scalar::binary(self.reducer.binary(), self.float, v[position]);
            }
            crate::eval::Data::Int(v) => {
                self.int =
                    scalar::binary_int(self.reducer.binary(), self.dtype, self.int, v[position]);
            }
        }
    }
}

fn collect(dtype: DType, shape: &[usize], folds: Vec<Fold>) -> Array {
    if dtype.is_float() {
        Array::float(dtype, shape, folds.iter().map(|f| f.float).collect())
    } else {
        Array::int(dtype, shape, folds.iter().map(|f| f.int).collect())
    }
}

pub(super) fn eval(prim: &Prim, args: &[Array]) -> Array {
    let a = &args[0];
    match prim {
        Prim::Reduce { reducer, axes } => {
            let kept: Vec<usize> = (0..a.shape.len()).filter(|axis| !axes.contains(axis)).collect();
            let shape: Vec<usize> = kept.iter().map(|&axis| a.shape[axis]).collect();
            let count: usize = shape.iter().product();
            let mut folds: Vec<Fold> = (0..count).map(|_| Fold::new(*reducer, a.dtype)).collect();
            let mut position = 0;
            for_each_index(&a.shape, |index| {
                let to = kept.iter().fold(0, |at, &axis| at * a.shape[axis] + index[axis]);
                folds[to].add(a, position);
                position += 1;
            });
            collect(a.dtype, &shape, folds)
        }
        Prim::ReduceWindow { reducer, windows } => {
            let shape: Vec<usize> = windows
                .iter()
                .zip(&a.shape)
                // An axis of extent 0 may carry the identity window only, and stays empty.
                .map(|(w, &n)| (padded(n, w) + w.stride - reach(w)) / w.stride)
                .collect();
            let taps: Vec<usize> = windows.iter().map(|w| w.size).collect();
            let mut folds = Vec::with_capacity(shape.iter().product());
            for_each_index(&shape, |at| {
                let mut fold = Fold::new(*reducer, a.dtype);
                for_each_index(&taps, |tap| {
                    let source: Option<Vec<usize>> = (0..windows.len())
                        .map(|d| {
                            let w = &windows[d];
                            let i =
                                (at[d] * w.stride + tap[d] * w.dilation).checked_sub(w.pad_low)?;
                            (i < a.shape[d]).then_some(i)
                        })
                        .collect();
                    if let Some(source) = source {
                        fold.add(a, a.position(&source));
                    }
                });
                folds.push(fold);
            });
            collect(a.dtype, &shape, folds)
        }
        _ => unreachable!("`{}` folds nothing", prim.name()),
    }
}

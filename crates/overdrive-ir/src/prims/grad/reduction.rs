//! Gradients of `reduce` and `reduce_window`.
//!
//! Maxima share their cotangent evenly among equals. Products divide by nothing: each element gets
//! the product of the others, so that zeros are no exception.

use super::movement::{place, transpose};
use crate::{Compare, Expr, Gradient, Pad, Prim, Reducer, Shape, Window};

pub(super) fn reduce<'b>(
    reducer: Reducer,
    g: &Gradient<'b, '_>,
    axes: &[usize],
    dy: Expr<'b>,
) -> Option<Expr<'b>> {
    let (x, y) = (g.inputs[0], g.outputs[0]);
    let kept: Vec<usize> = (0..x.rank()).filter(|axis| !axes.contains(axis)).collect();
    let back = |value: Expr<'b>| value.broadcast_in(&x.shape(), &kept);
    match reducer {
        Reducer::Sum => Some(back(dy)),
        // Nothing wins where there is nothing, and a share of 0 / 0 would poison the second
        // derivative.
        Reducer::Max | Reducer::Min if x.sizes().contains(&0) => Some(back(dy)),
        Reducer::Max | Reducer::Min => {
            let winner = x.compare(Compare::Eq, back(y));
            let share = dy / winner.convert(dy.dtype()).sum(axes);
            Some(winner.select(back(share), dy.constant(0.0)))
        }
        Reducer::Prod => Some(back(dy) * product_of_others(x, &kept, axes)),
        Reducer::And | Reducer::Or => None,
    }
}

/// For each element, the product of all others that `reduce` over `axes` folds with it.
fn product_of_others<'b>(x: Expr<'b>, kept: &[usize], axes: &[usize]) -> Expr<'b> {
    let perm: Vec<usize> = kept.iter().chain(axes).copied().collect();
    let moved = x.transpose(&perm);
    let mut lines: Vec<usize> = kept.iter().map(|&axis| x.size(axis)).collect();
    let (axis, length) = (lines.len(), axes.iter().map(|&axis| x.size(axis)).product::<usize>());
    lines.push(length);
    let line = moved.reshape(lines);
    let shift = |value: Expr<'b>, by: i64| {
        let mut pads = vec![Pad::default(); axis + 1];
        pads[axis] = Pad { low: by, high: -by, interior: 0 };
        value.pad(pads, 1.0)
    };
    // Exclusive products from either end, in log2(length) steps (Hillis and Steele, "Data parallel
    // algorithms", CACM 1986).
    let scan = |direction: i64| {
        let mut product = shift(line, direction);
        let mut distance = 1;
        while distance < length {
            product = product * shift(product, direction * distance as i64);
            distance *= 2;
        }
        product
    };
    transpose(&perm, (scan(1) * scan(-1)).reshape(moved.shape()))
}

pub(super) fn window<'b>(
    reducer: Reducer,
    g: &Gradient<'b, '_>,
    windows: &[Window],
    dy: Expr<'b>,
) -> Option<Expr<'b>> {
    if dy.sizes().contains(&0) {
        // No window: below, the last window's position would lie before the first.
        return Some(g.builder.full(dy.dtype(), g.inputs[0].shape(), 0.0));
    }
    match reducer {
        Reducer::Sum => Some(window_sum(g.inputs[0], windows, dy)),
        Reducer::Max | Reducer::Min | Reducer::Prod => Some(window_taps(reducer, g, windows, dy)),
        Reducer::And | Reducer::Or => None,
    }
}

/// Every element collects the cotangents of the windows that cover it: the same sum with stride 1
/// over the spread cotangents.
fn window_sum<'b>(x: Expr<'b>, windows: &[Window], dy: Expr<'b>) -> Expr<'b> {
    let (sizes, counts) = (x.sizes(), dy.sizes());
    let pad = |d: usize| {
        let w = &windows[d];
        let low = ((w.size - 1) * w.dilation) as i64 - w.pad_low as i64;
        let high = (sizes[d] + w.pad_low) as i64 - 1 - ((counts[d] - 1) * w.stride) as i64;
        Pad { low, high, interior: w.stride - 1 }
    };
    let spread = dy.pad((0..windows.len()).map(pad).collect(), 0.0);
    let windows =
        windows.iter().map(|w| Window { stride: 1, pad_low: 0, pad_high: 0, ..*w }).collect();
    x.builder().op1(Prim::ReduceWindow { reducer: Reducer::Sum, windows }, &[spread])
}

/// One slice of the padded operand per position of the window: its element under each window.
fn window_taps<'b>(
    reducer: Reducer,
    g: &Gradient<'b, '_>,
    windows: &[Window],
    dy: Expr<'b>,
) -> Expr<'b> {
    let (x, y) = (g.inputs[0], g.outputs[0]);
    let edges = windows
        .iter()
        .map(|w| Pad { low: w.pad_low as i64, high: w.pad_high as i64, interior: 0 })
        .collect();
    let padded = x.pad(edges, reducer.identity());
    let stride: Vec<usize> = windows.iter().map(|w| w.stride).collect();
    let counts = y.sizes();
    let extents: Vec<usize> = windows.iter().map(|w| w.size).collect();
    let mut starts: Vec<Vec<usize>> = Vec::new();
    crate::eval::for_each_index(&extents, |tap| {
        starts.push(tap.iter().zip(windows).map(|(t, w)| t * w.dilation).collect());
    });
    let taps: Vec<Expr<'b>> = starts
        .iter()
        .map(|start| {
            let limit =
                (0..start.len()).map(|d| start[d] + (counts[d] - 1) * stride[d] + 1).collect();
            let slice = Prim::Slice { start: start.clone(), limit, stride: stride.clone() };
            g.builder.op1(slice, &[padded])
        })
        .collect();
    let parts = if reducer == Reducer::Prod { others(&taps, dy) } else { winners(&taps, y, dy) };
    let placed = parts.into_iter().zip(&starts).map(|(part, start)| {
        let start: Vec<i64> =
            start.iter().zip(windows).map(|(&s, w)| s as i64 - w.pad_low as i64).collect();
        place(x, &start, &stride, part)
    });
    placed.reduce(|sum, part| sum + part).expect("a window has at least one element")
}

fn winners<'b>(taps: &[Expr<'b>], y: Expr<'b>, dy: Expr<'b>) -> Vec<Expr<'b>> {
    let won: Vec<Expr<'b>> = taps.iter().map(|tap| tap.compare(Compare::Eq, y)).collect();
    let counts = won.iter().map(|w| w.convert(dy.dtype()));
    let share = dy / counts.reduce(|sum, w| sum + w).expect("a window has at least one element");
    won.iter().map(|w| w.select(share, dy.constant(0.0))).collect()
}

fn others<'b>(taps: &[Expr<'b>], dy: Expr<'b>) -> Vec<Expr<'b>> {
    let mut parts = vec![dy; taps.len()];
    let one = dy.constant(1.0).broadcast_in(&Shape::clone(&dy.shape()), &[]);
    for order in [(0..taps.len()).collect::<Vec<_>>(), (0..taps.len()).rev().collect()] {
        let mut product = one;
        for i in order {
            parts[i] = parts[i] * product;
            product = product * taps[i];
        }
    }
    parts
}

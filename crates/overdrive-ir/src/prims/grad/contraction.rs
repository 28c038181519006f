//! Gradients of `dot_general` and `convolution`: again contractions and convolutions.

use super::movement::spread;
use super::zeros;
use crate::eval::for_each_index;
use crate::gradients::cotangent_type;
use crate::window_dimension::WindowDimension;
use crate::{Convolution, DType, DotGeneral, Expr, Gradient, Prim, Tensor};

/// Operands with one label per axis, as in Einstein's notation.
type Labelled<'b, 'a> = (Expr<'b>, &'a [usize]);

/// `y[batch, free a, free b] = a[..] b[..]`: the cotangent of each operand contracts `dy` with the
/// other operand.
pub(super) fn dot<'b>(
    dot: &DotGeneral,
    g: &Gradient<'b, '_>,
    dy: Expr<'b>,
) -> Vec<Option<Expr<'b>>> {
    let (a, b) = (g.inputs[0], g.inputs[1]);
    let labels_a: Vec<usize> = (0..a.rank()).collect();
    let mut labels_b: Vec<usize> = (a.rank()..a.rank() + b.rank()).collect();
    dot.batch.iter().chain(&dot.contract).for_each(|&(i, j)| labels_b[j] = i);
    let batch: Vec<usize> = dot.batch.iter().map(|&(i, _)| i).collect();
    let labels_y = [batch, without(&labels_a, &labels_b), without(&labels_b, &labels_a)].concat();
    let (dy_a, b_same) = one_type(dy, b);
    let (dy_b, a_same) = one_type(dy, a);
    let da = einsum(dot, (dy_a, &labels_y), (b_same, &labels_b), (a, &labels_a));
    let db = einsum(dot, (a_same, &labels_a), (dy_b, &labels_y), (b, &labels_b));
    vec![Some(da), Some(db)]
}

/// A cotangent contracts in the element type of the operand it meets, or in f32 where that has no
/// arithmetic.
fn one_type<'b>(dy: Expr<'b>, operand: Expr<'b>) -> (Expr<'b>, Expr<'b>) {
    let dtype = cotangent_type(&operand.ty()).dtype;
    (dy.convert(dtype), operand.convert(dtype))
}

fn without(labels: &[usize], others: &[usize]) -> Vec<usize> {
    labels.iter().copied().filter(|label| !others.contains(label)).collect()
}

fn axis_of(labels: &[usize], label: usize) -> usize {
    labels.iter().position(|&l| l == label).expect("every label is one of the operand's")
}

/// The contraction of `left` and `right` whose result has the labels and the cotangent type of
/// `target`.
fn einsum<'b>(
    dot: &DotGeneral,
    left: Labelled<'b, '_>,
    right: Labelled<'b, '_>,
    (target, labels): Labelled<'b, '_>,
) -> Expr<'b> {
    let both = |label: &usize| left.1.contains(label) && right.1.contains(label);
    let batch: Vec<usize> = labels.iter().copied().filter(both).collect();
    let contract: Vec<usize> = without(left.1, labels).into_iter().filter(both).collect();
    let given = |l: &[usize], r: &[usize]| [batch.clone(), without(l, r), without(r, l)].concat();
    // Either order is right; one that needs no transpose of the result is better.
    let ((l, labels_l), (r, labels_r)) =
        if given(right.1, left.1) == labels { (right, left) } else { (left, right) };
    let axes = |labels: &[usize]| -> Vec<(usize, usize)> {
        labels.iter().map(|&label| (axis_of(labels_l, label), axis_of(labels_r, label))).collect()
    };
    let out = cotangent_type(&target.ty()).dtype;
    let contraction =
        DotGeneral { batch: axes(&batch), contract: axes(&contract), out, ..dot.clone() };
    let result = target.builder().op1(Prim::DotGeneral(contraction), &[l, r]);
    let order = given(labels_l, labels_r);
    let perm: Vec<usize> = labels.iter().map(|&label| axis_of(&order, label)).collect();
    result.transpose(&perm)
}

/// Both cotangents are convolutions. One is of `dy`, spread by the stride, with the flipped kernel.
/// The other is of the operand with `dy` as a kernel whose taps are a stride apart. Source:
/// Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", arXiv:1603.07285,
/// chapter 4.
pub(super) fn convolution<'b>(
    conv: &Convolution,
    g: &Gradient<'b, '_>,
    dy: Expr<'b>,
) -> Vec<Option<Expr<'b>>> {
    let (x, w) = (g.inputs[0], g.inputs[1]);
    if x.ty().elements() == 0 || w.ty().elements() == 0 {
        return vec![Some(zeros(x)), Some(zeros(w))];
    }
    vec![Some(of_input(conv, x, w, dy)), Some(of_kernel(conv, x, w, dy))]
}

fn apply<'b>(
    conv: &Convolution,
    window: Vec<WindowDimension>,
    x: Expr<'b>,
    w: Expr<'b>,
    out: DType,
) -> Expr<'b> {
    let conv = Convolution { window, out, ..conv.clone() };
    x.builder().op1(Prim::Convolution(conv), &[x, w])
}

fn of_input<'b>(conv: &Convolution, x: Expr<'b>, w: Expr<'b>, dy: Expr<'b>) -> Expr<'b> {
    let out = cotangent_type(&x.ty()).dtype;
    let (dy, w) = one_type(dy, w);
    let (sizes, kernel, results, groups) = (x.sizes(), w.sizes(), dy.sizes(), conv.groups);
    // w[G O, C, taps] becomes [G C, O, taps reversed].
    let taps = kernel[2..].to_vec();
    let (outputs, channels) = (kernel[0] / groups, kernel[1]);
    let split: Vec<usize> = taps.iter().copied().chain([groups, outputs, channels]).collect();
    let rank = taps.len();
    let order: Vec<usize> = [rank, rank + 2, rank + 1].into_iter().chain(0..rank).collect();
    let joined: Vec<usize> =
        [groups * channels, outputs].into_iter().chain(taps.iter().copied()).collect();
    let flipped = taps_first_reversed(w).reshape(split).transpose(&order).reshape(joined);
    let window = |(d, from): (usize, &WindowDimension)| {
        let (size, count) = (sizes[2 + d] as i64, results[2 + d] as i64);
        WindowDimension {
            stride: from.input_dilation,
            pad_low: ((taps[d] - 1) * from.kernel_dilation) as i64 - from.pad_low,
            pad_high: (size - 1) * from.input_dilation as i64 - (count - 1) * from.stride as i64
                + from.pad_low,
            input_dilation: from.stride,
            kernel_dilation: from.kernel_dilation,
        }
    };
    apply(conv, conv.window.iter().enumerate().map(window).collect(), dy, flipped, out)
}

/// `[O, C, taps...]` as `[taps..., O, C]`, each spatial axis reversed.
fn taps_first_reversed<'b>(w: Expr<'b>) -> Expr<'b> {
    let (sizes, rank) = (w.sizes(), w.rank());
    let spatial: Vec<usize> = (2..rank).collect();
    if sizes[2..].iter().all(|&n| n == 1) {
        let order: Vec<usize> = spatial.into_iter().chain([0, 1]).collect();
        return w.transpose(&order);
    }
    let mut reversed = Vec::new();
    for_each_index(&sizes[2..], |tap| {
        reversed.extend(tap.iter().zip(&sizes[2..]).map(|(&i, &n)| (n - 1 - i) as i128));
    });
    let shape: Vec<usize> = sizes[2..].iter().copied().chain([spatial.len()]).collect();
    w.gather(w.builder().constant(Tensor::from_ints(DType::I64, shape, &reversed)), &spatial)
}

fn of_kernel<'b>(conv: &Convolution, x: Expr<'b>, w: Expr<'b>, dy: Expr<'b>) -> Expr<'b> {
    let out = cotangent_type(&w.ty()).dtype;
    let (dy, x) = one_type(dy, x);
    let (sizes, kernel, results, groups) = (x.sizes(), w.sizes(), dy.sizes(), conv.groups);
    // Batch and channels change places: x[N, G C, ..] becomes [C, G N, ..], and dy[N, O, ..]
    // becomes [O, N, ..]. The result is [C, O, taps].
    let spatial = || 2..x.rank();
    let (batch, channels) = (sizes[0], kernel[1]);
    let split: Vec<usize> =
        [batch, groups, channels].into_iter().chain(sizes[2..].iter().copied()).collect();
    let order: Vec<usize> = [2, 1, 0].into_iter().chain(spatial().map(|axis| axis + 1)).collect();
    let joined: Vec<usize> =
        [channels, groups * batch].into_iter().chain(sizes[2..].iter().copied()).collect();
    let swap: Vec<usize> = [1, 0].into_iter().chain(spatial()).collect();
    let window = |(d, from): (usize, &WindowDimension)| {
        let reach = (kernel[2 + d] - 1) * from.kernel_dilation + (results[2 + d] - 1) * from.stride;
        WindowDimension {
            stride: from.kernel_dilation,
            pad_low: from.pad_low,
            pad_high: reach as i64 + 1 - spread(sizes[2 + d], from.input_dilation) - from.pad_low,
            input_dilation: from.input_dilation,
            kernel_dilation: from.stride,
        }
    };
    let window = conv.window.iter().enumerate().map(window).collect();
    let moved = x.reshape(split).transpose(&order).reshape(joined);
    apply(conv, window, moved, dy.transpose(&swap), out).transpose(&swap)
}

//! `dot_general` and `convolution`.

use super::known;
use crate::eval::for_each_index;
use crate::window_dimension::WindowDimension;
use crate::{Array, Convolution, DType, Dim, DotGeneral, Mismatch, Shape, TensorType, Types};

fn check_types(
    a: &TensorType,
    b: &TensorType,
    accumulate: DType,
    out: DType,
) -> Result<(), Mismatch> {
    // fp8 products may mix e4m3 and e5m2 (gradients); everything else contracts one type with
    // itself.
    let same = a.dtype == b.dtype || (a.dtype.is_fp8() && b.dtype.is_fp8());
    if !same || a.dtype == DType::Bool {
        let remedy = "convert one side; nothing is cast silently";
        return Err(
            Mismatch::new("one element type on both sides", format!("{a} and {b}")).remedy(remedy)
        );
    }
    if accumulate.is_float() != a.dtype.is_float() || out.is_float() != a.dtype.is_float() {
        let expected = "accumulation and result of the operands' kind (float or integer)";
        return Err(Mismatch::new(
            expected,
            format!("{} accumulated in {accumulate} to {out}", a.dtype),
        ));
    }
    Ok(())
}

fn free(rank: usize, taken: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
    (0..rank).filter(|axis| !taken.clone().any(|t| t == *axis)).collect()
}

pub(super) fn infer_dot(dot: &DotGeneral, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    let [a, b] = types.exactly()?;
    check_types(a, b, dot.accumulate, dot.out)?;
    let pairs = || dot.batch.iter().chain(&dot.contract);
    for &(i, j) in pairs() {
        if i >= a.rank() || j >= b.rank() || a.shape[i] != b.shape[j] {
            let expected = format!("equal extents at axes {i} and {j}");
            let found = format!("{a} and {b}");
            let remedy =
                "contracted and batch dimensions must agree; transpose or reshape one operand";
            return Err(Mismatch::new(expected, found).remedy(remedy));
        }
    }
    let lhs = free(a.rank(), pairs().map(|p| p.0));
    let rhs = free(b.rank(), pairs().map(|p| p.1));
    let pair_count = dot.batch.len() + dot.contract.len();
    if lhs.len() + pair_count != a.rank() || rhs.len() + pair_count != b.rank() {
        return Err(Mismatch::new("each axis named once", format!("{dot:?}")));
    }
    let batch = dot.batch.iter().map(|&(i, _)| a.shape[i].clone());
    let dims = batch
        .chain(lhs.iter().map(|&i| a.shape[i].clone()))
        .chain(rhs.iter().map(|&j| b.shape[j].clone()));
    Ok(TensorType::new(dot.out, Shape(dims.collect())))
}

/// Moves axes into the order `groups` and multiplies the extents of each group.
fn grouped(a: &Array, groups: [&[usize]; 3]) -> (Vec<f64>, [usize; 3]) {
    let order: Vec<usize> = groups.concat();
    let shape: Vec<usize> = order.iter().map(|&axis| a.shape[axis]).collect();
    let mut values = Vec::with_capacity(a.len());
    let mut at = vec![0; order.len()];
    for_each_index(&shape, |index| {
        order.iter().zip(index).for_each(|(&axis, &i)| at[axis] = i);
        values.push(a.at(&at));
    });
    let extent = |group: &[usize]| group.iter().map(|&axis| a.shape[axis]).product();
    (values, groups.map(extent))
}

pub(super) fn eval_dot(dot: &DotGeneral, args: &[Array]) -> Array {
    let [a, b] = [&args[0], &args[1]];
    let axes = |side: fn(&(usize, usize)) -> usize, pairs: &[(usize, usize)]| -> Vec<usize> {
        pairs.iter().map(side).collect()
    };
    let (batch_a, batch_b) = (axes(|p| p.0, &dot.batch), axes(|p| p.1, &dot.batch));
    let (sum_a, sum_b) = (axes(|p| p.0, &dot.contract), axes(|p| p.1, &dot.contract));
    let free_a = free(a.shape.len(), batch_a.iter().chain(&sum_a).copied());
    let free_b = free(b.shape.len(), batch_b.iter().chain(&sum_b).copied());
    let (lhs, [batch, m, k]) = grouped(a, [&batch_a, &free_a, &sum_a]);
    let (rhs, [_, _, n]) = grouped(b, [&batch_b, &sum_b, &free_b]);
    let mut out = vec![0.0; batch * m * n];
    for s in 0..batch {
        for i in 0..m {
            let row = &mut out[(s * m + i) * n..][..n];
            for p in 0..k {
                let x = lhs[(s * m + i) * k + p];
                let right = &rhs[(s * k + p) * n..][..n];
                row.iter_mut().zip(right).for_each(|(sum, &y)| *sum += x * y);
            }
        }
    }
    let dims = batch_a.iter().chain(&free_a).map(|&axis| a.shape[axis]);
    let shape: Vec<usize> = dims.chain(free_b.iter().map(|&axis| b.shape[axis])).collect();
    Array::from_f64(dot.out, &shape, out)
}

impl WindowDimension {
    /// Stride 1, no padding, no dilation.
    pub const PLAIN: WindowDimension = WindowDimension {
        stride: 1,
        pad_low: 0,
        pad_high: 0,
        input_dilation: 1,
        kernel_dilation: 1,
    };

    /// Output extent for an input and a kernel extent, `None` where the kernel does not fit.
    pub fn output(&self, input: usize, kernel: usize) -> Option<usize> {
        let dilated = |n: usize, by: usize| match n.checked_sub(1) {
            Some(gaps) => {
                i64::try_from(gaps.saturating_mul(by).saturating_add(1)).unwrap_or(i64::MAX)
            }
            None => 0,
        };
        let padded = dilated(input, self.input_dilation).saturating_add(self.pad_low);
        let padded = padded.saturating_add(self.pad_high);
        let room = padded.saturating_sub(dilated(kernel, self.kernel_dilation));
        (room >= 0 && kernel > 0).then(|| room as usize / self.stride + 1)
    }
}

pub(super) fn infer_convolution(
    conv: &Convolution,
    types: &Types<'_>,
) -> Result<TensorType, Mismatch> {
    let [x, w] = types.exactly()?;
    check_types(x, w, conv.accumulate, conv.out)?;
    let spatial = conv.window.len();
    if x.rank() != spatial + 2 || w.rank() != spatial + 2 {
        let expected = format!("[N, C, {spatial} spatial] and [O, C/groups, {spatial} spatial]");
        return Err(Mismatch::new(expected, format!("{x} and {w}")));
    }
    let (kernel, channels) = (known(w)?, known(&x.with_shape(x.shape.0[1..].to_vec()))?);
    let groups = conv.groups;
    if groups == 0
        || Some(channels[0]) != kernel[1].checked_mul(groups)
        || !kernel[0].is_multiple_of(groups)
    {
        let expected =
            format!("C = {} x {groups} groups input channels, O divisible by groups", kernel[1]);
        return Err(Mismatch::new(expected, format!("{x} and {w}")));
    }
    let mut dims = vec![x.shape[0].clone(), Dim::Size(kernel[0])];
    for (d, window) in conv.window.iter().enumerate() {
        if window.stride == 0 || window.input_dilation == 0 || window.kernel_dilation == 0 {
            return Err(Mismatch::new(
                "strides and dilations of at least 1",
                format!("{window:?}"),
            ));
        }
        let extent = window.output(channels[1 + d], kernel[2 + d]).ok_or_else(|| {
            let found = format!("kernel {w} over {x} with {window:?}");
            Mismatch::new("a kernel that fits the padded input", found)
        })?;
        dims.push(Dim::Size(extent));
    }
    Ok(TensorType::new(conv.out, Shape(dims)))
}

pub(super) fn eval_convolution(conv: &Convolution, args: &[Array]) -> Array {
    let (x, w) = (&args[0], &args[1]);
    let fits = "types were inferred";
    let spatial: Vec<usize> = conv
        .window
        .iter()
        .enumerate()
        .map(|(d, window)| window.output(x.shape[2 + d], w.shape[2 + d]).expect(fits))
        .collect();
    let shape: Vec<usize> = [x.shape[0], w.shape[0]].into_iter().chain(spatial).collect();
    let per_group = (w.shape[0] / conv.groups, w.shape[1]);
    let taps: Vec<usize> = w.shape[1..].to_vec();
    Array::build(conv.out, &shape, |out| {
        let mut sum = 0.0;
        for_each_index(&taps, |tap| {
            let channel = out[1] / per_group.0 * per_group.1 + tap[0];
            let mut at = vec![out[0], channel];
            for (d, window) in conv.window.iter().enumerate() {
                let position = (out[2 + d] * window.stride + tap[1 + d] * window.kernel_dilation)
                    as i64
                    - window.pad_low;
                let dilation = window.input_dilation as i64;
                if position < 0
                    || position % dilation != 0
                    || position / dilation >= x.shape[2 + d] as i64
                {
                    return;
                }
                at.push((position / dilation) as usize);
            }
            let kernel: Vec<usize> = std::iter::once(out[1]).chain(tap.iter().copied()).collect();
            sum += x.at(&at) * w.at(&kernel);
        });
        sum
    })
}

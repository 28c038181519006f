//! Convolutions: plain, transposed, of integers; columns to images.

use super::integer::{Offset, check};
use super::window::{Spatial, list, windows};
use crate::onnx::axes::{exactly, extents, positive, reverse, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::plan::WindowDimension;
use overdrive_ir::{Codes, Convolution, DType, Expr, Prim, Reducer, Shape, Tensor};

/// `[O]` under every element of `[N, O, ...]`.
pub(super) fn per_channel<'b>(channel: Expr<'b>, like: Expr<'b>) -> Expr<'b> {
    channel.broadcast_in(&like.shape(), &[1])
}

fn kernel_of(c: &Call<'_, '_>, w: &[usize]) -> Result<Vec<usize>, Fault> {
    let kernel = w.get(2..).unwrap_or_default().to_vec();
    match c.list("kernel_shape") {
        Some(given) if extents(&given)? != kernel => Err(invalid(
            format!("kernel_shape {kernel:?} as the weights have"),
            format!("{given:?}"),
        )),
        _ => Ok(kernel),
    }
}

/// The convolution of any arithmetic type; sums and result in `out`.
fn convolution<'b>(
    x: Expr<'b>,
    w: Expr<'b>,
    window: Vec<WindowDimension>,
    groups: usize,
    out: DType,
) -> Expr<'b> {
    let accumulate = if x.dtype().is_float() { x.dtype().accumulation() } else { out };
    x.builder().op1(Prim::Convolution(Convolution { window, groups, accumulate, out }), &[x, w])
}

pub(super) fn conv<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, w) = (c.x(0)?, c.x(1)?);
    one(convolve(c, [x, w], c.maybe(2)?, x.dtype())?)
}

/// The window over x and the groups of its channels.
fn geometry(c: &Call<'_, '_>, [x, w]: [Expr<'_>; 2]) -> Result<(Vec<Spatial>, usize), Fault> {
    let (input, weights) = (sizes(x)?, sizes(w)?);
    if input.len() < 3 || weights.len() != input.len() {
        return Err(invalid(
            "x of [N, C, ...] and w of [O, C/group, ...]",
            format!("{} and {}", x.ty(), w.ty()),
        ));
    }
    let spatial = windows(c, &kernel_of(c, &weights)?, &input[2..])?;
    Ok((spatial, positive(c.int_or("group", 1), "a group")?))
}

/// `conv2d` where it is one; other ranks and types are the primitive and a bias.
fn convolve<'b>(
    c: &Call<'_, 'b>,
    [x, w]: [Expr<'b>; 2],
    bias: Option<Expr<'b>>,
    out: DType,
) -> Result<Expr<'b>, Fault> {
    let (spatial, groups) = geometry(c, [x, w])?;
    let padded = |s: &Spatial| s.low >= 0 && s.high >= 0;
    if let ([h, v], true) =
        (&spatial[..], x.dtype().is_arithmetic_float() && spatial.iter().all(padded))
    {
        let conv2d = Conv2d {
            stride: [h.stride, v.stride],
            pad: [h, v].map(|s| [s.low as usize, s.high as usize]),
            dilation: [h.dilation, v.dilation],
            groups,
        };
        return Ok(x.conv2d(w, bias, conv2d));
    }
    let window = spatial.iter().map(Spatial::dimension).collect();
    let y = convolution(x, w, window, groups, out);
    sizes(y)?;
    Ok(bias.map_or(y, |bias| y + per_channel(bias, y)))
}

/// The convolution of codes, in i32: one zero point of x, one or one for each output of the
/// weights.
pub(super) fn convolve_codes<'b>(
    c: &Call<'_, 'b>,
    [x, w]: [Offset<'b>; 2],
) -> Result<Expr<'b>, Fault> {
    let (spatial, groups) = geometry(c, [x.0, w.0])?;
    let codes = |(codes, zero): Offset<'b>, most: usize| {
        check(codes)?;
        let aligned = |zero: Expr<'b>| {
            let mut shape = vec![1; codes.rank()];
            shape[0] = sizes(zero)?.iter().product();
            let fits = shape[0] == 1 || shape[0] == most;
            if fits {
                Ok(zero.reshape(shape))
            } else {
                Err(invalid("a zero point", zero.ty().to_string()))
            }
        };
        Ok::<_, Fault>(Codes { codes, zero: zero.map(aligned).transpose()? })
    };
    let window = spatial.iter().map(Spatial::dimension).collect();
    let geometry = Convolution { window, groups, accumulate: DType::I32, out: DType::I32 };
    let y = codes(x, 1)?.convolve(codes(w, sizes(w.0)?[0])?, &geometry);
    sizes(y)?;
    Ok(y)
}

/// i32 sums of codes, without zero points.
pub(super) fn conv_integer<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    one(convolve_codes(c, [(c.x(0)?, c.maybe(2)?), (c.x(1)?, c.maybe(3)?)])?)
}

/// The gradient of a convolution in its input: spread by the stride, kernel flipped.
pub(super) fn conv_transpose<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, w) = (c.x(0)?, c.x(1)?);
    let (input, weights) = (sizes(x)?, sizes(w)?);
    let n = input.len().saturating_sub(2);
    let groups = positive(c.int_or("group", 1), "a group")?;
    if n == 0 || weights.len() != n + 2 || input[1] != weights[0] || weights[0] % groups != 0 {
        let expected = "x of [N, C, ...] and w of [C, O/group, ...]";
        return Err(invalid(expected, format!("{} and {}", x.ty(), w.ty())));
    }
    let kernel = kernel_of(c, &weights)?;
    let (strides, dilations) = (list(c, "strides", (n, 1))?, list(c, "dilations", (n, 1))?);
    let extra = list(c, "output_padding", (n, 0))?;
    let pads = list(c, "pads", (2 * n, 0))?;
    let auto = c.text_or("auto_pad", "NOTSET");
    let asked = c.list("output_shape");
    let mut window = Vec::with_capacity(n);
    for d in 0..n {
        let (stride, dilation) =
            (positive(strides[d], "a stride")?, positive(dilations[d], "a dilation")?);
        let reach = (positive(kernel[d] as i64, "a kernel size")? as i64 - 1) * dilation as i64;
        let whole = (input[2 + d] as i64 - 1) * stride as i64 + reach + 1 + extra[d];
        let target = match (&asked, auto.as_str()) {
            // Spatial sizes, or those of all dimensions.
            (Some(shape), _) if shape.len() >= n => Some(shape[shape.len() - n + d]),
            (_, "SAME_UPPER" | "SAME_LOWER") => Some(input[2 + d] as i64 * stride as i64),
            _ => None,
        };
        let (low, high) = match target {
            None if auto == "VALID" => (0, 0),
            None => (pads[d], pads[n + d]),
            // Missing elements are added at the end.
            Some(target) if target > whole => (0, whole - target),
            Some(target) => {
                let less = (whole - target) / 2;
                let more = (whole - target) - less;
                if auto == "SAME_UPPER" { (less, more) } else { (more, less) }
            }
        };
        if [low, high, extra[d]].iter().any(|p| p.unsigned_abs() > 1 << 31) {
            return Err(invalid("pads that can be addressed", format!("{pads:?}")));
        }
        window.push(WindowDimension {
            stride: 1,
            pad_low: reach - low,
            pad_high: reach - high + extra[d],
            input_dilation: stride,
            kernel_dilation: dilation,
        });
    }
    // [C, O/g, ...] to [O, C/g, ...]: within each group inputs and outputs change places.
    let (channels, outputs) = (weights[0] / groups, weights[1]);
    let mut split = vec![groups, channels, outputs];
    split.extend(&kernel);
    let mut perm = vec![0, 2, 1];
    perm.extend(3..3 + n);
    let mut turned = vec![groups * outputs, channels];
    turned.extend(&kernel);
    let mut flipped = w.reshape(split).transpose(&perm).reshape(turned);
    for d in 0..n {
        flipped = reverse(flipped, 2 + d)?;
    }
    let y = convolution(x, flipped, window, groups, x.dtype());
    sizes(y)?;
    one(match c.maybe(2)? {
        Some(bias) => y + per_channel(bias, y),
        None => y,
    })
}

/// Adds columns of blocks back up to an image: a scatter-add into zeros.
pub(super) fn col2im<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let (image, block) = (extents(&c.ints(1)?)?, extents(&c.ints(2)?)?);
    let [batch, rows, columns] = exactly(x, "columns")?;
    let spatial = windows(c, &block, &image)?;
    let window = block.iter().copied().fold(1, usize::saturating_mul);
    let counts: Vec<usize> =
        (0..image.len()).map(|d| spatial[d].output(image[d]).max(0) as usize).collect();
    if window == 0
        || rows % window != 0
        || counts.iter().copied().fold(1, usize::saturating_mul) != columns
    {
        return Err(invalid(
            format!("columns of blocks {block:?} in {image:?}"),
            x.ty().to_string(),
        ));
    }
    // Every element goes to its place in the padded image, whose borders are cut off afterwards.
    let padded: Vec<usize> = (0..image.len())
        .map(|d| (image[d] as i64 + spatial[d].low + spatial[d].high).max(0) as usize)
        .collect();
    let (mut parts, both) = (Vec::new(), [&block[..], &counts[..]].concat());
    let mut column = both.clone();
    column.push(1);
    for (d, side) in spatial.iter().enumerate() {
        let tap = c.b.iota(DType::I64, both.clone(), d);
        let at = c.b.iota(DType::I64, both.clone(), image.len() + d);
        let scaled = |x: Expr<'b>, by: usize| x * x.constant(by as f64);
        parts.push((scaled(tap, side.dilation) + scaled(at, side.stride)).reshape(column.clone()));
    }
    let positions = c.b.concat(&parts, both.len());
    let channels = rows / window;
    let mut shape = vec![batch, channels];
    shape.extend(&both);
    let mut behind: Vec<usize> = (2..2 + both.len()).collect();
    behind.extend([0, 1]);
    let updates = x.reshape(shape).transpose(&behind);
    let zeros = c.b.full(x.dtype(), [&padded[..], &[batch, channels]].concat(), 0.0);
    let axes: Vec<usize> = (0..image.len()).collect();
    let summed =
        c.b.op1(Prim::Scatter { axes, reducer: Some(Reducer::Sum) }, &[zeros, positions, updates]);
    sizes(summed)?;
    let mut front = vec![image.len(), image.len() + 1];
    front.extend(0..image.len());
    let mut y = summed.transpose(&front);
    for (d, s) in spatial.iter().enumerate() {
        y = y.slice_axis(2 + d, s.low.max(0) as usize, s.low.max(0) as usize + image[d]);
    }
    one(y)
}

/// An i64 scalar.
pub(super) fn integer<'b>(c: &Call<'_, 'b>, value: i64) -> Expr<'b> {
    c.b.constant(Tensor::from_ints(DType::I64, Shape::default(), &[value.into()]))
}

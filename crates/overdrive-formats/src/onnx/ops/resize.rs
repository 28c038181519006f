//! Resize and Upsample: per axis, which elements make an output and with which weights, decided
//! while reading.

use crate::onnx::axes::{axis, extents, pick, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid, unsupported};
use overdrive_ir::{DType, Expr, Tensor};

/// Extent of a resized axis at most.
const LARGEST: f64 = (1u64 << 24) as f64;

/// Points of the input behind all outputs of an axis at most: they are constants of the graph.
const MOST_POINTS: usize = 1 << 22;

/// Points on one side of a filter at most: each is a node of its own.
const LARGEST_REACH: f64 = 1024.0;

/// One axis: extents, the factor between them, and what of the input it shows.
struct ResizeAxis {
    input: usize,
    output: usize,
    scale: f64,
    roi: [f64; 2],
}

/// How an output's place becomes elements and weights.
struct ResizeRule {
    coordinates: String,
    mode: String,
    nearest: String,
    cubic: f64,
    antialias: bool,
    exclude_outside: bool,
}

impl ResizeAxis {
    /// The place in the input that output `x` shows.
    fn place(&self, x: f64, coordinates: &str) -> Result<f64, Fault> {
        let (input, output) = (self.input as f64, self.scale * self.input as f64);
        Ok(match coordinates {
            "half_pixel" => (x + 0.5) / self.scale - 0.5,
            "half_pixel_symmetric" => {
                let offset = input / 2.0 * (1.0 - self.output as f64 / output);
                offset + (x + 0.5) / self.scale - 0.5
            }
            "pytorch_half_pixel" if self.output == 1 => -0.5,
            "pytorch_half_pixel" => (x + 0.5) / self.scale - 0.5,
            "align_corners" if self.output == 1 => 0.0,
            "align_corners" => x * (input - 1.0) / (output - 1.0),
            "asymmetric" => x / self.scale,
            "tf_crop_and_resize" => {
                let [start, end] = self.roi;
                let inner = if self.output == 1 {
                    (end - start) * (input - 1.0) / 2.0
                } else {
                    x * (end - start) * (input - 1.0) / (output - 1.0)
                };
                inner + start * (input - 1.0)
            }
            other => return Err(unsupported(format!("coordinates `{other}`"))),
        })
    }
}

/// Keys, "Cubic convolution interpolation for digital image processing", 1981.
fn keys(x: f64, a: f64) -> f64 {
    match x.abs() {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

impl ResizeRule {
    /// Positions (perhaps outside) and weights behind a place.
    fn taps(&self, place: f64, scale: f64) -> Result<Vec<(i64, f64)>, Fault> {
        if self.mode == "nearest" {
            let at = match self.nearest.as_str() {
                "round_prefer_floor" => (place - 0.5).ceil(),
                "round_prefer_ceil" => (place + 0.5).floor(),
                "floor" => place.floor(),
                "ceil" => place.ceil(),
                other => return Err(unsupported(format!("nearest_mode `{other}`"))),
            };
            return Ok(vec![(at as i64, 1.0)]);
        }
        let reach = if self.mode == "cubic" { 2.0 } else { 1.0 };
        let scale = if self.antialias { scale.min(1.0) } else { 1.0 };
        // The pixel at or left of the place is never the place itself, so that the ratio is in (0,
        // 1].
        let left = place.ceil() - 1.0;
        let ratio = place - left;
        if reach / scale > LARGEST_REACH {
            return Err(unsupported(format!("a filter of {} points", 2.0 * reach / scale)));
        }
        let first = (-reach / scale).floor() as i64 + 1;
        let weight = |i: i64| {
            let x = scale * (i as f64 - ratio);
            if self.mode == "cubic" { keys(x, self.cubic) } else { (1.0 - x.abs()).clamp(0.0, 1.0) }
        };
        let taps: Vec<(i64, f64)> =
            (first..2 - first).map(|i| (left as i64 + i, weight(i))).collect();
        let sum: f64 = taps.iter().map(|t| t.1).sum();
        Ok(taps.into_iter().map(|(at, w)| (at, if self.antialias { w / sum } else { w })).collect())
    }

    /// The axis of `x` resized, and which outputs lie outside of the input.
    fn apply<'b>(
        &self,
        x: Expr<'b>,
        along: usize,
        axis: &ResizeAxis,
    ) -> Result<(Expr<'b>, Vec<bool>), Fault> {
        let last = axis.input as i64 - 1;
        let (mut positions, mut weights, mut outside) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..axis.output {
            let place = axis.place(i as f64, &self.coordinates)?;
            outside.push(
                self.coordinates == "tf_crop_and_resize" && (place < 0.0 || place > last as f64),
            );
            let mut taps = self.taps(place, axis.scale)?;
            if self.exclude_outside {
                taps.iter_mut().filter(|t| t.0 < 0 || t.0 > last).for_each(|t| t.1 = 0.0);
                let sum: f64 = taps.iter().map(|t| t.1).sum();
                taps.iter_mut().for_each(|t| t.1 /= sum);
            }
            if positions.len() + taps.len() > MOST_POINTS {
                let points = axis.output.saturating_mul(taps.len());
                return Err(unsupported(format!(
                    "{points} points along one axis, more than {MOST_POINTS}"
                )));
            }
            positions.extend(taps.iter().map(|t| t.0.clamp(0, last) as usize));
            weights.extend(taps.iter().map(|t| t.1));
        }
        // Every output has as many points.
        let count = positions.len() / axis.output.max(1);
        let column = |k: usize| pick(x, axis.output, |i| positions[i * count + k], along);
        if self.mode == "nearest" {
            // An empty axis has no first column.
            let nearest = pick(x, axis.output, |i| positions[i], along)?;
            return Ok((nearest, outside));
        }
        let mut shape = vec![1; x.rank()];
        shape[along] = axis.output;
        let mut sum: Option<Expr<'b>> = None;
        for k in 0..count {
            let values: Vec<f64> = (0..axis.output).map(|i| weights[i * count + k]).collect();
            let weight = x.builder().constant(Tensor::from_f64(x.dtype(), shape.clone(), &values));
            let term = column(k)? * weight;
            sum = Some(sum.map_or(term, |sum| sum + term));
        }
        Ok((sum.ok_or_else(|| invalid("an output with elements", "none"))?, outside))
    }
}

pub(super) fn resize<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let shape = sizes(x)?;
    let old = c.opset < 11;
    let given = |i: usize| c.has(i) && c.peek(i).is_none_or(|t| t.ty().elements() > 0);
    let (scales_at, sizes_at) = if old { (1, usize::MAX) } else { (2, 3) };
    let along: Vec<usize> = match c.list("axes") {
        Some(list) => list.iter().map(|&a| axis(a, shape.len())).collect::<Result<_, Fault>>()?,
        None => (0..shape.len()).collect(),
    };
    let rule = ResizeRule {
        coordinates: c.text_or(
            "coordinate_transformation_mode",
            if old { "asymmetric" } else { "half_pixel" },
        ),
        mode: c.text_or("mode", "nearest"),
        nearest: c.text_or("nearest_mode", if old { "floor" } else { "round_prefer_floor" }),
        cubic: c.float_or("cubic_coeff_a", -0.75),
        antialias: c.flag("antialias", 0),
        exclude_outside: c.flag("exclude_outside", 0),
    };
    if !matches!(rule.mode.as_str(), "nearest" | "linear" | "cubic") {
        return Err(unsupported(format!("mode `{}`", rule.mode)));
    }
    let policy = c.text_or("keep_aspect_ratio_policy", "stretch");
    let mut axes: Vec<ResizeAxis> = Vec::new();
    if given(sizes_at) {
        let wanted = extents(&c.ints(sizes_at)?)?;
        let ratios: Vec<f64> =
            along.iter().zip(&wanted).map(|(&a, &n)| n as f64 / shape[a] as f64).collect();
        let common = match policy.as_str() {
            "stretch" => None,
            "not_larger" => ratios.iter().copied().reduce(f64::min),
            "not_smaller" => ratios.iter().copied().reduce(f64::max),
            other => return Err(unsupported(format!("keep_aspect_ratio_policy `{other}`"))),
        };
        for ((&a, &n), &ratio) in along.iter().zip(&wanted).zip(&ratios) {
            let scale = common.unwrap_or(ratio);
            let output =
                if common.is_some() { (scale * shape[a] as f64 + 0.5).floor() as usize } else { n };
            axes.push(ResizeAxis { input: shape[a], output, scale, roi: [0.0, 1.0] });
        }
    } else {
        let scales = match c.attribute("scales") {
            Some(a) if !a.floats.is_empty() => a.floats.iter().map(|&s| f64::from(s)).collect(),
            _ => c.known(scales_at)?.to_f64(),
        };
        for (&a, &scale) in along.iter().zip(&scales) {
            let output = (shape[a] as f64 * scale).floor() as usize;
            axes.push(ResizeAxis { input: shape[a], output, scale, roi: [0.0, 1.0] });
        }
    }
    let sound = |a: &ResizeAxis| {
        a.input > 0 && a.scale > 0.0 && (a.output as f64) <= LARGEST && a.scale <= LARGEST
    };
    if axes.len() != along.len() || !axes.iter().all(sound) {
        return Err(invalid(
            format!("positive scales or sizes of {} axes", along.len()),
            x.ty().to_string(),
        ));
    }
    if rule.coordinates == "tf_crop_and_resize" {
        let roi = c.known(1)?.to_f64();
        if roi.len() != 2 * along.len() {
            return Err(invalid(
                format!("a region of {} numbers", 2 * along.len()),
                roi.len().to_string(),
            ));
        }
        axes.iter_mut().enumerate().for_each(|(i, a)| a.roi = [roi[i], roi[i + along.len()]]);
    }
    let outside_value = c.float_or("extrapolation_value", 0.0);
    let wide = match x.dtype() {
        dtype if dtype.is_float() => x.widen(),
        _ if rule.mode == "nearest" => x,
        _ => x.convert(DType::F32),
    };
    let mut y = wide;
    let mut hidden: Vec<(usize, Vec<bool>)> = Vec::new();
    for (&a, axis) in along.iter().zip(&axes) {
        if axis.scale != 1.0
            || axis.output != axis.input
            || rule.coordinates == "tf_crop_and_resize"
        {
            let (resized, outside) = rule.apply(y, a, axis)?;
            y = resized;
            hidden.push((a, outside));
        }
    }
    for (a, outside) in hidden.into_iter().filter(|(_, outside)| outside.contains(&true)) {
        let mut shape = vec![1; y.rank()];
        shape[a] = outside.len();
        let mask: Vec<i128> = outside.iter().map(|&o| i128::from(o)).collect();
        let mask = c.b.constant(Tensor::from_ints(DType::Bool, shape, &mask));
        y = mask.select(y.constant(outside_value), y);
    }
    one(y.convert(x.dtype()))
}

//! Sampling at computed places: GridSample, and the grids that AffineGrid makes.

use crate::onnx::axes::{extents, sizes};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid, unsupported};
use overdrive_ir::{Binary, Compare, DType, Expr, Shape, Unary};

/// Values beyond the borders.
#[derive(Copy, Clone, PartialEq)]
enum Beyond {
    Zeros,
    Border,
    Reflection,
}

/// One spatial dimension of the sampled tensor.
struct SampledAxis {
    size: usize,
    low: f64,
    high: f64,
    beyond: Beyond,
}

impl SampledAxis {
    /// `place` if it is inside the borders, else its reflection or the nearest border.
    fn inside<'b>(&self, place: Expr<'b>) -> Expr<'b> {
        let number = |x: f64| place.constant(x);
        match self.beyond {
            Beyond::Zeros => place,
            Beyond::Border => place.max(number(0.0)).min(number(self.size as f64 - 1.0)),
            Beyond::Reflection => {
                let range = (self.high - self.low).max(f64::MIN_POSITIVE);
                let range = if self.high > self.low { range } else { 1.0 };
                let (below, above) = (number(self.low) - place, place - self.high);
                let is_below = below.compare(Compare::Gt, number(0.0));
                let past = is_below.select(below, above);
                let turns = (past / range).unary(Unary::Floor);
                let rest = past - turns * range;
                let even = turns.binary(Binary::Rem, number(2.0)).compare(Compare::Eq, number(0.0));
                let (from_low, from_high) = (rest + self.low, number(self.high) - rest);
                let lands_low = is_below.compare(Compare::Eq, even);
                let mirrored = lands_low.select(from_low, from_high);
                past.compare(Compare::Gt, number(0.0)).select(mirrored, place)
            }
        }
    }
}

/// Weights of Keys' cubic at distance `x` up to 1, and from 1 to 2.
fn cubic<'b>(t: Expr<'b>) -> Vec<Expr<'b>> {
    const A: f64 = -0.75;
    let near = |x: Expr<'b>| (x * (A + 2.0) - (A + 3.0)) * x * x + 1.0;
    let far = |x: Expr<'b>| ((x * A - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let back = 1.0 - t;
    vec![far(t + 1.0), near(t), near(back), far(back + 1.0)]
}

/// First tap, relative to the floor of the place, and the weights of the taps, of one dimension.
fn taps<'b>(mode: &str, place: Expr<'b>) -> Result<(Expr<'b>, i64, Vec<Expr<'b>>), Fault> {
    let floor = place.unary(Unary::Floor);
    let t = place - floor;
    Ok(match mode {
        "nearest" => (place.unary(Unary::Round), 0, vec![]),
        "linear" | "bilinear" => (floor, 0, vec![1.0 - t, t]),
        "cubic" | "bicubic" => (floor, -1, cubic(t)),
        other => return Err(unsupported(format!("mode `{other}`"))),
    })
}

/// x `[N, C, ...]` at places `[N, ..., D]` in [-1, 1], the last dimension of x first.
pub(super) fn grid_sample<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (x, grid) = (c.x(0)?, c.x(1)?.widen());
    let (shape, places) = (sizes(x)?, sizes(grid)?);
    let dims = shape.len().saturating_sub(2);
    let fits =
        dims > 0 && places.len() == dims + 2 && places[0] == shape[0] && places[dims + 1] == dims;
    if !fits || shape.contains(&0) {
        return Err(invalid(
            "x of [N, C, ...] and a grid of [N, ..., D]",
            format!("{} and {}", x.ty(), grid.ty()),
        ));
    }
    let beyond = match c.text_or("padding_mode", "zeros").as_str() {
        "zeros" => Beyond::Zeros,
        "border" => Beyond::Border,
        "reflection" => Beyond::Reflection,
        other => return Err(unsupported(format!("padding_mode `{other}`"))),
    };
    let corners = c.flag("align_corners", 0);
    let default = if c.opset < 20 { "bilinear" } else { "linear" };
    let mode = c.text_or("mode", default);
    let points = places[..=dims].to_vec();
    let mut axes = Vec::new();
    for d in 0..dims {
        let size = shape[2 + d];
        let (low, high) =
            if corners { (0.0, size as f64 - 1.0) } else { (-0.5, size as f64 - 0.5) };
        let side = SampledAxis { size, low, high, beyond };
        let n = grid.slice_axis(dims + 1, dims - 1 - d, dims - d).reshape(points.clone());
        let place = match corners {
            true => (n + 1.0) * ((size as f64 - 1.0) / 2.0),
            false => ((n + 1.0) * size as f64 - 1.0) * 0.5,
        };
        let place = if mode == "nearest" { place.unary(Unary::Round) } else { place };
        let (base, first, weights) = taps(&mode, side.inside(place))?;
        axes.push((side, base, first, weights));
    }
    let mut column = points.clone();
    column.push(1);
    let batch = c.b.iota(DType::I64, points.clone(), 0).reshape(column.clone());
    let gathered: Vec<usize> = (0..shape.len()).filter(|&a| a != 1).collect();
    let whole = Shape::from([&points[..], &[shape[1]]].concat());
    let under: Vec<usize> = (0..points.len()).collect();
    let count: usize = axes.iter().map(|a| a.3.len().max(1)).product();
    let mut sum: Option<Expr<'b>> = None;
    for tap in 0..count {
        let (mut rest, mut weight, mut visible) = (tap, None::<Expr<'b>>, None::<Expr<'b>>);
        let mut parts = vec![batch];
        for (side, base, first, weights) in &axes {
            let number = rest % weights.len().max(1);
            rest /= weights.len().max(1);
            let at = *base + (*first + number as i64) as f64;
            let low = at.compare(Compare::Ge, at.constant(0.0));
            let inside =
                low.binary(Binary::And, at.compare(Compare::Lt, at.constant(side.size as f64)));
            visible = Some(visible.map_or(inside, |all| all.binary(Binary::And, inside)));
            if let Some(&w) = weights.get(number) {
                weight = Some(weight.map_or(w, |all| all * w));
            }
            // Positions outside are clamped by the gather, and hidden below where they must be.
            parts.push(side.inside(at).convert(DType::I64).reshape(column.clone()));
        }
        let values = x.gather(c.b.concat(&parts, points.len()), &gathered).widen();
        let values = match (beyond, visible) {
            (Beyond::Zeros, Some(visible)) => {
                visible.broadcast_in(&whole, &under).select(values, values.constant(0.0))
            }
            _ => values,
        };
        let term = match weight {
            Some(weight) => values * weight.convert(values.dtype()).broadcast_in(&whole, &under),
            None => values,
        };
        sum = Some(sum.map_or(term, |sum| sum + term));
    }
    let sum = sum.ok_or_else(|| invalid("a tap", "none"))?;
    let mut perm = vec![0, points.len()];
    perm.extend(1..points.len());
    one(sum.transpose(&perm).convert(x.dtype()))
}

/// `theta [N, D, D + 1]` applied to the centres (or corners) of cells in [-1, 1].
pub(super) fn affine_grid<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let theta = c.x(0)?;
    let size = extents(&c.ints(1)?)?;
    let (corners, dims) = (c.flag("align_corners", 0), size.len().saturating_sub(2));
    if dims == 0 || sizes(theta)? != [size[0], dims, dims + 1] {
        return Err(invalid(
            "theta of [N, D, D + 1] and a size of [N, C, ...]",
            format!("{} and {size:?}", theta.ty()),
        ));
    }
    let wide = theta.widen();
    let cells = Shape::from([&[size[0]], &size[2..]].concat());
    let number = |row: usize, column: usize| {
        let one = wide.slice_axis(1, row, row + 1).slice_axis(2, column, column + 1);
        one.reshape([size[0]]).broadcast_in(&cells, &[0])
    };
    let coordinate = |d: usize| {
        // The last spatial dimension is x.
        let along = dims - 1 - d;
        let n = size[2 + along] as f64;
        let (step, start) =
            if corners { (2.0 / (n - 1.0), -1.0) } else { (2.0 / n, 1.0 / n - 1.0) };
        c.b.iota(wide.dtype(), cells.clone(), 1 + along) * step + start
    };
    let mut column = [&[size[0]], &size[2..]].concat();
    column.push(1);
    let rows: Vec<Expr<'b>> = (0..dims)
        .map(|row| {
            (0..dims)
                .fold(number(row, dims), |sum, d| sum + number(row, d) * coordinate(d))
                .reshape(column.clone())
        })
        .collect();
    one(c.b.concat(&rows, dims + 1).convert(theta.dtype()))
}

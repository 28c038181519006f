//! HQQ: rounding to nearest with zero points that minimise a robust norm of the error, without any
//! data.
//!
//! It solves `min over z of |W - s (Q - z)|_p`, p = 0.7, by half-quadratic splitting. A generalised
//! soft threshold shrinks the error E towards zero. Then z is the mean of `Q - (W - E) / s`, and
//! the codes follow z. Zero points are floats, which only weight-only products take. Source: Badri
//! and Shaji, "Half-quadratic quantization of large machine learning models", Mobius Labs 2023.
//! From there are p, 20 steps, a β of 10 that grows by 1.01, and the start from the range.

use overdrive_ir::{BlockFormat, BlockIndex, DType, Encoded, Overflow, Tensor};

const P: f64 = 0.7;
const STEPS: usize = 20;

/// Codes of `values` `[N, K]`, which the format is known to take; it has integer elements.
pub(super) fn hqq(values: &[f64], shape: [usize; 2], format: &BlockFormat) -> Encoded {
    let format = format.asymmetric();
    let counts = format.block.counts(shape).expect("the caller has encoded with this format");
    let index = BlockIndex::new(shape, counts);
    let mut members = vec![Vec::new(); counts[0] * counts[1]];
    (0..values.len()).for_each(|i| members[index.at(i)].push(i));
    let (mut codes, mut grids) = (vec![0.0; values.len()], Vec::with_capacity(members.len()));
    let (low, high) = format.element.int_range().expect("HQQ has integer codes");
    for block in &members {
        let w: Vec<f64> = block.iter().map(|&i| values[i]).collect();
        let ends =
            w.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], &x| [l.min(x), h.max(x)]);
        // Here the range need not hold 0: the zero point is no code.
        let span = (ends[1] - ends[0]).max(f64::from(f32::MIN_POSITIVE));
        let scale = DType::F32.round(span / (high - low) as f64, Overflow::Saturate);
        let narrow = |zero: f64| DType::F32.round(zero, Overflow::Saturate);
        let code =
            |x: f64, zero: f64| (x / scale + zero).round_ties_even().clamp(low as f64, high as f64);
        let error = |zero: f64| -> f64 {
            w.iter().map(|&x| (x - scale * (code(x, zero) - zero)).abs().powf(P)).sum()
        };
        let mut zero = narrow(low as f64 - ends[0] / scale);
        let (mut best, mut beta) = ((error(zero), zero), 10.0f64);
        for _ in 0..STEPS {
            let mean = w.iter().map(|&x| {
                let q = code(x, zero);
                let shrunk = shrink((x - scale * (q - zero)) / scale, beta) * scale;
                q - (x - shrunk) / scale
            });
            zero = narrow(mean.sum::<f64>() / w.len().max(1) as f64);
            let found = error(zero);
            if found >= best.0 {
                break;
            }
            best = (found, zero);
            beta *= 1.01;
        }
        block.iter().zip(&w).for_each(|(&i, &x)| codes[i] = code(x, best.1));
        grids.push(overdrive_ir::Grid { scale, zero: best.1 });
    }
    let zeros: Vec<f64> = grids.iter().map(|grid| grid.zero).collect();
    let zero = Some(Tensor::from_f64(DType::F32, counts.to_vec(), &zeros));
    Encoded { zero, ..format.assemble(&codes, &grids, shape, None) }
}

/// The generalised soft threshold of the p-norm.
fn shrink(x: f64, beta: f64) -> f64 {
    let a = x.abs();
    if a == 0.0 { 0.0 } else { (a - a.powf(P - 1.0) / beta).max(0.0).copysign(x) }
}

//! Attention with functions and its gradients in f64, with a bound on the error of each number. It
//! is quicker than the evaluator, which calls the function's graph for every pair. A test holds it
//! to the evaluator.

use overdrive_ir::{Array, DType};

/// `[B, H, Hkv, Tq, Tk, D, Dv]`.
pub(crate) type Sizes = [usize; 7];

/// Sums, each with the sum of the magnitudes of its terms.
#[derive(Clone)]
pub(crate) struct Sums {
    pub(crate) values: Vec<f64>,
    magnitudes: Vec<f64>,
}

impl Sums {
    fn zeros(count: usize) -> Self {
        Self { values: vec![0.0; count], magnitudes: vec![0.0; count] }
    }

    fn add(&mut self, at: usize, factor: f64, row: &[f64]) {
        let sums = self.values[at..].iter_mut().zip(&mut self.magnitudes[at..]);
        for ((value, magnitude), x) in sums.zip(row) {
            *value += factor * x;
            *magnitude += (factor * x).abs();
        }
    }

    /// Errs with the worst element. A term and the sum are rounded to `dtype`, some of them twice.
    /// Each of `count` terms may also be off by what a subnormal f16 loses, times 8.
    pub(crate) fn compare(&self, found: &Array, count: usize) -> Result<(), String> {
        let unit = 4.0 * found.dtype.epsilon();
        let lost = count as f64 * 2f64.powi(-22);
        let excess = |i: usize| {
            let bound = unit * self.magnitudes[i] + lost;
            let off = (found.floats()[i] - self.values[i]).abs() / bound;
            if off.is_nan() { f64::INFINITY } else { off }
        };
        let worst = (0..found.len()).max_by(|&i, &j| excess(i).total_cmp(&excess(j))).unwrap();
        if excess(worst) <= 1.0 {
            return Ok(());
        }
        let (expected, found) = (self.values[worst], found.floats()[worst]);
        Err(format!("at {worst}: expected {expected:e}, found {found:e}: {} bounds", excess(worst)))
    }
}

/// Outputs, log-sum-exps and gradients.
pub(crate) struct Results {
    pub(crate) out: Sums,
    pub(crate) lse: Vec<f64>,
    /// The sums of `dout out` of each row.
    pub(crate) delta: Vec<f64>,
    /// Gradients of q, k and v.
    pub(crate) gradients: [Sums; 3],
}

/// Computes all of them of `[q, k, v, dout]`. `score` gives a score and its derivative by the
/// scaled product, and `kept` the factor on the weight of a pair.
pub(crate) fn attention(
    [q, k, v, dout]: [&Array; 4],
    shown: impl Fn([usize; 4]) -> bool,
    kept: impl Fn([usize; 4]) -> f64,
    score: impl Fn(f64) -> [f64; 2],
) -> Results {
    let [batch, heads, queries, d] = q.shape[..] else { unreachable!("q has four dimensions") };
    let (shared, keys, dv) = (k.shape[1], k.shape[2], v.shape[3]);
    let (factor, group) = (1.0 / (d as f64).sqrt(), heads / shared);
    let [q, k, v, dout] = [q, k, v, dout].map(Array::floats);
    let row = |x: &[f64], at: usize, width: usize| x[at * width..][..width].to_vec();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let rows = batch * heads * queries;
    let mut results = Results {
        out: Sums::zeros(rows * dv),
        lse: Vec::with_capacity(rows),
        delta: Vec::with_capacity(rows),
        gradients: [rows * d, k.len(), v.len()].map(Sums::zeros),
    };
    for at in 0..rows {
        let (b, h, i) = (at / heads / queries, at / queries % heads, at % queries);
        let first_key = (b * shared + h / group) * keys;
        let (own, down) = (row(q, at, d), row(dout, at, dv));
        let seen: Vec<usize> = (0..keys).filter(|&j| shown([b, h, i, j])).collect();
        let product = |j: &usize| dot(&own, &k[(first_key + j) * d..][..d]);
        let scores: Vec<[f64; 2]> = seen.iter().map(|j| score(product(j) * factor)).collect();
        let most = scores.iter().fold(f64::NEG_INFINITY, |most, s| most.max(s[0]));
        let sum: f64 = scores.iter().map(|s| (s[0] - most).exp()).sum();
        let lse = if seen.is_empty() { f64::NEG_INFINITY } else { most + sum.ln() };
        let weights: Vec<f64> = scores.iter().map(|s| (s[0] - lse).exp()).collect();
        let factors: Vec<f64> = seen.iter().map(|&j| kept([b, h, i, j])).collect();
        for ((j, weight), factor) in seen.iter().zip(&weights).zip(&factors) {
            results.out.add(at * dv, weight * factor, &v[(first_key + j) * dv..][..dv]);
            results.gradients[2].add((first_key + j) * dv, weight * factor, &down);
        }
        let delta = dot(&down, &results.out.values[at * dv..][..dv]);
        let slopes = scores.iter().map(|s| s[1] * factor);
        for (((j, weight), slope), kept) in seen.iter().zip(&weights).zip(slopes).zip(&factors) {
            let dweight = kept * dot(&down, &v[(first_key + j) * dv..][..dv]);
            let dscore = weight * (dweight - delta) * slope;
            results.gradients[0].add(at * d, dscore, &k[(first_key + j) * d..][..d]);
            results.gradients[1].add((first_key + j) * d, dscore, &own);
        }
        results.lse.push(lse);
        results.delta.push(delta);
    }
    results
}

/// Rows `[B, H, Tq]` in f32.
pub(crate) fn rows([batch, heads, _, queries, ..]: Sizes, values: &[f64]) -> Array {
    let array = Array::from_f64(DType::F32, &[batch, heads, queries], values.to_vec());
    Array::from(&array.to_tensor())
}

//! The one factorisation that GPTQ and SparseGPT need.

/// An upper triangular `U` with `Uᵀ U = H⁻¹`, row-major, of a symmetric positive definite `H [k,
/// k]`; `None` where H is not positive definite.
///
/// With `H = R Rᵀ`, R upper triangular (Cholesky from the last column on), U is `R⁻¹`: one
/// factorisation and one triangular inverse instead of two and an inverse.
pub(crate) fn factor_of_inverse(h: &[f64], k: usize) -> Option<Vec<f64>> {
    let mut r = vec![0.0; k * k];
    for j in (0..k).rev() {
        let tail = |r: &[f64], i: usize| {
            dot(&r[i * k + j + 1..(i + 1) * k], &r[j * k + j + 1..(j + 1) * k])
        };
        let pivot = h[j * k + j] - tail(&r, j);
        if pivot.is_nan() || pivot <= 0.0 {
            return None;
        }
        let root = pivot.sqrt();
        r[j * k + j] = root;
        for i in 0..j {
            r[i * k + j] = (h[i * k + j] - tail(&r, i)) / root;
        }
    }
    // Row i of U solves u R = e_i.
    let mut u = vec![0.0; k * k];
    for (i, row) in u.chunks_mut(k.max(1)).enumerate() {
        row[i] = 1.0;
        for p in i..k {
            row[p] /= r[p * k + p];
            let known = row[p];
            row[p + 1..]
                .iter_mut()
                .zip(&r[p * k + p + 1..(p + 1) * k])
                .for_each(|(u, r)| *u -= known * r);
        }
    }
    Some(u)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The Gram matrix with its diagonal raised by a hundredth of its mean, so that it can be inverted;
/// channels that were never seen get 1.
pub(crate) fn damped(gram: &[f64], k: usize) -> Vec<f64> {
    let mean = (0..k).map(|i| gram[i * k + i]).sum::<f64>() / k.max(1) as f64;
    let mut h = gram.to_vec();
    for i in 0..k {
        let seen = h[i * k + i] > 0.0;
        h[i * k + i] += if seen { 0.01 * mean } else { mean.max(f64::MIN_POSITIVE) };
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_of_the_inverse() {
        let k = 5;
        let a: Vec<f64> = (0..k * k).map(|i| ((i * 7919) % 23) as f64 / 11.0 - 1.0).collect();
        let product =
            |x: &dyn Fn(usize, usize) -> f64,
             y: &dyn Fn(usize, usize) -> f64,
             i: usize,
             j: usize| { (0..k).map(|p| x(i, p) * y(p, j)).sum::<f64>() };
        let at = |m: &[f64], i: usize, j: usize| m[i * k + j];
        let gram: Vec<f64> = (0..k * k)
            .map(|p| product(&|i, j| at(&a, i, j), &|i, j| at(&a, j, i), p / k, p % k))
            .collect();
        let h = damped(&gram, k);
        let u = factor_of_inverse(&h, k).expect("positive definite");
        let inverse: Vec<f64> = (0..k * k)
            .map(|p| product(&|i, j| at(&u, j, i), &|i, j| at(&u, i, j), p / k, p % k))
            .collect();
        for p in 0..k * k {
            let identity = product(&|i, j| at(&inverse, i, j), &|i, j| at(&h, i, j), p / k, p % k);
            let expected = f64::from(u8::from(p / k == p % k));
            assert!((identity - expected).abs() < 1e-8, "{p}: {identity}");
        }
        assert!(factor_of_inverse(&[-1.0], 1).is_none());
    }
}

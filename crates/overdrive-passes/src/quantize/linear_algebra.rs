//! The one factorisation that GPTQ and SparseGPT need, by products of blocks.
//!
//! A layer of K inputs takes 2/3 K³ multiply-adds. That is 366 G at K = 8192, done as products of
//! blocks at the speed of a GEMM. Invariant: results do not depend on the number of threads.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, s};
use std::num::NonZeroUsize;
use std::thread;

/// Extent from which on a factorisation goes by halves.
const LEAF: usize = 64;
/// Extent of the blocks by which zeros of triangles are passed over.
const BLOCK: usize = 256;
/// Multiply-adds from which on a product is worth threads: about a millisecond of one core.
const WORTH_THREADS: usize = 1 << 24;

/// An upper triangular `U` with `Uᵀ U = H⁻¹`, row-major, of a symmetric positive definite `H [k,
/// k]`, which it takes the place of; `None` where H is not positive definite.
///
/// With `H = R Rᵀ` and R upper triangular (Cholesky from the last column on), U is `R⁻¹`. That is
/// one factorisation and one triangular inverse, instead of two factorisations and an inverse.
pub(crate) fn factor_of_inverse(mut h: Vec<f64>, k: usize) -> Option<Vec<f64>> {
    let whole = ArrayViewMut2::from_shape((k, k), &mut h).expect("a square matrix");
    invert(whole)?;
    Some(h)
}

/// The same in place, by halves. With `H = [A B; Bᵀ C]`, `U₂` of C and `S = B U₂ᵀ`, the other parts
/// are `U₁` of `A - S Sᵀ` and `-U₁ S U₂`. Elements below the diagonal are not read.
fn invert(mut h: ArrayViewMut2<'_, f64>) -> Option<()> {
    let k = h.nrows();
    if k <= LEAF {
        return invert_leaf(h);
    }
    let half = (k / 2).next_multiple_of(LEAF);
    h.slice_mut(s![half.., ..half]).fill(0.0);
    let (top, bottom) = h.split_at(Axis(0), half);
    let (mut a, mut b) = top.split_at(Axis(1), half);
    let (_, mut c) = bottom.split_at(Axis(1), half);
    invert(c.view_mut())?;
    let mut s = Array2::zeros(b.dim());
    for (from, to) in blocks(k - half) {
        let product = (b.slice(s![.., from..]), c.slice(s![from..to, from..]).reversed_axes());
        add_product(1.0, product, s.slice_mut(s![.., from..to]));
    }
    for (from, to) in blocks(half) {
        let product = (s.slice(s![from..to, ..]), s.slice(s![from.., ..]).reversed_axes());
        add_product(-1.0, product, a.slice_mut(s![from..to, from..]));
    }
    invert(a.view_mut())?;
    b.fill(0.0);
    for (from, to) in blocks(k - half) {
        let product = (s.slice(s![.., ..to]), c.slice(s![..to, from..to]));
        add_product(1.0, product, b.slice_mut(s![.., from..to]));
    }
    s.fill(0.0);
    for (from, to) in blocks(half) {
        let product = (a.slice(s![from..to, from..]), b.slice(s![from.., ..]));
        add_product(-1.0, product, s.slice_mut(s![from..to, ..]));
    }
    b.assign(&s);
    Some(())
}

/// The same column by column.
fn invert_leaf(mut h: ArrayViewMut2<'_, f64>) -> Option<()> {
    let k = h.nrows();
    let mut r = vec![0.0; k * k];
    for j in (0..k).rev() {
        let tail = |r: &[f64], i: usize| {
            dot(&r[i * k + j + 1..(i + 1) * k], &r[j * k + j + 1..(j + 1) * k])
        };
        let pivot = h[[j, j]] - tail(&r, j);
        if pivot.is_nan() || pivot <= 0.0 {
            return None;
        }
        let root = pivot.sqrt();
        r[j * k + j] = root;
        for i in 0..j {
            r[i * k + j] = (h[[i, j]] - tail(&r, i)) / root;
        }
    }
    h.fill(0.0);
    // Row i of U solves u R = e_i.
    for (i, mut row) in h.rows_mut().into_iter().enumerate() {
        row[i] = 1.0;
        for p in i..k {
            row[p] /= r[p * k + p];
            let known = row[p];
            let rest = &r[p * k + p + 1..(p + 1) * k];
            row.iter_mut().skip(p + 1).zip(rest).for_each(|(u, r)| *u -= known * r);
        }
    }
    Some(())
}

/// `e G eᵀ` of each row e of `rows`, for a square G, row-major.
pub(crate) fn forms(rows: &[f64], g: &[f64]) -> Vec<f64> {
    let k = g.len().isqrt();
    let rows = ArrayView2::from_shape((rows.len() / k.max(1), k), rows).expect("whole rows");
    let g = ArrayView2::from_shape((k, k), g).expect("a square matrix");
    let mut through = Array2::zeros(rows.dim());
    add_product(1.0, (rows, g), through.view_mut());
    through.outer_iter().zip(rows.outer_iter()).map(|(through, row)| through.dot(&row)).collect()
}

/// `c += alpha a b`, rows of c dealt to all cores.
pub(super) fn add_product(alpha: f64, (a, b): Factors<'_>, mut c: ArrayViewMut2<'_, f64>) {
    let rows = match a.len() * b.ncols() < WORTH_THREADS {
        true => c.nrows(),
        false => share(c.nrows()),
    };
    thread::scope(|scope| {
        let parts = a.axis_chunks_iter(Axis(0), rows).zip(c.axis_chunks_iter_mut(Axis(0), rows));
        let mut parts = parts.collect::<Vec<_>>();
        let own = parts.pop();
        for (a, mut c) in parts {
            scope.spawn(move || general_mat_mul(alpha, &a, &b, 1.0, &mut c));
        }
        if let Some((a, mut c)) = own {
            general_mat_mul(alpha, &a, &b, 1.0, &mut c);
        }
    });
}

/// The operands of a product.
type Factors<'a> = (ArrayView2<'a, f64>, ArrayView2<'a, f64>);

/// Rows of a matrix that each core gets.
pub(super) fn share(rows: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    rows.div_ceil(cores).max(1)
}

fn blocks(extent: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..extent).step_by(BLOCK).map(move |from| (from, (from + BLOCK).min(extent)))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The Gram matrix with a hundredth of its mean diagonal added to the diagonal, so that it can be
/// inverted. Channels that were never seen get 1.
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
        // One leaf; halves of leaves; blocks that are not whole.
        for k in [5, 64, 150, 700] {
            let a = Array2::from_shape_fn((k, k), |(i, j)| {
                ((i * 7919 + j * 104_729) % 1009) as f64 / 504.0 - 1.0
            });
            let gram = a.dot(&a.t());
            let h = damped(gram.as_slice().unwrap(), k);
            let u = factor_of_inverse(h.clone(), k).expect("positive definite");
            let of = |values: Vec<f64>| Array2::from_shape_vec((k, k), values).unwrap();
            let (h, u) = (of(h), of(u));
            let identity = u.t().dot(&u).dot(&h);
            for ((i, j), found) in identity.indexed_iter() {
                let expected = f64::from(u8::from(i == j));
                assert!((found - expected).abs() < 1e-8, "{k}: {i}, {j}: {found}");
                assert!(i <= j || u[[i, j]] == 0.0, "{k}: {i}, {j} lies below the diagonal");
            }
        }
        assert!(factor_of_inverse(vec![-1.0], 1).is_none());
    }
}

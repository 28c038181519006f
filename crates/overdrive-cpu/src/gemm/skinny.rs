//! Skinny GEMMs, of a few rows such as decoding makes. Each element of B is used `m` times at most,
//! so that packing B would cost more than the product. B streams past once, in memory order. The
//! bound is memory bandwidth.
#![allow(unsafe_code)] // Raw pointers; `Skinny` says what they point to.

use std::ops::{AddAssign, Mul};

use super::simd::Simd;

/// The most rows that go this way.
pub(super) const MOST_ROWS: usize = 8;

/// Layout of B in memory, and so the order in which it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SkinnyOrder {
    /// Columns side by side: C is a sum of outer products, a few rows of B at a time.
    Outer,
    /// k side by side: each element of C is a dot product.
    Inner,
}

/// `C = A B` for at most [`MOST_ROWS`] rows, and some columns.
#[derive(Clone, Copy)]
pub(super) struct Skinny<T> {
    pub order: SkinnyOrder,
    /// Packed: row `i`, element `p` at `a[p * m + i]` for outer products, at `a[i * k + p]` for
    /// inner ones.
    pub a: *const T,
    pub b: *const T,
    /// Elements from one k of B to the next for outer products. For inner ones, elements from one
    /// column to the next. The other stride is 1.
    pub b_stride: usize,
    pub c: *mut T,
    pub c_stride: usize,
    pub m: usize,
    pub cols: usize,
    pub k: usize,
}

/// Rows of B that pass together, so that sums are loaded and stored once for all of them.
const TOGETHER: usize = 4;

/// [`SkinnyOrder::Outer`].
///
/// # Safety
/// The CPU has `S`'s instructions; pointers are as [`Skinny`] says.
#[inline(always)]
pub(super) unsafe fn outer<T, S: Simd<Unit = T, Acc = T>, const M: usize>(p: Skinny<T>)
where
    T: Copy + Default + AddAssign + Mul<Output = T>,
{
    let whole = p.cols / S::LANES * S::LANES;
    // SAFETY: pointers are as `Skinny` says, with `M` rows; `rows` gets at most the `k` that are
    // left, and whole vectors of columns.
    unsafe {
        for i in 0..M {
            std::slice::from_raw_parts_mut(p.c.add(i * p.c_stride), p.cols).fill(T::default());
        }
        let mut k = 0;
        while k < p.k {
            if k + TOGETHER <= p.k {
                rows::<T, S, M, TOGETHER>(&p, k, whole);
                k += TOGETHER;
            } else {
                rows::<T, S, M, 1>(&p, k, whole);
                k += 1;
            }
        }
    }
}

/// Adds the outer products of `K` columns of A and rows of B.
#[inline(always)]
unsafe fn rows<T, S: Simd<Unit = T, Acc = T>, const M: usize, const K: usize>(
    p: &Skinny<T>,
    k: usize,
    whole: usize,
) where
    T: Copy + Default + AddAssign + Mul<Output = T>,
{
    // SAFETY: pointers are as `Skinny` says, `k + K` is at most `p.k`, and `whole` at most
    // `p.cols`.
    unsafe {
        let (a, b) = (p.a.add(k * M), p.b.add(k * p.b_stride));
        for col in (0..whole).step_by(S::LANES) {
            let mut sums = [S::zero(); M];
            for i in 0..K {
                S::prefetch(b.wrapping_add((K + i) * p.b_stride + col));
                let b = S::load(b.add(i * p.b_stride + col));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(S::splat(a.add(i * M + r)), b, *sum);
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                S::add_to(sum, p.c.add(r * p.c_stride + col));
            }
        }
        for col in whole..p.cols {
            for r in 0..M {
                let mut sum = T::default();
                for i in 0..K {
                    sum += *a.add(i * M + r) * *b.add(i * p.b_stride + col);
                }
                *p.c.add(r * p.c_stride + col) += sum;
            }
        }
    }
}

/// [`SkinnyOrder::Inner`], four columns at a time.
///
/// # Safety
/// As for [`outer`].
#[inline(always)]
pub(super) unsafe fn inner<T, S: Simd<Unit = T, Acc = T>, const M: usize>(p: Skinny<T>)
where
    T: Copy + Default + AddAssign + Mul<Output = T>,
{
    let mut col = 0;
    while col < p.cols {
        // SAFETY: pointers are as `Skinny` says, and the columns are below `cols`.
        unsafe {
            if col + 4 <= p.cols {
                columns::<T, S, M, 4>(&p, col);
                col += 4;
            } else {
                columns::<T, S, M, 1>(&p, col);
                col += 1;
            }
        }
    }
}

/// `M` rows of `N` columns of C.
#[inline(always)]
unsafe fn columns<T, S: Simd<Unit = T, Acc = T>, const M: usize, const N: usize>(
    p: &Skinny<T>,
    col: usize,
) where
    T: Copy + Default + AddAssign + Mul<Output = T>,
{
    let whole = p.k / S::LANES * S::LANES;
    // SAFETY: pointers are as `Skinny` says, and `col + N` is at most `p.cols`. Four lanes of sums
    // are a whole vector's or less.
    unsafe {
        let b: [*const T; N] = std::array::from_fn(|n| p.b.add((col + n) * p.b_stride));
        let mut sums = [[S::zero(); N]; M];
        for k in (0..whole).step_by(S::LANES) {
            let b = b.map(|b| S::load(b.add(k)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = S::load(p.a.add(r * p.k + k));
                for n in 0..N {
                    sums[n] = S::fma(a, b[n], sums[n]);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                let mut lanes = [T::default(); super::simd::MAX_LANES];
                S::store(sum, lanes.as_mut_ptr());
                // Halves on halves: as exact as the vector sums themselves, and no longer than
                // needed.
                let mut half = S::LANES / 2;
                while half > 0 {
                    for lane in 0..half {
                        let other = lanes[lane + half];
                        lanes[lane] += other;
                    }
                    half /= 2;
                }
                for k in whole..p.k {
                    lanes[0] += *p.a.add(r * p.k + k) * *b[n].add(k);
                }
                *p.c.add(r * p.c_stride + col + n) = lanes[0];
            }
        }
    }
}

/// Calls [`outer`] or [`inner`] with as many rows as there are: `inner` four at a time, so that
/// sums stay in registers.
macro_rules! skinny {
    ($simd:ty, $problem:expr) => {{
        let p = $problem;
        if p.order == skinny::SkinnyOrder::Outer {
            match p.m {
                1 => skinny::outer::<_, $simd, 1>(p),
                2 => skinny::outer::<_, $simd, 2>(p),
                3 => skinny::outer::<_, $simd, 3>(p),
                4 => skinny::outer::<_, $simd, 4>(p),
                5 => skinny::outer::<_, $simd, 5>(p),
                6 => skinny::outer::<_, $simd, 6>(p),
                7 => skinny::outer::<_, $simd, 7>(p),
                _ => skinny::outer::<_, $simd, 8>(p),
            }
        } else {
            for row in (0..p.m).step_by(4) {
                let p = skinny::Skinny { a: p.a.add(row * p.k), c: p.c.add(row * p.c_stride), ..p };
                match p.m - row {
                    1 => skinny::inner::<_, $simd, 1>(p),
                    2 => skinny::inner::<_, $simd, 2>(p),
                    3 => skinny::inner::<_, $simd, 3>(p),
                    _ => skinny::inner::<_, $simd, 4>(p),
                }
            }
        }
    }};
}
/// A kernel by the vectors of an instruction set.
macro_rules! kernel {
    ($(#[$attribute:meta])* $name:ident: $simd:ty) => {
        $(#[$attribute])*
        pub(super) unsafe fn $name(problem: Skinny<<$simd as Simd>::Unit>) {
            // SAFETY: the problem is as `Skinny` says, and the CPU has the instructions.
            unsafe { skinny::skinny!($simd, problem) }
        }
    };
}

pub(super) use {kernel, skinny};

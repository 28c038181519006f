//! The transcendental functions in f32, written so that LLVM vectorises them: no branch, no table,
//! no call.
//!
//! Sources: range reduction and polynomials of `exp`, `exp2`, `log`, `sin`, `cos` are those of
//! Cephes (Moshier, netlib, single precision). The rational `tanh` and `erf` are those of Eigen and
//! XLA. Functions that cancel (`expm1`, `log1p`) or amplify (`pow`) go through f64 with the series
//! of exp and of the inverse hyperbolic tangent. Errors are bounded in `tests/all/loops_math.rs`,
//! which also checks infinities, NaN and subnormals.
#![allow(clippy::excessive_precision)] // Coefficients as their sources print them.

use super::isa::Isa;

/// 1.5 * 2^23: adding it rounds to an integer, which then sits in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// The number for f64, 1.5 * 2^52.
const ROUND64: f64 = 6_755_399_441_055_744.0;

/// A polynomial by Horner's rule, highest coefficient first.
#[inline(always)]
fn poly<I: Isa, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    let mut i = 1;
    while i < N {
        y = I::fma(y, x, coefficients[i]);
        i += 1;
    }
    y
}

#[inline(always)]
fn poly64<I: Isa, const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    let mut y = coefficients[0];
    let mut i = 1;
    while i < N {
        y = I::fma64(y, x, coefficients[i]);
        i += 1;
    }
    y
}

/// `x` in `[lo, hi]`; NaN stays.
#[inline(always)]
pub(super) fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// `e^x = y 2^n` with `y` between 0.7 and 1.42, and `n + bias` in the exponent's place.
#[inline(always)]
fn exp_parts<I: Isa>(x: f32, bias: f32) -> (f32, u32) {
    // Rounds to an integer, whose low bits are `n + bias`.
    let rounding = ROUND + bias;
    let shifted = I::fma(x, std::f32::consts::LOG2_E, rounding);
    let n = shifted - rounding;
    let r = I::fma(n, -0.693359375, x);
    let r = I::fma(n, 2.12194440e-4, r);
    // (e^r - 1 - r) / r^2 by Remez, to 0.05 ulp of e^r: five coefficients where Cephes has six.
    let p = poly::<I, 5>(
        r,
        [
            1.3814320554956794e-3,
            8.36885068565607e-3,
            4.1668400168418884e-2,
            1.666651964187622e-1,
            4.999999403953552e-1,
        ],
    );
    (I::fma(I::fma(p, r, 1.0), r, 1.0), shifted.to_bits() << 23)
}

/// e^x.
#[inline(always)]
pub(super) fn exp<I: Isa>(x: f32) -> f32 {
    // Below -104 the result is 0, above 89 it is infinite.
    let (y, n) = exp_parts::<I>(clamp(x, -104.0, 89.0), 0.0);
    // Two factors, because 2^n alone leaves the range where e^x is subnormal or n is 128. Halves of
    // n are rounded down to whole exponents.
    const ONE: i32 = 0x3f80_0000;
    let n = n as i32;
    let half = (n >> 1) & 0xff80_0000_u32 as i32;
    let rest = n.wrapping_sub(half);
    y * f32::from_bits(rest.wrapping_add(ONE) as u32)
        * f32::from_bits(half.wrapping_add(ONE) as u32)
}

/// e^x for x from -87 to 89, where 2^n is one factor; infinite from `2^127.5` on. Two thirds of the
/// work of [`exp`].
#[inline(always)]
pub(super) fn exp_normal<I: Isa>(x: f32) -> f32 {
    let (y, power) = exp_parts::<I>(x, 127.0);
    // A product, so that NaN stays NaN.
    y * f32::from_bits(power)
}

/// e^x for x up to 0; results that would be subnormal are 0, which they would take CPUs a hundred
/// cycles each to be.
#[inline(always)]
pub(super) fn exp_nonpositive<I: Isa>(x: f32) -> f32 {
    let y = exp_normal::<I>(x);
    if x < -87.0 { 0.0 } else { y }
}

/// 2^x for x up to 127; results that would be subnormal are 0. Half the work of [`exp`].
#[inline(always)]
pub(crate) fn exp2_normal<I: Isa>(x: f32) -> f32 {
    // Rounds to an integer, and leaves it in the low bits with the exponent's bias added.
    const BIASED: f32 = ROUND + 127.0;
    let shifted = x + BIASED;
    let r = x - (shifted - BIASED);
    let p = poly::<I, 7>(
        r,
        [
            1.535336188319500e-4,
            1.339887440266574e-3,
            9.618437357674640e-3,
            5.550332471162809e-2,
            2.402264791363012e-1,
            6.931472028550421e-1,
            1.0,
        ],
    );
    // A product, so that NaN stays NaN.
    let y = p * f32::from_bits(shifted.to_bits() << 23);
    if x < -126.0 { 0.0 } else { y }
}

/// The natural logarithm.
#[inline(always)]
pub(super) fn log<I: Isa>(x: f32) -> f32 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF);
    let e = ((bits as i32) >> 23) as f32 - if subnormal { 23.0 } else { 0.0 };
    let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF)) - 1.0;
    let z = f * f;
    let p = poly::<I, 9>(
        f,
        [
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ],
    );
    let y = I::fma(e, -2.12194440e-4, f * z * p);
    let y = I::fma(z, -0.5, y) + f;
    let y = I::fma(e, 0.693359375, y);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh<I: Isa>(x: f32) -> f32 {
    let t = clamp(x, -7.90531110763549805, 7.90531110763549805);
    let z = t * t;
    let p = poly::<I, 7>(
        z,
        [
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ],
    );
    let q = poly::<I, 4>(
        z,
        [1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03],
    );
    let y = t * (p / q);
    if x.abs() < 4.0e-4 { x } else { y }
}

/// The error function.
#[inline(always)]
pub(super) fn erf<I: Isa>(x: f32) -> f32 {
    let t = clamp(x, -4.0, 4.0);
    let z = t * t;
    let p = poly::<I, 7>(
        z,
        [
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ],
    );
    let q = poly::<I, 5>(
        z,
        [
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ],
    );
    t * (p / q)
}

/// `1 / (1 + e^-x)`, as `e^x / (1 + e^x)` where `e^-x` could overflow.
#[inline(always)]
pub(super) fn logistic<I: Isa>(x: f32) -> f32 {
    let e = exp::<I>(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// Beyond this magnitude [`sin`] and [`cos`] lose the argument's quadrant.
pub(super) const TRIG_LIMIT: f32 = 1.0e6;

/// The remainder of `x` by pi/2, in `[-pi/4, pi/4]`, and the quadrant. Computed in f64, with pi/2
/// split as in fdlibm. The first part has 33 bits, so that its products with quadrants below 2^20
/// are exact.
#[inline(always)]
fn quadrant(x: f32) -> (f32, u32) {
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND64;
    let n = shifted - ROUND64;
    let r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
    (r as f32, shifted.to_bits() as u32)
}

#[inline(always)]
fn sin_or_cos<I: Isa>(r: f32, quadrant: u32) -> f32 {
    let z = r * r;
    let s = poly::<I, 3>(z, [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1]);
    let s = I::fma(s * z, r, r);
    let c = poly::<I, 3>(z, [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2]);
    let c = I::fma(c * z, z, I::fma(z, -0.5, 1.0));
    let y = if quadrant & 1 == 0 { s } else { c };
    f32::from_bits(y.to_bits() ^ ((quadrant & 2) << 30))
}

/// The sine, for `|x|` up to [`TRIG_LIMIT`].
#[inline(always)]
pub(super) fn sin<I: Isa>(x: f32) -> f32 {
    let (r, quadrant) = quadrant(x);
    let y = sin_or_cos::<I>(r, quadrant);
    if x == 0.0 { x } else { y }
}

/// The cosine, for `|x|` up to [`TRIG_LIMIT`].
#[inline(always)]
pub(super) fn cos<I: Isa>(x: f32) -> f32 {
    let (r, quadrant) = quadrant(x);
    sin_or_cos::<I>(r, quadrant.wrapping_add(1))
}

/// e^x - 1 and e^x in f64, to about 1e-11: `expm1(r) 2^n + (2^n - 1)`.
#[inline(always)]
fn exp_pair<I: Isa>(x: f64) -> (f64, f64) {
    let x = if x < -700.0 { -700.0 } else { x };
    let x = if x > 700.0 { 700.0 } else { x };
    let shifted = I::fma64(x, std::f64::consts::LOG2_E, ROUND64);
    let n = shifted - ROUND64;
    let r = I::fma64(n, -std::f64::consts::LN_2, x);
    let p = poly64::<I, 10>(
        r,
        [
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5_040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
        ],
    ) * r;
    let n = (shifted.to_bits() as i64).wrapping_sub(ROUND64.to_bits() as i64);
    let scale = f64::from_bits((n.wrapping_add(1023) as u64) << 52);
    (I::fma64(p, scale, scale - 1.0), I::fma64(p, scale, scale))
}

/// `2 atanh(s)` for `|s|` up to 0.18: the logarithm of `(1 + s) / (1 - s)`, to about 1e-13.
#[inline(always)]
fn twice_atanh<I: Isa>(s: f64) -> f64 {
    let z = s * s;
    let p = poly64::<I, 8>(
        z,
        [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0],
    );
    2.0 * s * p
}

/// The logarithm of a positive f64 that is not subnormal.
#[inline(always)]
fn log64<I: Isa>(x: f64) -> f64 {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let bits = x.to_bits().wrapping_sub(SQRT_HALF);
    // The exponent as f64 without a 64-bit integer conversion: placed in the mantissa of 1.5 *
    // 2^52.
    let e = f64::from_bits(ROUND64.to_bits().wrapping_add(((bits as i64) >> 52) as u64)) - ROUND64;
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF));
    I::fma64(e, std::f64::consts::LN_2, twice_atanh::<I>((m - 1.0) / (m + 1.0)))
}

/// e^x - 1, exact near 0.
#[inline(always)]
pub(super) fn expm1<I: Isa>(x: f32) -> f32 {
    let y = exp_pair::<I>(f64::from(x)).0 as f32;
    if x == 0.0 { x } else { y }
}

/// log(1 + x), exact near 0.
#[inline(always)]
pub(super) fn log1p<I: Isa>(x: f32) -> f32 {
    let wide = f64::from(x);
    let near = twice_atanh::<I>(wide / (2.0 + wide));
    let far = log64::<I>(1.0 + wide);
    let y = if x.abs() < 0.25 { near } else { far } as f32;
    let y = if x == f32::INFINITY || x == 0.0 { x } else { y };
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    if x < -1.0 || x.is_nan() { f32::NAN } else { y }
}

/// `x^y` with the special cases of IEEE 754.
#[inline(always)]
pub(super) fn pow<I: Isa>(x: f32, y: f32) -> f32 {
    let a = x.abs();
    let log = log64::<I>(f64::from(a));
    let log = if a == 0.0 { f64::NEG_INFINITY } else { log };
    let log = if a == f32::INFINITY { f64::INFINITY } else { log };
    let magnitude = exp_pair::<I>(f64::from(y) * log).1 as f32;
    let whole = y == y.trunc();
    // From 2^24 on every f32 is even, and so is infinity.
    let odd = whole && y.abs() < 16_777_216.0 && (y * 0.5 != (y * 0.5).trunc());
    let signed = if odd && x.is_sign_negative() { -magnitude } else { magnitude };
    let z = if x < 0.0 && a != f32::INFINITY && !whole { f32::NAN } else { signed };
    let z = if x.is_nan() || y.is_nan() { f32::NAN } else { z };
    let z = if a == 1.0 && y.abs() == f32::INFINITY { 1.0 } else { z };
    if y == 0.0 || x == 1.0 { 1.0 } else { z }
}

#[cfg(test)]
mod tests {
    use super::exp2_normal;
    use crate::loops::isa::Portable;

    #[test]
    fn exp2_is_within_two_units_in_the_last_place_and_flushes_subnormals() {
        for i in 0..1_000_000_u32 {
            let x = -126.0 + i as f32 * (253.0 / 1e6);
            let (y, exact) = (f64::from(exp2_normal::<Portable>(x)), f64::from(x).exp2());
            assert!((y / exact - 1.0).abs() < 2.4e-7, "2^{x} = {exact:e}, not {y:e}");
        }
        for x in [-126.1, -127.5, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp2_normal::<Portable>(x), 0.0, "2^{x}");
        }
        // Payloads must not reach the exponent.
        for payload in [0x7fc0_0000, 0xffc0_0000, 0x7fc0_0001, 0x7fff_ffff] {
            assert!(exp2_normal::<Portable>(f32::from_bits(payload)).is_nan(), "NaN {payload:x}");
        }
    }
}

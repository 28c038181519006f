//! The evaluator against formulas that it shares nothing with: power series, equations that a
//! function solves, integrals, compensated sums, the processor's own integers, written-out values.
//!
//! Everything else is checked against the evaluator, so a wrong formula in it would pass there.
//! Invariant: only `+ - * /` and comparisons compute what is expected here, no function of a
//! library of mathematics. Errors of the series are a few units of f64 times their number of terms;
//! `CLOSE` leaves a margin of ten over them.

use overdrive_ir::eval::{States, eval, philox, scalar};
use overdrive_ir::ops::gelu::{Approximation, Gelu};
use overdrive_ir::ops::silu::Silu;
use overdrive_ir::ops::softmax::Softmax;
use overdrive_ir::{Array, Binary, Builder, Compare, DType, Operation, Prim, Reducer, Unary};

/// Relative to the larger of the expected magnitude and that of the operands' terms.
const CLOSE: f64 = 1e-13;

/// One op, evaluated.
fn evaluate(op: impl Into<Operation>, operands: &[Array]) -> Array {
    let b = Builder::new("one");
    let inputs: Vec<_> =
        operands.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
    b.output("y", b.op1(op, &inputs));
    eval(&b.finish().unwrap(), operands, &mut States::new()).remove(0)
}

fn floats(values: &[f64]) -> Array {
    Array::float(DType::F64, &[values.len()], values.to_vec())
}

fn assert_close(what: &str, xs: &[f64], found: &Array, expected: impl Fn(f64) -> f64) {
    for (&x, &found) in xs.iter().zip(found.floats()) {
        let expected = expected(x);
        assert!(
            (found - expected).abs() <= CLOSE * expected.abs(),
            "{what}({x}) is {found:e}, expected {expected:e}"
        );
    }
}

/// `count` points from `from` to `to`, off the round numbers.
fn points(from: f64, to: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| from + (to - from) * (i as f64 + 0.37) / count as f64).collect()
}

/// `first * Σ ratio(1) ratio(2) ... ratio(n)`, until a term changes nothing.
fn series(first: f64, ratio: impl Fn(f64) -> f64) -> f64 {
    let (mut sum, mut term, mut n) = (first, first, 1.0);
    while sum + term != sum || n < 4.0 {
        term *= ratio(n);
        sum += term;
        n += 1.0;
    }
    sum
}

/// `Σ xⁿ/n!` over n from 1.
fn expm1(x: f64) -> f64 {
    if x.abs() <= 1.0 {
        return series(x, |n| x / (n + 1.0));
    }
    let half = expm1(x / 2.0);
    half * (half + 2.0)
}

fn exp(x: f64) -> f64 {
    if x < 0.0 { 1.0 / exp(-x) } else { 1.0 + expm1(x) }
}

/// The zero of an increasing function between `low` and `high`.
fn root(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return middle;
        }
        if f(middle) < 0.0 { low = middle } else { high = middle }
    }
}

fn log(x: f64) -> f64 {
    if x < 1.0 { -log(1.0 / x) } else { root(0.0, 800.0, |y| exp(y) - x) }
}

fn sin(x: f64) -> f64 {
    series(x, |n| -x * x / (2.0 * n * (2.0 * n + 1.0)))
}

fn cos(x: f64) -> f64 {
    series(1.0, |n| -x * x / (2.0 * n * (2.0 * n - 1.0)))
}

/// `2/√π exp(-x²) Σ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n+1))`: all terms of one sign (Abramowitz and Stegun,
/// 7.1.6). √π from Γ(1/2)² = π.
fn erf(x: f64) -> f64 {
    let root_of_pi = root(1.0, 2.0, |y| y * y - std::f64::consts::PI);
    2.0 / root_of_pi * exp(-x * x) * series(x, |n| 2.0 * x * x / (2.0 * n + 1.0))
}

/// The integral of the normal density from 0 to `x`, by Simpson's rule: off by under
/// `x (x/n)⁴ / 60` with n = 4,000 intervals.
fn normal_integral(x: f64) -> f64 {
    let density = |t: f64| exp(-t * t / 2.0);
    let root_of_two_pi = root(2.0, 3.0, |y| y * y - 2.0 * std::f64::consts::PI);
    let (n, step) = (4000, x / 4000.0);
    let inner: f64 =
        (1..n).map(|i| density(i as f64 * step) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (density(0.0) + inner + density(x)) * step / 3.0 / root_of_two_pi
}

/// A sum whose error does not grow with its length (Neumaier 1974).
fn compensated(terms: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for x in terms {
        let next = sum + x;
        lost += if sum.abs() >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    sum + lost
}

#[test]
fn functions_of_one_operand_are_what_their_series_and_equations_say() {
    let unary = |kind, xs: &[f64], expected: fn(f64) -> f64| {
        let found = evaluate(Prim::Unary { kind }, &[floats(xs)]);
        assert_close(&format!("{kind:?}"), xs, &found, expected);
    };
    let around = points(-6.0, 6.0, 49);
    let wide = points(-30.0, 30.0, 61);
    let positive = [points(1e-3, 2.0, 40), points(2.0, 900.0, 40)].concat();
    let small = points(-1e-6, 1e-6, 12);
    unary(Unary::Neg, &wide, |x| 0.0 - x);
    unary(Unary::Abs, &wide, |x| if x < 0.0 { 0.0 - x } else { x });
    unary(Unary::Sign, &wide, |x| if x < 0.0 { -1.0 } else { 1.0 });
    unary(Unary::Exp, &wide, exp);
    unary(Unary::Expm1, &[&wide[..], &small].concat(), expm1);
    unary(Unary::Log, &positive, log);
    unary(Unary::Log1p, &positive, |x| log(1.0 + x));
    unary(Unary::Log1p, &small, |x| root(-1e-5, 1e-5, |y| expm1(y) - x));
    unary(Unary::Sqrt, &positive, |x| root(0.0, 1e3, |y| y * y - x));
    unary(Unary::Rsqrt, &positive, |x| root(0.0, 1e3, |y| y * y * x - 1.0));
    unary(Unary::Reciprocal, &positive, |x| root(0.0, 1e4, |y| x * y - 1.0));
    unary(Unary::Sin, &points(-3.0, 3.0, 48), sin);
    unary(Unary::Cos, &points(-1.5, 1.5, 48), cos);
    // Addition theorem: beyond the reach of the series.
    unary(Unary::Cos, &points(3.0, 6.0, 30), |x| {
        let (s, c) = (sin(x / 4.0), cos(x / 4.0));
        let (s, c) = (2.0 * s * c, c * c - s * s);
        c * c - s * s
    });
    unary(Unary::Tanh, &around, |x| (exp(x) - exp(-x)) / (exp(x) + exp(-x)));
    unary(Unary::Tanh, &small, |x| x - x * x * x / 3.0);
    unary(Unary::Erf, &points(-5.0, 5.0, 50), erf);
    // The solution of s' = s (1 - s) through (0, 1/2), as its two exponentials.
    unary(Unary::Logistic, &wide, |x| exp(x / 2.0) / (exp(x / 2.0) + exp(-x / 2.0)));
    unary(Unary::Floor, &wide, |x| (-40..40).map(f64::from).rfind(|&n| n <= x).unwrap());
    unary(Unary::Ceil, &wide, |x| (-40..40).map(f64::from).find(|&n| n >= x).unwrap());
    unary(Unary::Round, &wide, |x| {
        let distance = |n: f64| if n < x { x - n } else { n - x };
        (-40..40).map(f64::from).min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap()
    });
}

#[test]
fn functions_of_two_operands_are_what_their_equations_say() {
    let (left, right) = (points(-9.0, 9.0, 25), points(-4.0, 5.0, 25));
    let binary = |kind, left: &[f64], expected: fn(f64, f64) -> f64| {
        for &y in &right {
            let found =
                evaluate(Prim::Binary { kind }, &[floats(left), floats(&vec![y; left.len()])]);
            assert_close(&format!("{kind:?} by {y} of "), left, &found, |x| expected(x, y));
        }
    };
    binary(Binary::Add, &left, |x, y| x - (0.0 - y));
    binary(Binary::Sub, &left, |x, y| x + (0.0 - y));
    binary(Binary::Mul, &left, |x, y| x / (1.0 / y));
    binary(Binary::Div, &left, |x, y| x * (1.0 / y));
    binary(Binary::Max, &left, |x, y| if x < y { y } else { x });
    binary(Binary::Min, &left, |x, y| if x < y { x } else { y });
    binary(Binary::Pow, &points(0.1, 9.0, 25), |x, y| exp(y * log(x)));
    // Multiples of 1/8: subtraction is exact.
    let eighths: Vec<f64> = (-80..80).map(|i| f64::from(i) / 8.0).collect();
    for y in [0.375, 1.0, 2.5] {
        let modulus = floats(&vec![y; eighths.len()]);
        let found = evaluate(Prim::Binary { kind: Binary::Rem }, &[floats(&eighths), modulus]);
        assert_close("Rem", &eighths, &found, |x| {
            let mut left = if x < 0.0 { -x } else { x };
            while left >= y {
                left -= y;
            }
            if x < 0.0 { -left } else { left }
        });
    }
}

#[test]
fn functions_of_special_values_are_as_written_here() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let same = |what: String, found: f64, expected: f64| {
        let equal = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(equal, "{what} is {found}, expected {expected}");
    };
    for (kind, x, expected) in [
        (Unary::Neg, 0.0, -0.0),
        (Unary::Abs, -inf, inf),
        (Unary::Sign, -0.0, -0.0),
        (Unary::Sign, nan, nan),
        (Unary::Exp, -inf, 0.0),
        (Unary::Exp, 710.0, inf),
        (Unary::Expm1, -inf, -1.0),
        (Unary::Log, 0.0, -inf),
        (Unary::Log, -1.0, nan),
        (Unary::Log1p, -1.0, -inf),
        (Unary::Sqrt, -1.0, nan),
        (Unary::Rsqrt, 0.0, inf),
        (Unary::Rsqrt, inf, 0.0),
        (Unary::Reciprocal, -0.0, -inf),
        (Unary::Sin, inf, nan),
        (Unary::Tanh, -inf, -1.0),
        (Unary::Erf, inf, 1.0),
        (Unary::Logistic, -inf, 0.0),
        (Unary::Logistic, inf, 1.0),
        (Unary::Floor, -0.5, -1.0),
        (Unary::Ceil, -0.5, -0.0),
        (Unary::Round, 2.5, 2.0),
        (Unary::Round, -1.5, -2.0),
        (Unary::Round, 0.5, 0.0),
    ] {
        same(format!("{kind:?}({x})"), scalar::unary(kind, x), expected);
    }
    for (kind, x, y, expected) in [
        (Binary::Max, nan, 1.0, nan),
        (Binary::Max, 1.0, nan, nan),
        (Binary::Min, nan, 1.0, nan),
        (Binary::Min, 1.0, nan, nan),
        (Binary::Div, -1.0, 0.0, -inf),
        (Binary::Rem, -5.5, 2.0, -1.5),
        (Binary::Rem, 1.0, 0.0, nan),
        (Binary::Pow, -2.0, 3.0, -8.0),
        (Binary::Pow, -2.0, 0.5, nan),
        (Binary::Pow, nan, 0.0, 1.0),
    ] {
        same(format!("{kind:?}({x}, {y})"), scalar::binary(kind, x, y), expected);
    }
    // Less, equal, greater, without an order.
    for (kind, expected) in [
        (Compare::Eq, [0, 1, 0, 0]),
        (Compare::Ne, [1, 0, 1, 1]),
        (Compare::Lt, [1, 0, 0, 0]),
        (Compare::Le, [1, 1, 0, 0]),
        (Compare::Gt, [0, 0, 1, 0]),
        (Compare::Ge, [0, 1, 1, 0]),
    ] {
        let pairs = [floats(&[1.0, 0.0, inf, nan]), floats(&[2.0, -0.0, 1.0, nan])];
        let found = evaluate(Prim::Compare { kind }, &pairs);
        assert_eq!(found.ints(), expected.map(i128::from), "{kind:?}");
    }
}

/// Every pair of one type's 8-bit integers, by the processor's own operations.
macro_rules! integers_agree {
    ($native:ty, $dtype:expr) => {
        let all: Vec<$native> = (<$native>::MIN..=<$native>::MAX).collect();
        let array = |values: Vec<$native>| {
            Array::int($dtype, &[values.len()], values.into_iter().map(i128::from).collect())
        };
        let shift = |x: $native, y: $native, left: bool| match u32::try_from(y) {
            Ok(y) if left => x.checked_shl(y).unwrap_or(0),
            Ok(y) => x.checked_shr(y).unwrap_or(0),
            Err(_) => 0,
        };
        let expected: [(Binary, &dyn Fn($native, $native) -> $native); 12] = [
            (Binary::Add, &<$native>::wrapping_add),
            (Binary::Sub, &<$native>::wrapping_sub),
            (Binary::Mul, &<$native>::wrapping_mul),
            (Binary::Div, &|x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
            (Binary::Rem, &|x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
            (Binary::Max, &|x, y| if x < y { y } else { x }),
            (Binary::Min, &|x, y| if x < y { x } else { y }),
            (Binary::And, &|x, y| x & y),
            (Binary::Or, &|x, y| x | y),
            (Binary::Xor, &|x, y| x ^ y),
            (Binary::Shl, &|x, y| shift(x, y, true)),
            (Binary::Shr, &|x, y| shift(x, y, false)),
        ];
        for (kind, expected) in expected {
            for &y in &all {
                let operands = [array(all.clone()), array(vec![y; all.len()])];
                let found = evaluate(Prim::Binary { kind }, &operands);
                let expected: Vec<i128> = all.iter().map(|&x| expected(x, y).into()).collect();
                assert_eq!(found.ints(), expected, "{kind:?} by {y} of {}", $dtype);
            }
        }
        let found = evaluate(Prim::Unary { kind: Unary::Not }, &[array(all.clone())]);
        assert_eq!(found.ints(), all.iter().map(|&x| i128::from(!x)).collect::<Vec<_>>());
    };
}

#[test]
fn integers_are_those_of_the_processor() {
    integers_agree!(i8, DType::I8);
    integers_agree!(u8, DType::U8);
    let signed: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    let array = Array::int(DType::I8, &[256], signed.iter().map(|&x| x.into()).collect());
    let functions = [
        (Unary::Neg, i8::wrapping_neg as fn(i8) -> i8),
        (Unary::Abs, i8::wrapping_abs),
        (Unary::Sign, |x| (x > 0) as i8 - (x < 0) as i8),
    ];
    for (kind, expected) in functions {
        let found = evaluate(Prim::Unary { kind }, std::slice::from_ref(&array));
        let expected: Vec<i128> = signed.iter().map(|&x| expected(x).into()).collect();
        assert_eq!(found.ints(), expected, "{kind:?}");
    }
    let bools = Array::int(DType::Bool, &[2], vec![0, 1]);
    assert_eq!(evaluate(Prim::Unary { kind: Unary::Not }, &[bools]).ints(), [1, 0]);
}

#[test]
fn reductions_are_compensated_sums_and_extremes() {
    let terms: Vec<f64> = philox::normals(5, 1).take(3 * 4001).collect();
    let array = Array::float(DType::F64, &[3, 4001], terms.clone());
    for (reducer, axes, rows) in [(Reducer::Sum, vec![1], 3), (Reducer::Sum, vec![0, 1], 1)] {
        let found = evaluate(Prim::Reduce { reducer, axes }, std::slice::from_ref(&array));
        for (row, found) in terms.chunks(terms.len() / rows).zip(found.floats()) {
            let expected = compensated(row.iter().copied());
            let magnitude = compensated(row.iter().map(|x| x.abs()));
            assert!((found - expected).abs() <= CLOSE * magnitude, "{found} {expected}");
        }
    }
    let mut sorted = terms.clone();
    sorted.sort_by(f64::total_cmp);
    for (reducer, expected) in [(Reducer::Min, sorted[0]), (Reducer::Max, sorted[3 * 4001 - 1])] {
        let axes = vec![0, 1];
        let found = evaluate(Prim::Reduce { reducer, axes }, std::slice::from_ref(&array));
        assert_eq!(found.floats(), [expected], "{reducer:?}");
    }
    let factorial = floats(&(1..=15).map(f64::from).collect::<Vec<_>>());
    let reduce = |reducer| Prim::Reduce { reducer, axes: vec![0] };
    assert_eq!(evaluate(reduce(Reducer::Prod), &[factorial]).floats(), [1_307_674_368_000.0]);
    for (reducer, empty) in [
        (Reducer::Sum, 0.0),
        (Reducer::Prod, 1.0),
        (Reducer::Max, f64::NEG_INFINITY),
        (Reducer::Min, f64::INFINITY),
    ] {
        assert_eq!(evaluate(reduce(reducer), &[floats(&[])]).floats(), [empty], "{reducer:?}");
    }
    for (reducer, expected) in [(Reducer::And, [0, 0, 1]), (Reducer::Or, [0, 1, 1])] {
        let flags = Array::int(DType::Bool, &[2, 3], vec![0, 1, 1, 0, 0, 1]);
        let found = evaluate(reduce(reducer), &[flags]);
        assert_eq!(found.ints(), expected.map(i128::from), "{reducer:?}");
    }
}

#[test]
fn activations_are_the_integrals_and_series_that_define_them() {
    let xs = points(-4.0, 6.0, 41);
    let gelu = |approximation| evaluate(Gelu { approximation }, &[floats(&xs)]);
    let off = |found: &Array, expected: &dyn Fn(f64) -> f64| {
        let pairs = xs.iter().zip(found.floats());
        pairs.map(|(&x, y)| (y - expected(x)).abs()).fold(0.0, f64::max)
    };
    // One minus nearly one: the error of the integral stays as it is, relative to 1.
    let integral = off(&gelu(Approximation::Erf), &|x| x * (0.5 + normal_integral(x)));
    assert!(integral <= 10.0 * CLOSE, "gelu by erf is off by {integral:e}");
    let slope = root(0.0, 1.0, |y| y * y - 2.0 / std::f64::consts::PI);
    let tangent = off(&gelu(Approximation::Tanh), &|x| {
        x / (1.0 + exp(-2.0 * slope * (x + 0.044715 * x * x * x)))
    });
    assert!(tangent <= 10.0 * CLOSE, "gelu by tanh is off by {tangent:e}");
    let silu = evaluate(Silu, &[floats(&xs)]);
    assert_close("silu", &xs, &silu, |x| x * exp(x / 2.0) / (exp(x / 2.0) + exp(-x / 2.0)));
    let softmax = evaluate(Softmax { axis: 0 }, &[floats(&xs)]);
    let total = compensated(xs.iter().map(|&x| exp(x)));
    assert_close("softmax", &xs, &softmax, |x| exp(x) / total);
}

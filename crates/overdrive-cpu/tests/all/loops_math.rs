//! The vector functions against f64 over a sample of all f32, infinities, NaN and subnormals
//! included.

// Slot tables over the tests' own vectors; a test may panic.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;

use overdrive_cpu::loops::{CompiledLoop, Level};
use overdrive_cpu::slots::SlotTable;
use overdrive_cpu::threads::Pool;
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Access, Instr, Program, Store};
use overdrive_ir::{Binary, DType, SlotId, Unary};

/// `instr` applied to each element, or each pair.
fn apply(
    instr: impl Fn(&mut Program) -> overdrive_ir::plan::Register,
    inputs: &[&[f32]],
    level: Level,
) -> Vec<f32> {
    let n = inputs[0].len();
    let mut program = Program { extents: vec![n], ..Program::default() };
    for slot in 0..inputs.len() as u32 {
        program.push(
            Instr::Load(Access { slot: SlotId(slot), offset: 0, strides: vec![1] }),
            DType::F32,
        );
    }
    let value = instr(&mut program);
    let out = SlotId(inputs.len() as u32);
    program.stores.push(Store { access: Access { slot: out, offset: 0, strides: vec![1] }, value });
    let mut result = vec![0f32; n];
    let mut table = SlotTable::new(inputs.len() + 1);
    for (slot, input) in inputs.iter().enumerate() {
        table.set(SlotId(slot as u32), input.as_ptr().cast_mut().cast());
    }
    table.set(out, result.as_mut_ptr().cast());
    let pool = Pool::new(NonZeroUsize::MIN).unwrap();
    let compiled = CompiledLoop::with_level(&program, &|_| DType::F32, level).unwrap();
    // SAFETY: each slot has `n` elements; only `result` is written.
    unsafe { compiled.run(&pool, &table) };
    result
}

/// Distance in units in the last place of f32 around `expected`, subnormals counted as the smallest
/// normal.
fn ulps(got: f32, expected: f64) -> f64 {
    if got.is_nan() || expected.is_nan() {
        return if got.is_nan() && expected.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if f64::from(got) == expected || got == expected as f32 {
        return 0.0;
    }
    let scale = expected.abs().clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
    let ulp = 2f64.powi(scale.log2().floor() as i32 - 23);
    (f64::from(got).clamp(-3.5e38, 3.5e38) - expected.clamp(-3.5e38, 3.5e38)).abs() / ulp
}

fn all_floats() -> Vec<f32> {
    let mut xs: Vec<f32> = (0..=u32::MAX).step_by(4_099).map(f32::from_bits).collect();
    // The range that programs compute with most, more densely.
    xs.extend((-400_000..400_000).map(|i| i as f32 / 4_000.0));
    xs.extend([
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        88.72,
        88.73,
        -87.3,
        -103.97,
        -104.1,
    ]);
    xs
}

#[test]
fn functions_of_one_operand_stay_within_their_ulps() {
    type Case = (Unary, fn(f64) -> f64, f64);
    let cases: [Case; 17] = [
        (Unary::Exp, f64::exp, 2.0),
        (Unary::Expm1, f64::exp_m1, 1.0),
        (Unary::Log, f64::ln, 2.0),
        (Unary::Log1p, f64::ln_1p, 1.0),
        (Unary::Sin, f64::sin, 2.0),
        (Unary::Cos, f64::cos, 2.0),
        (Unary::Tanh, f64::tanh, 8.0),
        (Unary::Erf, libm::erf, 8.0),
        (Unary::Logistic, |x| 1.0 / (1.0 + (-x).exp()), 4.0),
        (Unary::Sqrt, f64::sqrt, 0.5),
        (Unary::Rsqrt, |x| 1.0 / x.sqrt(), 1.5),
        (Unary::Reciprocal, |x| 1.0 / x, 0.5),
        (Unary::Floor, f64::floor, 0.0),
        (Unary::Ceil, f64::ceil, 0.0),
        (Unary::Round, f64::round_ties_even, 0.0),
        (Unary::Abs, f64::abs, 0.0),
        (Unary::Sign, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }, 0.0),
    ];
    let xs = all_floats();
    for level in Level::supported() {
        for (kind, exact, bound) in cases {
            let ys = apply(
                |p| p.push(Instr::Unary(kind, overdrive_ir::plan::Register(0)), DType::F32),
                &[&xs],
                level,
            );
            let off = |i: usize| ulps(ys[i], exact(f64::from(xs[i])));
            let worst = (0..xs.len()).max_by(|&a, &b| off(a).total_cmp(&off(b))).unwrap();
            let what = format!(
                "{kind:?} {level:?}: {:e} -> {:e}, exactly {:e}",
                xs[worst],
                ys[worst],
                exact(xs[worst].into())
            );
            println!("{what}: {:.3} ulp", off(worst));
            assert!(off(worst) <= bound, "{what}: {} ulp", off(worst));
        }
    }
}

#[test]
fn pow_and_rem_agree_with_the_library_everywhere() {
    let edges = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        1e10,
        -1e10,
        16_777_217.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-40,
        f32::MAX,
    ];
    let mut pairs: Vec<(f32, f32)> = edges.iter().flat_map(|&x| edges.map(|y| (x, y))).collect();
    pairs.extend((1..30_000).map(|i| (i as f32 * 0.013, (i % 257) as f32 * 0.1 - 12.0)));
    let (xs, ys): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
    for level in Level::supported() {
        for (kind, bound) in [(Binary::Pow, 1.0), (Binary::Rem, 0.0), (Binary::Div, 0.5)] {
            let [a, b] = [0, 1].map(overdrive_ir::plan::Register);
            let zs = apply(|p| p.push(Instr::Binary(kind, a, b), DType::F32), &[&xs, &ys], level);
            for i in 0..xs.len() {
                let (x, y) = (f64::from(xs[i]), f64::from(ys[i]));
                let exact = match kind {
                    Binary::Pow => x.powf(y),
                    Binary::Rem => x % y,
                    _ => x / y,
                };
                let off = ulps(zs[i], exact);
                assert!(
                    off <= bound,
                    "{kind:?} {level:?} of {x:e} and {y:e}: {:e}, exactly {exact:e}: {off} ulp",
                    zs[i]
                );
            }
        }
    }
}

#[test]
fn lanes_divided_by_one_number_have_the_bits_of_a_division() {
    let ordinary = (0..1 << 16).map(|i| {
        let bits = philox::bits(1, 1, i) as u32;
        f32::from_bits(bits & 0x807f_ffff | (100 + (bits >> 23) % 56) << 23)
    });
    let ordinary: Vec<f32> = ordinary.collect();
    let everywhere: Vec<f32> = (0..=u32::MAX).step_by(65_537).map(f32::from_bits).collect();
    let edges =
        [0.0, -0.0, 1.0, -3.0, 1e-40, f32::MAX, f32::INFINITY, f32::NAN, 6e-39, 1e10, -1e-9];
    for level in Level::supported() {
        for xs in [&ordinary, &everywhere] {
            for &divisor in ordinary[..200].iter().chain(&edges) {
                let found = by_one(xs, divisor, level);
                let wrong = (0..xs.len()).find(|&i| {
                    let exact = xs[i] / divisor;
                    found[i].to_bits() != exact.to_bits() && !(found[i].is_nan() && exact.is_nan())
                });
                if let Some(i) = wrong {
                    let x = xs[i];
                    panic!(
                        "{level:?}: {x:e} / {divisor:e} = {:e}, found {:e}",
                        x / divisor,
                        found[i]
                    );
                }
            }
        }
    }
}

/// `xs` divided by one number, which the loop reads for all lanes.
fn by_one(xs: &[f32], divisor: f32, level: Level) -> Vec<f32> {
    let n = xs.len();
    let mut program = Program { extents: vec![n], ..Program::default() };
    let load = |slot, stride| Access { slot: SlotId(slot), offset: 0, strides: vec![stride] };
    let [a, b] = [(0, 1), (1, 0)]
        .map(|(slot, stride)| program.push(Instr::Load(load(slot, stride)), DType::F32));
    let value = program.push(Instr::Binary(Binary::Div, a, b), DType::F32);
    program.stores.push(Store { access: load(2, 1), value });
    let mut result = vec![0f32; n];
    let mut table = SlotTable::new(3);
    table.set(SlotId(0), xs.as_ptr().cast_mut().cast());
    table.set(SlotId(1), (&raw const divisor).cast_mut().cast());
    table.set(SlotId(2), result.as_mut_ptr().cast());
    let pool = Pool::new(NonZeroUsize::MIN).unwrap();
    let compiled = CompiledLoop::with_level(&program, &|_| DType::F32, level).unwrap();
    // SAFETY: slots 0 and 2 have `n` elements, slot 1 has one; only `result` is written.
    unsafe { compiled.run(&pool, &table) };
    result
}

/// GELU as models spell it, of a sum or of one value, the powers factored or not.
fn spelled_gelu(p: &mut Program, of_sum: bool, factored: bool) -> overdrive_ir::plan::Register {
    let [a, b] = [0, 1].map(overdrive_ir::plan::Register);
    let mut op = |kind, a, b| p.push(Instr::Binary(kind, a, b), DType::F32);
    let x = if of_sum { op(Binary::Add, a, b) } else { a };
    let square = op(Binary::Mul, x, x);
    let [half, one, cubic, slope] = [0.5, 1.0, 0.044715, (2.0 / std::f64::consts::PI).sqrt()]
        .map(|c| p.push(Instr::Constant(c), DType::F32));
    let mut op = |kind, a, b| p.push(Instr::Binary(kind, a, b), DType::F32);
    let u = if factored {
        let scaled = op(Binary::Mul, square, cubic);
        let bracket = op(Binary::Add, scaled, one);
        op(Binary::Mul, x, bracket)
    } else {
        let cube = op(Binary::Mul, square, x);
        let scaled = op(Binary::Mul, cubic, cube);
        op(Binary::Add, x, scaled)
    };
    let u = op(Binary::Mul, u, slope);
    let tangent = p.push(Instr::Unary(Unary::Tanh, u), DType::F32);
    let mut op = |kind, a, b| p.push(Instr::Binary(kind, a, b), DType::F32);
    let centred = op(Binary::Add, tangent, one);
    let halved = op(Binary::Mul, x, half);
    if factored { op(Binary::Mul, halved, centred) } else { op(Binary::Mul, centred, halved) }
}

#[test]
fn gelu_keeps_its_digits_where_the_tangent_cancels() {
    let xs = all_floats();
    // Sums whose second operand changes the result, and that are exact all the same.
    let halves: Vec<f32> = xs.iter().map(|x| if x.abs() < 1e30 { x / 2.0 } else { *x }).collect();
    let rests: Vec<f32> = xs.iter().zip(&halves).map(|(x, half)| x - half).collect();
    for level in Level::supported() {
        for (of_sum, factored) in [(false, true), (false, false), (true, true), (true, false)] {
            let (a, b) = if of_sum { (&halves, &rests) } else { (&xs, &xs) };
            let got = apply(|p| spelled_gelu(p, of_sum, factored), &[a, b], level);
            for (i, &got) in got.iter().enumerate() {
                let x = f64::from(if of_sum { a[i] + b[i] } else { a[i] });
                let z = -2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                let expected = x / (1.0 + z.exp());
                // The exponent's argument is rounded four times on its way, and half an ulp of it
                // is up to |z| ulps of the result. If e^z overflows, the result is as good as 0.
                let allowed = if z > 0.0 { 3.0 + 4.0 * z.min(110.0) } else { 3.0 };
                let tiny = x < 0.0 && z > 85.0 && got.abs() <= 1e-30;
                assert!(
                    tiny || ulps(got, expected) <= allowed,
                    "{level:?} gelu({x}) = {got}, not {expected}"
                );
            }
        }
    }
}

//! Products by quantized weights against their formula in f64, for every format, group and number
//! of rows.

use std::num::NonZeroUsize;

use overdrive_cpu::InstructionSet;
use overdrive_cpu::gemm::{ProductOutput, ViewMut};
use overdrive_cpu::quantized::{PackedNumbers, QuantizedMatrix, linear, room_floats};
use overdrive_cpu::threads::Pool;
use overdrive_ir::{DType, Tensor};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Case {
    m: usize,
    n: usize,
    groups: usize,
    group: usize,
    codes: DType,
    scales: DType,
    zeros: Option<DType>,
    threads: usize,
    seed: u64,
}

struct Random(u64);

impl Random {
    /// Uniform in -1..1, by SplitMix64.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as i64 as f64 / i64::MAX as f64
    }

    /// Numbers that a format has, most of its range among them.
    fn tensor(&mut self, dtype: DType, shape: [usize; 2]) -> Tensor {
        let value = |x: f64| match dtype {
            DType::E8M0 => 2f64.powf((x * 8.0).round()),
            _ if dtype.is_int() => (x * (dtype.max_value() + 0.99)).trunc() - f64::from(x < -0.9),
            DType::F32 => x + 1.5,
            _ => x * 6.0,
        };
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(|_| value(self.next())).collect();
        Tensor::from_f64(dtype, shape, &values)
    }
}

fn numbers(tensor: &Tensor) -> PackedNumbers<'_> {
    PackedNumbers::new(tensor.bytes(), tensor.ty().dtype, tensor.ty().elements())
}

/// The results of `product` for a case under each instruction set.
type Found = Vec<(InstructionSet, Vec<f32>)>;

/// The products of a case, and the formula with the bound of its rounding.
fn run(case: &Case) -> (Found, Vec<[f64; 2]>) {
    let Case { m, n, groups, group, .. } = *case;
    let (k, mut random) = (groups * group, Random(case.seed));
    let codes = random.tensor(case.codes, [n, k]);
    let scales = random.tensor(case.scales, [n, groups]);
    let zeros = case.zeros.map(|dtype| random.tensor(dtype, [n, groups]));
    let x: Vec<f32> = (0..m * k).map(|_| random.next() as f32).collect();
    let weights = QuantizedMatrix::new(
        [n, k],
        group,
        numbers(&codes),
        numbers(&scales),
        zeros.as_ref().map(numbers),
    );
    let under = |set: InstructionSet| {
        let pool = Pool::new(NonZeroUsize::new(case.threads).unwrap()).unwrap();
        let mut room = vec![f32::NAN; room_floats(m, k)];
        let mut y = vec![f32::NAN; m * n];
        linear(&pool, &x, &weights, ProductOutput::Store(ViewMut::matrix(&mut y, m, n)), &mut room);
        (set, y)
    };
    let found = InstructionSet::available().map(|set| set.during(|| under(set))).collect();

    let (codes, scales) = (codes.to_f64(), scales.to_f64());
    let zeros = zeros.map(|zeros| zeros.to_f64());
    let mut expected = Vec::with_capacity(m * n);
    for row in 0..m {
        for column in 0..n {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for i in 0..k {
                let at = column * groups + i / group;
                let (x, code) = (f64::from(x[row * k + i]), codes[column * k + i]);
                let zero = zeros.as_ref().map_or(0.0, |zeros| zeros[at]);
                sum += x * (code - zero) * scales[at];
                magnitude += x.abs() * (code.abs() + zero.abs()) * scales[at].abs();
            }
            // Each of k additions and products rounds once, and so do a weight's difference and
            // product.
            expected.push([sum, (k as f64 + 4.0) * f64::from(f32::EPSILON) * magnitude]);
        }
    }
    (found, expected)
}

fn check(case: &Case) {
    let (found, expected) = run(case);
    for (set, y) in found {
        for (i, (y, [sum, tolerance])) in y.into_iter().zip(&expected).enumerate() {
            assert!(
                (f64::from(y) - sum).abs() <= *tolerance,
                "{set}: {y} for {sum} at {i} of {case:?}"
            );
        }
    }
}

const PLAIN: Case = Case {
    m: 1,
    n: 70,
    groups: 3,
    group: 128,
    codes: DType::I4,
    scales: DType::F32,
    zeros: None,
    threads: 2,
    seed: 7,
};

#[test]
fn every_format_of_codes_and_scales() {
    let codes = [DType::I4, DType::I8, DType::U8, DType::F4E2M1, DType::F8E4M3, DType::F6E2M3];
    for codes in codes {
        for scales in [DType::F32, DType::E8M0, DType::F8E4M3] {
            for zeros in [None, Some(DType::F32), Some(DType::I4)] {
                for m in [1, 2, 5, 30] {
                    check(&Case { m, codes, scales, zeros, group: 32, ..PLAIN });
                }
            }
        }
    }
}

/// Blocks of rows, of columns and of k, whole and not, with a scale for each row of weights and for
/// each group.
#[test]
fn many_rows_by_every_kind_of_scale() {
    let sizes = [(1, 1056), (5, 256), (20, 32), (35, 16)];
    for (m, n) in [(13, 10), (270, 40), (33, 300)] {
        for (groups, group) in sizes {
            for (codes, scales) in
                [(DType::I4, DType::F32), (DType::I8, DType::F16), (DType::F4E2M1, DType::E8M0)]
            {
                for zeros in [None, Some(DType::F32)] {
                    check(&Case { m, n, groups, group, codes, scales, zeros, ..PLAIN });
                }
            }
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let codes =
        prop_oneof![Just(DType::I4), Just(DType::I8), Just(DType::F4E2M1), Just(DType::F6E3M2)];
    let scales = prop_oneof![Just(DType::F32), Just(DType::E8M0)];
    let zeros =
        prop_oneof![2 => Just(None), 1 => Just(Some(DType::F32)), 1 => Just(Some(DType::I8))];
    let group = prop_oneof![
        Just(1_usize),
        Just(7),
        Just(8),
        Just(16),
        Just(32),
        Just(64),
        Just(128),
        Just(256),
        1_usize..300
    ];
    let sizes = (0_usize..20, 0_usize..80, 0_usize..5, group);
    (sizes, codes, scales, zeros, 1_usize..4, any::<u64>()).prop_map(
        |((m, n, groups, group), codes, scales, zeros, threads, seed)| Case {
            m,
            n,
            groups,
            group,
            codes,
            scales,
            zeros,
            threads,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_products_agree_with_the_formula(case in case()) {
        check(&case);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for m in [1, 20] {
        let [one, three] = [1, 3].map(|threads| run(&Case { m, threads, n: 300, ..PLAIN }).0);
        let bits = |(set, y): &(InstructionSet, Vec<f32>)| {
            (*set, y.iter().map(|y| y.to_bits()).collect::<Vec<_>>())
        };
        assert!(one.iter().map(bits).eq(three.iter().map(bits)));
    }
}

/// The error of the comparison itself: other codes must not pass.
#[test]
#[should_panic(expected = "for")]
fn a_product_of_other_weights_is_noticed() {
    let (mut found, _) = run(&PLAIN);
    let (_, expected) = run(&Case { seed: 8, ..PLAIN });
    for (y, [sum, tolerance]) in found.remove(0).1.into_iter().zip(expected) {
        assert!((f64::from(y) - sum).abs() <= tolerance, "{y} for {sum}");
    }
}

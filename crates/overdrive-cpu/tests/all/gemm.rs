//! Every micro-kernel that the CPU can execute against the definition of the product in f64.
//!
//! Long because every format has its cases, and all of them share one check.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use half::{bf16, f16};
use overdrive_cpu::gemm::{
    AccumulatorBlock, Element, Epilogue, MicroKernel, ProductOutput, Rhs, View, ViewMut,
};
use overdrive_cpu::threads::Pool;
use proptest::prelude::*;

/// A format, as the test needs it: values to and from f64, and the bounds of its rounding.
trait Format: Element {
    /// Relative error of one rounding of a sum.
    const SUM_EPSILON: f64;
    /// A value that no product of these tests has.
    const NOTHING: Self::Acc;
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sum_to_f64(sum: Self::Acc) -> f64;
    fn sum_from_f64(x: f64) -> Self::Acc;
}

macro_rules! format {
    ($type:ty, $acc:ty, $epsilon:expr, $nothing:expr, $from:expr, $to:expr) => {
        impl Format for $type {
            const SUM_EPSILON: f64 = $epsilon;
            const NOTHING: $acc = $nothing;
            fn from_f64(x: f64) -> Self {
                $from(x)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
            fn sum_to_f64(sum: $acc) -> f64 {
                f64::from(sum)
            }
            fn sum_from_f64(x: f64) -> $acc {
                x as $acc
            }
        }
    };
}
format!(f32, f32, f32::EPSILON as f64, f32::NAN, |x| x as f32, f64::from);
format!(f64, f64, f64::EPSILON, f64::NAN, |x| x, |x| x);
format!(f16, f32, f32::EPSILON as f64, f32::NAN, f16::from_f64, f16::to_f64);
format!(bf16, f32, f32::EPSILON as f64, f32::NAN, bf16::from_f64, bf16::to_f64);
// Exact; a third of the values are the extremes, whose products saturate where an instruction lets
// them.
format!(i8, i32, 0.0, i32::MIN, |x: f64| (x * 192.0).floor() as i8, f64::from);

/// A product to compute: sizes and how the operands lie in memory.
#[derive(Debug, Clone)]
struct Case {
    batch: [usize; 2],
    m: usize,
    n: usize,
    k: usize,
    /// Whether A, B and C lie column after column.
    turned: [bool; 3],
    /// Elements between the end of a row (or column) and the next.
    gap: usize,
    /// Whether A and B have one matrix for the whole batch.
    repeated: [bool; 2],
    threads: usize,
    seed: u64,
}

impl Case {
    fn plain(m: usize, n: usize, k: usize) -> Self {
        let (turned, repeated) = ([false; 3], [false; 2]);
        Self { batch: [1, 1], m, n, k, turned, gap: 0, repeated, threads: 1, seed: 7 }
    }

    /// Shape, strides and length of the memory of a batch of matrices.
    fn layout(
        &self,
        [rows, cols]: [usize; 2],
        turned: bool,
        batch: [usize; 2],
    ) -> ([usize; 4], [usize; 4], usize) {
        let (long, short) = if turned { (cols, rows) } else { (rows, cols) };
        let pitch = short + self.gap;
        let inner = long * pitch;
        let strides = if turned { [1, pitch] } else { [pitch, 1] };
        let strides = [inner * batch[1], inner, strides[0], strides[1]];
        ([batch[0], batch[1], rows, cols], strides, batch[0] * batch[1] * inner)
    }
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
}

/// Doubles, adds the column, and writes to a dense C; counts how often each element arrived.
struct Affine<T: Format> {
    c: Mutex<(Vec<T::Acc>, Vec<u8>)>,
    shape: [usize; 4],
}

impl<T: Format> Epilogue<T::Acc> for Affine<T> {
    fn scratch_bytes(&self) -> usize {
        100
    }
    fn apply(&self, mut block: AccumulatorBlock<'_, T::Acc>, scratch: &mut [u8]) {
        assert_eq!((scratch.len(), scratch.as_ptr() as usize % 64), (100, 0));
        scratch.fill(0xff);
        let mut guard = self.c.lock().unwrap();
        let (c, arrived) = &mut *guard;
        let [_, inner, m, n] = self.shape;
        for i in 0..block.rows {
            let (batch, row, col0) = (block.batch, block.row0 + i, block.col0);
            for (j, value) in block.row(i).iter().enumerate() {
                let at = ((batch[0] * inner + batch[1]) * m + row) * n + col0 + j;
                c[at] = T::sum_from_f64(2.0 * T::sum_to_f64(*value) + (col0 + j) as f64);
                arrived[at] += 1;
            }
        }
    }
}

/// Computes `case` with `kernel` in every way that there is, and compares with the definition.
fn check<T: Format>(kernel: &'static MicroKernel<T>, case: &Case) {
    let pool = Pool::new(NonZeroUsize::new(case.threads).unwrap()).unwrap();
    let Case { m, n, k, batch, .. } = *case;
    let mut random = Random(case.seed);
    let mut fill = |len: usize| (0..len).map(|_| T::from_f64(random.next())).collect::<Vec<_>>();
    let of = |operand: usize| if case.repeated[operand] { [1, 1] } else { batch };
    let (a_shape, a_strides, a_len) = case.layout([m, k], case.turned[0], of(0));
    let (b_shape, b_strides, b_len) = case.layout([k, n], case.turned[1], of(1));
    let (c_shape, c_strides, c_len) = case.layout([m, n], case.turned[2], batch);
    // A begins a cache line, as slots do: kernels of tiles read some of them where they lie.
    let (a, b) = (fill(64 + a_len), fill(b_len));
    let a = &a[a.as_ptr().align_offset(64)..][..a_len];
    let (view_a, view_b) = (View::new(a, a_shape, a_strides), View::new(&b, b_shape, b_strides));

    // Bytes are not zero to begin with, so that padding which is not written shows.
    let mut bytes = vec![0xff_u8; kernel.packed_b_bytes(b_shape) + 64];
    let start = bytes.as_ptr().align_offset(64);
    let len = kernel.packed_b_bytes(b_shape);
    let packed = kernel.pack_b(&pool, view_b, &mut bytes[start..][..len]);

    let at = |shape: [usize; 4], strides: [usize; 4], index: [usize; 4]| -> usize {
        (0..4).filter(|&i| shape[i] > 1).map(|i| index[i] * strides[i]).sum()
    };
    // Rows of A and columns of B one after another. Products are in f64, with the sum of the
    // magnitudes of their terms.
    let lines = |from: &[T], (shape, strides): ([usize; 4], [usize; 4]), long: usize| {
        let sizes = [batch[0], batch[1], shape[long], k];
        let mut all = Vec::with_capacity(sizes.iter().product());
        for line in 0..sizes[..3].iter().product() {
            let [i0, i1, i] =
                [line / (batch[1] * sizes[2]), line / sizes[2] % batch[1], line % sizes[2]];
            let place = |p: usize| if long == 2 { [i0, i1, i, p] } else { [i0, i1, p, i] };
            all.extend((0..k).map(|p| from[at(shape, strides, place(p))].to_f64()));
        }
        all
    };
    let rows = lines(a, (a_shape, a_strides), 2);
    let columns = lines(&b, (b_shape, b_strides), 3);
    let defined: Vec<(f64, f64)> = (0..batch[0] * batch[1] * m * n)
        .map(|index| {
            let (row, matrix, column) = (index / n, index / (m * n), index % n);
            let (x, y) = (&rows[row * k..][..k], &columns[(matrix * n + column) * k..][..k]);
            x.iter().zip(y).fold((0.0, 0.0), |(sum, magnitude), (x, y)| {
                (sum + x * y, magnitude + (x * y).abs())
            })
        })
        .collect();
    let bits =
        |sums: &[T::Acc]| sums.iter().map(|&x| T::sum_to_f64(x).to_bits()).collect::<Vec<_>>();
    for rhs in [Rhs::from(view_b), packed.into()] {
        let mut c = vec![T::NOTHING; c_len];
        kernel.gemm(
            &pool,
            view_a,
            rhs,
            ProductOutput::Store(ViewMut::new(&mut c, c_shape, c_strides)),
        );
        let elements = c_shape.iter().product();
        let affine = |output: &mut dyn FnMut(&Affine<T>)| {
            let dense = (vec![T::NOTHING; elements], vec![0; elements]);
            let affine = Affine::<T> { c: Mutex::new(dense), shape: c_shape };
            output(&affine);
            let (affine, arrived) = affine.c.into_inner().unwrap();
            assert!(
                arrived.iter().all(|&times| times == 1),
                "each element is delivered once: {case:?}"
            );
            affine
        };
        let mut waiting = vec![T::NOTHING; c_len];
        let in_place = affine(&mut |affine| {
            let view = ViewMut::new(&mut waiting, c_shape, c_strides);
            kernel.gemm(&pool, view_a, rhs, ProductOutput::InPlace(view, affine));
        });
        let affine = affine(&mut |affine| {
            kernel.gemm(&pool, view_a, rhs, ProductOutput::Apply(c_shape, affine))
        });
        assert_eq!(
            bits(&in_place),
            bits(&affine),
            "sums are the same wherever they wait: {case:?}"
        );

        let mut written = 0;
        for ((index, &affine), &(sum, magnitude)) in affine.iter().enumerate().zip(&defined) {
            let [i0, i1, row, col] =
                [index / (n * m * batch[1]), index / (n * m) % batch[1], index / n % m, index % n];
            // Each of k additions and products rounds once, in whichever order they are taken.
            let tolerance = (k as f64 + 1.0) * T::SUM_EPSILON * magnitude;
            let found = T::sum_to_f64(c[at(c_shape, c_strides, [i0, i1, row, col])]);
            let name = kernel.name();
            assert!(
                (found - sum).abs() <= tolerance,
                "{name}: {found} for {sum} at {index} of {case:?}"
            );
            let expected = 2.0 * sum + col as f64;
            let found = T::sum_to_f64(affine);
            let tolerance = 2.0 * tolerance + T::SUM_EPSILON * expected.abs();
            assert!(
                (found - expected).abs() <= tolerance,
                "{name}: {found} for {expected} at {index} of {case:?}"
            );
            written += 1;
        }
        let nothing = bits(&[T::NOTHING])[0];
        let untouched = bits(&c).iter().filter(|&&c| c == nothing).count();
        assert_eq!(untouched, c_len - written, "gaps stay as they were: {case:?}");
    }
}

fn check_all_formats(case: &Case) {
    MicroKernel::<f32>::supported().for_each(|kernel| check(kernel, case));
    MicroKernel::<f64>::supported().for_each(|kernel| check(kernel, case));
    MicroKernel::<f16>::supported().for_each(|kernel| check(kernel, case));
    MicroKernel::<bf16>::supported().for_each(|kernel| check(kernel, case));
    MicroKernel::<i8>::supported().for_each(|kernel| check(kernel, case));
}

/// Sizes around the edges of tiles and groups, and ones that are nothing.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0_usize..4, 5_usize..40, Just(31), Just(32), Just(33), 60_usize..70]
}

fn case() -> impl Strategy<Value = Case> {
    let layout = (any::<[bool; 3]>(), any::<[bool; 2]>(), 0_usize..3);
    let batch =
        prop_oneof![3 => Just([1, 1]), 1 => Just([2, 3]), 1 => Just([1, 2]), 1 => Just([0, 2])];
    (batch, [size(), size(), size()], layout, 1_usize..4, any::<u64>()).prop_map(
        |(batch, [m, n, k], (turned, repeated, gap), threads, seed)| Case {
            batch,
            m,
            n,
            k,
            turned,
            gap,
            repeated,
            threads,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_products_agree_with_the_definition(case in case()) {
        check_all_formats(&case);
    }
}

#[test]
fn several_blocks_of_k_are_summed() {
    for turned in [[false; 3], [true; 3], [false, true, false]] {
        check_all_formats(&Case { turned, threads: 2, ..Case::plain(37, 65, 1500) });
    }
}

#[test]
fn several_tiles_cover_c() {
    check_all_formats(&Case { threads: 3, ..Case::plain(300, 350, 40) });
}

/// Whole tiles of rows without gaps, which tiles read where they lie, in one block and in several
/// of columns.
#[test]
fn rows_of_a_are_read_where_they_lie() {
    for (m, n, k) in [(32, 33, 64), (96, 64, 128), (64, 1100, 512)] {
        check_all_formats(&Case { threads: 2, ..Case::plain(m, n, k) });
    }
    check_all_formats(&Case { batch: [2, 3], repeated: [false, true], ..Case::plain(32, 40, 64) });
    check_all_formats(&Case { batch: [2, 3], repeated: [true, false], ..Case::plain(64, 40, 64) });
}

#[test]
fn few_rows_are_a_path_of_their_own() {
    for m in 1..=9 {
        for turned in [[false; 3], [true; 3], [false, true, false]] {
            check_all_formats(&Case { turned, threads: 2, ..Case::plain(m, 700, 300) });
            check_all_formats(&Case { turned, gap: 1, ..Case::plain(m, 70, 1000) });
        }
    }
}

/// The largest sums that there are: an instruction that saturates pairs or groups, or a shift that
/// is not taken back, shows here.
#[test]
fn sums_of_i8_do_not_saturate() {
    let pool = Pool::new(NonZeroUsize::MIN).unwrap();
    let (m, n, k) = (15, 33, 1030);
    for (x, y) in [(-128, -128), (-128, 127), (127, -128), (127, 127)] {
        let (a, b) = (vec![x; m * k], vec![y; k * n]);
        for kernel in MicroKernel::<i8>::supported() {
            let mut c = vec![0; m * n];
            let b = View::matrix(&b, k, n).into();
            kernel.gemm(
                &pool,
                View::matrix(&a, m, k),
                b,
                ProductOutput::Store(ViewMut::matrix(&mut c, m, n)),
            );
            let expected = k as i32 * i32::from(x) * i32::from(y);
            assert!(c.iter().all(|&sum| sum == expected), "{} of {x} by {y}", kernel.name());
        }
    }
}

/// The error of the comparison itself: a wrong product must not pass.
#[test]
fn a_product_of_other_operands_is_noticed() {
    let pool = Pool::new(NonZeroUsize::MIN).unwrap();
    let mut random = Random(1);
    let (a, b): (Vec<f32>, Vec<f32>) =
        (0..64).map(|_| (random.next() as f32, random.next() as f32)).unzip();
    let product = |a: View<'_, f32>, b: View<'_, f32>| {
        let mut c = vec![0.0; 64];
        MicroKernel::best().gemm(
            &pool,
            a,
            b.into(),
            ProductOutput::Store(ViewMut::matrix(&mut c, 8, 8)),
        );
        c
    };
    let (a, b) = (View::matrix(&a, 8, 8), View::matrix(&b, 8, 8));
    assert_eq!(product(a, b), product(a, b), "bitwise reproducible");
    assert_ne!(product(a, b), product(a, b.transposed()));
}

/// Every kernel that the CPU has, on operands of its own.
fn by_all_kernels<T: Format>(
    [m, n, k]: [usize; 3],
    threads: usize,
    mut see: impl FnMut(&str, &[T], &[T], &[T::Acc]),
) {
    let mut random = Random(3);
    let mut fill = |len: usize| (0..len).map(|_| T::from_f64(random.next())).collect::<Vec<_>>();
    let (a, b) = (fill(m * k), fill(k * n));
    let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
    for kernel in MicroKernel::<T>::supported() {
        let mut c = vec![T::NOTHING; m * n];
        let rhs = View::matrix(&b, k, n).into();
        kernel.gemm(
            &pool,
            View::matrix(&a, m, k),
            rhs,
            ProductOutput::Store(ViewMut::matrix(&mut c, m, n)),
        );
        see(kernel.name(), &a, &b, &c);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    fn products<T: Format<Acc: Debug + PartialEq>>(threads: usize) -> Vec<Vec<T::Acc>> {
        let mut products = vec![];
        by_all_kernels::<T>([150, 200, 900], threads, |_, _, _, c| products.push(c.to_vec()));
        products
    }
    for threads in [2, 3, 7] {
        assert_eq!(products::<f32>(1), products::<f32>(threads));
        assert_eq!(products::<bf16>(1), products::<bf16>(threads));
        assert_eq!(products::<i8>(1), products::<i8>(threads));
    }
}

/// Sums of f32 are as near to the exact ones whichever kernel makes them: no more than a chain of
/// multiply-adds strays.
#[test]
fn no_kernel_of_f32_is_less_accurate_than_multiply_adds() {
    for k in [32, 500, 2048] {
        let (n, mut strays) = (64, vec![]);
        by_all_kernels::<f32>([64, n, k], 1, |name, a, b, c| {
            let square = |i: usize, found: &dyn Fn(usize) -> f64| {
                let exact: f64 =
                    (0..k).map(|p| f64::from(a[i / n * k + p]) * f64::from(b[p * n + i % n])).sum();
                (found(i) - exact).powi(2)
            };
            let chain = |i: usize| {
                f64::from(
                    (0..k).fold(0.0, |sum, p| a[i / n * k + p].mul_add(b[p * n + i % n], sum)),
                )
            };
            let rms = |found: &dyn Fn(usize) -> f64| {
                ((0..c.len()).map(|i| square(i, found)).sum::<f64>() / c.len() as f64).sqrt()
            };
            strays.push((name.to_owned(), rms(&|i| f64::from(c[i])), rms(&chain)));
        });
        for (name, found, chain) in &strays {
            assert!(
                found <= &(1.1 * chain),
                "{name} strays by {found:e} over k = {k}, a chain by {chain:e}"
            );
        }
        println!("k = {k}: {strays:?}");
    }
}

/// Operands that are not finite, and sums and products too large to be. The results are those of
/// f32.
#[test]
fn what_is_not_finite_is_so_in_every_kernel_of_f32() {
    let pool = Pool::new(NonZeroUsize::MIN).unwrap();
    let (m, n, k) = (40, 40, 700);
    for (x, y, sum) in [
        (f32::INFINITY, 1.0, f32::INFINITY),
        (1.5, f32::NEG_INFINITY, f32::NEG_INFINITY),
        (f32::INFINITY, 0.0, f32::NAN),
        (f32::NAN, 1.0, f32::NAN),
        (f32::MAX, 1.0, f32::MAX),
        (f32::MAX, 0.25, f32::MAX / 4.0),
        (1.0, f32::MIN, f32::MIN),
        (1e30, 1e30, f32::INFINITY),
        (-1e30, 1e30, f32::NEG_INFINITY),
    ] {
        // In the last block of k, whose sums are added to others.
        let (mut a, mut b) = (vec![0.0; m * k], vec![0.0; k * n]);
        (a[35 * k + 690], b[690 * n + 34]) = (x, y);
        for kernel in MicroKernel::<f32>::supported() {
            let mut c = vec![7.0; m * n];
            let rhs = View::matrix(&b, k, n).into();
            kernel.gemm(
                &pool,
                View::matrix(&a, m, k),
                rhs,
                ProductOutput::Store(ViewMut::matrix(&mut c, m, n)),
            );
            let found = c[35 * n + 34];
            let same = found == sum || found.is_nan() && sum.is_nan();
            assert!(same, "{}: {x:e} by {y:e} is {found:e}, not {sum:e}", kernel.name());
            assert_eq!(c[0], 0.0, "{}", kernel.name());
        }
    }
}

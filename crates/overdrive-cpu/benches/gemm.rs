//! Our GEMM beside the best GEMM crates, in one process, alternating. The figures are GFLOP/s from
//! the shortest time of each, and the median of the ratios round by round. Beside them is the share
//! of the multiply-add peak, which is measured in the same run.
//!
//! `cargo bench -p overdrive-cpu --bench gemm [-- THREADS [SHAPE...]]`, a shape being `MxNxK`.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)] // A program; the peak needs intrinsics.

use std::num::NonZeroUsize;
use std::time::Instant;

use half::bf16;
use overdrive_cpu::gemm::{Element, MicroKernel, ProductOutput, View, ViewMut, gemm};
use overdrive_cpu::threads::Pool;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;

const SHAPES: [[usize; 3]; 6] = [
    [256, 256, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [1024, 512, 2048],
    [1024, 2048, 512],
    [32, 2048, 2048],
];

fn main() {
    let numbers: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = numbers.first().map_or(vec![1, all], |n| vec![n.parse().unwrap()]);
    let given: Vec<[usize; 3]> = numbers.iter().skip(1).map(|s| parse(s)).collect();
    for threads in threads {
        println!(
            "{threads} thread(s); f32 {}, bf16 {}",
            MicroKernel::<f32>::best().name(),
            MicroKernel::<bf16>::best().name()
        );
        println!(
            "{:>16} {:>8} {:>8} {:>8} {:>8} {:>8} | {:>8} {:>8} {:>8} {:>6}",
            "m x n x k", "gemm", "rten", "f32", "packed", "/best", "bf16", "packed", "/f32", "peak"
        );
        let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
        let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for &shape in if given.is_empty() { &SHAPES[..] } else { &given[..] } {
            rayon.install(|| compare(&pool, threads, shape));
        }
    }
}

fn parse(shape: &str) -> [usize; 3] {
    let sizes: Vec<usize> = shape.split('x').map(|n| n.parse().unwrap()).collect();
    sizes.try_into().unwrap()
}

/// Numbers without a pattern, and with a sum that stays small.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn compare(pool: &Pool, threads: usize, [m, n, k]: [usize; 3]) {
    let (a, b) = (noise(m * k, 1), noise(k * n, 2));
    let [half_a, half_b] =
        [&a, &b].map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
    let mut c = [(); 6].map(|()| vec![f32::NAN; m * n]);
    let [c_gemm, c_rten, c_f32, c_packed, c_half, c_half_packed] = &mut c;
    let (mut bytes, mut half_bytes) = (aligned::<f32>([1, 1, k, n]), aligned::<bf16>([1, 1, k, n]));
    let packed = MicroKernel::<f32>::best().pack_b(
        pool,
        View::matrix(&b, k, n),
        trim::<f32>(&mut bytes, [1, 1, k, n]),
    );
    let half_packed = MicroKernel::<bf16>::best().pack_b(
        pool,
        View::matrix(&half_b, k, n),
        trim::<bf16>(&mut half_bytes, [1, 1, k, n]),
    );
    let rten = GemmExecutor::<f32, f32, f32>::default();
    let (view_a, view_b) = (
        NdTensorView::from_data([m, k], a.as_slice()),
        NdTensorView::from_data([k, n], b.as_slice()),
    );
    let parallelism =
        if threads == 1 { ::gemm::Parallelism::None } else { ::gemm::Parallelism::Rayon(threads) };

    let mut contenders: [&mut dyn FnMut(); 6] = [
        &mut || {
            let (rows, cols) = (n as isize, k as isize);
            // SAFETY: the vectors hold m x k, k x n and m x n elements.
            unsafe {
                ::gemm::gemm(
                    m,
                    n,
                    k,
                    c_gemm.as_mut_ptr(),
                    1,
                    rows,
                    false,
                    a.as_ptr(),
                    1,
                    cols,
                    b.as_ptr(),
                    1,
                    rows,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
        },
        &mut || {
            rten.gemm(
                c_rten,
                GemmInputA::Unpacked(view_a.view()),
                GemmInputB::Unpacked(view_b.view()),
                GemmOptions::default(),
            )
            .unwrap();
        },
        &mut || {
            gemm(
                pool,
                View::matrix(&a, m, k),
                View::matrix(&b, k, n),
                ProductOutput::Store(ViewMut::matrix(c_f32, m, n)),
            )
        },
        &mut || {
            gemm(
                pool,
                View::matrix(&a, m, k),
                packed,
                ProductOutput::Store(ViewMut::matrix(c_packed, m, n)),
            )
        },
        &mut || {
            let b = View::matrix(&half_b, k, n);
            gemm(
                pool,
                View::matrix(&half_a, m, k),
                b,
                ProductOutput::Store(ViewMut::matrix(c_half, m, n)),
            );
        },
        &mut || {
            gemm(
                pool,
                View::matrix(&half_a, m, k),
                half_packed,
                ProductOutput::Store(ViewMut::matrix(c_half_packed, m, n)),
            )
        },
    ];

    let flops = 2.0 * (m * n * k) as f64;
    let calls = (2e8 / flops).ceil() as usize;
    let mut rounds: Vec<[f64; 6]> = Vec::new();
    let start = Instant::now();
    while rounds.len() < 15 || (rounds.len() < 400 && start.elapsed().as_secs_f64() < 1.5) {
        // Back and forth, so that no contender always follows the same one.
        let forth = rounds.len().is_multiple_of(2);
        let mut times = [0.0; 6];
        for i in 0..6 {
            let i = if forth { i } else { 5 - i };
            let start = Instant::now();
            (0..calls).for_each(|_| contenders[i]());
            times[i] = start.elapsed().as_secs_f64() / calls as f64;
        }
        rounds.push(times);
    }
    let rounds = &rounds[2..];
    let ratio = |over: &dyn Fn(&[f64; 6]) -> f64| {
        let mut ratios: Vec<f64> = rounds.iter().map(over).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    let gflops =
        |i: usize| flops / 1e9 / rounds.iter().map(|times| times[i]).fold(f64::MAX, f64::min);
    let best_f32 = ratio(&|t| t[0].min(t[1]) / t[2]);
    let bf16_gain = ratio(&|t| t[2] / t[4]);
    let peak = peak_gflops() * threads as f64;
    println!(
        "{:>16} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {best_f32:>8.3} | {:>8.1} {:>8.1} \
         {bf16_gain:>8.2} {:>5.1}%",
        format!("{m}x{n}x{k}"),
        gflops(0),
        gflops(1),
        gflops(2),
        gflops(3),
        gflops(4),
        gflops(5),
        100.0 * gflops(2) / peak
    );
    let close = |x: &[f32], y: &[f32], by: f32| {
        x.iter().zip(y).all(|(x, y)| (x - y).abs() <= by * (k as f32).sqrt())
    };
    assert!(close(&c[0], &c[1], 1e-4) && close(&c[0], &c[2], 1e-4) && close(&c[0], &c[3], 1e-4));
    assert!(close(&c[0], &c[4], 2e-2) && close(&c[0], &c[5], 2e-2));
}

/// Room for a packed B, and for its alignment.
fn aligned<T: Element>(shape: [usize; 4]) -> Vec<u8> {
    vec![0; MicroKernel::<T>::best().packed_b_bytes(shape) + 64]
}

fn trim<T: Element>(bytes: &mut [u8], shape: [usize; 4]) -> &mut [u8] {
    let start = bytes.as_ptr().align_offset(64);
    &mut bytes[start..][..MicroKernel::<T>::best().packed_b_bytes(shape)]
}

/// Multiply-adds a second of one core that has nothing to load, times two. It is in assembly,
/// because nothing else may be in the loop.
#[cfg(target_arch = "x86_64")]
fn peak_gflops() -> f64 {
    const STEPS: usize = 1_000_000;
    macro_rules! run {
        ($a:tt, $b:tt, $($acc:tt)*) => {
            std::arch::asm!(
                "2:",
                $(concat!("vfmadd231ps ", $acc, ", ", $a, ", ", $b),)*
                "dec {steps}",
                "jnz 2b",
                steps = inout(reg) STEPS => _,
                $(out($acc) _,)*
            )
        };
    }
    use overdrive_cpu::InstructionSet;
    let wide = InstructionSet::best() >= InstructionSet::Avx512;
    let flops = 2 * 12 * if wide { 16 } else { 8 } * STEPS;
    let time = |_| {
        let start = Instant::now();
        // SAFETY: only registers are touched. AVX2 is there, since the compared crates need it.
        unsafe {
            if wide {
                run!("zmm30", "zmm31",
                    "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5"
                    "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11");
            } else {
                run!("ymm14", "ymm15",
                    "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5"
                    "ymm6" "ymm7" "ymm8" "ymm9" "ymm10" "ymm11");
            }
        }
        start.elapsed().as_secs_f64()
    };
    flops as f64 / 1e9 / (0..20).map(time).fold(f64::MAX, f64::min)
}

#[cfg(not(target_arch = "x86_64"))]
fn peak_gflops() -> f64 {
    f64::NAN
}

//! A product alone, and with bias and GELU. Its sums wait in scratch or where results go. All
//! variants run in one process, alternating. The figures are medians of the ratios to the product
//! alone, round by round.
//!
//! `cargo bench -p overdrive-cpu --bench epilogue [-- THREADS]`
// A program; slot tables over its own vectors.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::time::Instant;

use overdrive_cpu::gemm::{AccumulatorBlock, Epilogue, ProductOutput, View, ViewMut, gemm};
use overdrive_cpu::loops::{AccumulatorTile, CompiledEpilogue};
use overdrive_cpu::slots::SlotTable;
use overdrive_cpu::threads::Pool;
use overdrive_ir::plan::{Access, Instr, Program, Register, Store};
use overdrive_ir::{Binary, DType, SlotId, Unary};

const ROUNDS: usize = 15;
/// `[m, k, n]`
const SHAPES: [[usize; 3]; 3] = [[1024, 512, 2048], [1024, 1024, 4096], [1024, 4096, 1024]];

fn main() {
    let given = std::env::args().skip(1).find_map(|a| a.parse().ok());
    let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    for threads in given.map_or(vec![1, all], |n| vec![n]) {
        let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
        println!(
            "{threads} thread(s)\n{:>16} {:>8} {:>8} {:>8}",
            "m x k x n", "ms", "scratch", "in place"
        );
        SHAPES.into_iter().for_each(|shape| compare(&pool, shape));
    }
}

fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The program that follows `sums`, with its result `[m, n]` in slot 1.
fn program([m, n]: [usize; 2], follow: impl FnOnce(&mut Program, Register) -> Register) -> Program {
    let mut p = Program { extents: vec![m, n], ..Program::default() };
    let sum = p.push(Instr::Accumulator, DType::F32);
    let value = follow(&mut p, sum);
    p.stores.push(Store {
        access: Access { slot: SlotId(1), offset: 0, strides: vec![n as i64, 1] },
        value,
    });
    p
}

fn bias_and_gelu(p: &mut Program, sum: Register) -> Register {
    let bias = Instr::Load(Access { slot: SlotId(0), offset: 0, strides: vec![0, 1] });
    let bias = p.push(bias, DType::F32);
    let binary = |p: &mut Program, kind, a: Register, b: Register| {
        p.push(Instr::Binary(kind, a, b), DType::F32)
    };
    let x = binary(p, Binary::Add, sum, bias);
    let [half, one, cubic, slope] =
        [0.5, 1.0, 0.044715, 0.797_884_560_8].map(|c| p.push(Instr::Constant(c), DType::F32));
    let square = binary(p, Binary::Mul, x, x);
    let v = binary(p, Binary::Mul, square, cubic);
    let v = binary(p, Binary::Add, v, one);
    let v = binary(p, Binary::Mul, x, v);
    let v = binary(p, Binary::Mul, v, slope);
    let v = p.push(Instr::Unary(Unary::Tanh, v), DType::F32);
    let v = binary(p, Binary::Add, v, one);
    let h = binary(p, Binary::Mul, x, half);
    binary(p, Binary::Mul, h, v)
}

struct Applied<'a>(CompiledEpilogue, &'a SlotTable);

impl Epilogue<f32> for Applied<'_> {
    fn scratch_bytes(&self) -> usize {
        self.0.scratch_bytes()
    }

    fn apply(&self, block: AccumulatorBlock<'_, f32>, scratch: &mut [u8]) {
        let sums = block.start().cast();
        let AccumulatorBlock { row_stride, row0, col0, rows, cols, .. } = block;
        let tile = AccumulatorTile {
            sums,
            row_bytes: 4 * row_stride,
            batch: 0,
            row: row0,
            col: col0,
            rows,
            cols,
        };
        // SAFETY: the block lies in the product; the slots are vectors of the program's sizes.
        unsafe { self.0.apply(self.1, tile, scratch) }
    }
}

fn compare(pool: &Pool, [m, k, n]: [usize; 3]) {
    // Sums of variance 1, as normalised models have them.
    let scale = 3.0 / (k as f32).sqrt();
    let a: Vec<f32> = noise(m * k).iter().map(|x| x * scale).collect();
    let (b, bias) = (noise(k * n), noise(n));
    let (view_a, view_b) = (View::matrix(&a, m, k), View::matrix(&b, k, n));
    let (mut alone, mut applied) = (vec![0f32; m * n], vec![0f32; m * n]);
    let mut table = SlotTable::new(2);
    table.set(SlotId(0), bias.as_ptr().cast_mut().cast());
    table.set(SlotId(1), applied.as_mut_ptr().cast());
    let compiled =
        |p: &Program| Applied(CompiledEpilogue::new(p, &|_| DType::F32).unwrap(), &table);
    let gelu = compiled(&program([m, n], bias_and_gelu));
    let mut times = [(); 3].map(|()| Vec::new());
    for round in 0..=ROUNDS {
        let seconds = [
            seconds(|| {
                gemm(pool, view_a, view_b, ProductOutput::Store(ViewMut::matrix(&mut alone, m, n)))
            }),
            seconds(|| gemm(pool, view_a, view_b, ProductOutput::Apply([1, 1, m, n], &gelu))),
            seconds(|| {
                let place = ViewMut::matrix(&mut applied, m, n);
                gemm(pool, view_a, view_b, ProductOutput::InPlace(place, &gelu));
            }),
        ];
        if round > 0 {
            times.iter_mut().zip(seconds).for_each(|(times, s)| times.push(s));
        }
    }
    let ratio =
        |of: usize| median(times[of].iter().zip(&times[0]).map(|(t, alone)| t / alone).collect());
    let ms = median(times[0].clone()) * 1e3;
    println!("{:>16} {ms:>8.3} {:>8.3} {:>8.3}", format!("{m}x{k}x{n}"), ratio(1), ratio(2));
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

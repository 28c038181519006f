//! Fused loops beside the stream bandwidth of the same bytes, in one process, alternating: the
//! median of the ratios round by round.
//!
//! `cargo bench -p overdrive-cpu --bench loops [-- THREADS [MEGABYTES]]`
// A program; slot tables over its own vectors.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::time::Instant;

use overdrive_cpu::loops::{AccumulatorTile, CompiledEpilogue, CompiledLoop};
use overdrive_cpu::memory::AlignedBytes;
use overdrive_cpu::slots::SlotTable;
use overdrive_cpu::stream::{Write, copy};
use overdrive_cpu::threads::Pool;
use overdrive_ir::plan::{Access, Instr, Program, Reduction, Register, Store};
use overdrive_ir::{Binary, DType, Reducer, SlotId, Unary};

const ROUNDS: usize = 9;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = numbers.first().copied().unwrap_or(all);
    let megabytes = numbers.get(1).copied().unwrap_or(512);
    let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
    println!("{threads} thread(s)");
    let chain_elements = 16 << 20;
    let row = 8192;
    let rows = (megabytes << 20) / 8 / row;
    against_stream(&pool, "chain of 8", chain(chain_elements), chain_elements);
    against_stream(&pool, "softmax", softmax(rows, row), rows * row);
    against_stream(&pool, "layer_norm", layer_norm(rows, row), rows * row);
    gelu_epilogue();
}

fn build() -> Program {
    Program::default()
}

fn load(p: &mut Program, slot: u32, strides: &[i64]) -> Register {
    p.push(
        Instr::Load(Access { slot: SlotId(slot), offset: 0, strides: strides.to_vec() }),
        DType::F32,
    )
}

fn store(p: &mut Program, slot: u32, strides: &[i64], value: Register) {
    p.stores.push(Store {
        access: Access { slot: SlotId(slot), offset: 0, strides: strides.to_vec() },
        value,
    });
}

fn constant(p: &mut Program, x: f64) -> Register {
    p.push(Instr::Constant(x), DType::F32)
}

fn binary(p: &mut Program, kind: Binary, a: Register, b: Register) -> Register {
    p.push(Instr::Binary(kind, a, b), DType::F32)
}

fn unary(p: &mut Program, kind: Unary, a: Register) -> Register {
    p.push(Instr::Unary(kind, a), DType::F32)
}

fn reduce(p: &mut Program, reducer: Reducer, value: Register) -> Register {
    p.push(Instr::Reduce(Reduction { reducer, value }), DType::F32)
}

/// Eight elementwise operations.
fn chain(n: usize) -> Program {
    let mut p = build();
    p.extents = vec![n];
    let x = load(&mut p, 0, &[1]);
    let (a, b, c) = (constant(&mut p, 1.5), constant(&mut p, 0.25), constant(&mut p, 2.0));
    let v = binary(&mut p, Binary::Mul, x, a);
    let v = binary(&mut p, Binary::Add, v, b);
    let v = unary(&mut p, Unary::Abs, v);
    let v = binary(&mut p, Binary::Sub, v, x);
    let v = binary(&mut p, Binary::Max, v, b);
    let v = binary(&mut p, Binary::Min, v, c);
    let v = binary(&mut p, Binary::Mul, v, v);
    let v = binary(&mut p, Binary::Sub, v, a);
    store(&mut p, 1, &[1], v);
    p
}

fn softmax(rows: usize, n: usize) -> Program {
    let mut p = build();
    (p.extents, p.reduced) = (vec![rows, n], 1);
    let x = load(&mut p, 0, &[n as i64, 1]);
    let max = reduce(&mut p, Reducer::Max, x);
    let v = binary(&mut p, Binary::Sub, x, max);
    let e = unary(&mut p, Unary::Exp, v);
    let sum = reduce(&mut p, Reducer::Sum, e);
    let y = binary(&mut p, Binary::Div, e, sum);
    store(&mut p, 1, &[n as i64, 1], y);
    p
}

fn layer_norm(rows: usize, n: usize) -> Program {
    let mut p = build();
    (p.extents, p.reduced) = (vec![rows, n], 1);
    let x = load(&mut p, 0, &[n as i64, 1]);
    let (gamma, beta) = (load(&mut p, 2, &[0, 1]), load(&mut p, 3, &[0, 1]));
    let (scale, epsilon) = (constant(&mut p, 1.0 / n as f64), constant(&mut p, 1e-5));
    let sum = reduce(&mut p, Reducer::Sum, x);
    let mean = binary(&mut p, Binary::Mul, sum, scale);
    let centred = binary(&mut p, Binary::Sub, x, mean);
    let square = binary(&mut p, Binary::Mul, centred, centred);
    let squares = reduce(&mut p, Reducer::Sum, square);
    let variance = binary(&mut p, Binary::Mul, squares, scale);
    let shifted = binary(&mut p, Binary::Add, variance, epsilon);
    let rstd = unary(&mut p, Unary::Rsqrt, shifted);
    let v = binary(&mut p, Binary::Mul, centred, rstd);
    let v = binary(&mut p, Binary::Mul, v, gamma);
    let y = binary(&mut p, Binary::Add, v, beta);
    store(&mut p, 1, &[n as i64, 1], y);
    p
}

fn noise(len: usize) -> Vec<f32> {
    let mut state = 7u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn bytes(values: &[f32]) -> &[u8] {
    // SAFETY: any f32 is four bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len() * 4) }
}

/// Times a program of one large input and output against copies of the same bytes.
fn against_stream(pool: &Pool, name: &str, program: Program, n: usize) {
    let compiled = CompiledLoop::new(&program, &|_| DType::F32).unwrap();
    // On large pages, as the executor's buffers are.
    let (mut x, mut y) =
        (AlignedBytes::filled(4 * n, 0).unwrap(), AlignedBytes::filled(4 * n, 1).unwrap());
    let small = noise(8192);
    x.as_mut_slice().chunks_mut(4 * 8192).for_each(|row| row.copy_from_slice(bytes(&small)));
    let mut table = SlotTable::new(4);
    table.set(SlotId(0), x.start());
    table.set(SlotId(1), y.start());
    table.set(SlotId(2), small.as_ptr().cast_mut().cast());
    table.set(SlotId(3), small.as_ptr().cast_mut().cast());
    let mut times = [vec![], vec![], vec![]];
    for _ in 0..ROUNDS {
        times[0].push(seconds(|| copy(pool, x.as_slice(), y.as_mut_slice(), Write::Cached)));
        // SAFETY: the slots are this function's vectors; the loop writes `y` alone.
        times[1].push(seconds(|| unsafe { compiled.run(pool, &table) }));
        times[2].push(seconds(|| copy(pool, x.as_slice(), y.as_mut_slice(), Write::Streaming)));
    }
    let [cached, ours, streamed] = times;
    let ratios = (0..ROUNDS).map(|i| ours[i] / cached[i].min(streamed[i])).collect();
    let rate = |seconds: f64| 8.0 * n as f64 / seconds / 1e9;
    println!(
        "{name:>12}: {:6.1} GB/s; copy {:6.1} cached, {:6.1} streaming; time over the better copy \
         {:.3}",
        rate(median(ours)),
        rate(median(cached)),
        rate(median(streamed)),
        median(ratios)
    );
}

/// GELU(tanh) with a bias over 1024 x 2048 sums, in blocks as a product delivers them.
fn gelu_epilogue() {
    let (m, n, rows, cols) = (1024usize, 2048usize, 56usize, 512usize);
    let mut p = build();
    p.extents = vec![m, n];
    let sum = p.push(Instr::Accumulator, DType::F32);
    let bias = load(&mut p, 0, &[0, 1]);
    let x = binary(&mut p, Binary::Add, sum, bias);
    let [half, one, a, b] = [0.5, 1.0, 0.044715, 0.797_884_6].map(|c| constant(&mut p, c));
    let square = binary(&mut p, Binary::Mul, x, x);
    let cube = binary(&mut p, Binary::Mul, square, x);
    let v = binary(&mut p, Binary::Mul, cube, a);
    let v = binary(&mut p, Binary::Add, x, v);
    let v = binary(&mut p, Binary::Mul, v, b);
    let v = unary(&mut p, Unary::Tanh, v);
    let v = binary(&mut p, Binary::Add, v, one);
    let h = binary(&mut p, Binary::Mul, x, half);
    let y = binary(&mut p, Binary::Mul, h, v);
    store(&mut p, 1, &[n as i64, 1], y);
    let epilogue = CompiledEpilogue::new(&p, &|_| DType::F32).unwrap();
    let (bias, mut y, sums) = (noise(n), vec![1f32; m * n], noise(rows * cols));
    let mut table = SlotTable::new(2);
    table.set(SlotId(0), bias.as_ptr().cast_mut().cast());
    table.set(SlotId(1), y.as_mut_ptr().cast());
    let mut scratch = vec![0u128; epilogue.scratch_bytes() / 16 + 8];
    let offset = scratch.as_ptr().align_offset(64) * 16;
    let len = epilogue.scratch_bytes();
    // SAFETY: the vector was allocated with this many extra elements.
    let scratch = unsafe {
        std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<u8>().add(offset), len)
    };
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(seconds(|| {
            for row in (0..m).step_by(rows) {
                for col in (0..n).step_by(cols) {
                    let rows = rows.min(m - row);
                    let tile = AccumulatorTile {
                        sums: sums.as_ptr().cast(),
                        row_bytes: cols * 4,
                        batch: 0,
                        row,
                        col,
                        rows,
                        cols,
                    };
                    // SAFETY: the tile lies in the product; the slots are this function's vectors.
                    unsafe { epilogue.apply(&table, tile, scratch) };
                }
            }
        }));
    }
    let elements = (m * n) as f64;
    println!(
        " gelu epilog: {:.3} ns per element on one thread; 5% of its product at 200 GFLOP/s is \
         {:.3}",
        median(times) / elements * 1e9,
        0.05 * 2.0 * 2048.0 / 200.0
    );
}

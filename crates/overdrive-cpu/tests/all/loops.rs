//! Loops against the slow definition of their programs: named shapes, random programs, every
//! instruction set.
//!
//! Long because the programs of one operation each are few lines, and share how they are run and
//! compared.

// Slot tables over the tests' own vectors; a test may panic.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use overdrive_cpu::loops::{AccumulatorTile, CompiledEpilogue, CompiledLoop, Level};
use overdrive_cpu::slots::SlotTable;
use overdrive_cpu::threads::{Pool, Scratch};
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Access, Instr, Program, Store};
use overdrive_ir::{
    Binary, DType, Overflow, Reducer, SlotId, Tensor, TensorType, Unary, row_major,
};
use testkit::define;
use testkit::programs::{
    ProgramBuilder, access, assert_agrees, blank, by_row, dense, normal, random_program,
};
use testkit::row_programs::softmax;

/// Memory of a tensor's bytes, aligned as arenas are.
struct Memory(Vec<u128>);

impl Memory {
    fn new(bytes: &[u8]) -> Self {
        let mut memory = Memory(vec![0; bytes.len().div_ceil(16) + 1]);
        // SAFETY: the vector is at least as long.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.0.as_mut_ptr().cast(), bytes.len())
        };
        memory
    }

    fn tensor(&self, like: &Tensor) -> Tensor {
        // SAFETY: the vector is at least as long, and initialised.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>(), like.bytes().len()) };
        Tensor::from_bytes(like.ty().clone(), bytes.to_vec()).unwrap()
    }
}

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// Runs a program over copies of `slots` and returns the content of the slots afterwards.
fn run(program: &Program, slots: &[Tensor], level: Level, pool: &Pool) -> Vec<Tensor> {
    let compiled =
        CompiledLoop::with_level(program, &|slot| slots[slot.0 as usize].ty().dtype, level)
            .unwrap();
    let mut memory: Vec<Memory> = slots.iter().map(|t| Memory::new(t.bytes())).collect();
    let mut table = SlotTable::new(slots.len());
    for (i, m) in memory.iter_mut().enumerate() {
        table.set(SlotId(i as u32), m.0.as_mut_ptr().cast());
    }
    // SAFETY: each slot has its tensor's bytes, and this thread alone uses them.
    unsafe { compiled.run(pool, &table) };
    memory.iter().zip(slots).map(|(m, t)| m.tensor(t)).collect()
}

/// Checks a program at every level and on several numbers of threads, which must agree bit for bit.
fn check(program: &Program, slots: &[Tensor], what: &str) {
    let expected = define(program, slots);
    static POOLS: OnceLock<[Pool; 2]> = OnceLock::new();
    let [one, three] = POOLS.get_or_init(|| [pool(1), pool(3)]);
    for level in Level::supported() {
        let got = run(program, slots, level, one);
        for (i, got) in got.iter().enumerate() {
            assert_agrees(got, &expected[i], &slots[i], &format!("{what}, {level:?}, slot {i}"));
        }
        let shared = run(program, slots, level, three);
        assert!(
            got.iter().zip(&shared).all(|(a, b)| a.bytes() == b.bytes()),
            "{what}, {level:?}: results depend on the number of threads"
        );
    }
}

const SIZES: [usize; 7] = [0, 1, 2, 15, 64, 257, 1500];

#[test]
fn softmax_along_rows_and_down_columns() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for n in SIZES {
            let slots = [normal(dtype, &[3, n], 1), blank(dtype, &[3, n])];
            if dtype != DType::F64 {
                check(
                    &softmax(&[3, n], dense(0, &[3, n]), dense(1, &[3, n]), dtype),
                    &slots,
                    &format!("rows of {n} {dtype}"),
                );
            }
            // The same memory as [n, 3]: the last dimension strides.
            let down = softmax(&[n, 3], access(0, &[1, n]), access(1, &[1, n]), DType::F32);
            if dtype == DType::F32 {
                check(&down, &slots, &format!("columns of 3, {n} of them"));
            }
        }
    }
}

#[test]
fn layer_norm_with_statistics_and_scale() {
    for (rows, n) in [(2, 1), (3, 77), (1, 8192), (5, 0), (0, 5), (40, 1030)] {
        let extents = [rows, n];
        let mut b = ProgramBuilder::new(&extents, 1);
        let x = b.load(dense(0, &extents), DType::F32);
        let gamma = b.load(access(1, &[0, 1]), DType::F32);
        let scale = b.constant(1.0 / n.max(1) as f64, DType::F32);
        let sum = b.reduce(Reducer::Sum, x);
        let mean = b.binary(Binary::Mul, sum, scale);
        let centred = b.binary(Binary::Sub, x, mean);
        let square = b.binary(Binary::Mul, centred, centred);
        let squares = b.reduce(Reducer::Sum, square);
        let variance = b.binary(Binary::Mul, squares, scale);
        let epsilon = b.constant(1e-5, DType::F32);
        let shifted = b.binary(Binary::Add, variance, epsilon);
        let rstd = b.unary(Unary::Rsqrt, shifted);
        let normed = b.binary(Binary::Mul, centred, rstd);
        let y = b.binary(Binary::Mul, normed, gamma);
        b.store(dense(2, &extents), y);
        b.store(by_row(3, &extents), mean);
        b.store(by_row(4, &extents), rstd);
        let f = DType::F32;
        let slots = [
            normal(f, &extents, 2),
            normal(f, &[n], 3),
            blank(f, &extents),
            blank(f, &[rows]),
            blank(f, &[rows]),
        ];
        check(&b.0, &slots, &format!("layer_norm {rows} x {n}"));
    }
}

#[test]
fn sums_over_any_axes_in_any_layout() {
    // Parallel dimension P, reduced dimensions Q, R; memory in all orders.
    for [p, q, r] in [[5, 33, 70], [300, 4, 5], [1, 1, 1], [2, 0, 3], [700, 130, 1], [1, 50, 1024]]
    {
        let dense = row_major(&[p, q, r]);
        let layouts = [dense.clone(), vec![1, p * r, p], vec![r, p * r, 1]];
        for (which, strides) in layouts.iter().enumerate() {
            for reducer in [Reducer::Sum, Reducer::Max, Reducer::Min, Reducer::Prod] {
                for dtype in [DType::F32, DType::I32, DType::I8, DType::F64] {
                    let mut b = ProgramBuilder::new(&[p, q, r], 2);
                    let x = b.load(access(0, strides), dtype);
                    let total = b.reduce(reducer, x);
                    b.store(access(1, &[1, 0, 0]), total);
                    let slots = [normal(dtype, &[p * q * r], 4), blank(dtype, &[p])];
                    check(
                        &b.0,
                        &slots,
                        &format!("{reducer:?} {dtype} of {:?}, layout {which}", [p, q, r]),
                    );
                }
            }
        }
    }
}

#[test]
fn long_sums_do_not_drift() {
    let n = 3_000_000;
    let mut b = ProgramBuilder::new(&[n], 1);
    let x = b.load(access(0, &[1]), DType::F32);
    let sum = b.reduce(Reducer::Sum, x);
    b.store(access(1, &[0]), sum);
    let slots = [Tensor::from_f64(DType::F32, [n], &vec![0.1; n]), blank(DType::F32, &[1])];
    for level in Level::supported() {
        let got = run(&b.0, &slots, level, &pool(2))[1].to_f64()[0];
        let expected = n as f64 * f64::from(0.1f32);
        assert!((got / expected - 1.0).abs() < 1e-6, "{level:?}: {got} for {expected}");
    }
}

#[test]
fn movement_by_strides() {
    for (m, n) in [(1, 1), (3, 5), (70, 300), (0, 4), (1030, 40)] {
        let f = DType::F32;
        for (what, load) in [
            ("transpose", access(0, &[1, m])),
            ("broadcast row", access(0, &[0, 1])),
            ("broadcast column", access(0, &[1, 0])),
            (
                "reverse",
                Access {
                    slot: SlotId(0),
                    offset: (m * n) as i64 - 1,
                    strides: vec![-(n as i64), -1],
                },
            ),
        ] {
            if m * n == 0 && what == "reverse" {
                continue;
            }
            let mut b = ProgramBuilder::new(&[m, n], 0);
            let x = b.load(load, f);
            b.store(dense(1, &[m, n]), x);
            let twice = b.binary(Binary::Add, x, x);
            b.store(access(2, &[1, m]), twice);
            let size = (m * n).max(m).max(n).max(1);
            let slots = [normal(f, &[size], 5), blank(f, &[m, n]), blank(f, &[m, n])];
            check(&b.0, &slots, &format!("{what} {m} x {n}"));
        }
    }
}

#[test]
fn indices_and_random_bits_count_the_whole_space() {
    for extents in [[3, 5, 7], [2, 300, 1], [1, 2, 2100]] {
        let mut b = ProgramBuilder::new(&extents, 0);
        let seed = b.load(access(0, &[0, 0, 0]), DType::U64);
        let bits = b.0.push(Instr::RandomBits { seed, site: 0x1234_5678_9abc }, DType::U32);
        b.store(dense(1, &extents), bits);
        for d in 0..3 {
            let i = b.0.push(Instr::Index(d), DType::I32);
            b.store(dense(2 + d as u32, &extents), i);
        }
        let seed = Tensor::from_ints(DType::U64, [1usize], &[0xdead_beef_0123_4567]);
        let i = || blank(DType::I32, &extents);
        check(&b.0, &[seed, blank(DType::U32, &extents), i(), i(), i()], &format!("{extents:?}"));
    }
}

#[test]
fn results_may_take_the_place_of_operands() {
    let n = 5000;
    let mut b = ProgramBuilder::new(&[n], 0);
    let (p, g) = (b.load(access(0, &[1]), DType::F32), b.load(access(1, &[1]), DType::F32));
    let rate = b.load(access(2, &[0]), DType::F32);
    let step = b.binary(Binary::Mul, g, rate);
    let new = b.binary(Binary::Sub, p, step);
    let old = b.unary(Unary::Neg, p);
    b.store(access(0, &[1]), new);
    b.store(access(1, &[1]), old);
    let slots =
        [normal(DType::F32, &[n], 8), normal(DType::F32, &[n], 9), normal(DType::F32, &[1], 10)];
    check(&b.0, &slots, "in place");
    let both = softmax(&[20, 250], dense(0, &[20, 250]), dense(0, &[20, 250]), DType::F32);
    check(&both, &slots, "softmax in place");
}

#[test]
fn every_type_converts_to_every_other() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        300.7,
        -70000.0,
        1e9,
        -3e38,
        1e300,
        f64::INFINITY,
        f64::NAN,
        5e-8,
        1e-40,
    ];
    for from in DType::ALL {
        for to in DType::ALL.into_iter().filter(|d| d.bits() >= 8) {
            if from.bits() < 8 {
                continue;
            }
            for overflow in [Overflow::Ieee, Overflow::Saturate] {
                let n = 150;
                let mut values: Vec<f64> =
                    philox::normals(11, 1).take(n).map(|x| x * 100.0).collect();
                values[..special.len()].copy_from_slice(&special);
                let x = if from.is_float() {
                    Tensor::from_f64(from, [n], &values)
                } else {
                    let ints: Vec<i128> = values
                        .iter()
                        .map(|&v| {
                            if from == DType::Bool { (v > 0.0) as i128 } else { (v * 1e6) as i128 }
                        })
                        .collect();
                    Tensor::from_ints(from, [n], &ints)
                };
                let mut b = ProgramBuilder::new(&[n], 0);
                let x_reg = b.load(access(0, &[1]), from);
                let y = b.0.push(Instr::Convert(x_reg, overflow), to);
                b.store(access(1, &[1]), y);
                check(&b.0, &[x, blank(to, &[n])], &format!("{from} to {to}, {overflow:?}"));
            }
        }
    }
}

#[test]
fn results_larger_than_caches_are_streamed() {
    // 9 M elements of f32 are above the size from which stores are non-temporal; an odd count
    // leaves tails.
    let n = (9 << 20) + 13;
    let mut b = ProgramBuilder::new(&[n], 0);
    let x = b.load(access(0, &[1]), DType::F32);
    let y = b.unary(Unary::Neg, x);
    b.store(access(1, &[1]), y);
    b.store(access(2, &[1]), x);
    let ints: Vec<f64> = (0..n).map(|i| (i % 4096) as f64).collect();
    let slots = [
        Tensor::from_f64(DType::F32, [n], &ints),
        blank(DType::F32, &[n]),
        blank(DType::F32, &[n]),
    ];
    for level in Level::supported() {
        let got = run(&b.0, &slots, level, &pool(2));
        let (negated, copied) = (got[1].to_f32(), got[2].to_f32());
        assert!(
            (0..n).all(|i| negated[i] == -((i % 4096) as f32) && copied[i] == (i % 4096) as f32),
            "{level:?}"
        );
    }
}

#[test]
fn an_epilogue_covers_the_product_tile_by_tile() {
    // relu(sums + bias) of [2, 37, 70] in tiles of at most 16 x 33, stored once as it is and once
    // transposed in bf16. The sums have a buffer of their own, or lie where the first results go.
    let (batch, m, n) = (2usize, 37usize, 70usize);
    let mut p = Program { extents: vec![batch, m, n], ..Program::default() };
    let sum = p.push(Instr::Accumulator, DType::F32);
    let bias = p.push(Instr::Load(access(0, &[0, 0, 1])), DType::F32);
    let row = p.push(Instr::Load(access(1, &[m, 1, 0])), DType::F32);
    let biased = p.push(Instr::Binary(Binary::Add, sum, bias), DType::F32);
    let shifted = p.push(Instr::Binary(Binary::Mul, biased, row), DType::F32);
    let zero = p.push(Instr::Constant(0.0), DType::F32);
    let y = p.push(Instr::Binary(Binary::Max, shifted, zero), DType::F32);
    let half = p.push(Instr::Convert(y, Overflow::Ieee), DType::BF16);
    p.stores.push(Store { access: dense(2, &[batch, m, n]), value: y });
    p.stores.push(Store { access: access(3, &[m * n, 1, m]), value: half });
    let (bias, row) = (normal(DType::F32, &[n], 1), normal(DType::F32, &[batch * m], 2));
    let sums = normal(DType::F32, &[batch * m * n], 3);
    let alone: Vec<f32> = sums.to_f32();
    let types = [DType::F32, DType::F32, DType::F32, DType::BF16];
    for (level, in_place) in Level::supported().flat_map(|level| [(level, false), (level, true)]) {
        let epilogue =
            CompiledEpilogue::with_level(&p, &|slot| types[slot.0 as usize], level).unwrap();
        let (plain, half) =
            (blank(DType::F32, &[batch * m * n]), blank(DType::BF16, &[batch * m * n]));
        let first = if in_place { &sums } else { &plain };
        let mut memory = [&bias, &row, first, &half].map(|t| Memory::new(t.bytes()));
        let mut table = SlotTable::new(4);
        for (i, m) in memory.iter_mut().enumerate() {
            table.set(SlotId(i as u32), m.0.as_mut_ptr().cast());
        }
        assert!(epilogue.lends_its_place(&table), "no load shares bytes with a store");
        let start =
            if in_place { table.get(SlotId(2)).cast_const() } else { alone.as_ptr().cast() };
        let mut scratch = Scratch::default();
        for b in 0..batch {
            for row in (0..m).step_by(16) {
                for col in (0..n).step_by(33) {
                    let tile = AccumulatorTile {
                        sums: start.wrapping_add(4 * ((b * m + row) * n + col)),
                        row_bytes: 4 * n,
                        batch: b,
                        row,
                        col,
                        rows: (m - row).min(16),
                        cols: (n - col).min(33),
                    };
                    // SAFETY: the slots are tensors of the program's sizes; the tile lies in
                    // `sums`.
                    unsafe {
                        epilogue.apply(&table, tile, scratch.bytes(epilogue.scratch_bytes()))
                    };
                }
            }
        }
        let (plain, half) = (memory[2].tensor(&plain).to_f32(), memory[3].tensor(&half).to_f32());
        let (bias, row) = (bias.to_f32(), row.to_f32());
        for (i, sum) in alone.iter().enumerate() {
            let (b, r, c) = (i / (m * n), i / n % m, i % n);
            let expected = ((sum + bias[c]) * row[b * m + r]).max(0.0);
            assert_eq!(plain[i], expected, "{level:?} in place: {in_place} {b} {r} {c}");
            let rounded = DType::BF16.round(expected.into(), Overflow::Ieee) as f32;
            assert_eq!(half[b * m * n + c * m + r], rounded, "{level:?} {b} {r} {c}");
        }
    }
}

#[test]
fn copies_of_types_below_a_byte_move_whole_bytes() {
    // Rows 2 to 4 of 5 rows of 8 columns each.
    for (dtype, row) in [(DType::I4, 4), (DType::F4E2M1, 4), (DType::F6E3M2, 6)] {
        let mut b = ProgramBuilder::new(&[3, 8], 0);
        let x = b.load(Access { slot: SlotId(0), offset: 16, strides: vec![8, 1] }, dtype);
        b.store(Access { slot: SlotId(1), offset: 0, strides: vec![8, 1] }, x);
        let from: Vec<u8> = (0..5 * row).map(|i| (i * 37 + 11) as u8).collect();
        let from = Tensor::from_bytes(TensorType::new(dtype, [5, 8]), from).unwrap();
        let to = blank(dtype, &[3, 8]);
        for level in Level::supported() {
            let after = run(&b.0, &[from.clone(), to.clone()], level, &pool(2));
            assert_eq!(after[1].bytes(), &from.bytes()[2 * row..], "{dtype}, {level:?}");
        }
    }
}

#[test]
fn types_below_a_byte_are_refused_with_the_reason() {
    let mut b = ProgramBuilder::new(&[3], 0);
    let x = b.load(access(0, &[1]), DType::I4);
    b.store(access(0, &[1]), x);
    let error = CompiledLoop::new(&b.0, &|_| DType::I4).unwrap_err();
    assert!(error.to_string().contains("i4 elements share bytes"), "{error}");
}

#[test]
fn random_programs_agree_with_their_definition() {
    for seed in 0..250 {
        let (program, slots) = random_program(seed);
        check(&program, &slots, &format!("seed {seed}: {program:?}"));
    }
}

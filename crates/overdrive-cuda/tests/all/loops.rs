//! Loops on a GPU against the slow definition of their programs, and, with no GPU, through the
//! compiler.
//!
//! Long because every kind of loop has programs of its own beside the random ones.
#![allow(unsafe_code)] // Copies to the device.

mod single;
use overdrive_cuda::Device;
use overdrive_cuda::compiler::{Architecture, compile};
use overdrive_cuda::loops::{PrinterMachine, sources};
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{
    Binary, Compare, DType, Overflow, Reducer, SlotId, Tensor, TensorType, Unary, row_major,
};
use single::Single;
use std::sync::Arc;
use testkit::programs::{
    ProgramBuilder, access, assert_agrees, blank, by_row, dense, normal, random_program,
};
use testkit::row_programs::{cross_entropy, picked, softmax};
use testkit::{BoundedValue, define};

/// The first GPU, or nothing and a word about it.
fn device() -> Option<Arc<Device>> {
    crate::support::gpu().map(|backend| Arc::clone(backend.device()))
}

/// Runs a program twice, which must give the same bits, and compares every slot with the
/// definition.
fn check(device: &Arc<Device>, program: &Program, slots: &[Tensor], what: &str) {
    let types: Vec<TensorType> = slots.iter().map(|t| t.ty().clone()).collect();
    let single = Single::new(device, program, &types).unwrap_or_else(|e| panic!("{what}: {e}"));
    let got = single.run(slots);
    let expected: Vec<Vec<Option<BoundedValue>>> = define(program, slots);
    for (i, got) in got.iter().enumerate() {
        assert_agrees(got, &expected[i], &slots[i], &format!("{what}, slot {i}"));
    }
    let again = single.run(slots);
    assert!(
        got.iter().zip(&again).all(|(a, b)| a.bytes() == b.bytes()),
        "{what}: a second run gives other bits"
    );
}

fn layer_norm(rows: usize, n: usize, dtype: DType) -> (Program, Vec<Tensor>) {
    let (extents, f) = ([rows, n], DType::F32);
    let mut b = ProgramBuilder::new(&extents, 1);
    let x = b.load(dense(0, &extents), dtype);
    let x = b.convert(x, f);
    let gamma = b.load(access(1, &[0, 1]), f);
    let scale = b.constant(1.0 / n.max(1) as f64, f);
    let sum = b.reduce(Reducer::Sum, x);
    let mean = b.binary(Binary::Mul, sum, scale);
    let centred = b.binary(Binary::Sub, x, mean);
    let square = b.binary(Binary::Mul, centred, centred);
    let squares = b.reduce(Reducer::Sum, square);
    let variance = b.binary(Binary::Mul, squares, scale);
    let epsilon = b.constant(1e-5, f);
    let shifted = b.binary(Binary::Add, variance, epsilon);
    let rstd = b.unary(Unary::Rsqrt, shifted);
    let normed = b.binary(Binary::Mul, centred, rstd);
    let y = b.binary(Binary::Mul, normed, gamma);
    let y = b.convert(y, dtype);
    b.store(dense(2, &extents), y);
    b.store(by_row(3, &extents), mean);
    b.store(by_row(4, &extents), rstd);
    let blanks = [blank(dtype, &extents), blank(f, &[rows]), blank(f, &[rows])];
    (b.0, [vec![normal(dtype, &extents, 2), normal(f, &[n], 3)], blanks.to_vec()].concat())
}

#[test]
fn softmax_along_rows_and_down_columns() {
    let Some(device) = device() else { return };
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for n in [0, 1, 2, 15, 64, 257, 1500, 4096, 40_000, 131_072, 300_000] {
            // The definition's own sum drifts where f64 is held to f64.
            if dtype == DType::F64 && n > 4096 {
                continue;
            }
            let slots = [normal(dtype, &[3, n], 1), blank(dtype, &[3, n])];
            let along = softmax(&[3, n], dense(0, &[3, n]), dense(1, &[3, n]), dtype);
            check(&device, &along, &slots, &format!("rows of {n} {dtype}"));
            // The same memory as [n, 3]: the last dimension strides.
            if n < 10_000 {
                let down = softmax(&[n, 3], access(0, &[1, n]), access(1, &[1, n]), dtype);
                check(&device, &down, &slots, &format!("columns of 3 {dtype}, {n} of them"));
            }
        }
    }
    let slots = [normal(DType::F32, &[20, 250], 8)];
    let both = softmax(&[20, 250], dense(0, &[20, 250]), dense(0, &[20, 250]), DType::F32);
    check(&device, &both, &slots, "softmax in place");
}

/// Rows whose blocks each fold more than one, on a machine of 132 multiprocessors.
const AHEAD: [[usize; 2]; 2] = [[140, 65_536], [70, 131_072]];

#[test]
fn rows_set_out_before_the_one_before_is_done() {
    let Some(device) = device() else { return };
    for extents in AHEAD {
        let program = softmax(&extents, dense(0, &extents), dense(1, &extents), DType::BF16);
        let slots = [normal(DType::BF16, &extents, 6), blank(DType::BF16, &extents)];
        check(&device, &program, &slots, &format!("{extents:?}"));
    }
}

#[test]
fn rows_set_out_where_they_can() {
    let text = |architecture, n, to: u32| {
        let extents = [8192, n];
        let program = softmax(&extents, dense(0, &extents), dense(to, &extents), DType::BF16);
        let machine = PrinterMachine { multiprocessors: 132, architecture };
        sources(&program, &[], machine).unwrap()[0].text.to_string()
    };
    let out = text(Architecture::Sm90a, 131_072, 1);
    assert!(out.contains("Ahead<131072>") && out.contains("__cluster_dims__(2, 1, 1)"), "{out}");
    // In place, a block may not read the elements that another wrote; before Hopper nothing copies
    // in bulk.
    assert!(!text(Architecture::Sm90a, 131_072, 0).contains("Ahead"));
    assert!(!text(Architecture::Sm80, 131_072, 1).contains("Ahead"));
    // The part of a block would be more than its shared memory.
    assert!(!text(Architecture::Sm90a, 1 << 20, 1).contains("Ahead"));
}

#[test]
fn what_only_the_last_pass_reads_is_asked_for() {
    let extents = [16_384, 768];
    let (mut program, _) = layer_norm(extents[0], extents[1], DType::BF16);
    let text = |program: &Program| {
        let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
        sources(program, &[], machine).unwrap()[0].text.to_string()
    };
    let alone = text(&program);
    assert!(!alone.contains("ask_for"), "all rows share the scale: {alone}");
    let mut b = ProgramBuilder(program);
    let residual = b.load(dense(5, &extents), DType::F32);
    let normed = b.0.stores.remove(0);
    let y = b.convert(normed.value, DType::F32);
    let y = b.binary(Binary::Add, y, residual);
    b.store(dense(2, &extents), y);
    program = b.0;
    let with = text(&program);
    assert!(with.matches("ask_for").count() == 1, "{with}");
    let Some(device) = device() else { return };
    for rows in [1, 77] {
        let (_, mut slots) = layer_norm(rows, extents[1], DType::BF16);
        let mut few = program.clone();
        few.extents[0] = rows;
        slots[2] = blank(DType::F32, &[rows, extents[1]]);
        slots.push(normal(DType::F32, &[rows, extents[1]], 9));
        check(&device, &few, &slots, &format!("{rows} rows"));
    }
}

#[test]
fn layer_norm_with_statistics_and_scale() {
    let Some(device) = device() else { return };
    for (rows, n) in [
        (2, 1),
        (3, 77),
        (1, 8192),
        (5, 0),
        (0, 5),
        (40, 1030),
        (700, 768),
        (2, 65_536),
        (3, 131_080),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let (program, slots) = layer_norm(rows, n, dtype);
            check(&device, &program, &slots, &format!("layer_norm {rows} x {n} {dtype}"));
        }
    }
}

#[test]
fn one_element_of_a_row_is_picked() {
    let Some(device) = device() else { return };
    for (rows, n) in [(5, 1), (40, 7), (9, 1024), (3, 1030), (2, 16_384), (3, 65_536), (1, 300_000)]
    {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            // The last place, and both sides of the row.
            let places: Vec<i128> =
                [n as i128 - 1, -1, n as i128, 0].into_iter().cycle().take(rows).collect();
            let row = || blank(DType::F32, &[rows]);
            let slots = [
                normal(dtype, &[rows, n], 4),
                Tensor::from_ints(DType::I32, [rows], &places),
                row(),
                row(),
            ];
            let what = format!("cross-entropy {rows} x {n} {dtype}");
            check(&device, &cross_entropy(rows, n, dtype), &slots, &what);
        }
    }
    // Nothing but the pick: no pass at all over rows that few blocks would share.
    let (extents, places) = ([2, 100_000], [77, 100_000]);
    let mut b = ProgramBuilder::new(&extents, 1);
    let x = b.load(dense(0, &extents), DType::F32);
    let place = b.load(by_row(1, &extents), DType::I32);
    let y = picked(&mut b, (place, x), Compare::Eq);
    b.store(by_row(2, &extents), y);
    let slots = [
        normal(DType::F32, &extents, 5),
        Tensor::from_ints(DType::I32, [2usize], &places),
        blank(DType::F32, &[2]),
    ];
    check(&device, &b.0, &slots, "a pick alone");
}

/// The gradient of the mean of cross entropies beside the losses: slots x, target, loss, gradient.
fn loss_with_gradient(rows: usize, n: usize, dtype: DType) -> Program {
    let (extents, f) = ([rows, n], DType::F32);
    let mut b = ProgramBuilder(cross_entropy(rows, n, dtype));
    let [loss, log] = [0, 1].map(|number| b.0.stores[number].value);
    b.0.stores.clear();
    b.store(by_row(2, &extents), loss);
    // The logits, widened, and the target.
    let [x, target] = [1, 2].map(Register);
    let shifted = b.binary(Binary::Sub, x, log);
    let e = b.unary(Unary::Exp, shifted);
    let (share, zero) = (b.constant(1.0 / rows as f64, f), b.constant(0.0, f));
    let part = b.binary(Binary::Mul, e, share);
    let index = b.0.push(Instr::Index(1), DType::I32);
    let here = b.0.push(Instr::Compare(Compare::Eq, target, index), DType::Bool);
    let one = b.0.push(Instr::Select(here, share, zero), f);
    let gradient = b.binary(Binary::Sub, part, one);
    let gradient = b.convert(gradient, dtype);
    b.store(dense(3, &extents), gradient);
    b.0
}

#[test]
fn a_loss_and_its_gradient_are_one_loop() {
    let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
    let large = sources(&loss_with_gradient(16_384, 50_304, DType::BF16), &[], machine).unwrap();
    let text = &large[0].text;
    assert!(large.len() == 1 && text.contains("fast_exp") && text.contains("recall"), "{text}");
    let Some(device) = device() else { return };
    for (rows, n) in [(5, 1), (40, 7), (9, 1024), (3, 50_304), (1, 100_000)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let places = (0..rows).map(|row| (row * 7919 % n) as i128).collect::<Vec<_>>();
            let slots = [
                normal(dtype, &[rows, n], 4),
                Tensor::from_ints(DType::I32, [rows], &places),
                blank(DType::F32, &[rows]),
                blank(dtype, &[rows, n]),
            ];
            let what = format!("loss with gradient {rows} x {n} {dtype}");
            check(&device, &loss_with_gradient(rows, n, dtype), &slots, &what);
        }
    }
}

/// Nine sums down the columns of four matrices of 16 bits and one of 32. Four of the sums are
/// scaled by the matrix of 32 bits less a value per row. Such sums are the gradients of a layer's
/// biases and norms.
fn sums_of_a_layer(rows: usize, n: usize) -> (Program, Vec<Tensor>) {
    let f = DType::F32;
    let down = |slot| access(slot, &[1, n]);
    let mut b = ProgramBuilder::new(&[n, rows], 1);
    let mut sums = Vec::new();
    let wide = b.load(down(4), f);
    let mean = b.load(access(5, &[0, 1]), f);
    let centred = b.binary(Binary::Sub, wide, mean);
    for slot in 0..4 {
        let x = b.load(down(slot), DType::BF16);
        let x = b.convert(x, f);
        let scaled = b.binary(Binary::Mul, x, centred);
        sums.extend([x, scaled].map(|value| b.reduce(Reducer::Sum, value)));
    }
    sums.push(b.reduce(Reducer::Sum, wide));
    for (slot, sum) in (6..).zip(sums) {
        b.store(access(slot, &[1]), sum);
    }
    b.0.stores.iter_mut().for_each(|store| store.access.strides.push(0));
    let narrow = (0..4).map(|seed| normal(DType::BF16, &[rows, n], seed));
    let others = [normal(f, &[rows, n], 4), normal(f, &[rows], 5)];
    (b.0, narrow.chain(others).chain((0..9).map(|_| blank(f, &[n]))).collect())
}

#[test]
fn many_sums_down_columns() {
    let Some(device) = device() else { return };
    for [rows, n] in [[3, 8], [1024, 256], [1000, 72], [65, 2048]] {
        let (program, slots) = sums_of_a_layer(rows, n);
        check(&device, &program, &slots, &format!("{rows} x {n}"));
    }
}

#[test]
fn sums_beside_a_maximum_of_what_is_no_number() {
    let Some(device) = device() else { return };
    let (none, all) = (f64::NEG_INFINITY, f64::INFINITY);
    for n in [3, 500, 8192, 65_536, 300_000] {
        let extents = [5, n];
        for dtype in [DType::F32, DType::BF16] {
            // Nothing but negative infinities, one number at the very end, an infinity, a NaN, and
            // numbers that rise.
            let mut rows = vec![none; 5 * n];
            rows[2 * n - 1] = 2.0;
            rows[2 * n..3 * n].fill(1.0);
            rows[2 * n + n / 2] = all;
            rows[3 * n..4 * n].fill(-1.0);
            rows[3 * n + n / 3] = f64::NAN;
            rows[4 * n..]
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = (i * 16 / n) as f64 * 7.0 - 40.0);
            let x = Tensor::from_f64(dtype, extents, &rows);
            let slots = [x, blank(dtype, &extents)];
            check(
                &device,
                &softmax(&extents, dense(0, &extents), dense(1, &extents), dtype),
                &slots,
                &format!("softmax {n} {dtype}"),
            );
            let [x, _] = slots;
            let row = || blank(DType::F32, &[5]);
            let slots = [x, Tensor::from_ints(DType::I32, [5usize], &[0; 5]), row(), row()];
            check(
                &device,
                &cross_entropy(5, n, dtype),
                &slots,
                &format!("cross-entropy {n} {dtype}"),
            );
        }
    }
}

#[test]
fn a_picked_element_is_loaded_and_other_sums_are_folded() {
    let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
    let text = |program: &Program| sources(program, &[], machine).unwrap()[0].text.to_string();
    let loss = text(&cross_entropy(8192, 4096, DType::BF16));
    assert!(loss.contains("place == i1") && !loss.contains("op_eq"), "{loss}");
    // One walk over rows that are kept nowhere, with pairs for the maximum.
    assert!(loss.contains(", largest(x0[u]))") && !loss.contains("Kept"), "{loss}");
    let mut b = ProgramBuilder::new(&[8192, 4096], 1);
    let x = b.load(dense(0, &[8192, 4096]), DType::F32);
    let place = b.load(by_row(1, &[8192, 4096]), DType::I32);
    let before = picked(&mut b, (place, x), Compare::Gt);
    b.store(by_row(2, &[8192, 4096]), before);
    let folded = text(&b.0);
    assert!(folded.contains("op_gt") && !folded.contains("place == "), "{folded}");
}

/// The last slot takes the place of the first, of logits, say.
const IN_PLACE: [(SlotId, SlotId); 1] = [(SlotId(0), SlotId(3))];

/// `x[target]` beside `x - max`, or `x[target] - max`, whose pick comes after a fold.
fn picking(rows: usize, n: usize, is_late: bool) -> Program {
    let extents = [rows, n];
    let mut b = ProgramBuilder::new(&extents, 1);
    let x = b.load(dense(0, &extents), DType::F32);
    let target = b.load(by_row(1, &extents), DType::I32);
    let max = b.reduce(Reducer::Max, x);
    let shifted = b.binary(Binary::Sub, x, max);
    let taken = picked(&mut b, (target, if is_late { shifted } else { x }), Compare::Eq);
    b.store(by_row(2, &extents), taken);
    b.store(dense(3, &extents), shifted);
    b.0
}

/// If a result takes the place of x, an element is picked before it may be overwritten. That is
/// before the first fold, in a row that one block or cluster holds.
#[test]
fn elements_are_picked_before_they_are_overwritten() {
    let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
    let kernels = |program: &Program, aliases: &[(SlotId, SlotId)]| -> Vec<String> {
        let sources = sources(program, aliases, machine).unwrap();
        sources.iter().map(|source| source.text.to_string()).collect()
    };
    let early = picking(16, 8192, false);
    assert!(kernels(&early, &[]).len() > 1, "few rows are cut");
    let [one] = &kernels(&early, &IN_PLACE)[..] else { panic!("whole rows") };
    assert!(one.contains("place == i1"), "{one}");
    let late = picking(8192, 4096, true);
    let picks =
        |aliases: &[(SlotId, SlotId)]| kernels(&late, aliases).concat().contains("place == i1");
    assert!(picks(&[]) && !picks(&IN_PLACE));
}

#[test]
fn losses_do_not_depend_on_gradients_in_place_of_logits() {
    let Some(device) = device() else { return };
    for (rows, n) in [(5, 7), (16, 8192), (3, 50_304), (300, 1030), (140, 65_536)] {
        let [early, late] = [false, true].map(|is_late| picking(rows, n, is_late));
        let programs = [loss_with_gradient(rows, n, DType::F32), early, late];
        for (program, what) in programs.iter().zip(["losses", "picks", "late picks"]) {
            let targets: Vec<i128> = (0..rows).map(|row| (row * 37 % n) as i128).collect();
            let slots = [
                normal(DType::F32, &[rows, n], 4),
                Tensor::from_ints(DType::I32, [rows], &targets),
                blank(DType::F32, &[rows]),
                blank(DType::F32, &[rows, n]),
            ];
            let types: Vec<TensorType> = slots.iter().map(|t| t.ty().clone()).collect();
            let single = Single::in_place(&device, program, &types, &IN_PLACE).unwrap();
            let expected = define(program, &slots);
            for _ in 0..20 {
                let got = single.run(&slots);
                let what = format!("{what} of {rows} x {n}");
                assert_agrees(&got[2], &expected[2], &slots[2], &what);
                assert_agrees(&got[0], &expected[3], &slots[3], &what);
            }
        }
    }
}

#[test]
fn sums_over_any_axes_in_any_layout() {
    let Some(device) = device() else { return };
    // Parallel dimension P, reduced dimensions Q, R; memory in all orders.
    let shapes = [
        [5, 33, 70],
        [300, 4, 5],
        [1, 1, 1],
        [2, 0, 3],
        [700, 130, 1],
        [1, 50, 1024],
        [64, 700, 100],
        [1, 1, 999_999],
    ];
    for [p, q, r] in shapes {
        let layouts = [row_major(&[p, q, r]), vec![1, p * r, p], vec![r, p * r, 1]];
        for (which, strides) in layouts.iter().enumerate() {
            for (reducer, dtype) in [
                (Reducer::Sum, DType::F32),
                (Reducer::Max, DType::F32),
                (Reducer::Sum, DType::F64),
                (Reducer::Min, DType::I8),
                (Reducer::Prod, DType::I32),
                (Reducer::Sum, DType::I64),
                (Reducer::Or, DType::Bool),
                (Reducer::And, DType::Bool),
            ] {
                let mut b = ProgramBuilder::new(&[p, q, r], 2);
                let x = b.load(access(0, strides), dtype);
                let total = b.reduce(reducer, x);
                b.store(access(1, &[1, 0, 0]), total);
                let slots = [normal(dtype, &[p * q * r], 4), blank(dtype, &[p])];
                check(
                    &device,
                    &b.0,
                    &slots,
                    &format!("{reducer:?} {dtype} of {:?}, layout {which}", [p, q, r]),
                );
            }
        }
    }
}

#[test]
fn movement_by_strides() {
    let Some(device) = device() else { return };
    for (m, n) in [(1, 1), (3, 5), (70, 300), (0, 4), (1030, 40), (512, 256)] {
        for dtype in [DType::F32, DType::BF16, DType::U8, DType::F64] {
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
                let x = b.load(load, dtype);
                b.store(dense(1, &[m, n]), x);
                b.store(access(2, &[1, m]), x);
                let size = (m * n).max(m).max(n).max(1);
                let slots =
                    [normal(dtype, &[size], 5), blank(dtype, &[m, n]), blank(dtype, &[m, n])];
                check(&device, &b.0, &slots, &format!("{what} {m} x {n} {dtype}"));
            }
        }
    }
}

#[test]
fn indices_and_random_bits_count_the_whole_space() {
    let Some(device) = device() else { return };
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
        check(
            &device,
            &b.0,
            &[seed, blank(DType::U32, &extents), i(), i(), i()],
            &format!("{extents:?}"),
        );
    }
}

#[test]
fn every_type_converts_to_every_other() {
    let Some(device) = device() else { return };
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
        464.0,
        465.0,
        448.0,
        61439.0,
        61440.0,
        65504.0,
        65519.9,
        65520.0,
        5.0,
        -5.1,
        0.25,
        0.3,
        0.0625,
        1e-5,
        2e-7,
    ];
    for from in DType::ALL {
        // Both rules at once: there are few kernels that way.
        for to in DType::ALL {
            let n = 150;
            let mut values: Vec<f64> = philox::normals(11, 1).take(n).map(|x| x * 100.0).collect();
            values[..special.len()].copy_from_slice(&special);
            let x = if from.is_float() {
                Tensor::from_f64(from, [n], &values)
            } else {
                let whole = |&v: &f64| {
                    if from == DType::Bool { (v > 0.0) as i128 } else { (v * 1e6) as i128 }
                };
                Tensor::from_ints(from, [n], &values.iter().map(whole).collect::<Vec<_>>())
            };
            let mut b = ProgramBuilder::new(&[n], 0);
            let loaded = b.load(access(0, &[1]), from);
            let ieee = b.0.push(Instr::Convert(loaded, Overflow::Ieee), to);
            let saturated = b.0.push(Instr::Convert(loaded, Overflow::Saturate), to);
            b.store(access(1, &[1]), ieee);
            b.store(access(2, &[1]), saturated);
            check(
                &device,
                &b.0,
                &[x, blank(to, &[n]), blank(to, &[n])],
                &format!("{from} to {to}"),
            );
        }
    }
}

#[test]
fn random_programs_agree_with_their_definition() {
    let Some(device) = device() else { return };
    for seed in 0..250 {
        let (program, slots) = random_program(seed);
        check(&device, &program, &slots, &format!("seed {seed}: {program:?}"));
    }
}

#[test]
fn programs_compile_for_every_architecture() {
    let architectures = [Architecture::Sm80, Architecture::Sm90a];
    // A transpose that tiles stick out of, and others.
    let mut turned = ProgramBuilder::new(&[1030, 70], 0);
    let x = turned.load(access(0, &[1, 1030]), DType::BF16);
    turned.store(dense(1, &[1030, 70]), x);
    let losses = [DType::BF16, DType::F16, DType::F32].map(|dtype| cross_entropy(512, 4096, dtype));
    let long = AHEAD
        .map(|[_, n]| softmax(&[8192, n], dense(0, &[8192, n]), dense(1, &[8192, n]), DType::BF16));
    // In pairs, so that the long ones come to both architectures.
    let long = long.into_iter().flat_map(|program| [program.clone(), program]);
    let programs = long
        .chain(std::iter::once(turned.0))
        .chain(losses)
        .chain((0..12).map(|seed| random_program(seed).0));
    for (program, architecture) in programs.zip(architectures.into_iter().cycle()) {
        let machine = PrinterMachine { multiprocessors: 132, architecture };
        for source in sources(&program, &[], machine).unwrap() {
            match compile(&source, architecture) {
                Err(error @ overdrive_cuda::Error::Missing { .. }) => {
                    return testkit::skip(testkit::Needs::Nvrtc, error);
                }
                compiled => assert!(compiled.is_ok(), "{}\n{}", source.text, compiled.unwrap_err()),
            }
        }
    }
}

#[test]
fn packed_results_that_share_bytes_are_refused_with_the_reason() {
    let mut b = ProgramBuilder::new(&[4, 4], 0);
    let x = b.load(access(0, &[1, 4]), DType::I4);
    b.store(access(1, &[3, 1]), x);
    let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
    let error = sources(&b.0, &[], machine).unwrap_err();
    assert!(error.to_string().contains("i4 where a byte is shared"), "{error}");
}

//! A plan prints as steps, slots and expressions.

use overdrive_ir::plan::{
    Access, Epilogue, GemmCall, Instr, Layout, MatrixView, Note, Program, Reduction, Slot,
    SlotPlace, Space, Step, StepKind, Store,
};
use overdrive_ir::{
    Binary, Cost, DType, Description, MemorySpace, Mode, Peaks, Plan, Precision, Reducer, SlotId,
    Tensor, TensorType, Unary,
};

fn slot(dims: &[usize], place: SlotPlace) -> Slot {
    Slot { ty: TensorType::new(DType::F32, dims), layout: Layout::RowMajor, place }
}

fn access(slot: u32, strides: &[i64]) -> Access {
    Access { slot: SlotId(slot), offset: 0, strides: strides.to_vec() }
}

fn step(kind: StepKind, name: &str, reads: &[u32], writes: &[u32]) -> Step {
    let ids = |ids: &[u32]| ids.iter().map(|&i| SlotId(i)).collect();
    Step {
        kind,
        reads: ids(reads),
        writes: ids(writes),
        aliases: vec![],
        stream: 0,
        waits: vec![],
        records: None,
        prepare: false,
        only_if: None,
        scratch_bytes: 0,
        cost: Cost { flops: 1234, bytes: 1_048_576 },
        name: name.into(),
        scope: "fc1".into(),
    }
}

#[test]
fn a_plan_reads_as_steps_with_expressions() {
    let f32 = DType::F32;
    let mut tanh = Program { extents: vec![2, 4], ..Program::default() };
    let sum = tanh.push(Instr::Accumulator, f32);
    let bias = tanh.push(Instr::Load(access(2, &[0, 1])), f32);
    let biased = tanh.push(Instr::Binary(Binary::Add, sum, bias), f32);
    let value = tanh.push(Instr::Unary(Unary::Tanh, biased), f32);
    tanh.stores.push(Store { access: access(3, &[4, 1]), value });
    let view = |slot, row_stride| MatrixView {
        slot: SlotId(slot),
        dtype: f32,
        offset: 0,
        row_stride,
        col_stride: 1,
        batch_strides: vec![],
    };
    let gemm = GemmCall {
        batch: vec![],
        m: 2,
        n: 4,
        k: 3,
        lhs: view(0, 3),
        rhs: view(1, 4),
        accumulate: f32,
        precision: Precision::Exact,
        epilogue: Epilogue(tanh),
    };
    let mut normed = Program { extents: vec![2, 4], reduced: 1, ..Program::default() };
    let x = normed.push(Instr::Load(access(3, &[4, 1])), f32);
    let max = normed.push(Instr::Reduce(Reduction { reducer: Reducer::Max, value: x }), f32);
    let value = normed.push(Instr::Binary(Binary::Sub, x, max), f32);
    normed.stores.push(Store { access: access(4, &[4, 1]), value });
    let plan = Plan {
        name: "tiny".into(),
        mode: Mode::Compile,
        steps: vec![
            step(StepKind::Gemm(gemm), "linear+tanh", &[0, 1, 2], &[3]),
            step(StepKind::Loop(normed), "softmax", &[3], &[4]),
        ],
        slots: vec![
            slot(&[2, 3], SlotPlace::Input(0)),
            slot(&[3, 4], SlotPlace::State("fc1.weight".into())),
            slot(&[4], SlotPlace::Constant(Tensor::from_f32([4usize], &[0.0; 4]))),
            slot(&[2, 4], SlotPlace::Arena { space: Space(0), offset: 64 }),
            slot(&[2, 4], SlotPlace::Output(0)),
        ],
        inputs: vec![SlotId(0)],
        outputs: vec![SlotId(4)],
        arena_bytes: vec![96],
        live_bytes: 32,
        notes: vec![Note::Declined {
            what: "loop".into(),
            scope: "fc1".into(),
            reason: "two users".into(),
        }],
        ..Plan::default()
    };
    let expected = "\
plan tiny (compile): 2 steps, 2,468 FLOP
  arena 96 B (live 32 B), persistent 0 B, moved 2,097,152 B
  input 0: s0 f32[2, 3] in input 0
  gemm linear+tanh at fc1: 1,234 FLOP, 1,048,576 B
      reads s1 f32[3, 4] in state fc1.weight
      reads s2 f32[4] in constant
      writes s3 f32[2, 4] in arena0+64
      [2, 3] x [3, 4] of s0 f32 (strides 3 1) and s1 f32 (strides 4 1), sums in f32
      for [2, 4]
      s3 = tanh(add(acc, s2[i1]))
  loop softmax at fc1: 1,234 FLOP, 1,048,576 B
      writes s4 f32[2, 4] in output 0
      for [2] fold [4]
      t1 = reduce_max(s3)
      s4 = sub(s3, t1)
  output 0: s4 f32[2, 4] in output 0
  declined loop at fc1: two users
";
    assert_eq!(plan.to_string(), expected);
}

/// A state comes in beside the work, `done` says whether its reader waits, and its end its start.
fn copied(done: bool) -> Plan {
    let mut start = step(StepKind::CopyStart, "m in", &[0], &[1]);
    (start.stream, start.records, start.cost) = (1, Some(0), Cost { flops: 0, bytes: 60 });
    let mut end = step(StepKind::CopyDone, "m in", &[0], &[1]);
    (end.waits, end.cost) = (if done { vec![0] } else { vec![] }, Cost::default());
    let work = |name, reads: &[u32], writes: &[u32]| {
        let mut work = step(StepKind::Loop(Program::default()), name, reads, writes);
        work.cost = Cost { flops: 0, bytes: 60 };
        work
    };
    let arena = |offset| SlotPlace::Arena { space: Space::MAIN, offset };
    Plan {
        steps: vec![start, work("backward", &[], &[2]), end, work("update", &[1, 2], &[3])],
        slots: vec![
            slot(&[16], SlotPlace::State("m".into())),
            slot(&[16], arena(0)),
            slot(&[16], arena(64)),
            slot(&[16], SlotPlace::Output(0)),
        ],
        outputs: vec![SlotId(3)],
        offloaded: [("m".to_owned(), Space(1))].into(),
        arena_bytes: vec![128],
        persistent_bytes: vec![0],
        ..Plan::default()
    }
}

#[test]
fn copies_run_beside_work_and_what_reads_them_must_wait() {
    let plan = copied(true);
    assert_eq!(plan.verify(), Ok(()));
    // 60 bytes take a second of the link, and a second of the memory at its usual share of the
    // peak. So the copy hides behind the backward pass.
    let device = Description {
        spaces: vec![MemorySpace {
            name: "other",
            bytes: 64,
            bytes_per_second: 60.0,
            ..MemorySpace::default()
        }],
        peaks: Peaks { levels: vec![(1 << 20, 100.0)], ..Peaks::default() },
        ..Description::default()
    };
    assert_eq!(plan.seconds(&device), 2.0);
    assert_eq!([0, 1].map(|space| plan.peak_bytes(Space(space))), [128 + 64, 64]);
    let error = copied(false).verify().unwrap_err();
    assert!(error.contains("`m in`") && error.contains("s1"), "{error}");
    let mut shared = copied(true);
    shared.slots[2].place = SlotPlace::Arena { space: Space::MAIN, offset: 32 };
    let error = shared.verify().unwrap_err();
    assert!(error.contains("s1 and s2 share bytes"), "{error}");
    let mut outside = copied(true);
    outside.arena_bytes = vec![64];
    assert!(outside.verify().unwrap_err().contains("an arena of 64 bytes"));
}

/// An update in other memory, of a state that waits there: `handed` says whether it waits for the
/// copy of its operand.
fn updated_elsewhere(handed: bool) -> Plan {
    let copy = |name, from, to, stream, waits: &[u32], records| {
        let mut copy = step(StepKind::CopyStart, name, &[from], &[to]);
        (copy.stream, copy.waits, copy.records) = (stream, waits.to_vec(), Some(records));
        copy.cost = Cost { flops: 0, bytes: 60 };
        copy
    };
    let done = |name, from, to, waits: &[u32]| {
        let mut done = step(StepKind::CopyDone, name, &[from], &[to]);
        (done.waits, done.cost) = (waits.to_vec(), Cost::default());
        done
    };
    let loops = || StepKind::Loop(Program::default());
    let mut backward = step(loops(), "backward", &[], &[1]);
    (backward.records, backward.cost) = (Some(0), Cost { flops: 0, bytes: 60 });
    let mut update = step(loops(), "update", &[0, 2], &[0, 3]);
    (update.stream, update.records) = (4, Some(2));
    (update.waits, update.cost) = (if handed { vec![1] } else { vec![] }, backward.cost);
    let arena = |space, offset| SlotPlace::Arena { space: Space(space), offset };
    Plan {
        steps: vec![
            backward.clone(),
            copy("g out", 1, 2, 2, &[0], 1),
            update,
            Step { name: "other work".into(), writes: vec![SlotId(5)], records: None, ..backward },
            copy("p in", 3, 4, 1, &[0, 2], 3),
            done("g out", 1, 2, &[1]),
            done("p in", 3, 4, &[3]),
        ],
        slots: vec![
            slot(&[16], SlotPlace::State("m".into())),
            slot(&[16], arena(0, 0)),
            slot(&[16], arena(1, 0)),
            slot(&[16], arena(1, 64)),
            slot(&[16], SlotPlace::State("p".into())),
            slot(&[16], arena(0, 64)),
        ],
        updates: vec![("p".to_owned(), SlotId(4), SlotId(4))],
        offloaded: [("m".to_owned(), Space(1))].into(),
        arena_bytes: vec![128, 128],
        persistent_bytes: vec![0, 0],
        ..Plan::default()
    }
}

#[test]
fn work_in_other_memory_runs_beside_that_of_the_device() {
    let plan = updated_elsewhere(true);
    assert_eq!(plan.verify(), Ok(()));
    assert_eq!(plan.runs_in(&plan.steps[2]), Space(1));
    // The backward, the copy, the update there and the copy back take a second each. Other work of
    // the device takes none of that time.
    let space = MemorySpace {
        name: "other",
        bytes: 128,
        bytes_per_second: 60.0,
        loop_bytes_per_second: Some(60.0),
    };
    let peaks = Peaks { levels: vec![(1 << 20, 100.0)], ..Peaks::default() };
    let device = Description { spaces: vec![space], peaks, ..Description::default() };
    assert_eq!(plan.seconds(&device), 4.0);
    assert!(plan.to_string().contains("loop update at fc1 in space 1"), "{plan}");
    let error = updated_elsewhere(false).verify().unwrap_err();
    assert!(error.contains("`update` does not wait for step 1 `g out`"), "{error}");
    let mut unheard = updated_elsewhere(true);
    unheard.steps[4].waits = vec![0];
    assert!(unheard.verify().unwrap_err().contains("`p in` does not wait"), "{unheard}");
    let mut torn = updated_elsewhere(true);
    torn.offloaded.clear();
    assert!(torn.verify().unwrap_err().contains("runs in space"), "{torn}");
}

//! Plans of small models: what becomes a step, what fuses, and that the arena holds no overlap.
//!
//! Long because every kind of step has its plan here, all made for one device.

use overdrive_ir::ops::avg_pool2d::Pool2d;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::ops::{Conv2d, QuantizedLinear};
use overdrive_ir::plan::{Note, SlotPlace, Step, StepKind};
use overdrive_ir::{
    Builder, Call, DType, Decline, Described, Description, DotGeneral, Expr, Graph, Init, Kernel,
    Mode, Pad, Plan, Prim, Reducer, Shape, TensorType, Tuning,
};
use overdrive_passes::{PASSES, explain, plan};
use std::collections::{BTreeMap, BTreeSet};

type Answer = fn(&Call<'_>) -> Result<Kernel, Decline>;

fn description() -> Description {
    Description {
        device: "test".into(),
        memory_bytes: 1 << 30,
        contraction_dtypes: BTreeSet::from([DType::F32]),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 10.0,
        ..Description::default()
    }
}

/// A device with a kernel for attention.
fn device() -> Described<Answer> {
    answering(|call| if is_op(call, "attention") { Ok(Kernel::default()) } else { NONE })
}

/// A device that answers so.
fn answering(answer: Answer) -> Described<Answer> {
    Described { description: description(), answer }
}

/// The same device where contractions take these types.
fn multiplying(dtypes: &[DType]) -> Described<Answer> {
    let contraction_dtypes = dtypes.iter().copied().collect();
    let description = Description { contraction_dtypes, ..description() };
    Described { description, ..device() }
}

const NONE: Result<Kernel, Decline> = Err(Decline::NoKernel);

/// Whether it is asked for this op, without regions.
fn is_op(call: &Call<'_>, name: &str) -> bool {
    matches!(call, Call::Op { op, regions: [], .. } if op.name() == name)
}

fn f32s(shape: impl Into<overdrive_ir::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn plans(graph: &Graph) -> [Plan; 2] {
    [Mode::Jit, Mode::Compile]
        .map(|mode| plan(graph, mode, &device(), &Tuning::default()).expect("plans"))
}

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let kind = |s: &overdrive_ir::plan::Step| match s.kind {
        StepKind::Loop(_) => "loop",
        StepKind::Gemm(_) => "gemm",
        StepKind::Convolution(_) => "convolution",
        StepKind::Chain(_) => "chain",
        StepKind::Kernel(_) => "kernel",
        StepKind::Host(_) => "host",
        _ => "other",
    };
    plan.steps.iter().map(kind).collect()
}

fn model(name: &str, body: impl for<'b> Fn(&'b Builder, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new(name);
    let x = b.input("x", f32s([8usize, 16]));
    let y = body(&b, x);
    b.output("y", y);
    b.finish().expect("the model is well typed")
}

#[test]
fn a_linear_layer_and_what_follows_is_one_gemm_when_compiled() {
    let graph = model("linear", |b, x| {
        let w = b.state("w", f32s([16usize, 32]), Init::Constant(0.1));
        let bias = b.state("bias", f32s([32usize]), Init::ZEROS);
        x.linear(w, Some(bias)).relu() * 2.0
    });
    let [jit, compiled] = plans(&graph);
    assert_eq!(kinds(&jit), ["gemm", "loop", "loop"]);
    assert_eq!(kinds(&compiled), ["gemm"]);
    let StepKind::Gemm(call) = &compiled.steps[0].kind else { unreachable!() };
    assert_eq!((call.m, call.n, call.k), (8, 32, 16));
    assert_eq!(compiled.arena_bytes, [0], "the only result is the caller's output");
}

#[test]
fn softmax_is_one_loop_with_two_reductions_in_every_mode() {
    let graph = model("softmax", |_, x| x.softmax(1));
    for plan in plans(&graph) {
        assert_eq!(kinds(&plan), ["loop"]);
        let StepKind::Loop(program) = &plan.steps[0].kind else { unreachable!() };
        assert_eq!((program.extents.as_slice(), program.reduced), ([8, 16].as_slice(), 1));
    }
    let columns = model("columns", |_, x| x.softmax(0));
    let StepKind::Loop(program) = &plans(&columns)[0].steps[0].kind else { unreachable!() };
    assert_eq!(program.extents, [16, 8], "the reduced dimension comes last");
}

#[test]
fn a_value_used_on_both_sides_of_a_contraction_makes_no_cycle() {
    let graph = model("residual", |b, x| {
        let w = b.state("w", f32s([16usize, 16]), Init::Constant(0.1));
        let h = x.relu();
        h + (h * 3.0).matmul(w)
    });
    let [_, compiled] = plans(&graph);
    assert_eq!(kinds(&compiled), ["loop", "gemm"]);
}

#[test]
fn lives_that_overlap_share_no_bytes() {
    let graph = model("chain", |b, x| {
        let w = b.state("w", f32s([16usize, 16]), Init::Constant(0.1));
        let mut h = x;
        for _ in 0..6 {
            h = h.softmax(1).matmul(w) + h;
        }
        h
    });
    for plan in plans(&graph) {
        let mut live: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for &slot in step.reads.iter().chain(&step.writes) {
                let entry = live.entry(slot.0 as usize).or_insert((index, index));
                entry.1 = index;
            }
        }
        // A value that is overwritten by the next one shares its bytes on purpose.
        let sharing = plan.sharing();
        let arena = |slot: usize| match plan.slots[slot].place {
            SlotPlace::Arena { offset, .. } => Some((offset, offset + plan.slots[slot].bytes())),
            _ => None,
        };
        for (&a, &(a0, a1)) in &live {
            for (&b, &(b0, b1)) in live.range(a + 1..) {
                if let (Some(x), Some(y)) = (arena(a), arena(b))
                    && a0 <= b1
                    && b0 <= a1
                    && sharing[a] != sharing[b]
                {
                    assert!(x.1 <= y.0 || y.1 <= x.0, "slots {a} and {b} overlap");
                }
            }
        }
        assert!(plan.arena_bytes[0] >= plan.live_bytes);
        assert!(plan.arena_bytes[0] as f64 <= 1.15 * plan.live_bytes as f64);
    }
}

#[test]
fn a_state_that_is_scaled_is_updated_in_place() {
    let b = Builder::new("decay");
    let p = b.state("p", f32s([4usize, 4]), Init::Constant(1.0));
    b.update("p", p * 0.9);
    let graph = b.finish().unwrap();
    for plan in plans(&graph) {
        let (_, _, new) = plan.updates[0].clone();
        assert_eq!(plan.slot(new).place, SlotPlace::State("p".into()));
        assert_eq!(plan.arena_bytes, [0]);
    }
}

#[test]
fn an_unbound_dimension_is_named() {
    let b = Builder::new("named");
    let x = b.input("x", f32s(["batch"]));
    b.output("y", x.relu());
    let error = plan(&b.finish().unwrap(), Mode::Jit, &device(), &Tuning::default()).unwrap_err();
    assert!(error.to_string().contains("batch"), "{error}");
}

/// A cache of 8 rows that is written at `at`; `also` makes a second output of cache, updated cache
/// and input.
fn cache(also: impl for<'b> Fn(Expr<'b>, Expr<'b>, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new("cache");
    let x = b.input("x", f32s([1usize, 4]));
    let at = b.input("at", TensorType::new(DType::I64, [2usize]));
    let cache = b.state("cache", f32s([8usize, 4]), Init::ZEROS);
    let updated = b.op1(Prim::DynamicUpdateSlice, &[cache, x, at]);
    b.output("y", updated * 2.0);
    b.output("also", also(cache, updated, x));
    b.update("cache", updated);
    b.finish().expect("the model is well typed")
}

#[test]
fn a_cache_is_written_where_it_is_or_the_plan_errs() {
    let device = answering(|call| match is_op(call, "dynamic_update_slice") {
        true => Ok(Kernel::default()),
        false => NONE,
    });
    let planned = |graph: &Graph, mode| plan(graph, mode, &device, &Tuning::default());
    for mode in [Mode::Eager, Mode::Jit, Mode::Compile] {
        let before =
            planned(&cache(|old, _, _| old * 3.0), mode).expect("the old value can be read first");
        let (_, old, new) = &before.updates[0];
        assert_eq!(before.slot(*new).place, SlotPlace::State("cache".to_owned()), "{mode}");
        let writer =
            before.steps.iter().position(|s| s.writes.contains(new)).expect("somebody writes it");
        assert!(
            before.steps[writer + 1..].iter().all(|s| !s.reads.contains(old)),
            "{mode}:\n{before}"
        );
        let both = planned(&cache(|old, new, _| old + new), mode)
            .expect_err("old and new at once")
            .to_string();
        assert!(both.contains("state `cache`") && both.contains("old value"), "{mode}: {both}");
    }
}

#[test]
fn contractions_on_types_that_the_device_lacks_run_wider_and_the_plan_says_so() {
    let device = multiplying(&[DType::F32, DType::F64]);
    for (dtype, wide) in [(DType::F8E4M3, "f32"), (DType::BF16, "f32"), (DType::I8, "f64")] {
        let b = Builder::new("narrow");
        let [x, w] = [("x", [4usize, 8]), ("w", [8, 4])]
            .map(|(name, s)| b.input(name, TensorType::new(dtype, s)));
        let out = if dtype.is_float() { DType::F32 } else { DType::I32 };
        let (batch, contract) = (vec![], vec![(1, 0)]);
        let dot =
            DotGeneral { batch, contract, accumulate: out, out, precision: Default::default() };
        b.output("y", b.op1(Prim::DotGeneral(dot), &[x, w]));
        let graph = b.finish().expect("the model is well typed");
        for mode in [Mode::Jit, Mode::Compile] {
            let plan = plan(&graph, mode, &device, &Tuning::default()).expect("plans");
            let text = plan.to_string();
            assert!(
                text.contains(&format!("multiplies no {dtype}")) && text.contains(wide),
                "{text}"
            );
            let product = plan.steps.iter().find_map(|s| match &s.kind {
                StepKind::Gemm(call) => Some(call.lhs.dtype.name()),
                _ => None,
            });
            assert_eq!(product, Some(wide));
        }
    }
}

#[test]
fn a_claim_of_one_form_leaves_the_others_to_their_expansion() {
    let answer: Answer = |call| match call {
        Call::Op { op, .. } => {
            let op = op.composite::<QuantizedLinear>().ok_or(Decline::NoKernel)?;
            if op.activations == Activations::Float { Ok(Kernel::default()) } else { NONE }
        }
        Call::Product(call) if call.rhs.dtype == DType::I8 => {
            Ok(Kernel { packed: Some(("test", call.k * call.n)), ..Kernel::default() })
        }
        _ => NONE,
    };
    let device = Described { answer, ..multiplying(&[DType::F32, DType::I8]) };
    let planned = |activations| {
        let graph = model("quantized", |b, x| {
            let codes = b.state("codes", TensorType::new(DType::I8, [32usize, 16]), Init::ZEROS);
            let scale = b.state("scale", f32s([32usize, 1]), Init::Constant(0.1));
            let op = QuantizedLinear { activations, ..QuantizedLinear::default() };
            x.quantized_linear(op, &[codes, scale]).relu()
        });
        plan(&graph, Mode::Compile, &device, &Tuning::default()).expect("plans")
    };
    assert_eq!(kinds(&planned(Activations::Float)), ["kernel", "loop"]);
    let int8 = planned(Activations::Dynamic(DType::I8));
    let packs =
        int8.steps.iter().any(|step| step.prepare && matches!(step.kind, StepKind::Pack { .. }));
    // The product is of codes, and scales are its epilogue.
    let product = int8.steps.iter().any(|step| match &step.kind {
        StepKind::Gemm(call) => {
            call.lhs.dtype == DType::I8 && call.epilogue.plain_store().is_none()
        }
        _ => false,
    });
    assert!(packs && product && !kinds(&int8).contains(&"kernel"), "{int8}");
}

#[test]
fn convolutions_hand_each_other_channels_innermost_where_the_device_reads_them_so() {
    // One that reads an image of three channels stores for the next; all others read what is stored
    // so.
    let device = answering(|call| match call {
        Call::Lying { types, strides, .. } => {
            let channels_last = types[0].sizes()[1] == 3 || strides[1] == 1;
            Ok(Kernel { channels_last, ..Kernel::default() })
        }
        _ => NONE,
    });
    let planned = |end: fn([Expr<'_>; 2]) -> Vec<Expr<'_>>, device: &Described<Answer>| {
        let b = Builder::new("chain");
        let x = b.input("x", f32s([2usize, 3, 8, 8]));
        let layer = |name: &str, inputs: usize| {
            b.state(name, f32s([4usize, inputs, 3, 3]), Init::Constant(0.1))
        };
        let first = x.conv2d(layer("first", 3), None, Conv2d::new(1, 1)).relu();
        let second = first.conv2d(layer("second", 4), None, Conv2d::new(1, 1)).relu();
        let ends = end([first, second]);
        ends.iter().enumerate().for_each(|(i, y)| b.output(&format!("y{i}"), *y));
        plan(&b.finish().expect("well typed"), Mode::Compile, device, &Tuning::default())
            .expect("plans")
    };
    let strides = |plan: &Plan| {
        let read = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Convolution(call) => Some(call.input.strides.clone()),
            _ => None,
        });
        read.collect::<Vec<_>>()
    };
    let (image, last) = (vec![192, 64, 8, 1], vec![256, 1, 32, 4]);
    let innermost = [image.clone(), last];
    assert_eq!(strides(&planned(|[_, y]| vec![y], &device)), innermost);
    // An epilogue that reads the value too follows the order of its sums.
    assert_eq!(strides(&planned(|[x, y]| vec![x + y], &device)), innermost);
    // A value that somebody else wants as ever, or that a device does not want so, lies as ever.
    let ever = [image, vec![256, 64, 8, 1]];
    assert_eq!(strides(&planned(|[x, y]| vec![x.transpose(&[0, 3, 2, 1]), y], &device)), ever);
    assert_eq!(strides(&planned(|[_, y]| vec![y], &self::device())), ever);
}

#[test]
fn pools_pads_and_loops_hand_channels_innermost_on() {
    let device = answering(|call| match call {
        Call::Lying { types, strides, .. } => {
            let channels_last = types[0].sizes()[1] == 3 || strides[1] == 1;
            Ok(Kernel { channels_last, ..Kernel::default() })
        }
        Call::Op { op, .. } if op.name() == "reduce_window" => Ok(Kernel::default()),
        _ => NONE,
    });
    let b = Builder::new("pool");
    let x = b.input("x", f32s([2usize, 3, 8, 8]));
    let layer = |name: &str, inputs: usize| {
        b.state(name, f32s([4usize, inputs, 3, 3]), Init::Constant(0.1))
    };
    let first = x.conv2d(layer("first", 3), None, Conv2d::new(1, 1)).relu();
    let pool = Pool2d { window: [2, 2], stride: [2, 2], pad: [[0, 0], [0, 0]] };
    let pooled = first.max_pool2d(pool);
    let (none, around) = (Pad::default(), Pad { low: 1, high: 1, interior: 0 });
    let pads = vec![none, none, around, around];
    let one = b.full(DType::F32, Shape::default(), 1.0);
    let padded = b.op1(Prim::Pad { pads }, &[pooled.exp(), one]);
    b.output("y", padded.conv2d(layer("second", 4), None, Conv2d::new(1, 0)));
    let graph = b.finish().expect("well typed");
    let plan = plan(&graph, Mode::Compile, &device, &Tuning::default()).expect("plans");
    let inputs = plan.steps.iter().filter_map(|step| match &step.kind {
        StepKind::Convolution(call) => Some(call.input.strides.clone()),
        _ => None,
    });
    assert_eq!(inputs.last(), Some(vec![144, 1, 24, 4]), "{plan}");
}

#[test]
fn a_mean_over_space_is_folded_behind_the_convolution_where_the_device_does_so() {
    let answer: Answer = |call| match call {
        Call::Convolution(_) => Ok(Kernel { parts: 5, ..Kernel::default() }),
        _ => NONE,
    };
    let folding =
        Described { description: Description { folds_space: true, ..description() }, answer };
    let planned = |device: &Described<Answer>, head: fn(Expr<'_>) -> Expr<'_>| {
        let b = Builder::new("mean");
        let x = b.input("x", f32s([2usize, 3, 8, 8]));
        let w = b.state("w", f32s([4usize, 3, 3, 3]), Init::Constant(0.1));
        b.output("y", head(x.conv2d(w, None, Conv2d::new(1, 1)).relu()));
        plan(&b.finish().expect("well typed"), Mode::Compile, device, &Tuning::default())
            .expect("plans")
    };
    let mean = planned(&folding, |y| y.global_avg_pool());
    assert_eq!(kinds(&mean), ["convolution"], "{mean}");
    let StepKind::Convolution(call) = &mean.steps[0].kind else { panic!("{mean}") };
    let parts = call.workspace.expect("parts of an image are kept apart");
    assert_eq!(
        (mean.slot(parts).ty.sizes(), mean.steps[0].writes.last()),
        (vec![2, 5, 4], Some(&parts))
    );
    assert!(mean.to_string().contains("for [2, 4] fold [8, 8]"), "{mean}");
    assert_eq!(kinds(&planned(&device(), |y| y.global_avg_pool())), ["convolution", "loop"]);
    // A fold over other axes, and pixels that wait for the fold, are another step.
    assert_eq!(kinds(&planned(&folding, |y| y.sum(&[0, 2, 3]))), ["convolution", "loop"]);
    let centred = planned(&folding, |y| y - y.mean_keep(&[2, 3]));
    assert_eq!(kinds(&centred), ["convolution", "loop"], "{centred}");
}

#[test]
fn convolutions_that_only_the_next_one_reads_are_a_chain_where_the_device_runs_it() {
    let planned = |mode, device: &Described<Answer>, residual: bool| {
        let b = Builder::new("chain");
        let x = b.input("x", f32s([2usize, 4, 8, 8]));
        let weights = |name: &str| b.state(name, f32s([4usize, 4, 3, 3]), Init::Constant(0.1));
        let [first, second, third] = ["a", "b", "c"].map(weights);
        let first = x.conv2d(first, None, Conv2d::new(1, 1)).relu();
        let second = first.conv2d(second, None, Conv2d::new(1, 1)).relu();
        let third = second.conv2d(third, None, Conv2d::new(1, 1)).relu();
        b.output("y", if residual { third + first } else { third });
        plan(&b.finish().expect("well typed"), mode, device, &Tuning::default()).expect("plans")
    };
    let image = 4 * 2 * 4 * 8 * 8;
    let any = answering(|call| match call {
        Call::Chain(_) => Ok(Kernel::default()),
        _ => NONE,
    });
    let all = planned(Mode::Compile, &any, false);
    assert_eq!((kinds(&all), all.arena_bytes.clone()), (vec!["chain"], vec![0]), "{all}");
    let step = &all.steps[0];
    assert_eq!(step.writes, all.outputs, "what is between is written nowhere");
    // Two images less to write, and to read.
    let apart = planned(Mode::Compile, &device(), false);
    assert_eq!(
        (kinds(&apart), apart.arena_bytes.clone()),
        (vec!["convolution"; 3], vec![2 * image])
    );
    assert_eq!(apart.cost().bytes - all.cost().bytes, 4 * image as u64);
    assert_eq!(apart.cost().flops, all.cost().flops);
    // Chains are as long as the device accepts, and do not cross values with other readers.
    let two = answering(|call| match call {
        Call::Chain(calls) if calls.len() == 2 => Ok(Kernel::default()),
        Call::Chain(_) => Err(Decline::Because("too long".into())),
        _ => NONE,
    });
    let planned_two = planned(Mode::Compile, &two, false);
    assert_eq!(kinds(&planned_two), ["chain", "convolution"]);
    let told = |note: &&Note| matches!(note, Note::Declined { reason, .. } if reason == "too long");
    assert_eq!(planned_two.notes.iter().filter(told).count(), 1, "{planned_two}");
    assert_eq!(kinds(&planned(Mode::Compile, &any, true)), ["convolution", "chain"]);
    assert_eq!(
        kinds(&planned(Mode::Jit, &any, false)),
        kinds(&planned(Mode::Jit, &device(), false))
    );
}

#[test]
fn kernels_of_convolutions_that_never_change_are_packed_once() {
    let device = answering(|call| match call {
        Call::Convolution(call) => {
            let packed = Some(("test", 2 * call.kernel.ty.bytes()));
            Ok(Kernel { packed, ..Kernel::default() })
        }
        _ => NONE,
    });
    let planned = |learns: bool, mode| {
        let b = Builder::new("shared");
        let [x, y] = ["x", "y"].map(|name| b.input(name, f32s([2usize, 4, 8, 8])));
        let w = b.state("w", f32s([4usize, 4, 3, 3]), Init::Constant(0.1));
        let geometry = Conv2d::new(1, 1);
        b.output("x", x.conv2d(w, None, geometry.clone()));
        b.output("y", y.conv2d(w, None, geometry));
        if learns {
            b.update("w", w * 0.5);
        }
        plan(&b.finish().expect("well typed"), mode, &device, &Tuning::default()).expect("plans")
    };
    let packs = |plan: &Plan| {
        let pack = |step: &&overdrive_ir::plan::Step| matches!(step.kind, StepKind::PackFilter(_));
        let packed = plan.steps.iter().filter(pack).inspect(|step| assert!(step.prepare)).count();
        let reads = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Convolution(call) => Some(plan.slot(call.kernel.slot).bytes()),
            _ => None,
        });
        (packed, reads.collect::<Vec<_>>())
    };
    assert_eq!(packs(&planned(false, Mode::Compile)), (1, vec![1152; 2]));
    // Nothing is prepared if nothing stays constant, or if each call is independent.
    assert_eq!(packs(&planned(true, Mode::Compile)), (0, vec![576; 2]));
    assert_eq!(packs(&planned(false, Mode::Eager)), (0, vec![576; 2]));
}

#[test]
fn a_kernel_that_takes_an_epilogue_takes_what_follows_it() {
    let device = answering(|call| match is_op(call, "quantized_linear") {
        true => Ok(Kernel { takes_epilogue: true, ..Kernel::default() }),
        false => NONE,
    });
    let graph = model("quantized", |b, x| {
        let codes = b.state("codes", TensorType::new(DType::I8, [32usize, 16]), Init::ZEROS);
        let scale = b.state("scale", f32s([32usize, 1]), Init::Constant(0.1));
        x.quantized_linear(QuantizedLinear::default(), &[codes, scale]).relu()
    });
    let plan = plan(&graph, Mode::Compile, &device, &Tuning::default()).expect("plans");
    let [Step { kind: StepKind::Kernel(call), .. }] = &plan.steps[..] else { panic!("{plan}") };
    let epilogue = call.epilogue.as_ref().expect("it has one");
    assert!(call.results.is_empty() && epilogue.plain_store().is_none(), "{plan}");
}

#[test]
fn a_plan_over_the_memory_limit_errs_with_its_size() {
    let graph = model("wide", |_, x| x.relu().matmul(x.transpose(&[1, 0])).softmax(1));
    let tuning = Tuning { memory_limit: Some(16), ..Tuning::default() };
    let error =
        plan(&graph, Mode::Jit, &device(), &tuning).expect_err("16 bytes are too few").to_string();
    assert!(error.contains("the limit is 16"), "{error}");
}

/// The list is the passes that make the plan: each pass of the mode once, in order. Their notes
/// together are those of the plan.
#[test]
fn an_explained_plan_is_the_plan_with_what_each_pass_of_its_mode_changed() {
    let graph = model("wide", |_, x| x.relu().matmul(x.transpose(&[1, 0])).softmax(1));
    for mode in Mode::ALL {
        let (explained, changes) =
            explain(&graph, mode, &device(), &Tuning::default()).expect("plans");
        assert_eq!(explained, plan(&graph, mode, &device(), &Tuning::default()).expect("plans"));
        let ran: Vec<&str> = changes.iter().map(|change| change.pass.name).collect();
        let listed = PASSES.iter().filter(|pass| pass.modes.contains(&mode));
        assert_eq!(ran, listed.map(|pass| pass.name).collect::<Vec<_>>());
        let notes: Vec<_> = changes.iter().flat_map(|change| change.notes.clone()).collect();
        assert_eq!(notes, explained.notes, "{mode}");
        for pair in changes.windows(2) {
            assert_eq!(pair[0].after, pair[1].before, "{mode}: {}", pair[1].pass.name);
        }
        let last = changes.last().expect("there are passes");
        assert_eq!(
            (changes[0].before.nodes, last.after.steps),
            (graph.nodes().len(), explained.steps.len())
        );
        if mode == Mode::Compile {
            let legalized = changes.iter().find(|change| change.pass.name == "legalize");
            let legalized = legalized.expect("compile legalizes");
            assert!(legalized.after.nodes > legalized.before.nodes, "softmax is expanded");
            assert!(!legalized.notes.is_empty());
        }
    }
}

/// The derivative of an activation would be stored for the backward pass alone. The activation's
/// input is half as wide, so the derivative is computed from it again.
#[test]
fn a_step_computes_again_what_costs_more_bytes_to_read() {
    let b = Builder::new("trained");
    let bf16 = |shape: [usize; 2]| TensorType::new(DType::BF16, shape);
    let x = b.input("x", bf16([64, 128]));
    let [first, second] =
        [("first", [128, 256]), ("second", [256, 128])].map(|(name, s)| b.input(name, bf16(s)));
    let hidden = x.linear(first, None).convert(DType::F32);
    let active = hidden.silu().convert(DType::BF16);
    let dy = active.linear(second, None);
    let da = dy.dot(second, &[], &[(1, 1)]).convert(DType::F32);
    let slope = hidden.unary(overdrive_ir::Unary::Logistic);
    b.output("dh", (da * slope * hidden.exp()).convert(DType::BF16));
    let graph = b.finish().unwrap();
    let device = multiplying(&[DType::F32, DType::BF16]);
    let plan = plan(&graph, Mode::Compile, &device, &Tuning::default()).unwrap();
    assert_eq!(kinds(&plan), ["gemm"; 3], "{plan}");
    let stored: Vec<&TensorType> =
        plan.steps.iter().flat_map(|step| &step.writes).map(|&slot| &plan.slot(slot).ty).collect();
    assert!(stored.iter().all(|ty| ty.dtype == DType::BF16), "{plan}");
    let hidden = stored.iter().filter(|ty| ty.sizes() == [64, 256]).count();
    assert_eq!(hidden, 3, "what was activated, what came of it, and the result: {plan}");
    assert!(plan.notes.iter().any(|note| matches!(note, Note::Recomputed { .. })), "{plan}");
}

#[test]
fn weights_that_change_are_rounded_before_everything_else() {
    let b = Builder::new("trained");
    let mut y = b.input("x", TensorType::new(DType::BF16, [4usize, 16]));
    for name in ["w0", "w1"] {
        let w = b.state_named(name, f32s([16usize, 16]), Init::Constant(0.1));
        y = y.linear(w.convert(DType::BF16), None);
        b.update(name, w * 0.5);
    }
    b.output("y", y);
    let device = multiplying(&[DType::BF16]);
    let plan = plan(&b.finish().unwrap(), Mode::Compile, &device, &Tuning::default()).unwrap();
    let rounds = |step: &Step| plan.slot(step.writes[0]).ty.dtype == DType::BF16;
    let first: Vec<bool> = plan.steps[..2].iter().map(rounds).collect();
    assert_eq!(
        (kinds(&plan)[..3].to_vec(), first),
        (vec!["loop", "loop", "gemm"], vec![true; 2]),
        "{plan}"
    );
}

/// A value that is joined of weights and inputs changes with the inputs, whichever comes first.
#[test]
fn a_value_that_a_call_writes_in_part_is_no_preparation() {
    for first in [true, false] {
        let b = Builder::new("joined");
        let x = b.input("x", f32s([2, 4]));
        let w = b.state("w", f32s([2, 4]), Init::Constant(1.0));
        let (x, w) = (x.tanh(), w.exp());
        let joined = b.concat(&if first { [x, w] } else { [w, x] }, 0);
        // Its reader writes no output, and could be a preparation.
        let v = b.state("v", f32s([4, 4]), Init::Constant(1.0));
        b.output("y", joined.matmul(v).sum(&[0]));
        for plan in plans(&b.finish().unwrap()) {
            let written = |step: &Step, prepare: bool| {
                if step.prepare == prepare { step.writes.clone() } else { vec![] }
            };
            let in_calls: BTreeSet<_> =
                plan.steps.iter().flat_map(|step| written(step, false)).collect();
            let wrong = plan
                .steps
                .iter()
                .find(|step| step.prepare && step.reads.iter().any(|slot| in_calls.contains(slot)));
            assert!(wrong.is_none(), "{first} {wrong:?}\n{plan}");
        }
    }
}

/// Rows and columns of a square matrix are folded by two loops, each in the order that suits it.
#[test]
fn rows_and_columns_of_a_square_are_not_folded_by_one_loop() {
    let b = Builder::new("square");
    let x = b.input("x", TensorType::new(DType::F32, [1024usize, 1024]));
    // A vector that is read beside the matrix lies neither way.
    let y = b.input("y", TensorType::new(DType::F32, [1024usize]));
    for (name, axis) in [("rows", 1), ("columns", 0)] {
        let beside = y.broadcast_in(&x.shape(), &[1 - axis]);
        b.output(name, (x - beside).reduce(Reducer::Max, &[axis]));
    }
    let graph = b.finish().expect("the graph is well typed");
    let plan = plan(&graph, Mode::Compile, &device(), &Tuning::default()).expect("plans");
    assert_eq!(plan.steps.len(), 2, "{plan}");
}

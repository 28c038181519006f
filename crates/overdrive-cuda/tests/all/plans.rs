//! The plans of models on a GPU that exists only as data, and the error of opening a GPU where
//! there is none.
//!
//! Long because each plan is held against what that one GPU does.

use crate::support::h200;
use overdrive_cuda::compiler::Architecture;
use overdrive_cuda::device::{Device, Properties};
use overdrive_cuda::{Error, Gpu, Library};
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::ops::{Attention, AttentionGrad, CastTranspose, Float8Linear};
use overdrive_ir::plan::{Instr, KernelOp, Note, Plan, Space, Step, StepKind};
use overdrive_ir::{
    Builder, DType, Expr, Graph, Init, Mode, Prim, SortOrder, Target, Tensor, TensorType, Tuning,
};
use overdrive_models::bert::{Bert, Kin, Pooling};
use overdrive_models::{Activation, MODELS};
use overdrive_passes::{
    Evidence, PlanError, Pruning, Quantized, Recipe, bind, compress, differentiate, plan,
    precision, sparsify,
};
use std::fmt::Write;

/// A layer on codes, a scale for each tensor.
const FORMATS: Float8Linear = Float8Linear {
    forward: DType::F8E4M3,
    gradient: DType::F8E5M2,
    granularity: Float8Granularity::Tensor,
};

#[test]
fn models_plan_to_these_steps() {
    let gpu = Gpu::new(&h200());
    let mut table = String::new();
    for model in MODELS {
        let graph = (model.build)().unwrap_or_else(|e| panic!("{}: {e}", model.name));
        let sizes = model.dimensions.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        let graph = bind(&graph, &sizes).unwrap_or_else(|e| panic!("{}: {e}", model.name));
        for mode in [Mode::Jit, Mode::Compile] {
            let plan =
                plan(&graph, mode, &gpu, &Tuning::default()).unwrap_or_else(|e| panic!("{e}"));
            let count = |matches: fn(&StepKind) -> bool| {
                let parts = plan.steps.iter().flat_map(Step::parts);
                parts.filter(|step| matches(&step.kind)).count()
            };
            let on_host = count(|kind| matches!(kind, StepKind::Host(_)));
            assert_eq!(on_host, 0, "{} in {mode} waits for the host", model.name);
            let gemms = count(|kind| matches!(kind, StepKind::Gemm(_)));
            let convolutions = count(|kind| matches!(kind, StepKind::Convolution(_)));
            let (name, steps) = (model.name, plan.steps.len());
            let arena: usize = plan.arena_bytes.iter().sum();
            writeln!(
                table,
                "{name:<18}{mode:<8} {steps:>4} steps, {gemms:>3} gemm, {convolutions} conv, \
                 {arena:>12} B"
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

/// A BERT of two blocks: padding is data, and its attention is the kernel all the same; nothing
/// turns heads around.
#[test]
fn padding_is_attention() {
    let bert = Bert {
        vocabulary: 100,
        positions: 64,
        kin: Kin::Bert { segments: 2 },
        width: 128,
        layers: 2,
        heads: 2,
        hidden: 256,
        activation: Activation::Gelu(Approximation::Erf),
        eps: 1e-12,
        pooling: Pooling::None,
        normalised: false,
        classes: None,
    };
    let sizes = [("batch", 4), ("tokens", 32)].map(|(name, size)| (name.to_owned(), size));
    let graph = bind(&bert.build().unwrap(), &sizes.into()).unwrap();
    for contractions in [DType::F32, DType::BF16] {
        let graph = precision(&graph, &Recipe { contractions }).unwrap();
        let plan = plan(&graph, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
        let kernels: Vec<&str> = plan
            .steps
            .iter()
            .filter(|step| matches!(step.kind, StepKind::Kernel(_)) && step.name != "gather")
            .map(|step| step.name.as_str())
            .collect();
        assert_eq!(kernels, ["attention"; 2], "{contractions}: {plan}");
        let reshapes =
            plan.steps.iter().filter(|step| step.name == "reshape" || step.name == "transpose");
        assert_eq!(reshapes.count(), 0, "{contractions}: {plan}");
    }
}

#[test]
fn the_data_sheet_of_an_h200_gives_its_peaks() {
    let peaks = Gpu::new(&h200()).description().peaks.clone();
    let bf16 = peaks.flops_per_second[&overdrive_ir::DType::BF16];
    // 989 TFLOP/s at the boost clock of 1.83 GHz that the data sheet has in mind; more at the
    // highest clock.
    assert!((1.0e15..1.1e15).contains(&bf16), "{bf16:e}");
}

/// A layer that was pruned, stored as the weights that stay, and put in bf16, as `quantize` and
/// `--dtype bf16` make it.
fn pruned(rows: usize) -> Graph {
    let b = Builder::new("pruned");
    let x = b.input("x", TensorType::new(DType::F32, [rows, 128]));
    let values: Vec<f32> =
        (0..128 * 4096).map(|i| ((i * 37 % 1009) as f32 - 504.0) / 512.0).collect();
    let weight = Tensor::from_f32([128usize, 4096], &values);
    let w = b.state_named("fc.weight", weight.ty().clone(), Init::Value(weight.clone()));
    b.output("y", x.linear(w, None));
    let graph = b.finish().unwrap();
    let sparse = sparsify(&graph, Pruning::Magnitude, &Evidence::default()).unwrap();
    let made =
        Quantized { graph: sparse.graph, layers: vec![], skipped: vec![], simplified: vec![] };
    let made = compress(made, &sparse.layers).unwrap();
    assert!(made.skipped.is_empty(), "{:?}", made.skipped);
    precision(&made.graph, &Recipe { contractions: DType::BF16 }).unwrap()
}

#[test]
fn pruned_layers_multiply_what_stays_where_that_gains_and_the_plan_says_so() {
    let plan = |rows, properties: &Properties| {
        plan(&pruned(rows), Mode::Compile, &Gpu::new(properties), &Tuning::default()).unwrap()
    };
    let sparse = |plan: &Plan| {
        let is_kernel = |step: &Step| {
            matches!(step.kind, StepKind::Kernel(_)) && step.name.contains("sparse_linear")
        };
        plan.steps.iter().any(is_kernel)
    };
    let few = plan(16, &h200());
    assert!(sparse(&few) && !few.to_string().contains("unpack"), "{few}");
    // Neither the dense weight nor another copy of the compressed one ever exists: only bf16
    // values, converted from the f32 ones.
    assert_eq!(few.persistent_bytes, [128 / 2 * 4096 * 2], "{few}");
    let a100 =
        Properties { name: "NVIDIA A100".to_owned(), architecture: Architecture::Sm80, ..h200() };
    for (rows, properties, reason) in
        [(256, h200(), "32 tiles"), (16, a100, "NVIDIA A100 has no kernel")]
    {
        let plan = plan(rows, &properties);
        assert!(!sparse(&plan), "{plan}");
        let said = |note: &Note| match note {
            Note::Expanded { op, reason: why, .. } => op == "sparse_linear" && why.contains(reason),
            _ => false,
        };
        assert!(plan.notes.iter().any(said), "{reason}: {plan}");
    }
}

/// Sums of dq wait in f32, for queries up to whole blocks of 96, and everything else lies in its
/// slots.
#[test]
fn the_scratch_of_a_gradient_of_attention_is_in_its_plan() {
    let b = Builder::new("gradients");
    let input = |name: &str, heads: usize, rows: usize| {
        b.input(name, TensorType::new(DType::BF16, [2, heads, rows, 64]))
    };
    let [q, k, v, dout] =
        [input("q", 4, 300), input("k", 2, 200), input("v", 2, 200), input("dout", 4, 300)];
    let row = TensorType::new(DType::F32, [2usize, 4, 300]);
    let [lse, delta] = ["lse", "delta"].map(|name| b.input(name, row.clone()));
    let op = AttentionGrad { attention: Attention::FULL };
    for (i, y) in b.node(op, &[q, k, v, lse, dout, delta], vec![]).into_iter().enumerate() {
        b.output(&format!("y{i}"), y);
    }
    let graph = b.finish().unwrap();
    let planned = |memory_limit| {
        let tuning = Tuning { memory_limit, ..Tuning::default() };
        plan(&graph, Mode::Compile, &Gpu::new(&h200()), &tuning)
    };
    let free = planned(None).unwrap();
    let sums = 2 * 4 * 300usize.next_multiple_of(96) * 64 * 4;
    assert_eq!((free.steps.len(), free.scratch_bytes()), (1, sums), "{free}");
    let passed = free.inputs.iter().chain(&free.outputs).map(|&slot| free.slot(slot).bytes());
    let peak = free.peak_bytes(Space::MAIN);
    assert_eq!(peak, (passed.sum::<usize>() + sums) as u64, "{free}");
    assert_eq!(planned(Some(peak)), Ok(free));
    let refused = planned(Some(peak - 1));
    assert!(matches!(refused, Err(PlanError::OverLimit { .. })), "{refused:?}");
}

/// A step that no kernel takes is one of the host in the plan itself, which says why. Kernels
/// decline types that are packed or have no arithmetic, and dimensions that do not merge.
#[test]
fn what_no_kernel_takes_is_a_step_of_the_host_in_the_plan() {
    let sorted = |dtype: DType| {
        let b = Builder::new("sort");
        let x = b.input("x", TensorType::new(dtype, [4usize, 6]));
        let sort = Prim::Sort { axis: 1, order: SortOrder::Ascending };
        b.output("y", b.node(sort, &[x], vec![])[0]);
        b.finish().unwrap()
    };
    let gathered = |rank: usize| {
        let b = Builder::new("gather");
        let x = b.input("x", TensorType::new(DType::F32, vec![2usize; rank]));
        let at = b.input("at", TensorType::new(DType::I32, [3usize, 1]));
        let turned: Vec<usize> = (0..rank).rev().collect();
        b.output("y", x.transpose(&turned).gather(at, &[0]));
        b.finish().unwrap()
    };
    let cases = [
        (sorted(DType::F32), None),
        (sorted(DType::F8E4M3), Some("no arithmetic")),
        (sorted(DType::I4), Some("no arithmetic")),
        (gathered(4), None),
        (gathered(10), Some("dimensions that do not merge")),
    ];
    for (graph, expected) in cases {
        for mode in [Mode::Eager, Mode::Compile] {
            let plan = plan(&graph, mode, &Gpu::new(&h200()), &Tuning::default()).unwrap();
            let host = plan.steps.iter().any(|step| matches!(step.kind, StepKind::Host(_)));
            let said = |reason| {
                let of = |note: &Note| match note {
                    Note::Declined { reason: why, .. } => {
                        why.contains(reason) && why.ends_with("the f64 reference runs on the host")
                    }
                    _ => false,
                };
                plan.notes.iter().any(of)
            };
            assert_eq!((host, expected.is_none_or(said)), (expected.is_some(), true), "{plan}");
        }
    }
}

#[test]
fn without_a_driver_opening_says_what_to_install() {
    if Library::Driver.is_present() {
        return testkit::skip(testkit::Needs::NoDriver, "this machine has a driver");
    }
    let error = Device::open(0).unwrap_err();
    assert!(matches!(error, Error::Missing { library: "libcuda.so.1", .. }), "{error}");
    assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
    assert_eq!(overdrive_cuda::gpus(), 0);
}

/// A layer on codes of fp8 and its gradients are three products of codes, each operand cast once.
/// With delayed scales nothing else reads an operand, and products read the scales as they are.
#[test]
fn a_training_step_in_fp8_reads_each_operand_once_and_multiplies_codes() {
    for delayed in [false, true] {
        let b = Builder::new("layer");
        let x = b.input("x", TensorType::new(DType::BF16, [4096usize, 768]));
        let w = b.input("w", TensorType::new(DType::F32, [768usize, 3072]));
        let scale = |name| b.input(name, TensorType::scalar(DType::F32));
        let scales = delayed.then(|| ["scale_x", "scale_w", "scale_dy"].map(scale));
        b.output("y", x.float8_linear(w, scales, FORMATS));
        let graph = b.finish().unwrap();
        let wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
        let step = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
        let plan = plan(&step, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
        let operands = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Gemm(call) => Some([call.lhs.dtype, call.rhs.dtype]),
            _ => None,
        });
        let (forward, gradient) = (DType::F8E4M3, DType::F8E5M2);
        let expected = [[forward; 2], [gradient, forward], [forward, gradient]];
        assert_eq!(operands.collect::<Vec<_>>(), expected, "{plan}");
        let is_cast = |name: &str| name.starts_with("cast_transpose");
        let casts = plan.steps.iter().filter(|step| is_cast(&step.name)).count();
        assert_eq!(casts, 3, "{plan}");
        let large = plan.steps.iter().filter(|step| step.cost.bytes > 1 << 20).count();
        assert_eq!(large, if delayed { 6 } else { 9 }, "{plan}");
    }
}

#[test]
fn layers_on_codes_that_share_x_cast_it_once() {
    let b = Builder::new("layers");
    let x = b.input("x", TensorType::new(DType::BF16, [4usize, 1024, 768]));
    let scale = |name: &str| b.input(name, TensorType::scalar(DType::F32));
    let scale_x = scale("scale_x");
    for layer in ["query", "key"] {
        let w = b.input(layer, TensorType::new(DType::F32, [768usize, 768]));
        let scales = ["w", "dy"].map(|role| scale(&format!("{layer}.scale_{role}")));
        let y = x.float8_linear(w, Some([scale_x, scales[0], scales[1]]), FORMATS);
        b.output(&format!("{layer}.y"), y);
    }
    let graph = b.finish().unwrap();
    let plan = plan(&graph, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
    let casts = plan.steps.iter().filter(|step| step.name.starts_with("cast_transpose"));
    assert_eq!(casts.count(), 3, "{plan}");
}

/// A GELU and its gradient are computed in casts, and sums of biases come of them. So products of
/// codes have short epilogues, and nothing reads a gradient twice.
#[test]
fn casts_of_a_training_step_take_in_the_gelu_and_sums_of_biases() {
    let b = Builder::new("layers");
    fn linear<'b>(x: Expr<'b>, name: &str, [from, to]: [usize; 2]) -> Expr<'b> {
        let input = |part: &str, ty| x.builder().input(&format!("{name}.{part}"), ty);
        let w = input("w", TensorType::new(DType::F32, [from, to]));
        let bias = input("bias", TensorType::new(DType::F32, [to])).convert(DType::BF16);
        let scale = |role| input(role, TensorType::scalar(DType::F32));
        let scales = ["scale_x", "scale_w", "scale_dy"].map(scale);
        let y = x.float8_linear(w, Some(scales), FORMATS);
        y + bias.broadcast_in(&y.shape(), &[1])
    }
    let x = b.input("x", TensorType::new(DType::BF16, [4096usize, 768]));
    let wide = linear(x, "expand", [768, 3072]).convert(DType::F32);
    let wide = wide.gelu(Approximation::Tanh).convert(DType::BF16);
    b.output("y", linear(wide, "contract", [3072, 768]));
    let graph = b.finish().unwrap();
    let wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
    let step = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
    let plan = plan(&step, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
    let casts = plan.steps.iter().filter_map(|step| match &step.kind {
        StepKind::Kernel(call) => match &call.op {
            KernelOp::Composite(op, regions) => {
                let op = op.downcast::<CastTranspose>()?;
                Some((call.operands.len() - 1, regions.len(), op.sums))
            }
            KernelOp::Prim(..) => None,
        },
        _ => None,
    });
    let mut casts: Vec<_> = casts.collect();
    casts.sort_unstable();
    // Both weights and x; dy with its sums; the GELU; its gradient with its sums.
    let expected =
        [(1, 0, false), (1, 0, false), (1, 0, false), (1, 0, true), (1, 1, false), (2, 1, true)];
    assert_eq!(casts, expected, "{plan}");
    let gelu = plan.steps.iter().find(|step| {
        matches!(step.kind, StepKind::Gemm(_) | StepKind::Loop(_)) && step.name.contains("tanh")
    });
    assert!(gelu.is_none(), "{plan}");
}

/// Libraries add a vector as it lies. So biases are rounded before products of codes, all in one
/// launch.
#[test]
fn biases_of_products_of_codes_are_rounded_together() {
    let b = Builder::new("layers");
    let mut x = b.input("x", TensorType::new(DType::BF16, [4096usize, 768]));
    for layer in ["first", "second"] {
        let _scope = b.scope(layer);
        let w = b.input(&format!("{layer}.w"), TensorType::new(DType::F32, [768usize, 768]));
        let zeros = Init::Constant(0.0);
        let bias = b.state("bias", TensorType::new(DType::F32, [768usize]), zeros);
        let y = x.float8_linear(w, None, FORMATS);
        x = y + bias.convert(DType::BF16).broadcast_in(&y.shape(), &[1]);
        b.update(&format!("{layer}.bias"), bias * 0.5);
    }
    b.output("y", x);
    let graph = b.finish().unwrap();
    let plan = plan(&graph, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
    let rounded = plan.steps.iter().filter(|step| step.name.ends_with("convert"));
    let names: Vec<&str> = rounded.map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["2 x convert"], "{plan}");
    for step in &plan.steps {
        let StepKind::Gemm(call) = &step.kind else { continue };
        let program = &call.epilogue.0;
        let registers = program.instrs.iter().zip(&program.dtypes);
        let read = registers.filter(|(instr, _)| matches!(instr, Instr::Load(_)));
        let mut types: Vec<DType> = read.map(|(_, dtype)| *dtype).collect();
        types.sort_unstable();
        assert_eq!(types, [DType::F32, DType::BF16], "{plan}");
    }
}

/// A step casts all weights by one launch, before the layers. Large products of codes are launched
/// one by one, small ones of the same x together.
#[test]
fn weights_are_cast_together_and_large_products_are_not_joined() {
    for (rows, together) in [(16_384_usize, false), (256, true)] {
        let b = Builder::new("layers");
        let x = b.input("x", TensorType::new(DType::BF16, [rows, 768]));
        let scale = |name: &str| b.state(name, TensorType::scalar(DType::F32), Init::ZEROS);
        let [of_x, of_dy] = ["x", "dy"].map(scale);
        let mut y = Vec::new();
        for (layer, width) in [("query", 768_usize), ("key", 768), ("wide", 3072)] {
            let _scope = b.scope(layer);
            let w = b.state("w", TensorType::new(DType::F32, [768usize, width]), Init::ZEROS);
            y.push(x.float8_linear(w, Some([of_x, scale("scale"), of_dy]), FORMATS));
            b.update(&format!("{layer}.w"), w * 0.5);
        }
        y.iter().enumerate().for_each(|(i, y)| b.output(&format!("y{i}"), *y));
        let graph = b.finish().unwrap();
        let plan = plan(&graph, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
        let names: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names[0], "3 x cast_transpose", "{plan}");
        let joined = names.contains(&"2 x float8_linear");
        assert_eq!(joined, together, "{plan}");
    }
}

/// Rows under scales of their own take one cast for x, w and dy each, too.
#[test]
fn layers_on_codes_of_rows_cast_each_tensor_once() {
    let formats = Float8Linear { granularity: Float8Granularity::Row, ..FORMATS };
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::BF16, [4096usize, 768]));
    let w = b.input("w", TensorType::new(DType::F32, [768usize, 3072]));
    b.output("y", x.float8_linear(w, None, formats));
    let graph = b.finish().unwrap();
    let wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
    let step = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
    let plan = plan(&step, Mode::Compile, &Gpu::new(&h200()), &Tuning::default()).unwrap();
    let casts = plan.steps.iter().filter(|step| step.name.starts_with("cast_transpose"));
    assert_eq!(casts.count(), 3, "{plan}");
    let products = plan.steps.iter().filter(|step| matches!(step.kind, StepKind::Gemm(_)));
    assert_eq!(products.count(), 3, "{plan}");
}

//! Products of codes against the f64 definition: few rows by weights that stay codes, in every way
//! through the kernel, and codes in both orders.
//!
//! Long because every kind of codes is held against its definition by the same helpers.

use crate::support::gpu;
use overdrive_cuda::compiler::Architecture;
use overdrive_cuda::kernels::answer;
use overdrive_cuda::loops::PrinterMachine;
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::ops::{CastTranspose, Float8Linear, QuantizedLinear};
use overdrive_ir::plan::StepKind;
use overdrive_ir::{
    Array, Backend, Builder, Call, DType, Expr, Graph, Mode, Operation, State, TensorType, Tuning,
};
use overdrive_passes::differentiate;
use testkit::check_backend;

fn uniform(dtype: DType, shape: &[usize], [low, high]: [f64; 2], site: u64) -> Array {
    let values = philox::uniforms(3, site).take(shape.iter().product());
    let values: Vec<f64> = values.map(|u| low + u * (high - low)).collect();
    let rounded =
        if dtype.is_float() { values } else { values.into_iter().map(f64::floor).collect() };
    Array::from(&Array::from_f64(dtype, shape, rounded).to_tensor())
}

fn normal(dtype: DType, shape: &[usize], site: u64) -> Array {
    let values = philox::normals(3, site).take(shape.iter().product()).collect();
    Array::from(&Array::from_f64(dtype, shape, values).to_tensor())
}

/// A layer by codes.
#[derive(Clone, Copy)]
struct Layer {
    x: DType,
    codes: DType,
    scale: DType,
    weights: WeightScales,
    zero: DType,
    tensor_scale: DType,
    group: usize,
    shape: [usize; 3],
}

const INT4: Layer = Layer {
    x: DType::BF16,
    codes: DType::I4,
    scale: DType::F32,
    weights: WeightScales::Symmetric,
    zero: DType::F32,
    tensor_scale: DType::F32,
    group: 128,
    shape: [1, 96, 512],
};

impl Layer {
    fn op(&self) -> QuantizedLinear {
        QuantizedLinear { weights: self.weights, activations: Activations::Float }
    }

    fn declined(&self, inputs: &[Array]) -> Option<String> {
        let types: Vec<TensorType> = inputs.iter().map(Array::ty).collect();
        let op = Operation::from(self.op());
        let call = Call::Op { op: &op, operands: &types, regions: &[], wanted: &[] };
        let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
        answer(&call, machine).err().map(|decline| decline.reason("Hopper"))
    }

    fn inputs(&self) -> Vec<Array> {
        let [rows, n, k] = self.shape;
        let range = match self.codes {
            DType::I8 => [-128.0, 128.0],
            DType::I4 => [-8.0, 8.0],
            _ => [-6.5, 6.5],
        };
        let groups = [n, k / self.group];
        let scale = match self.scale {
            DType::E8M0 => Array::from(
                &uniform(DType::F32, &groups, [-4.0, 2.0], 3)
                    .map(|x| x.floor().exp2())
                    .to_tensor()
                    .convert(DType::E8M0),
            ),
            dtype => uniform(dtype, &groups, [0.05, 0.2], 3),
        };
        let mut inputs =
            vec![normal(self.x, &[rows, k], 1), uniform(self.codes, &[n, k], range, 2), scale];
        match self.weights {
            WeightScales::Symmetric => {}
            WeightScales::Asymmetric => inputs.push(uniform(self.zero, &groups, [-3.0, 4.0], 4)),
            // A number that every type here has.
            WeightScales::TwoLevel => {
                inputs.push(Array::from_f64(self.tensor_scale, &[], vec![0.375]));
            }
        }
        inputs
    }

    fn graph(
        &self,
        inputs: &[Array],
        f: impl for<'b> Fn(Expr<'b>, &[Expr<'b>]) -> Expr<'b>,
    ) -> Graph {
        let b = Builder::new("layer");
        let args: Vec<Expr<'_>> =
            inputs.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
        b.output("y", f(args[0], &args[1..]));
        b.finish().unwrap()
    }

    fn name(&self) -> String {
        let [rows, n, k] = self.shape;
        let (codes, group, scale) = (self.codes, self.group, self.scale);
        format!(
            "{rows} rows of {} by {n}x{k} {codes} in groups of {group}, {scale} {:?} {} {}",
            self.x, self.weights, self.zero, self.tensor_scale
        )
    }

    /// Runs it, by a kernel and not by its expansion.
    fn check(&self) {
        let inputs = self.inputs();
        assert_eq!(self.declined(&inputs), None, "{}", self.name());
        let Some(backend) = gpu() else { return };
        let graph = self.graph(&inputs, |x, weights| x.quantized_linear(self.op(), weights));
        let session =
            backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
        let is_kernel = |kind: &StepKind| matches!(kind, StepKind::Kernel(_));
        assert!(
            session.plan().steps.iter().all(|step| is_kernel(&step.kind)),
            "{}",
            session.plan()
        );
        check_backend(&backend, Mode::Compile, &graph, &inputs)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name()));
    }
}

#[test]
fn few_rows_by_codes_of_every_kind() {
    let asymmetric = Layer { weights: WeightScales::Asymmetric, ..INT4 };
    let mx = Layer { codes: DType::F4E2M1, scale: DType::E8M0, group: 32, ..INT4 };
    let int8 = Layer { codes: DType::I8, group: 512, ..INT4 };
    let weights = WeightScales::TwoLevel;
    let two_level = Layer { scale: DType::F8E4M3, weights, group: 16, ..mx };
    let layers = [
        INT4,
        Layer { x: DType::F16, scale: DType::F16, ..INT4 },
        Layer { group: 512, ..INT4 },
        Layer { group: 32, scale: DType::BF16, ..INT4 },
        Layer { group: 16, ..INT4 },
        Layer { zero: DType::I4, ..asymmetric },
        Layer { zero: DType::F32, ..asymmetric },
        Layer { zero: DType::I8, group: 32, x: DType::F16, ..asymmetric },
        mx,
        Layer { x: DType::F16, ..mx },
        two_level,
        // As models stored in these types have it.
        Layer { tensor_scale: DType::BF16, ..two_level },
        Layer { tensor_scale: DType::F16, x: DType::F16, ..two_level },
        Layer { tensor_scale: DType::F8E4M3, ..two_level },
        int8,
        Layer { group: 16, x: DType::F16, ..int8 },
        Layer { group: 64, weights: WeightScales::Asymmetric, zero: DType::I8, ..int8 },
    ];
    layers.iter().for_each(Layer::check);
}

#[test]
fn few_rows_of_every_shape() {
    for rows in [1, 2, 3, 5, 7, 8, 9, 15, 16, 24, 32] {
        for [n, k] in [[16, 32], [33, 96], [130, 1056], [2200, 128], [4300, 160], [64, 4096]] {
            // The definition takes its time.
            if rows * n * k > 1 << 20 {
                continue;
            }
            Layer { shape: [rows, n, k], group: 32, ..INT4 }.check();
            Layer { shape: [rows, n, k], group: k, ..INT4 }.check();
            Layer { shape: [rows, n, k], group: k, codes: DType::I8, ..INT4 }.check();
        }
    }
}

/// Scales of every size beside a chunk: parts of a piece, a piece, several, and those that chunks
/// do not divide. Rows of the last chunk are shorter than it.
#[test]
fn few_rows_by_scales_of_every_size() {
    let mx = Layer { codes: DType::F4E2M1, scale: DType::E8M0, ..INT4 };
    let two_level = Layer { weights: WeightScales::TwoLevel, scale: DType::F8E4M3, ..mx };
    for rows in [1, 2, 3, 5, 8, 12] {
        for group in [8, 16, 32, 64, 96, 128, 192] {
            let layer = Layer { shape: [rows, 37, 5 * group], group, ..INT4 };
            if 5 * group % 32 != 0 {
                continue;
            }
            layer.check();
            let zero = Layer { weights: WeightScales::Asymmetric, scale: DType::BF16, ..layer };
            Layer { zero: DType::I4, x: DType::F16, ..zero }.check();
            Layer { codes: DType::F4E2M1, scale: DType::F8E4M3, ..layer }.check();
            Layer { codes: DType::I8, scale: DType::F16, ..layer }.check();
        }
        Layer { shape: [rows, 37, 352], group: 32, ..mx }.check();
        Layer { shape: [rows, 21, 2592], group: 32, x: DType::F16, ..mx }.check();
        Layer { shape: [rows, 37, 352], group: 16, ..two_level }.check();
        Layer { shape: [rows, 37, 352], group: 16, x: DType::F16, ..two_level }.check();
        Layer { shape: [rows, 19, 48], group: 48, codes: DType::I8, ..INT4 }.check();
    }
}

/// A bias, an activation and a residual after the product of codes are its epilogue.
#[test]
fn few_rows_by_codes_with_an_epilogue() {
    for rows in [1, 3, 8, 20] {
        let layer = Layer { shape: [rows, 70, 512], ..INT4 };
        let mut inputs = layer.inputs();
        inputs.push(normal(DType::F32, &[rows, 70], 7));
        inputs.push(normal(DType::F32, &[70], 8));
        let graph = layer.graph(&inputs, |x, rest| {
            let [weights @ .., residual, bias] = rest else { unreachable!("two were pushed") };
            let y = x.quantized_linear(layer.op(), weights).convert(DType::F32);
            let bias = bias.broadcast_in(&residual.ty().shape, &[1]);
            (y + bias).silu() + *residual
        });
        let planned = overdrive_passes::plan(
            &graph,
            Mode::Compile,
            &overdrive_cuda::Gpu::new(&crate::support::h200()),
            &Tuning::default(),
        );
        assert_eq!(planned.unwrap().steps.len(), 1, "{rows} rows");
        let Some(backend) = gpu() else { continue };
        check_backend(&backend, Mode::Compile, &graph, &inputs)
            .unwrap_or_else(|e| panic!("{rows} rows: {e}"));
    }
}

#[test]
fn rows_that_do_not_follow_each_other() {
    let Some(backend) = gpu() else { return };
    let layer = Layer { shape: [6, 48, 256], ..INT4 };
    let mut inputs = layer.inputs();
    // [T, B, K] read as [B, T, K]; then columns that lie across.
    inputs[0] = normal(DType::BF16, &[3, 2, 256], 9);
    let across =
        layer.graph(&inputs, |x, w| x.transpose(&[1, 0, 2]).quantized_linear(layer.op(), w));
    check_backend(&backend, Mode::Compile, &across, &inputs).unwrap_or_else(|e| panic!("{e}"));
    inputs[0] = normal(DType::BF16, &[256, 5], 9);
    let columns = layer.graph(&inputs, |x, w| x.transpose(&[1, 0]).quantized_linear(layer.op(), w));
    check_backend(&backend, Mode::Compile, &columns, &inputs).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn what_has_no_kernel_is_dequantized_and_the_plan_says_so() {
    let layer = Layer { shape: [33, 32, 128], ..INT4 };
    let inputs = layer.inputs();
    let reason = layer.declined(&inputs).unwrap();
    assert!(reason.contains("up to 32 rows, not 33"), "{reason}");
    let wide = Layer { x: DType::F32, ..INT4 };
    assert!(wide.declined(&wide.inputs()).unwrap().contains("bf16 and f16, not f32"));
    let Some(backend) = gpu() else { return };
    let graph = layer.graph(&inputs, |x, weights| x.quantized_linear(layer.op(), weights));
    let plan =
        backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().plan().to_string();
    assert!(plan.contains(&reason), "{plan}");
    check_backend(&backend, Mode::Compile, &graph, &inputs).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn codes_in_both_orders_of_whole_and_partial_tiles() {
    let Some(backend) = gpu() else { return };
    for shape in [[128, 64], [16, 8], [272, 200], [1000, 72], [37, 53], [1, 300]] {
        for (dtype, to, scale) in [
            (DType::BF16, DType::F8E4M3, 0.0078125),
            (DType::BF16, DType::F8E5M2, 0.0003),
            (DType::F32, DType::F8E4M3, 0.011),
            (DType::F16, DType::F8E4M3, 0.3),
        ] {
            let mut x = normal(dtype, &shape, 1);
            if shape[0] == 37 {
                x = Array::from(&x.map(|x| if x > 2.0 { f64::INFINITY } else { x }).to_tensor());
            }
            let inputs = [x, Array::from_f64(DType::F32, &[], vec![scale])];
            let b = Builder::new("cast");
            let args: Vec<Expr<'_>> =
                inputs.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
            let results = args[0].cast_transpose(args[1], to);
            ["codes", "transposed", "largest"]
                .iter()
                .zip(results)
                .for_each(|(name, y)| b.output(name, y));
            let graph = b.finish().unwrap();
            check_backend(&backend, Mode::Compile, &graph, &inputs)
                .unwrap_or_else(|e| panic!("{dtype} {shape:?} to {to} by {scale}: {e}"));
        }
    }
}

/// x may be computed on the way, and sums of bands of rows come of the same launch.
#[test]
fn casts_of_computed_tensors_and_their_sums() {
    let Some(backend) = gpu() else { return };
    for shape in [[128, 128], [16, 8], [272, 200], [1000, 72], [37, 53], [1, 300], [4096, 768]] {
        for dtype in [DType::BF16, DType::F16] {
            for operands in [1, 2] {
                let region = Builder::new("x");
                let ty = TensorType::new(dtype, shape);
                let input = |i: usize| region.input(&format!("x{i}"), ty.clone());
                let of: Vec<Expr<'_>> = (0..operands).map(input).collect();
                // It is exact, and no zero where its operands are.
                let least = of[0].constant(0.5).broadcast_in(&of[0].shape(), &[]);
                let x = of.iter().fold(least, |x, operand| x.max(*operand));
                region.output("x", x.convert(DType::F32).convert(dtype));
                let region = region.finish().unwrap();
                let b = Builder::new("cast");
                let mut inputs: Vec<Array> =
                    (0..operands).map(|i| normal(dtype, &shape, i as u64 + 1)).collect();
                inputs.push(Array::from_f64(DType::F32, &[], vec![0.0078125]));
                let input = |(i, a): (usize, &Array)| b.input(&format!("x{i}"), a.ty());
                let args: Vec<Expr<'_>> = inputs.iter().enumerate().map(input).collect();
                let op = CastTranspose { sums: true, ..CastTranspose::new(DType::F8E5M2) };
                let results = b.node(op, &args, vec![region]);
                ["codes", "transposed", "largest", "sums"]
                    .iter()
                    .zip(results)
                    .for_each(|(name, y)| b.output(name, y));
                let graph = b.finish().unwrap();
                check_backend(&backend, Mode::Compile, &graph, &inputs)
                    .unwrap_or_else(|e| panic!("{dtype} {shape:?} of {operands}: {e}"));
            }
        }
    }
}

/// Each row and each column may have a scale. Under powers of two a code has one right value, so
/// that all are compared exactly. Some scales are so small or so large that numbers saturate or
/// vanish.
#[test]
fn casts_under_scales_of_lines() {
    let Some(backend) = gpu() else { return };
    for shape in [[128, 128], [16, 8], [272, 200], [1000, 72], [37, 53], [1, 300], [4096, 768]] {
        for (dtype, to) in
            [(DType::BF16, DType::F8E4M3), (DType::F16, DType::F8E5M2), (DType::F32, DType::F8E4M3)]
        {
            let scales = |shape: [usize; 2], step: usize| {
                let power = |i: usize| match i {
                    1 => 2f64.powi(-60),
                    2 => 2f64.powi(60),
                    _ => 2f64.powi((i * step % 13) as i32 - 12),
                };
                let numbers = (0..shape[0] * shape[1]).map(power).collect();
                Array::from_f64(DType::E8M0, &shape, numbers)
            };
            let inputs =
                [normal(dtype, &shape, 1), scales([shape[0], 1], 5), scales([1, shape[1]], 7)];
            let b = Builder::new("cast");
            let input = |(i, a): (usize, &Array)| b.input(&format!("x{i}"), a.ty());
            let args: Vec<Expr<'_>> = inputs.iter().enumerate().map(input).collect();
            let [codes, transposed] = args[0].cast_lines([args[1], args[2]], to);
            b.output("codes", codes);
            b.output("transposed", transposed);
            let graph = b.finish().unwrap();
            let expected = eval(&graph, &inputs, &mut States::new());
            let ready = backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap();
            let (mut session, mut state) = (ready.session().unwrap(), State::default());
            let types = graph.outputs().iter().map(|port| graph.ty(port.value));
            let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
            let upload = |x: &Array| backend.upload(&x.to_tensor()).unwrap();
            let inputs: Vec<_> = inputs.iter().map(upload).collect();
            session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
            for ((port, expected), found) in graph.outputs().iter().zip(&expected).zip(&outputs) {
                let found = backend.download(found).unwrap().to_f64();
                let is_equal = expected.to_tensor().to_f64() == found;
                assert!(is_equal, "{} of {dtype} {shape:?} to {to}", port.name);
            }
        }
    }
}

/// A launch leaves nothing behind that the next one would take for its own.
#[test]
fn the_largest_magnitude_is_that_of_each_call() {
    let Some(backend) = gpu() else { return };
    for (shape, dtype) in
        [([4096, 768], DType::BF16), ([48, 16], DType::F32), ([37, 53], DType::F16)]
    {
        let b = Builder::new("cast");
        let x = b.input("x", TensorType::new(dtype, shape));
        let scale = b.input("scale", TensorType::scalar(DType::F32));
        let [codes, _, largest] = x.cast_transpose(scale, DType::F8E4M3);
        b.output("codes", codes);
        b.output("largest", largest);
        let graph = b.finish().unwrap();
        for mode in [Mode::Compile, Mode::Graph] {
            let mut session =
                backend.compile(&graph, mode, &Tuning::default()).unwrap().session().unwrap();
            let mut state = State::default();
            let types = graph.outputs().iter().map(|port| graph.ty(port.value));
            let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
            for factor in [8.0, 1.0, f64::NAN, 0.125, 0.0, 2.0] {
                let x = normal(dtype, &shape, 1).map(|x| x * factor);
                let expected = x.floats().iter().fold(0.0, |most: f64, x| {
                    if most.is_nan() || x.is_nan() { f64::NAN } else { most.max(x.abs()) }
                });
                let scale = Array::from_f64(DType::F32, &[], vec![0.0078125]);
                let inputs = [x.to_tensor(), scale.to_tensor()];
                let inputs: Vec<_> = inputs.iter().map(|x| backend.upload(x).unwrap()).collect();
                session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
                let found = backend.download(&outputs[1]).unwrap().to_f64()[0];
                let same = found == expected || found.is_nan() && expected.is_nan();
                assert!(same, "{dtype} {shape:?} in {mode}: {found}, expected {expected}");
            }
        }
    }
}

/// Casts that follow each other are one launch, whose results are those of each alone, and of each
/// call.
#[test]
fn casts_of_one_kind_are_one_launch() {
    let Some(backend) = gpu() else { return };
    let whole = [[128, 128], [256, 384], [2048, 128], [4096, 3072]];
    let partial = [[37, 53], [1, 300], [1000, 72], [130, 7]];
    // So many tiles that a block takes several.
    let large = [[128, 128], [256, 384], [2048, 128], [8192, 4096]];
    for (dtype, shapes) in [
        (DType::F32, whole),
        (DType::BF16, whole),
        (DType::F32, partial),
        (DType::F16, partial),
        (DType::BF16, large),
    ] {
        let b = Builder::new("casts");
        let scale = b.input("scale", TensorType::scalar(DType::F32));
        for (i, shape) in shapes.into_iter().enumerate() {
            let x = b.input(&format!("x{i}"), TensorType::new(dtype, shape));
            for (name, y) in ["codes", "transposed", "largest"]
                .iter()
                .zip(x.cast_transpose(scale, DType::F8E4M3))
            {
                b.output(&format!("{name}{i}"), y);
            }
        }
        let graph = b.finish().unwrap();
        for mode in [Mode::Compile, Mode::Graph] {
            let ready = backend.compile(&graph, mode, &Tuning::default()).unwrap();
            let plan = ready.plan().to_string();
            assert!(plan.contains("4 x cast_transpose"), "{plan}");
            let (mut session, mut state) = (ready.session().unwrap(), State::default());
            let types = graph.outputs().iter().map(|port| graph.ty(port.value));
            let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
            for call in 0..3 {
                let scale = Array::from_f64(DType::F32, &[], vec![0.0078125]);
                let x = |(i, shape): (u64, &[usize; 2])| {
                    let factor = [1.0, 8.0, 0.125][(i as usize + call) % 3];
                    normal(dtype, shape, 10 * call as u64 + i).map(|x| x * factor)
                };
                let inputs: Vec<Array> =
                    [scale].into_iter().chain((0..).zip(&shapes).map(x)).collect();
                let expected = eval(&graph, &inputs, &mut States::new());
                let upload = |x: &Array| backend.upload(&x.to_tensor()).unwrap();
                let inputs: Vec<_> = inputs.iter().map(upload).collect();
                session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
                for ((port, expected), found) in graph.outputs().iter().zip(&expected).zip(&outputs)
                {
                    let found = backend.download(found).unwrap().to_f64();
                    let is_equal = expected.to_tensor().to_f64() == found;
                    assert!(is_equal, "{} of {dtype}, call {call} in {mode}", port.name);
                }
            }
        }
    }
}

/// The layer, its gradients and the magnitudes that scales to come are made of.
#[test]
fn a_layer_on_codes_with_delayed_scales() {
    let Some(backend) = gpu() else { return };
    for gradient in [DType::F8E5M2, DType::F8E4M3] {
        let granularity = Float8Granularity::Tensor;
        let formats = Float8Linear { forward: DType::F8E4M3, gradient, granularity };
        let b = Builder::new("layer");
        let x = b.input("x", TensorType::new(DType::BF16, [256usize, 128]));
        let w = b.input("w", TensorType::new(DType::F32, [128usize, 64]));
        let scales = ["x", "w", "dy"]
            .map(|of| b.input(&format!("scale_{of}"), TensorType::scalar(DType::F32)));
        b.output("y", x.float8_linear(w, Some(scales), formats));
        let wrt = [x, w, scales[2]].map(|value| value.value());
        let graph = b.finish().unwrap();
        let graph = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
        let number =
            |value: f64| Array::from(&Array::from_f64(DType::F32, &[], vec![value]).to_tensor());
        // The largest tenth of x and dy saturates.
        let inputs = [
            normal(DType::BF16, &[256, 128], 1),
            normal(DType::F32, &[128, 64], 2),
            number(1.5 / DType::F8E4M3.max_value()),
            number(0.015625),
            number(1.5 / gradient.max_value()),
            normal(DType::BF16, &[256, 64], 3),
        ];
        for mode in [Mode::Compile, Mode::Graph] {
            check_backend(&backend, mode, &graph, &inputs)
                .unwrap_or_else(|e| panic!("gradients in {gradient}, {mode}: {e}"));
        }
    }
}

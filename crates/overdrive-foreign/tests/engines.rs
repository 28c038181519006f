//! Every engine on the processor against the f64 evaluator: on built-in models, and on a file. Each
//! has tests of its own, which are skipped where this machine lacks it.
#![cfg(any(feature = "onnxruntime", feature = "tract", feature = "xla"))]
#![allow(clippy::unwrap_used)] // Helpers of tests.

use overdrive_foreign::{ENGINES, Engine, EngineDevice, OpenRequest, OriginalFile, Places};
use overdrive_formats::onnx::{self, Dialect, WeightPlace};
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{
    Backend, Builder, DType, Description, Graph, Init, Mode, State, Tensor, TensorType, Tuning,
};
use std::collections::BTreeMap;

fn description() -> Description {
    Description { device: "cpu".to_owned(), memory_bytes: u64::MAX, ..Description::default() }
}

fn open(engine: &dyn Engine, original: Option<&OriginalFile>) -> Box<dyn Backend> {
    let (device, places) = (description(), Places::default());
    let request =
        OpenRequest { device: &device, threads: 2, ordinal: 0, places: &places, original };
    engine.open(&request).unwrap_or_else(|missing| panic!("{missing}"))
}

fn model(name: &str) -> Graph {
    let model = overdrive_models::find(name).unwrap();
    let sizes: BTreeMap<String, usize> =
        model.dimensions.iter().map(|&(name, size)| (name.to_owned(), size.min(4))).collect();
    overdrive_passes::bind(&(model.build)().unwrap(), &sizes).unwrap()
}

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let draw = |ty: &TensorType| {
        let values: Vec<f64> =
            (0..ty.elements()).map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0).collect();
        Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)
    };
    graph.inputs().iter().map(|port| draw(graph.ty(port.value))).collect()
}

fn run(backend: &dyn Backend, graph: &Graph, mode: Mode) -> Vec<Tensor> {
    let mut session = backend.compile(graph, mode, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(graph, backend).unwrap();
    let inputs: Vec<_> = inputs(graph).iter().map(|t| backend.upload(t).unwrap()).collect();
    let types = graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
    for _ in 0..2 {
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    }
    outputs.iter().map(|buffer| backend.download(buffer).unwrap()).collect()
}

fn assert_agree(found: &[Tensor], graph: &Graph, what: &str) {
    let expected = eval_tensors(graph, &inputs(graph));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.ty(), expected.ty(), "{what}");
        let (found, expected) = (found.to_f64(), expected.to_f64());
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 2e-4 && found.iter().all(|x| x.is_finite()), "{what}: {worst:e}");
    }
}

fn the_built_in_models(engine: &dyn Engine) {
    let backend = open(engine, None);
    assert_eq!(backend.name(), engine.name());
    for name in ["digits-mlp", "digits-conv", "quick-inference"] {
        let graph = model(name);
        let modes = [Mode::Eager, Mode::Jit, Mode::Compile];
        let compiles = |&mode: &Mode| backend.compile(&graph, mode, &Tuning::default()).is_ok();
        let modes: Vec<Mode> = modes.into_iter().filter(compiles).collect();
        assert!(modes.contains(&Mode::Compile), "{}: {name}", engine.name());
        for mode in modes {
            let what = format!("{} {name} {mode}", engine.name());
            assert_agree(&run(backend.as_ref(), &graph, mode), &graph, &what);
        }
    }
}

/// `y = x w`, its weight one of two.
fn product(weight: f64) -> Graph {
    let b = Builder::new("product");
    let x = b.input("x", TensorType::new(DType::F32, [2, 3]));
    let w = b.state("w", TensorType::new(DType::F32, [3, 4]), Init::Constant(weight));
    b.output("y", x.matmul(w));
    b.finish().unwrap()
}

/// The engine reads a file of the user's itself.
fn a_file_of_the_users(engine: &dyn Engine) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("product.onnx");
    onnx::write(&path, &product(2.0), Dialect::Standard).unwrap();
    let graph = onnx::Model::open(&path).unwrap().graph(&onnx::Binding::default()).unwrap();
    let original =
        OriginalFile { path: path.clone(), sizes: BTreeMap::new(), graph: graph.clone() };
    let backend = open(engine, Some(&original));
    assert_agree(&run(backend.as_ref(), &graph, Mode::Compile), &graph, engine.name());
    // Another graph is no longer the file; without the file only another graph can be compiled.
    std::fs::remove_file(&path).unwrap();
    let compiled = backend.compile(&graph, Mode::Compile, &Tuning::default());
    assert!(compiled.is_err(), "{}", engine.name());
    let other = product(3.0);
    assert_agree(&run(backend.as_ref(), &other, Mode::Compile), &other, engine.name());
}

/// Weights of int4 in blocks, which engines that read MatMulNBits multiply packed.
fn codes_in_blocks(engine: &dyn Engine) {
    const N: usize = 96;
    const K: usize = 256;
    let backend = open(engine, None);
    for (block, weights) in [
        (32, WeightScales::Symmetric),
        (32, WeightScales::Asymmetric),
        (128, WeightScales::Asymmetric),
    ] {
        let b = Builder::new("layer");
        let x = b.input("x", TensorType::new(DType::F32, [3, K]));
        let state = |name: &str, dtype: DType, across: usize, by: f64| {
            let values: Vec<f64> =
                (0..N * across).map(|i| ((i * i + i) % 15) as f64 * by - 7.0 * by).collect();
            let tensor = Tensor::from_f64(dtype, [N, across], &values);
            b.state(name, tensor.ty().clone(), Init::Value(tensor))
        };
        let mut operands = vec![
            state("codes", DType::I4, K, 1.0),
            state("scale", DType::F32, K / block, 1.0 / 256.0),
        ];
        if weights == WeightScales::Asymmetric {
            operands.push(state("zero", DType::I4, K / block, 1.0));
        }
        let op = QuantizedLinear { weights, activations: Activations::Float };
        b.output("y", x.quantized_linear(op, &operands));
        let graph = b.finish().unwrap();
        let what = format!("{} blocks of {block}, {weights:?}", engine.name());
        assert_agree(&run(backend.as_ref(), &graph, Mode::Compile), &graph, &what);
    }
}

/// A named dimension of a file has the size that was asked for.
fn named_dimensions(engine: &dyn Engine) {
    let built = |sizes: &BTreeMap<String, usize>| {
        let b = Builder::new("product");
        let x = b.input("x", TensorType::new(DType::F32, [sizes["batch"], sizes["tokens"], 3]));
        let w = b.state("w", TensorType::new(DType::F32, [3, 4]), Init::Constant(2.0));
        let rows = x.reshape([sizes["batch"] * sizes["tokens"], 3]).matmul(w);
        b.output("y", rows.reshape([sizes["batch"], sizes["tokens"], 4]).softmax(1));
        b.finish().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("free.onnx");
    let free = onnx::Free::new([("batch", None), ("tokens", None)]);
    let graphs: Vec<Graph> = free.corners().iter().map(built).collect();
    let file = free.made(&path, &graphs, Dialect::Standard).unwrap();
    file.write(&path, WeightPlace::Within).unwrap();
    for [batch, tokens] in [[1, 1], [7, 2]] {
        let sizes = BTreeMap::from([("batch".to_owned(), batch), ("tokens".to_owned(), tokens)]);
        let binding = onnx::Binding { sizes: sizes.clone(), ..onnx::Binding::default() };
        let graph = onnx::Model::open(&path).unwrap().graph(&binding).unwrap();
        let original = OriginalFile { path: path.clone(), sizes, graph: graph.clone() };
        let backend = open(engine, Some(&original));
        assert_agree(&run(backend.as_ref(), &graph, Mode::Compile), &graph, engine.name());
    }
}

/// A file that PyTorch exported runs at any batch. Its exporter names the batch `s31`, and repeats
/// the name in the shapes of all values between.
fn a_file_of_pytorch(engine: &dyn Engine) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch_export.onnx");
    let sizes = BTreeMap::from([("s31".to_owned(), 3)]);
    let binding = onnx::Binding { sizes: sizes.clone(), ..onnx::Binding::default() };
    let graph = onnx::Model::open(&path).unwrap().graph(&binding).unwrap();
    assert_eq!(eval_tensors(&graph, &inputs(&graph))[0].ty().sizes(), [3, 5]);
    let original = OriginalFile { path, sizes, graph: graph.clone() };
    let backend = open(engine, Some(&original));
    assert_agree(&run(backend.as_ref(), &graph, Mode::Compile), &graph, engine.name());
}

/// Other weights than the compiled ones are refused.
fn other_weights(engine: &dyn Engine) {
    let backend = open(engine, None);
    let graph = product(2.0);
    let mut session =
        backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(&product(3.0), backend.as_ref()).unwrap();
    let inputs: Vec<_> = inputs(&graph).iter().map(|t| backend.upload(t).unwrap()).collect();
    let mut outputs = vec![backend.output(&TensorType::new(DType::F32, [2, 4])).unwrap()];
    let error = session.run(state.with(&inputs, &mut outputs)).err().unwrap().to_string();
    assert!(error.contains("state `w`"), "{error}");
    let mut state = State::initial(&graph, backend.as_ref()).unwrap();
    assert!(session.run(state.with(&inputs, &mut outputs)).is_ok());
    let error = session.run(state.with(&[], &mut outputs)).err().unwrap().to_string();
    assert!(error.contains("number of inputs"), "{error}");
    let mut narrow = vec![backend.output(&TensorType::new(DType::F32, [2, 3])).unwrap()];
    assert!(session.run(state.with(&inputs, &mut narrow)).is_err());
}

/// Tests the engine of this name, or skips the calling test.
fn with(name: &'static str, test: fn(&dyn Engine)) {
    let engine = overdrive_foreign::find(name);
    match engine.and_then(|engine| engine.find(&Places::default()).map(|_| engine)) {
        Ok(engine) => test(engine),
        Err(missing) => testkit::skip(testkit::Needs::Engine(name), missing),
    }
}

/// Tests for each engine: one that is missing must not hide behind another that is there.
macro_rules! test_engines {
    ($(#[$in_build:meta] $module:ident: $name:literal),*) => {
        /// The engines that have tests.
        const TESTED: &[&str] = &[$(#[$in_build] $name),*];

        $(#[$in_build]
        mod $module {
            #[test]
            fn the_built_in_models() {
                super::with($name, super::the_built_in_models);
            }

            #[test]
            fn a_file_of_the_users() {
                super::with($name, super::a_file_of_the_users);
            }

            #[test]
            fn codes_in_blocks() {
                super::with($name, super::codes_in_blocks);
            }

            #[test]
            fn named_dimensions() {
                super::with($name, super::named_dimensions);
            }

            #[test]
            fn a_file_of_pytorch() {
                super::with($name, super::a_file_of_pytorch);
            }

            #[test]
            fn other_weights() {
                super::with($name, super::other_weights);
            }
        })*
    };
}

test_engines!(
    #[cfg(feature = "onnxruntime")]
    onnxruntime: "onnxruntime",
    #[cfg(feature = "onnxruntime")]
    openvino: "onnxruntime-openvino",
    #[cfg(feature = "tract")]
    tract: "tract",
    #[cfg(feature = "xla")]
    xla: "xla-cpu"
);

#[test]
fn every_engine_on_the_processor_is_tested() {
    let untested = |engine: &&&dyn Engine| {
        engine.runs_on() == EngineDevice::Processor && !TESTED.contains(&engine.name())
    };
    assert_eq!(ENGINES.iter().find(untested).map(|engine| engine.name()), None);
}

#[test]
fn a_name_that_is_none_is_answered_with_those_that_are() {
    let error = overdrive_foreign::find("onnxrumtime").err().unwrap().to_string();
    assert!(error.contains("onnxrumtime") && error.contains("no engine has this name"), "{error}");
    for engine in ENGINES {
        assert!(overdrive_foreign::find(engine.name()).is_ok());
    }
}

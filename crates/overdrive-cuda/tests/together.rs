//! Products of one left operand in one launch: which are gathered, and that together they compute what each does.

mod support;

use overdrive_cuda::gemm::{self, Together};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{
    Array, Backend, Binary, Builder, Caps, DType, Expr, Graph, Mode, Plan, State, Tensor, TensorType, Tuning,
};
use support::gpu;
use testkit::{Tolerance, compare};

const SHAPE: [usize; 3] = [320, 264, 192];

/// `count` layers of `x`; where `chained`, each adds what the one before it gave.
fn layers(count: usize, chained: bool) -> Graph {
    let [m, n, k] = SHAPE;
    let b = Builder::new("layers");
    let x = b.input("x", TensorType::new(DType::BF16, [m, k]));
    let mut last: Option<Expr<'_>> = None;
    for i in 0..count {
        let w = b.input(&format!("w{i}"), TensorType::new(DType::BF16, [k, n]));
        let bias = b.input(&format!("b{i}"), TensorType::new(DType::BF16, [n]));
        let y = x.matmul(w);
        let y = y.binary(Binary::Add, bias.broadcast_to(&y.shape())).gelu(Approximation::Tanh);
        let y = last.filter(|_| chained).map_or(y, |last| y + last);
        b.output(&format!("y{i}"), y);
        last = Some(y);
    }
    b.finish().expect("the graph is well-formed")
}

fn gathered(graph: &Graph, mode: Mode) -> (Plan, Together) {
    let caps = Caps {
        memory_bytes: 1 << 36,
        claims: overdrive_cuda::kernels::CLAIMS.map(str::to_owned).into(),
        contraction_dtypes: gemm::DTYPES.into(),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 100.0,
        ..Caps::default()
    };
    let mut plan =
        overdrive_passes::plan(graph, mode, &caps, &Tuning::default()).expect("the graph is bound");
    let together = gemm::gather(&mut plan, |_| true);
    (plan, together)
}

#[test]
fn equal_products_of_one_operand_are_gathered_and_dependent_ones_are_not() {
    let (plan, together) = gathered(&layers(3, false), Mode::Compile);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    assert_eq!(together[&0].len(), 3);
    assert!(plan.steps[0].name.starts_with("3 x "), "{plan}");
    assert_eq!(plan.steps[0].writes.len(), 3, "{plan}");

    let (plan, together) = gathered(&layers(3, true), Mode::Compile);
    assert!(together.is_empty() && plan.steps.len() >= 3, "{plan}");
    let (plan, together) = gathered(&layers(3, false), Mode::Jit);
    assert!(together.is_empty() && plan.steps.len() >= 3, "not where nothing is fused: {plan}");
}

#[test]
fn together_they_compute_what_each_does() {
    let Some(backend) = gpu() else { return };
    let graph = layers(3, false);
    let tensors: Vec<Tensor> = drawn(&graph);
    let arrays: Vec<Array> = tensors.iter().map(Array::from).collect();
    let expected = eval(&graph, &arrays, &mut States::new());
    for mode in [Mode::Compile, Mode::Graph] {
        let mut tuning = Tuning::default();
        for round in ["by the best guess", "as timed"] {
            let mut executable = backend.compile(&graph, mode, &tuning).unwrap();
            let inputs: Vec<_> = tensors.iter().map(|t| backend.upload(t).unwrap()).collect();
            let types = graph.outputs().iter().map(|o| graph.ty(o.value));
            let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
            for _ in 0..3 {
                let pending = executable.run(&mut State::default(), &inputs, &mut outputs).unwrap();
                pending.wait().unwrap();
            }
            for (expected, output) in expected.iter().zip(&outputs) {
                let found = Array::from(&backend.download(output).unwrap());
                let tolerance = Tolerance::new(DType::BF16, SHAPE[2], (SHAPE[2] as f64).sqrt() + 4.0);
                compare(expected, &found, tolerance).unwrap_or_else(|e| panic!("{mode:?} {round}: {e}"));
            }
            backend.tune(&graph, mode, &mut tuning).unwrap();
        }
    }
}

/// Normal numbers for each input.
fn drawn(graph: &Graph) -> Vec<Tensor> {
    let normal = |(site, port): (usize, &overdrive_ir::Port)| {
        let ty = graph.ty(port.value);
        let draws: Vec<f64> =
            overdrive_ir::eval::philox::normals(7, site as u64).take(ty.elements()).collect();
        Tensor::from_f64(ty.dtype, ty.sizes(), &draws)
    };
    graph.inputs().iter().enumerate().map(normal).collect()
}

#[test]
fn query_key_and_value_of_every_block_are_one_launch() {
    let model = overdrive_models::find("transformer").expect("a built-in model");
    let sizes = model.dimensions.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    let graph = overdrive_passes::bind(&(model.build)().unwrap(), &sizes).unwrap();
    let recipe = overdrive_passes::Recipe { contractions: DType::BF16 };
    let half = overdrive_passes::precision(&graph, &recipe).unwrap();
    let (plan, together) = gathered(&half, Mode::Graph);
    assert_eq!(together.values().map(Vec::len).collect::<Vec<_>>(), [3; 6], "{plan}");
}

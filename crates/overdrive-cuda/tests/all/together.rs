//! Steps in one launch: products of one left operand and loops that are alike. The tests check
//! which steps are gathered, and that together they compute the same results as alone.

use crate::support::{gpu, h200, joined};
use overdrive_cuda::compiler::{Architecture, compile};
use overdrive_cuda::{Gpu, loops};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::AdamW;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Note, Step};
use overdrive_ir::{
    Array, Backend, Binary, Builder, DType, Expr, Graph, Mode, Plan, State, Tensor, TensorType,
    Tuning,
};
use testkit::{Tolerance, compare};

const SHAPE: [usize; 3] = [320, 264, 192];

/// `count` layers of `x`; where `chained`, each adds the result of the one before it.
fn layers(count: usize, chained: bool) -> Graph {
    layers_of(DType::BF16, count, chained)
}

fn layers_of(dtype: DType, count: usize, chained: bool) -> Graph {
    let [m, n, k] = SHAPE;
    let b = Builder::new("layers");
    let x = b.input("x", TensorType::new(dtype, [m, k]));
    let mut last: Option<Expr<'_>> = None;
    for i in 0..count {
        let w = b.input(&format!("w{i}"), TensorType::new(dtype, [k, n]));
        let bias = b.input(&format!("b{i}"), TensorType::new(dtype, [n]));
        let y = x.matmul(w);
        let y = y.binary(Binary::Add, bias.broadcast_to(&y.shape())).gelu(Approximation::Tanh);
        let y = last.filter(|_| chained).map_or(y, |last| y + last);
        b.output(&format!("y{i}"), y);
        last = Some(y);
    }
    b.finish().expect("the graph is well-formed")
}

/// The plan for a Hopper GPU, and the steps of each launch of several.
fn gathered(graph: &Graph, mode: Mode) -> (Plan, Vec<Vec<Step>>) {
    let plan = overdrive_passes::plan(graph, mode, &Gpu::new(&h200()), &Tuning::default())
        .expect("the graph is bound");
    let together = joined(&plan);
    (plan, together)
}

#[test]
fn equal_products_of_one_operand_are_gathered_and_dependent_ones_are_not() {
    let (plan, together) = gathered(&layers(3, false), Mode::Compile);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    assert_eq!(together[0].len(), 3);
    assert!(plan.steps[0].name.starts_with("3 x "), "{plan}");
    assert_eq!(plan.steps[0].writes.len(), 3, "{plan}");

    let (plan, together) = gathered(&layers(3, true), Mode::Compile);
    assert!(together.is_empty() && plan.steps.len() >= 3, "{plan}");
    let (plan, together) = gathered(&layers(3, false), Mode::Jit);
    assert!(together.is_empty() && plan.steps.len() >= 3, "not where nothing is fused: {plan}");
}

/// The gradients that `count` layers of one x hand back: to x the sum, to each weight its own.
fn handed_back(count: usize) -> Graph {
    let [m, n, k] = SHAPE;
    let b = Builder::new("handed_back");
    let input =
        |name: String, shape: [usize; 2]| b.input(&name, TensorType::new(DType::BF16, shape));
    let x = input("x".to_owned(), [m, k]);
    let mut sum: Option<Expr<'_>> = None;
    for i in 0..count {
        let (w, dy) = (input(format!("w{i}"), [k, n]), input(format!("dy{i}"), [m, n]));
        let dx = dy.dot(w, &[], &[(1, 1)]);
        sum = Some(sum.map_or(dx, |sum| sum + dx));
        b.output(&format!("dw{i}"), x.dot(dy, &[], &[(0, 0)]));
    }
    if let Some(sum) = sum {
        b.output("dx", sum);
    }
    b.finish().expect("the graph is well-formed")
}

#[test]
fn products_that_are_added_up_are_gathered_and_so_are_those_between_them() {
    let (plan, together) = gathered(&handed_back(3), Mode::Graph);
    assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3], "{plan}");
    let names: Vec<&str> = plan.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["sum of 3 x dot_general", "3 x dot_general"], "{plan}");
    assert_eq!(plan.steps[0].writes.len(), 1, "sums on the way are nowhere: {plan}");
    assert_eq!(plan.steps[0].reads.len(), 6, "{plan}");
}

#[test]
fn a_sum_that_somebody_else_reads_is_stored() {
    let [m, n, k] = SHAPE;
    let b = Builder::new("shared");
    let input = |name: &str, shape: [usize; 2]| b.input(name, TensorType::new(DType::BF16, shape));
    let [v, w] = ["v", "w"].map(|name| input(name, [k, n]));
    let [x, y] = ["x", "y"].map(|name| input(name, [m, k]));
    let first = x.matmul(v);
    b.output("first", first);
    b.output("sum", first + y.matmul(w));
    let graph = b.finish().expect("the graph is well-formed");
    let (plan, together) = gathered(&graph, Mode::Graph);
    assert!(together.is_empty() && plan.steps.len() == 2, "{plan}");
}

#[test]
fn products_that_are_added_up_compute_their_sum() {
    let k = 3 * SHAPE[1];
    agrees(&handed_back(3), Tolerance::new(DType::BF16, k, (k as f64).sqrt() + 4.0));
}

/// One step of AdamW on parameters of these shapes; where `chained`, the gradient of each is the
/// parameter before it, updated.
fn updates(shapes: &[Vec<usize>], chained: bool) -> Graph {
    let b = Builder::new("updates");
    let [step, lr] =
        [("step", DType::I32), ("lr", DType::F32)].map(|(n, t)| b.input(n, TensorType::scalar(t)));
    let mut last: Option<Expr<'_>> = None;
    for (i, shape) in shapes.iter().enumerate() {
        let input =
            |name: &str| b.input(&format!("{name}{i}"), TensorType::new(DType::F32, shape.clone()));
        let (p, g, m, v) = (input("p"), input("g"), input("m"), input("v"));
        let g = last.filter(|_| chained).unwrap_or(g);
        let results = p.adamw([g, m, v * v], step, lr, AdamW::default());
        ["p", "m", "v"]
            .iter()
            .zip(results)
            .for_each(|(name, y)| b.output(&format!("new_{name}{i}"), y));
        last = Some(results[0]);
    }
    b.finish().expect("the graph is well-formed")
}

/// Lengths of whole blocks, of less and more than one, of one group, and one that four does not
/// divide.
const LENGTHS: [usize; 6] = [4096, 768, 5 * 1024 + 4, 4, 1 << 18, 70_001];

#[test]
fn updates_of_many_parameters_are_one_launch() {
    let shapes = LENGTHS.map(|n| vec![n]);
    let (plan, together) = gathered(&updates(&shapes, false), Mode::Graph);
    // The last has neighbours that are missing at its end, which is another text.
    assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [5], "{plan}");
    // The first two compute the values that depend on step and rate alone, once for all.
    assert!(plan.steps.len() == 4 && plan.steps[2].writes.len() == 15, "{plan}");
    let source = loops::source_together(&together[0]);
    for architecture in Architecture::DECLARED {
        match compile(&source, architecture) {
            Err(missing @ overdrive_cuda::Error::Missing { .. }) => {
                return testkit::skip(testkit::Needs::Nvrtc, missing);
            }
            compiled => drop(compiled.unwrap_or_else(|e| panic!("{e}\n{}", source.text))),
        }
    }
    let same = [vec![4096], vec![4096], vec![4096]];
    let (plan, together) = gathered(&updates(&same, true), Mode::Graph);
    let updates = together.iter().flatten().filter(|step| step.writes.len() == 3);
    assert_eq!(updates.count(), 0, "each reads what the one before it writes: {plan}");
}

#[test]
fn products_together_compute_what_each_does() {
    agrees(
        &layers(3, false),
        Tolerance::new(DType::BF16, SHAPE[2], (SHAPE[2] as f64).sqrt() + 4.0),
    );
}

/// On streams of their own, where no kernel of ours takes them in one grid.
#[test]
fn products_of_f32_beside_each_other_compute_what_each_does() {
    let (plan, together) = gathered(&layers_of(DType::F32, 3, false), Mode::Graph);
    assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [3], "{plan}");
    let tolerance = Tolerance::new(DType::F32, SHAPE[2], (SHAPE[2] as f64).sqrt() + 4.0);
    agrees(&layers_of(DType::F32, 3, false), tolerance);
}

#[test]
fn updates_together_compute_what_each_does() {
    agrees(&updates(&LENGTHS.map(|n| vec![n]), false), Tolerance::new(DType::F32, 1, 8.0));
}

/// Runs a graph in modes that gather, by the best guess and by the timed choice, against the
/// definition.
fn agrees(graph: &Graph, tolerance: Tolerance) {
    let Some(backend) = gpu() else { return };
    let tensors: Vec<Tensor> = drawn(graph);
    let arrays: Vec<Array> = tensors.iter().map(Array::from).collect();
    let expected = eval(graph, &arrays, &mut States::new());
    for mode in [Mode::Compile, Mode::Graph] {
        let mut tuning = Tuning::default();
        for round in ["by the best guess", "as timed"] {
            let mut session = backend.compile(graph, mode, &tuning).unwrap().session().unwrap();
            let inputs: Vec<_> = tensors.iter().map(|t| backend.upload(t).unwrap()).collect();
            let types = graph.outputs().iter().map(|o| graph.ty(o.value));
            let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
            for _ in 0..3 {
                let pending = session.run(State::default().with(&inputs, &mut outputs)).unwrap();
                pending.wait().unwrap();
            }
            for (expected, output) in expected.iter().zip(&outputs) {
                let found = Array::from(&backend.download(output).unwrap());
                compare(expected, &found, tolerance)
                    .unwrap_or_else(|e| panic!("{mode:?} {round}: {e}"));
            }
            backend.tune(graph, mode, &mut tuning).unwrap();
        }
    }
}

/// Normal numbers for each input; counts are ten.
fn drawn(graph: &Graph) -> Vec<Tensor> {
    let normal = |(site, port): (usize, &overdrive_ir::Port)| {
        let ty = graph.ty(port.value);
        let normals = overdrive_ir::eval::philox::normals(7, site as u64);
        let draws = normals.map(|x| if ty.dtype.is_int() { 10.0 } else { x });
        let draws: Vec<f64> = draws.take(ty.elements()).collect();
        Tensor::from_f64(ty.dtype, ty.sizes(), &draws)
    };
    graph.inputs().iter().enumerate().map(normal).collect()
}

/// `layer_norm(r + x w)` over rows of `n`, and the sum; rows of x are `[2, m / 2]`.
fn normed([m, n, k]: [usize; 3]) -> Graph {
    let b = Builder::new("normed");
    let input = |name: &str, dtype, shape: &[usize]| b.input(name, TensorType::new(dtype, shape));
    let (x, w) = (input("x", DType::BF16, &[2, m / 2, k]), input("w", DType::BF16, &[k, n]));
    let r = input("r", DType::F32, &[2, m / 2, n]);
    let [scale, bias] = ["scale", "bias"].map(|name| input(name, DType::F32, &[n]));
    let sum = r + x.matmul(w).convert(DType::F32);
    b.output("sum", sum);
    b.output("y", sum.layer_norm(scale, bias, 1e-5).convert(DType::BF16));
    b.finish().expect("the graph is well-formed")
}

#[test]
fn a_norm_runs_in_the_launch_of_the_product_before_it_where_a_cluster_holds_its_rows() {
    for columns in [64, 128, 256, 512] {
        let (plan, together) = gathered(&normed([192, columns, 128]), Mode::Compile);
        assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [2], "{columns}: {plan}");
    }
    // Tiles that do not divide a row, more than eight of them, and large ones that leave most of
    // the device idle.
    for shape in [[192, 520, 128], [192, 4096, 128], [1024, 1024, 2048]] {
        let (plan, together) = gathered(&normed(shape), Mode::Compile);
        let noted = |note: &Note| match note {
            Note::Declined { reason, .. } => reason.contains("no cluster"),
            _ => false,
        };
        assert!(together.is_empty() && plan.notes.iter().any(noted), "{plan}");
    }
}

#[test]
fn a_norm_in_the_launch_of_its_product_computes_what_it_does() {
    // Rows of one block and of clusters, in every tile; rows that no tile divides.
    for shape in [[192, 512, 128], [200, 128, 192], [64, 256, 64], [130, 64, 64]] {
        agrees(
            &normed(shape),
            Tolerance::new(DType::BF16, shape[2], (shape[2] as f64).sqrt() + 8.0),
        );
    }
}

#[test]
fn query_key_and_value_of_every_block_are_one_launch() {
    let model = overdrive_models::find("transformer").expect("a built-in model");
    let sizes = model.dimensions.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    let graph = overdrive_passes::bind(&(model.build)().unwrap(), &sizes).unwrap();
    let recipe = overdrive_passes::Recipe { contractions: DType::BF16 };
    let half = overdrive_passes::precision(&graph, &recipe).unwrap();
    let (plan, together) = gathered(&half, Mode::Graph);
    let counts: Vec<usize> = together.iter().map(Vec::len).collect();
    assert_eq!(counts.iter().filter(|&&count| count == 3).count(), 6, "{plan}");
    // Each norm but the first follows a residual.
    assert_eq!(counts.iter().filter(|&&count| count == 2).count(), 11, "{plan}");
}

//! States in a narrower format. Movement keeps them narrow, arithmetic widens them, and results are
//! the same unless rounding was requested.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Builder, DType, Graph, Init, Prim, Tensor, TensorType, verify};
use overdrive_passes::{Recipe, precision, store};
use testkit::random_inputs;

const LOW: DType = DType::BF16;

fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// A weight whose numbers bf16 has.
fn weight(shape: [usize; 2]) -> Init {
    let numbers: Vec<f64> = (0..shape[0] * shape[1]).map(|i| (i % 13) as f64 / 4.0 - 1.5).collect();
    Init::Value(Tensor::from_f64(DType::F32, shape, &numbers))
}

/// A table of tokens, a norm, a weight, and a row that is written into a cache and multiplied.
fn model() -> Graph {
    let b = Builder::new("model");
    let ids = b.input("ids", TensorType::new(DType::I32, [1, 3]));
    let table = b.state_named("table", f32s([8, 16]), weight([8, 16]));
    let scale = b.state_named("scale", f32s([16]), Init::Constant(1.5));
    let w = b.state_named("w", f32s([4, 16]), weight([4, 16]));
    let x = table.embedding(ids).rms_norm(scale, 1e-6);
    let cache = b.state_named("cache", f32s([1, 5, 16]), Init::ZEROS);
    let start = b.full(DType::I64, [3], 0.0);
    let kept = b.op1(Prim::DynamicUpdateSlice, &[cache, x, start]);
    b.update("cache", kept);
    b.output("y", kept.linear(w.t(), None));
    b.finish().unwrap()
}

fn matrices(_: &str, ty: &TensorType) -> Option<DType> {
    (ty.rank() > 1).then_some(LOW)
}

/// Elements that are widened by conversions of more than `least` of them.
fn widened(graph: &Graph, least: usize) -> Vec<String> {
    let nodes = graph.nodes().iter();
    nodes
        .filter(|node| matches!(node.op.prim(), Some(Prim::Convert { .. })))
        .map(|node| graph.ty(node.operands[0]))
        .filter(|ty| ty.dtype == LOW && ty.elements() > least)
        .map(ToString::to_string)
        .collect()
}

#[test]
fn matrices_and_caches_are_narrow_and_read_as_they_lie() {
    let stored = store(&model(), &matrices).unwrap();
    verify(&stored).unwrap();
    let types: Vec<DType> = stored.states().iter().map(|s| stored.ty(s.value).dtype).collect();
    assert_eq!(types, [LOW, DType::F32, LOW, LOW]);
    // The rows of three tokens are 48 numbers: the table of 128 is never widened.
    assert!(!widened(&stored, 80).iter().any(|ty| ty.contains('8')), "{:?}", widened(&stored, 80));
    let lowered = precision(&stored, &Recipe { contractions: LOW }).unwrap();
    verify(&lowered).unwrap();
    assert_eq!(widened(&lowered, 48), Vec::<String>::new(), "nothing is widened to be narrowed");
}

#[test]
fn only_what_is_written_into_a_cache_is_rounded() {
    let graph = model();
    let all_but_cache =
        |name: &str, ty: &TensorType| matrices(name, ty).filter(|_| name != "cache");
    let inputs = random_inputs(&graph, 1);
    let found = |graph: &Graph| eval(graph, &inputs, &mut States::new()).remove(0);
    let exact = found(&graph);
    assert_eq!(exact, found(&store(&graph, &all_but_cache).unwrap()), "widening is exact");
    assert_ne!(exact, found(&store(&graph, &matrices).unwrap()), "a cache rounds what it takes");
    let same = store(&graph, &|_, _| None).unwrap();
    assert_eq!((found(&same), same.nodes().len()), (exact, graph.nodes().len()));
}

#[test]
fn what_others_see_keeps_its_type() {
    let b = Builder::new("seen");
    let x = b.input("x", f32s([2, 2]));
    let [shown, summed] =
        ["shown", "summed"].map(|name| b.state_named(name, f32s([2, 2]), Init::ZEROS));
    b.update("summed", summed + x);
    b.output("a", shown);
    b.output("b", b.state_named("turned", f32s([2, 2]), weight([2, 2])).t());
    let graph = b.finish().unwrap();
    let stored = store(&graph, &matrices).unwrap();
    verify(&stored).unwrap();
    let types: Vec<DType> = stored.states().iter().map(|s| stored.ty(s.value).dtype).collect();
    assert_eq!(types, [DType::F32, DType::F32, LOW], "updated as a whole, or an output itself");
    assert!(stored.outputs().iter().all(|port| stored.ty(port.value).dtype == DType::F32));
}

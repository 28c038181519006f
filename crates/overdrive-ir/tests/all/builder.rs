//! The builder keeps the first error with its scope; graphs verify, rewrite and evaluate.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, Builder, DType, Dim, Init, TensorType, verify};

fn f32s(shape: impl Into<overdrive_ir::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn a_small_model_reads_like_the_formula_and_evaluates() {
    let b = Builder::new("tiny");
    let x = b.input("x", f32s([2usize, 3]));
    let w = b.state("w", f32s([3usize, 2]), Init::Constant(0.5));
    let y = (x.matmul(w) + 1.0).relu().softmax(1);
    b.output("y", y);
    let graph = b.finish().unwrap();
    verify(&graph).unwrap();
    let x = Array::float(DType::F32, &[2, 3], vec![1.0; 6]);
    let y = eval(&graph, std::slice::from_ref(&x), &mut States::new());
    assert_eq!(y[0].floats(), [0.5; 4]);

    let rewritten = graph.rewrite(&mut |_, _, _| None).unwrap();
    assert_eq!(rewritten, graph);
}

#[test]
fn the_first_error_names_op_scope_and_both_shapes() {
    let b = Builder::new("broken");
    let x = b.input("x", TensorType::new(DType::F32, [Dim::from("batch"), Dim::from(512)]));
    let y = {
        let _scope = b.scope("fc1");
        let w = b.state("weight", f32s([511usize, 4]), Init::ZEROS);
        x.linear(w, None)
    };
    let z = y.softmax(9).tanh() + x;
    b.output("z", z);
    let error = b.finish().unwrap_err().to_string();
    assert!(error.contains("linear at fc1") && error.contains("f32[batch, 512]"), "{error}");
    assert!(error.contains("f32[511, 4]"), "{error}");
}

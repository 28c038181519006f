//! `differentiate` adds cotangents and gradients and keeps what was there; its result can be
//! differentiated again.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, Builder, DType, Graph, Init, TensorType, verify};
use overdrive_passes::differentiate;

fn model() -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F64, [2usize, 3]));
    let n = b.input("n", TensorType::new(DType::I32, [2usize]));
    let w =
        b.state("w", TensorType::new(DType::F64, [3usize, 2]), Init::Normal { std: 1.0, seed: 1 });
    let unused = b.state("unused", TensorType::new(DType::F64, [3usize]), Init::ZEROS);
    b.output("y", x.matmul(w).tanh() + n.convert(DType::F64));
    b.output("n", n);
    b.update("w", w * 0.5);
    b.update("unused", unused);
    b.finish().unwrap()
}

#[test]
fn outputs_and_updates_stay_and_gradients_are_added() {
    let graph = model();
    let (y, x) = (graph.outputs()[0].value, graph.inputs()[0].value);
    let [w, unused] = [0, 1].map(|i| graph.states()[i].value);
    let differentiated = differentiate(&graph, &[y], &[x, w, unused]).unwrap();
    verify(&differentiated).unwrap();
    let names =
        |ports: &[overdrive_ir::Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(differentiated.inputs()), ["x", "n", "cotangent.y"]);
    assert_eq!(names(differentiated.outputs()), ["y", "n", "grad.x", "grad.w", "grad.unused"]);
    assert!(differentiated.states().iter().all(|s| s.update.is_some()));
    let point = Array::float(DType::F64, &[2, 3], vec![0.1, -0.2, 0.3, 0.5, 0.4, -0.6]);
    let n = Array::int(DType::I32, &[2], vec![1, 2]);
    let ones = Array::float(DType::F64, &[2, 2], vec![1.0; 4]);
    let plain = eval(&graph, &[point.clone(), n.clone()], &mut States::new());
    let found = eval(&differentiated, &[point.clone(), n.clone(), ones], &mut States::new());
    assert_eq!(found[..2], plain[..]);
    assert_eq!(found[4].floats(), [0.0; 3]);
    for i in 0..6 {
        let sum = |sign: f64| {
            let mut values = point.floats().to_vec();
            values[i] += sign * 1e-6;
            let x = Array::float(DType::F64, &[2, 3], values);
            eval(&graph, &[x, n.clone()], &mut States::new())[0].floats().iter().sum::<f64>()
        };
        let numeric = (sum(1.0) - sum(-1.0)) / 2e-6;
        assert!((found[2].get(i) - numeric).abs() < 1e-7, "{} against {numeric}", found[2].get(i));
    }
    let grad_x = differentiated.outputs()[2].value;
    let twice =
        differentiate(&differentiated, &[grad_x], &[differentiated.inputs()[0].value]).unwrap();
    assert_eq!(twice.inputs()[3].name, "cotangent.grad.x");
    assert_eq!(twice.outputs()[5].name, "grad.grad.x");
}

#[test]
fn what_has_no_gradient_is_refused_by_name() {
    let graph = model();
    let (y, n) = (graph.outputs()[0].value, graph.outputs()[1].value);
    let x = graph.inputs()[0].value;
    let error = |outputs: &[overdrive_ir::Value], wrt: &[overdrive_ir::Value]| {
        differentiate(&graph, outputs, wrt).unwrap_err().to_string()
    };
    assert!(error(&[n], &[x]).contains("`n` of type i32[2]"));
    assert!(error(&[y], &[n]).contains("`n` of type i32[2]"));
    assert!(error(&[x], &[x]).contains("an output"));
    assert!(error(&[y], &[y]).contains("an input or a state"));
}

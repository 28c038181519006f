//! A graph in parts computes the same as the whole graph, and no part has states that it does not
//! read.

use overdrive_ir::eval::eval_tensors;
use overdrive_ir::{Builder, DType, Init, Tensor, TensorType, Unary};
use overdrive_passes::{blocks, layers, narrowest, segments};
use std::collections::BTreeMap;

#[test]
fn parts_give_what_the_whole_gives() {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 8]));
    let shift = b.input("shift", TensorType::new(DType::F32, [2usize, 8]));
    let table = b.iota(DType::F32, [8usize], 0).unary(Unary::Cos);
    let mut h = x;
    for layer in 0..3 {
        let _scope = b.scope(&format!("h{layer}"));
        let w = b.state(
            "weight",
            TensorType::new(DType::F32, [8usize, 8]),
            Init::Normal { std: 0.3, seed: 1 },
        );
        h = h + (h * table).linear(w.t(), None);
    }
    b.output("y", h + shift);
    b.output("doubled", h + h);
    let graph = b.finish().unwrap();
    let values = |from: i32| (0..16).map(|i| f64::from(from + i * i % 7) / 5.0).collect::<Vec<_>>();
    let inputs = [1, 3].map(|from| Tensor::from_f64(DType::F32, [2usize, 8], &values(from)));
    let ends: Vec<_> = layers(&graph).unwrap().0.iter().map(|layer| layer.parts[0].node).collect();
    let parts = segments(&graph, &ends).unwrap();
    assert_eq!(parts.len(), 4);
    let mut known: BTreeMap<String, Tensor> =
        graph.inputs().iter().map(|port| port.name.clone()).zip(inputs.clone()).collect();
    for (index, part) in parts.iter().enumerate() {
        assert_eq!(part.states().len(), usize::from(index < 3), "part {index}");
        let given: Vec<Tensor> =
            part.inputs().iter().map(|port| known[&port.name].clone()).collect();
        let made = eval_tensors(part, &given);
        known.extend(part.outputs().iter().map(|port| port.name.clone()).zip(made));
    }
    let whole = eval_tensors(&graph, &inputs);
    for (port, expected) in graph.outputs().iter().zip(whole) {
        // Between parts a value is rounded to f32, which the evaluator does nowhere else.
        for (found, expected) in known[&port.name].to_f64().into_iter().zip(expected.to_f64()) {
            assert!((found - expected).abs() < 1e-5, "{}: {found} and {expected}", port.name);
        }
    }
}

#[test]
fn an_end_moves_behind_the_sum_of_its_block() {
    let b = Builder::new("model");
    let mut h = b.input("x", TensorType::new(DType::F32, [2usize, 8]));
    for layer in 0..3 {
        let _scope = b.scope(&format!("h{layer}"));
        let init = Init::Normal { std: 0.3, seed: layer };
        let w = b.state("weight", TensorType::new(DType::F32, [8usize, 8]), init);
        h = h + h.unary(Unary::Cos).linear(w, None);
    }
    b.output("y", h);
    let graph = b.finish().unwrap();
    let ends: Vec<_> = layers(&graph).unwrap().0.iter().map(|layer| layer.parts[0].node).collect();
    let passed_on = |ends: &[_]| -> Vec<usize> {
        segments(&graph, ends).unwrap().iter().map(|part| part.outputs().len()).collect()
    };
    assert_eq!(passed_on(&ends), [1, 2, 2, 1], "the product and what it is added to");
    let moved = narrowest(&graph, &ends);
    assert_eq!(passed_on(&moved), [1, 1, 1]);
    assert_eq!(narrowest(&graph, &moved), moved);
}

#[test]
fn blocks_that_repeat_are_kept_once() {
    let b = Builder::new("model");
    let mut h = b.input("x", TensorType::new(DType::F32, [2usize, 8]));
    for layer in 0..6 {
        let _scope = b.scope(&format!("h.{layer}"));
        let init = Init::Normal { std: 0.3, seed: layer };
        let w = b.state("weight", TensorType::new(DType::F32, [8usize, 8]), init);
        let made = h.linear(w.t(), None);
        h = h + if layer == 4 { made.unary(Unary::Cos) } else { made };
    }
    b.output("y", h);
    let graph = b.finish().unwrap();
    let distinct = blocks(&[&graph]).unwrap();
    // A block ends at its product, so that the next one begins with the sum. The first block has no
    // sum before it, the second stands for three more, and the last follows a cosine.
    let texts: Vec<String> = distinct.iter().map(|block| block.parts[0].to_string()).collect();
    assert_eq!(distinct.len(), 3, "{texts:#?}");
    let cosines = texts.iter().filter(|text| text.contains("cos")).count();
    assert_eq!(cosines, 1, "{texts:#?}");
    let counted: Vec<(&str, usize)> =
        distinct.iter().map(|block| (block.name.as_str(), block.times)).collect();
    assert_eq!(counted, [("h.0", 1), ("h.1", 4), ("h.5", 1)]);
    // A graph that is cut at other places is one block.
    let b = Builder::new("other");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 8]));
    b.output("y", x.unary(Unary::Cos));
    let other = b.finish().unwrap();
    let whole = blocks(&[&graph, &other]).unwrap();
    let nodes: Vec<usize> = whole[0].parts.iter().map(|part| part.nodes().len()).collect();
    assert_eq!((whole.len(), whole[0].times), (1, 1));
    assert_eq!(nodes, [graph.nodes().len(), 1]);
}

//! The optimizer's step: seven streams of f32.

use crate::bench::{Bench, noise};
use overdrive_ir::backend::CacheState;
use overdrive_ir::ops::AdamW;
use overdrive_ir::{Builder, DType, Graph, Tensor, TensorType};

/// Shapes of parameters: one large, and those of twelve blocks of width 768.
fn shapes(name: &str) -> Vec<Vec<usize>> {
    match name {
        "one of 8192x8192" => vec![vec![8192, 8192]],
        _ => {
            let block = [
                vec![768, 2304],
                vec![2304],
                vec![768, 768],
                vec![768],
                vec![768, 3072],
                vec![3072],
                vec![3072, 768],
                vec![768],
            ];
            let norms = [vec![768], vec![768], vec![768], vec![768]];
            let blocks =
                (0..12).flat_map(|_| block.iter().chain(&norms).cloned().collect::<Vec<_>>());
            blocks.chain([vec![50_304, 768]]).collect()
        }
    }
}

fn graph(shapes: &[Vec<usize>]) -> Graph {
    let b = Builder::new("adamw");
    let step = b.input("step", TensorType::scalar(DType::I32));
    let lr = b.input("lr", TensorType::scalar(DType::F32));
    for (number, shape) in shapes.iter().enumerate() {
        let ty = TensorType::new(DType::F32, shape.clone());
        let input = |name: &str| b.input(&format!("{name}{number}"), ty.clone());
        let (p, rest) = (input("p"), ["g", "m", "v"].map(input));
        let results = p.adamw(rest, step, lr, AdamW::default());
        ["p", "m", "v"]
            .iter()
            .zip(results)
            .for_each(|(name, y)| b.output(&format!("new_{name}{number}"), y));
    }
    b.finish().expect("well typed")
}

pub(crate) fn run(bench: &Bench<'_>) {
    for name in ["one of 8192x8192", "145 of a small GPT"] {
        let shapes = shapes(name);
        let graph = graph(&shapes);
        let of = |port: &overdrive_ir::Port| {
            let ty = graph.ty(port.value);
            match (ty.rank(), ty.dtype) {
                (0, DType::I32) => Tensor::scalar(DType::I32, 10.0),
                (0, _) => Tensor::scalar(DType::F32, 1e-3),
                // Second moments are squares.
                _ if port.name.starts_with('v') => {
                    let mut bytes = noise(ty, 3).bytes().to_vec();
                    bytes.iter_mut().skip(3).step_by(4).for_each(|high| *high &= 0x7f);
                    Tensor::from_bytes(ty.clone(), bytes).expect("the same type")
                }
                _ => noise(ty, 3),
            }
        };
        let inputs: Vec<_> = graph.inputs().iter().map(|port| bench.upload(&of(port))).collect();
        let (time, _) = bench.time(&graph, &inputs, CacheState::Cold);
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let bytes = 28 * elements;
        println!("{name:<20} {time}  {:5.1} % of copy, {bytes} B", bench.share(bytes, time));
    }
}

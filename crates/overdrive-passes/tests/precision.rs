//! Mixed precision on small models: what is rounded, what stays low, and how far results move.

#![allow(clippy::unwrap_used)]

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::Attention;
use overdrive_ir::{Builder, DType, Graph, Init, Prim, TensorType, verify};
use overdrive_passes::{Recipe, differentiate, precision};
use testkit::{Tolerance, compare, random_inputs};

fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn mlp() -> Graph {
    let b = Builder::new("mlp");
    let x = b.input("x", f32s([4, 64]));
    let weight = |name: &str, shape: [usize; 2]| {
        b.state(name, f32s(shape), Init::Normal { std: 0.125, seed: 3 })
    };
    let (w1, w2, w3) = (weight("w1", [64, 64]), weight("w2", [64, 64]), weight("w3", [64, 8]));
    b.output("y", x.linear(w1, None).tanh().linear(w2, None).linear(w3, None));
    b.finish().unwrap()
}

fn conversions(graph: &Graph) -> usize {
    graph.nodes().iter().filter(|n| matches!(n.op.prim(), Some(Prim::Convert { .. }))).count()
}

#[test]
fn a_value_between_two_contractions_is_never_widened() {
    let lowered = precision(&mlp(), &Recipe { contractions: DType::BF16 }).unwrap();
    verify(&lowered).unwrap();
    // x, w1, tanh's operand and result, w2, w3, y; nothing between the second and the third layer.
    assert_eq!(conversions(&lowered), 7, "{lowered:?}");
}

#[test]
fn results_move_by_the_rounding_of_the_format() {
    let graph = mlp();
    let inputs = random_inputs(&graph, 1);
    let exact = eval(&graph, &inputs, &mut States::new()).remove(0);
    let magnitude = exact.floats().iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    for low in [DType::BF16, DType::F16] {
        let lowered = precision(&graph, &Recipe { contractions: low }).unwrap();
        let found = eval(&lowered, &inputs, &mut States::new()).remove(0);
        // Three layers, each with rounded operands.
        compare(&exact, &found, Tolerance::new(low, 64, 3.0 * magnitude)).unwrap();
        assert_ne!(exact, found, "{low} rounds");
    }
    assert_eq!(precision(&graph, &Recipe::default()).unwrap(), graph);
}

#[test]
fn attention_and_its_gradient_keep_their_statistics_wide() {
    let b = Builder::new("attention");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, f32s([1, 2, 8, 4])));
    b.output("y", q.attention(k, v, Attention::CAUSAL)[0]);
    let graph = b.finish().unwrap();
    let wrt: Vec<_> = graph.inputs().iter().map(|p| p.value).collect();
    let training = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
    let lowered = precision(&training, &Recipe { contractions: DType::BF16 }).unwrap();
    verify(&lowered).unwrap();
    let dtypes = |name: &str| -> Vec<DType> {
        let node = lowered.nodes().iter().find(|n| n.op.name() == name).unwrap();
        node.operands.iter().map(|v| lowered.ty(*v).dtype).collect()
    };
    use DType::{BF16, F32};
    assert_eq!(dtypes("attention"), [BF16, BF16, BF16]);
    // q, k, v, log-sum-exp, cotangent, row sums.
    assert_eq!(dtypes("attention_grad"), [BF16, BF16, BF16, F32, BF16, F32]);
}

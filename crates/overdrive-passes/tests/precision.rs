//! Mixed precision on small models: what is rounded, what stays low, and how far results move.

#![allow(clippy::unwrap_used)]

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::{Attention, Float8Linear};
use overdrive_ir::{Builder, DType, Graph, Init, Prim, TensorType, verify};
use overdrive_passes::{Recipe, differentiate, float8, precision};
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

/// The weights of layers on codes of fp8, by their states' names.
fn on_codes(graph: &Graph) -> Vec<&str> {
    let of_layer = graph.nodes().iter().filter(|n| n.op.composite::<Float8Linear>().is_some());
    let name = |value| graph.states().iter().find(|s| s.value == value).map(|s| s.name.as_str());
    of_layer.filter_map(|node| name(node.operands[1])).collect()
}

const FORMATS: Float8Linear = Float8Linear { forward: DType::F8E4M3, gradient: DType::F8E5M2 };

#[test]
fn linear_layers_that_the_units_of_fp8_take_are_on_codes_but_for_the_last() {
    let layers = |sizes: &[usize], rows: usize| {
        let b = Builder::new("layers");
        let mut x = b.input("x", f32s([2, rows, sizes[0]]));
        for (i, pair) in sizes.windows(2).enumerate() {
            let w = b.state(&format!("w{i}"), f32s([pair[0], pair[1]]), Init::Constant(0.1));
            let bias = b.state(&format!("b{i}"), f32s([pair[1]]), Init::Constant(0.5));
            x = x.linear(w, Some(bias)).tanh();
        }
        b.output("y", x);
        let graph = float8(&b.finish().unwrap(), FORMATS, DType::BF16).unwrap();
        verify(&graph).unwrap();
        assert_eq!(graph.ty(graph.outputs()[0].value).dtype, DType::F32);
        graph
    };
    assert_eq!(on_codes(&layers(&[32, 64, 48, 16], 8)), ["w0", "w1"]);
    // 24 is no multiple of 16, neither as columns nor as rows; nor are 14 rows of x.
    assert_eq!(on_codes(&layers(&[32, 24, 48, 16, 16], 8)), ["w2"]);
    assert_eq!(on_codes(&layers(&[32, 64, 48, 16], 7)), [""; 0]);
}

#[test]
fn a_model_on_codes_of_fp8_moves_by_their_rounding_and_its_weights_have_gradients_in_f32() {
    let graph = {
        let b = Builder::new("mlp");
        let x = b.input("x", f32s([16, 64]));
        // Sums of about 1, which do not saturate.
        let weight = |name: &str| b.input(name, f32s([64, 64])) * 0.125;
        let (w1, w2) = (weight("w1"), weight("w2"));
        b.output("y", x.linear(w1, None).tanh().linear(w2, None));
        b.finish().unwrap()
    };
    let lowered = float8(&graph, FORMATS, DType::BF16).unwrap();
    let wrt: Vec<_> = lowered.inputs().iter().map(|port| port.value).collect();
    let derived = differentiate(&lowered, &[lowered.outputs()[0].value], &wrt).unwrap();
    let dtypes: Vec<_> =
        derived.outputs().iter().map(|port| derived.ty(port.value).dtype).collect();
    assert_eq!(dtypes, [DType::F32; 4]);
    let plain_wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
    let plain = differentiate(&graph, &[graph.outputs()[0].value], &plain_wrt).unwrap();
    let inputs = random_inputs(&plain, 1);
    let [exact, found] = [&plain, &derived].map(|g| eval(g, &inputs, &mut States::new()));
    for (exact, found) in exact.iter().zip(&found) {
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let size = norm(&mut exact.floats().iter().copied());
        let off = norm(&mut exact.floats().iter().zip(found.floats()).map(|(a, b)| a - b));
        // e5m2 has two digits after the first, e4m3 three: an eighth and a sixteenth at most.
        assert!(off > 0.0 && off < size / 8.0, "{off} of {size}");
    }
}

//! Adapters beside weights. At first they change nothing, and merged weights compute the same as
//! weights with adapters.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{
    Array, Builder, DType, Expr, Graph, Init, Operation, Prim, Tensor, TensorType, Value, verify,
};
use overdrive_passes::{Layer, Lora, layers};
use std::collections::{BTreeMap, BTreeSet};
use testkit::{Tolerance, compare, random_graph, random_inputs};

const LORA: Lora = Lora { rank: 2, alpha: 3.0 };

/// Outputs and new states of the graph's own.
fn results(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    let mut states = States::new();
    let outputs = eval(graph, inputs, &mut states);
    states.retain(|name, _| !Lora::is_adapter(name));
    outputs.into_iter().chain(states.into_values()).collect()
}

fn same(what: &str, inputs: &[Array], [expected, found]: [&Graph; 2]) {
    verify(found).unwrap();
    for (expected, found) in results(expected, inputs).iter().zip(&results(found, inputs)) {
        let magnitude = expected.to_f64().into_iter().fold(1.0, |max: f64, x| max.max(x.abs()));
        compare(expected, found, Tolerance::new(DType::F32, 1 << 10, magnitude))
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// The adapters of a graph, each with a value of its own, and the graph that begins with them.
fn drawn(graph: &Graph) -> (BTreeMap<String, Tensor>, Graph) {
    let normal = Init::Normal { std: 0.5, seed: 3 };
    let adapters = graph.states().iter().filter(|state| Lora::is_adapter(&state.name));
    let values: BTreeMap<String, Tensor> =
        adapters.map(|s| (s.name.clone(), normal.tensor(&s.name, graph.ty(s.value)))).collect();
    let own: BTreeMap<&str, &Init> =
        graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
    let begin = |name: &str| match values.get(name) {
        Some(value) => Init::Value(value.clone()),
        None => own[name].clone(),
    };
    let graph = graph.clone().with_initial_values(|name, _| begin(name));
    (values, graph)
}

/// Fails unless adapters at these layers begin as nothing and are merged to what they mean.
fn holds(what: &str, graph: &Graph, layers: &[Layer], inputs: &[Array]) {
    let adapted = LORA.adapted(graph, layers).unwrap();
    same(&format!("{what} begins"), inputs, [graph, &adapted]);
    let (values, learnt) = drawn(&adapted);
    let weights = LORA.merged(graph, layers, &values).unwrap();
    let own: BTreeMap<&str, &Init> =
        graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
    let begin =
        |name: &str| weights.get(name).map_or(own[name].clone(), |w| Init::Value(w.clone()));
    let merged = graph.clone().with_initial_values(|name, _| begin(name));
    assert_ne!(&merged, graph, "{what}: adapters change weights");
    same(&format!("{what} merged"), inputs, [&learnt, &merged]);
}

/// The graph with states in place of the constants that its linear layers multiply by.
fn with_weights(graph: &Graph) -> Graph {
    let b = Builder::new(graph.name());
    let mut map: BTreeMap<Value, Expr<'_>> = b.declare(graph).into_iter().collect();
    let linear = graph.nodes().iter().filter(|node| node.op.name() == "linear");
    let weights: BTreeSet<Value> = linear.map(|node| node.operands[1]).collect();
    for node in graph.nodes() {
        let results = match &node.op {
            Operation::Prim(Prim::Constant { value }) if weights.contains(&node.results[0]) => {
                let name = format!("h.{}.weight", node.results[0].0);
                vec![b.state_named(&name, value.ty().clone(), Init::Value(value.clone()))]
            }
            _ => b.again(node, &node.operands.iter().map(|v| map[v]).collect::<Vec<_>>()),
        };
        map.extend(node.results.iter().copied().zip(results));
    }
    b.conclude(graph, |v| map[&v]);
    b.finish().unwrap()
}

#[test]
fn random_graphs_begin_as_they_were_and_merge_to_what_they_mean() {
    let mut adapted = 0;
    for seed in 0..400 {
        let graph = with_weights(&random_graph(seed, DType::F32));
        let (mut found, _) = layers(&graph).unwrap();
        found.retain(|layer| layer.shape[0].min(layer.shape[1]) >= LORA.rank);
        if !found.is_empty() {
            adapted += 1;
            holds(&format!("seed {seed}"), &graph, &found, &random_inputs(&graph, seed));
        }
    }
    assert!(adapted > 10, "{adapted} graphs have layers");
}

/// Two layers in a block, one fused of two and stored by inputs, and a head.
fn model() -> Graph {
    let b = Builder::new("model");
    let state = |name: &str, sizes: [usize; 2]| {
        b.state_named(name, TensorType::new(DType::F32, sizes), Init::Normal { std: 0.3, seed: 7 })
    };
    let x = b.input("x", TensorType::new(DType::F32, [3usize, 4]));
    let h = x.linear(state("h.0.up.weight", [6, 4]).t(), None).tanh();
    let fused = state("h.0.pair.weight", [6, 10]);
    let part =
        |from: usize, to: usize| -> Expr<'_> { h.linear(fused.slice_axis(1, from, to), None) };
    let pair = part(0, 5) * part(5, 10);
    let routed = h.linear(state("h.0.gate.weight", [5, 6]).t(), None);
    b.output("y", (pair + routed).linear(state("lm_head.weight", [9, 5]).t(), None));
    b.finish().unwrap()
}

/// A layer of so many rows, whose weight is stored by outputs or by inputs.
fn layer(rows: usize, by_outputs: bool) -> Graph {
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::F32, [rows, 4]));
    let init = Init::Normal { std: 0.3, seed: 7 };
    let sizes = if by_outputs { [6usize, 4] } else { [4, 6] };
    let w = b.state_named("h.0.up.weight", TensorType::new(DType::F32, sizes), init);
    b.output("y", x.linear(if by_outputs { w.t() } else { w }, None));
    b.finish().unwrap()
}

#[test]
fn a_layer_of_many_rows_multiplies_by_the_sum_of_weight_and_adapters() {
    for by_outputs in [false, true] {
        for (rows, products) in [(3, 2), (16, 0)] {
            let graph = layer(rows, by_outputs);
            let found = Lora::layers(&graph).unwrap();
            holds(&format!("{rows} rows"), &graph, &found, &random_inputs(&graph, 1));
            let adapted = LORA.adapted(&graph, &found).unwrap();
            let of_rows = |node: &&overdrive_ir::Node| {
                node.op.name() == "linear" && adapted.ty(node.results[0]).sizes()[0] == rows
            };
            let others = adapted.nodes().iter().filter(of_rows).count() - 1;
            assert_eq!(others, products, "{rows} rows, {by_outputs}");
        }
    }
}

#[test]
fn layers_of_blocks_take_adapters_and_heads_and_routers_do_not() {
    let graph = model();
    let found = Lora::layers(&graph).unwrap();
    let names: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["h.0.up", "h.0.pair"]);
    let adapted = LORA.adapted(&graph, &found).unwrap();
    let types: BTreeMap<String, String> = adapted
        .states()
        .iter()
        .filter(|s| Lora::is_adapter(&s.name))
        .map(|s| (s.name.clone(), adapted.ty(s.value).to_string()))
        .collect();
    let expected = [
        ("h.0.pair.lora_A.weight", "f32[2, 6]"),
        ("h.0.pair.lora_B.weight", "f32[10, 2]"),
        ("h.0.up.lora_A.weight", "f32[2, 4]"),
        ("h.0.up.lora_B.weight", "f32[6, 2]"),
    ];
    assert_eq!(types, expected.map(|(name, ty)| (name.to_owned(), ty.to_owned())).into());
    let x = vec![0.5, -1.0, 2.0, 0.25, 1.0, 0.0, -0.5, 1.5, 3.0, 1.0, -2.0, 0.75];
    holds("model", &graph, &found, &[Array::from_f64(DType::F32, &[3, 4], x)]);
}

#[test]
fn a_rank_that_a_layer_cannot_have_and_models_without_blocks_are_refused() {
    let graph = model();
    let found = Lora::layers(&graph).unwrap();
    for rank in [0, 5] {
        let error = Lora { rank, alpha: 1.0 }.adapted(&graph, &found).unwrap_err().to_string();
        assert!(
            error.contains("a rank from 1 to 4") && error.contains(&rank.to_string()),
            "{error}"
        );
    }
    let error = LORA.merged(&graph, &found, &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("h.0.up.lora_A.weight"), "{error}");
    let b = Builder::new("flat");
    let x = b.input("x", TensorType::new(DType::F32, [3usize, 4]));
    let w = b.state_named("fc.weight", TensorType::new(DType::F32, [4usize, 4]), Init::ZEROS);
    b.output("y", x.linear(w, None));
    let error = Lora::layers(&b.finish().unwrap()).unwrap_err().to_string();
    assert!(error.contains("a numbered block"), "{error}");
}

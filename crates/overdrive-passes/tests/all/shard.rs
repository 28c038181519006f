//! Sharded graphs mean what the whole graph means: all ranks of the mesh in lockstep, in f64.

use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::{Attention, Float8Linear};
use overdrive_ir::{
    Array, Axis, Builder, DType, Expr, Graph, Init, Mesh, Sharding, Tensor, TensorType, Value,
    gradients,
};
use overdrive_passes::{ShardError, Sharded, differentiate, shard, to_f64};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use testkit::{collectives, lockstep, meshes, random_graph, random_inputs, random_shardings};

/// Fails unless each rank of the sharded graph has its part of the whole graph's results.
fn agrees(
    graph: &Graph,
    mesh: &Mesh,
    shardings: &BTreeMap<Value, Sharding>,
    inputs: &[Array],
) -> Sharded {
    lockstep(graph, mesh, shardings, inputs).unwrap_or_else(|e| panic!("{e}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_graphs_keep_their_meaning(seed in any::<u64>(), mesh in 0usize..7) {
        let (graph, mesh) = (random_graph(seed, DType::F64), &meshes()[mesh]);
        let shardings = random_shardings(&graph, mesh, seed);
        agrees(&graph, mesh, &shardings, &random_inputs(&graph, seed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn gradients_of_random_graphs_keep_theirs(seed in any::<u64>(), mesh in 0usize..7) {
        let (graph, mesh) = (random_graph(seed, DType::F64), &meshes()[mesh]);
        let outputs: BTreeSet<Value> = graph.outputs().iter().map(|port| port.value).collect();
        let outputs: Vec<Value> = outputs.into_iter().collect();
        let inputs = graph.inputs().iter().map(|port| port.value);
        let wrt: Vec<Value> = inputs.chain(graph.states().iter().map(|s| s.value)).collect();
        let graph = differentiate(&graph, &outputs, &wrt).unwrap();
        let shardings = random_shardings(&graph, mesh, seed);
        agrees(&graph, mesh, &shardings, &random_inputs(&graph, seed));
    }
}

/// The random cases hold these collectives.
#[test]
fn random_cases_hold_each_collective() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let (graph, mesh) = (random_graph(seed, DType::F64), &meshes()[seed as usize % 7]);
        let sharded = shard(&graph, mesh, &random_shardings(&graph, mesh, seed)).unwrap();
        seen.extend(collectives(&sharded.graph).into_keys());
    }
    let all = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}

const B: usize = 4;
const T: usize = 4;
const D: usize = 8;
const V: usize = 6;

/// A transformer block with a vocabulary, and its loss over the batch.
fn model() -> Graph {
    let b = Builder::new("block");
    let ids = b.input("ids", TensorType::new(DType::I32, [B, T]));
    let labels = b.input("labels", TensorType::new(DType::I32, [B, T]));
    let weight = |name: &str, shape: [usize; 2]| {
        let init = Init::Normal { std: 0.3, seed: 3 };
        b.state_named(name, TensorType::new(DType::F64, shape), init)
    };
    let vector = |name: &str, n: usize| {
        let init = Init::Normal { std: 1.0, seed: 4 };
        b.state_named(name, TensorType::new(DType::F64, [n]), init)
    };
    let mut x = weight("table", [V, D]).embedding(ids);
    let h = x.layer_norm(vector("norm.weight", D), vector("norm.bias", D), 1e-5);
    let heads = |name: &str| {
        let bias = vector(&format!("{name}.bias"), D);
        let projected = h.linear(weight(name, [D, D]), Some(bias));
        projected.reshape([B, T, 2, D / 2]).transpose(&[0, 2, 1, 3])
    };
    let causal = Attention::CAUSAL;
    let [mixed, _] = heads("q").attention(heads("k"), heads("v"), causal);
    let joined = mixed.transpose(&[0, 2, 1, 3]).reshape([B, T, D]);
    x = x + joined.linear(weight("o", [D, D]), Some(vector("o.bias", D)));
    let wide = x.linear(weight("up", [D, 2 * D]), Some(vector("up.bias", 2 * D)));
    x = x + wide.tanh().linear(weight("down", [2 * D, D]), None);
    let logits = x.linear(weight("head", [D, V]), None);
    b.output("loss", loss(logits, labels));
    b.finish().unwrap()
}

fn loss<'b>(logits: Expr<'b>, labels: Expr<'b>) -> Expr<'b> {
    let [losses, _] = logits.cross_entropy(labels, None);
    losses.sum(&[0, 1]) * (1.0 / (B * T) as f64)
}

/// One step of gradient descent with momentum, as one graph.
fn training(graph: &Graph) -> Graph {
    let b = Builder::new("training");
    let map = b.append(graph).unwrap();
    let loss = graph.outputs()[0].value;
    let one = b.constant(Tensor::scalar(DType::F64, 1.0));
    let wrt: Vec<Value> = graph.states().iter().map(|s| s.value).collect();
    let found = gradients(&b, graph, &map, &[(loss, one)], &wrt);
    for (state, gradient) in graph.states().iter().zip(found) {
        let (w, g) = (map[state.value.0 as usize], gradient.unwrap());
        let name = format!("momentum.{}", state.name);
        let m = b.state_named(&name, w.ty(), Init::ZEROS) * 0.9 + g;
        b.update(&name, m);
        b.update(&state.name, w - m * 0.1);
    }
    b.output("loss", map[loss.0 as usize]);
    b.finish().unwrap()
}

fn tokens(graph: &Graph) -> Vec<Array> {
    let array =
        |i: usize| Array::build(DType::I32, &[B, T], |at| ((at[0] * 5 + at[1] * 3 + i) % V) as f64);
    (0..graph.inputs().len()).map(array).collect()
}

/// Shardings by names of inputs and states.
fn named(graph: &Graph, of: &[(&str, &[&str])]) -> BTreeMap<Value, Sharding> {
    let inputs = graph.inputs().iter().map(|port| (&port.name, port.value));
    let all = inputs.chain(graph.states().iter().map(|s| (&s.name, s.value)));
    let sharding = |name: &String| {
        let (_, split) = of.iter().find(|(known, _)| known == name)?;
        let axis = |name: &&str| (*name != "-").then(|| Axis::from(*name));
        Some(Sharding { split: split.iter().map(axis).collect(), partial: vec![] })
    };
    all.filter_map(|(name, value)| Some((value, sharding(name)?))).collect()
}

const TENSOR: &[(&str, &[&str])] = &[
    ("table", &["tensor", "-"]),
    ("q", &["-", "tensor"]),
    ("q.bias", &["tensor"]),
    ("k", &["-", "tensor"]),
    ("k.bias", &["tensor"]),
    ("v", &["-", "tensor"]),
    ("v.bias", &["tensor"]),
    ("o", &["tensor", "-"]),
    ("up", &["-", "tensor"]),
    ("up.bias", &["tensor"]),
    ("down", &["tensor", "-"]),
    ("head", &["-", "tensor"]),
];

const BATCH: &[(&str, &[&str])] = &[("ids", &["data", "-"]), ("labels", &["data", "-"])];

fn with_momentum(of: &[(&'static str, &'static [&'static str])]) -> Vec<(String, Vec<String>)> {
    let owned = |prefix: &str| {
        let one = |(name, split): &(&'static str, &'static [&'static str])| {
            (format!("{prefix}{name}"), split.iter().map(|s| s.to_string()).collect())
        };
        of.iter().map(one).collect::<Vec<_>>()
    };
    [owned(""), owned("momentum.")].concat()
}

fn check(graph: &Graph, mesh: &Mesh, of: &[(&'static str, &'static [&'static str])]) -> Sharded {
    let all = with_momentum(of);
    let split: Vec<(&str, Vec<&str>)> =
        all.iter().map(|(n, s)| (n.as_str(), s.iter().map(String::as_str).collect())).collect();
    let split: Vec<(&str, &[&str])> = split.iter().map(|(n, s)| (*n, s.as_slice())).collect();
    agrees(graph, mesh, &named(graph, &split), &tokens(graph))
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(name, n)| (name.to_string(), *n)).collect()
}

/// Megatron's layout: one sum after attention, one after the feed-forward layer, one for the
/// vocabulary's rows, and the softmax over its columns.
#[test]
fn tensor_parallel_forward_sums_twice_a_block() {
    let graph = model();
    let sharded = check(&graph, &Mesh::new([("tensor", 2)]), TENSOR);
    let found = collectives(&sharded.graph);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["all_reduce"], "{}", sharded.graph);
    assert!(sharded.graph.to_string().contains("attention("), "attention stays whole");
    assert!(found["all_reduce"] <= 7, "{found:?}\n{}", sharded.graph);
}

#[test]
fn data_parallel_forward_sums_the_loss_alone() {
    let sharded = check(&model(), &Mesh::new([("data", 4)]), BATCH);
    assert_eq!(collectives(&sharded.graph), counts(&[("all_reduce", 1)]), "{}", sharded.graph);
}

#[test]
fn training_steps_keep_their_meaning_under_every_layout() {
    let graph = training(&model());
    let parameters = model().states().len();
    let data = check(&graph, &Mesh::new([("data", 2)]), BATCH);
    let found = collectives(&data.graph);
    assert_eq!(found, counts(&[("all_reduce", parameters + 1)]), "one a gradient, and the loss");
    let both = [BATCH, TENSOR].concat();
    check(&graph, &Mesh::new([("tensor", 2)]), TENSOR);
    check(&graph, &Mesh::new([("data", 2), ("tensor", 2)]), &both);
    // Moments split along `data`, parameters whole: ZeRO-1.
    let rows = |names: &[&'static str]| -> Vec<(&'static str, &'static [&'static str])> {
        names.iter().map(|name| (*name, ["data", "-"].as_slice())).collect()
    };
    let zero_1 = rows(&["momentum.q", "momentum.up", "momentum.down", "momentum.head"]);
    let zero_1 = named_check(&graph, &[BATCH, &zero_1].concat());
    assert_eq!(collectives(&zero_1.graph)["reduce_scatter"], 4, "{}", zero_1.graph);
    assert_eq!(collectives(&zero_1.graph)["all_gather"], 4);
    // Parameters split too: ZeRO-3.
    let zero_3 = check(
        &graph,
        &Mesh::new([("data", 2)]),
        &[BATCH, &rows(&["q", "up", "down", "head"])].concat(),
    );
    assert!(collectives(&zero_3.graph)["reduce_scatter"] >= 3, "{}", zero_3.graph);
}

fn named_check(graph: &Graph, of: &[(&str, &[&str])]) -> Sharded {
    agrees(graph, &Mesh::new([("data", 2)]), &named(graph, of), &tokens(graph))
}

#[test]
fn an_annotation_inside_scatters_the_sum() {
    let graph = model();
    let mut shardings = named(&graph, TENSOR);
    let residual = graph.nodes().iter().rev().find(|n| n.op.name() == "add").unwrap();
    let split = Sharding::whole(3).and_split(1, &"tensor".into());
    shardings.insert(residual.results[0], split);
    let sharded = agrees(&graph, &Mesh::new([("tensor", 2)]), &shardings, &tokens(&graph));
    assert!(collectives(&sharded.graph).contains_key("reduce_scatter"), "{}", sharded.graph);
}

#[test]
fn what_does_not_divide_is_named() {
    let graph = model();
    let error =
        |mesh: Mesh, of: &[(&str, &[&str])]| shard(&graph, &mesh, &named(&graph, of)).unwrap_err();
    let undivided = error(Mesh::new([("data", 3)]), BATCH);
    assert!(matches!(undivided, ShardError::Undivided { dim: 0, size: 4, ranks: 3, .. }));
    let text = undivided.to_string();
    assert!(text.contains("input `ids`: expected dimension 0 to be a multiple of `data` (3)"));
    assert!(text.contains("one of 1, 2, 4"), "{text}");
    let unknown = error(Mesh::new([("tensor", 2)]), BATCH).to_string();
    assert!(unknown.contains("expected axes of the mesh"), "{unknown}");
    let twice = error(Mesh::new([("data", 2)]), &[("ids", &["data", "data"])]).to_string();
    assert!(twice.contains("each axis once"), "{twice}");
}

#[test]
fn a_rank_knows_its_place_and_its_part_of_the_states() {
    let graph = to_f64(&model()).unwrap();
    let mesh = Mesh::new([("tensor", 2)]);
    let sharded = shard(&graph, &mesh, &named(&graph, TENSOR)).unwrap();
    for rank in 0..2 {
        let of_rank = sharded.at_rank(&graph, rank).unwrap();
        assert!(!of_rank.to_string().contains("rank_index"));
        for (state, sharding) in graph.states().iter().zip(&sharded.states) {
            let whole = state.init.tensor(&state.name, graph.ty(state.value));
            let found = of_rank.states().iter().find(|s| s.name == state.name).unwrap();
            let found = found.init.tensor(&state.name, of_rank.ty(found.value));
            assert_eq!(found, sharded.part(&whole, sharding, rank), "{}", state.name);
        }
    }
}

/// The same of random inputs, on two ranks.
fn split(graph: &Graph, of: &[(&str, &[&str])]) -> Sharded {
    let mesh = Mesh::new([("data", 2)]);
    agrees(graph, &mesh, &named(graph, of), &random_inputs(graph, 5))
}

/// Each rank makes the codes of its part, and all have the largest magnitude of the whole.
#[test]
fn largest_magnitudes_are_those_of_all_ranks() {
    let b = Builder::new("cast");
    let x = b.input("x", TensorType::new(DType::F64, [B, D]));
    let scale = b.input("scale", TensorType::scalar(DType::F32));
    let results = x.cast_transpose(scale, DType::F8E4M3);
    ["codes", "turned", "largest"].iter().zip(results).for_each(|(name, y)| b.output(name, y));
    let graph = b.finish().unwrap();
    let cases: [(&str, &[&str]); 3] =
        [("x", &["data", "-"]), ("x", &["-", "data"]), ("x", &["-", "-"])];
    for (at, case) in cases.into_iter().enumerate() {
        let sharded = split(&graph, &[case]);
        assert!(sharded.graph.to_string().contains("cast_transpose("), "{}", sharded.graph);
        let expected = if at == 2 { counts(&[]) } else { counts(&[("all_reduce", 1)]) };
        assert_eq!(collectives(&sharded.graph), expected, "{}", sharded.graph);
    }
}

/// The gradient of w contracts the batch: its scales are those of all ranks.
#[test]
fn scales_of_rows_and_blocks_along_a_batch_are_those_of_all_ranks() {
    for granularity in [Float8Granularity::Row, Float8Granularity::Block, Float8Granularity::Mx] {
        let b = Builder::new("layer");
        let x = b.input("x", TensorType::new(DType::F64, [B * T, D]));
        let init = Init::Normal { std: 0.3, seed: 3 };
        let w = b.state_named("w", TensorType::new(DType::F64, [D, V]), init);
        let op = Float8Linear { forward: DType::F8E4M3, gradient: DType::F8E5M2, granularity };
        b.output("y", x.float8_linear(w, None, op));
        let wrt = [x.value(), w.value()];
        let graph = b.finish().unwrap();
        let graph = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
        let rows: &[&str] = &["data", "-"];
        let sharded = split(&graph, &[("x", rows), ("cotangent.y", rows)]);
        // The largest magnitudes of x and dy along the batch, and the gradient of w.
        let expected = counts(&[("all_reduce", 3)]);
        assert_eq!(collectives(&sharded.graph), expected, "{}", sharded.graph);
    }
}

#[test]
fn a_layer_on_codes_with_delayed_scales_is_split_by_rows() {
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::F64, [B * T, D]));
    let init = Init::Normal { std: 0.3, seed: 3 };
    let w = b.state_named("w", TensorType::new(DType::F64, [D, V]), init);
    let scale =
        |name, value| b.state_named(name, TensorType::scalar(DType::F32), Init::Constant(value));
    let scales = [scale("x.scale", 0.0078125), scale("w.scale", 0.00390625), scale("dy", 0.03125)];
    let formats = Float8Linear {
        forward: DType::F8E4M3,
        gradient: DType::F8E5M2,
        granularity: Float8Granularity::Tensor,
    };
    b.output("y", x.float8_linear(w, Some(scales), formats));
    let wrt = [w.value(), scales[2].value()];
    let graph = b.finish().unwrap();
    let graph = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
    let rows: &[&str] = &["data", "-"];
    let sharded = split(&graph, &[("x", rows), ("cotangent.y", rows)]);
    let casts = sharded.graph.nodes().iter().filter(|n| n.op.name() == "cast_transpose");
    assert_eq!(casts.count(), 3, "{}", sharded.graph);
    // The gradient of w, and the magnitude of dy.
    assert_eq!(collectives(&sharded.graph), counts(&[("all_reduce", 2)]), "{}", sharded.graph);
}

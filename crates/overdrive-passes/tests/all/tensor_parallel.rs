//! Layers split among ranks mean what the whole graph means, and exchange no more than they must.
//!
//! Long because all layouts are held to the same small models.

use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{
    Array, Builder, DType, Graph, Init, Mesh, Prim, Sharding, Tensor, TensorType, Value,
};
use overdrive_models::bert::{Bert, Kin, Pooling};
use overdrive_models::gpt2::Gpt2;
use overdrive_models::llama::{Llama, QkNorm};
use overdrive_models::vit::{Patches, Vit};
use overdrive_models::whisper::Whisper;
use overdrive_models::{Activation, Bias, Caches, Rotary, Span, Stack};
use overdrive_passes::{ResidualStream, ShardError, Sharded, bind, shard, tensor_parallel, to_f64};
use overdrive_train::{Optimizer, Recipe, training_step};
use std::collections::BTreeMap;
use testkit::{collectives, lockstep, random_inputs};

const B: usize = 4;
const T: usize = 4;
const D: usize = 16;
const V: usize = 24;
const LAYERS: usize = 2;
const GELU: Activation = Activation::Gelu(Approximation::Tanh);

fn llama() -> Llama {
    Llama {
        layers: LAYERS,
        heads: 8,
        key_heads: 4,
        eps: 1e-6,
        rotary: Rotary { frequencies: vec![1.0, 0.1], gain: 1.0 },
        qkv_bias: Bias::Learnt,
        qk_norm: QkNorm::Heads,
        ..Llama::plain(V, [D, 24], 4)
    }
}

fn gpt2() -> Gpt2 {
    Gpt2 {
        vocabulary: V,
        context: 8,
        width: D,
        layers: LAYERS,
        heads: 4,
        hidden: 32,
        activation: GELU,
        eps: 1e-5,
        tied: true,
    }
}

fn stack() -> Stack {
    Stack {
        width: D,
        layers: LAYERS,
        heads: 4,
        hidden: 32,
        activation: GELU,
        eps: 1e-5,
        qkv_bias: [Bias::Learnt, Bias::None, Bias::Learnt],
    }
}

/// A small model of each family, bound, its floats random.
fn families() -> [(&'static str, Graph); 5] {
    let bert = Bert {
        vocabulary: V,
        positions: 8,
        kin: Kin::Bert { segments: 2 },
        width: D,
        layers: LAYERS,
        heads: 4,
        hidden: 32,
        activation: GELU,
        eps: 1e-5,
        pooling: Pooling::None,
        normalised: false,
        classes: Some(3),
    };
    let patches = Patches { channels: 3, image: [12, 8], size: [4, 8] };
    let vit = Vit { patches, stack: stack(), classes: Some(5) };
    let whisper = Whisper {
        vocabulary: V,
        bins: 4,
        positions: 4,
        context: 8,
        encoder: stack(),
        decoder: stack(),
        tied: true,
    };
    [
        ("llama", llama().build(Span::Whole).unwrap()),
        ("gpt2", gpt2().build(Span::Whole).unwrap()),
        ("bert", bert.build().unwrap()),
        ("vit", vit.build().unwrap()),
        ("whisper", whisper.build().unwrap()),
    ]
    .map(|(name, graph)| (name, ready(&graph)))
}

fn ready(graph: &Graph) -> Graph {
    let text = graph.to_string();
    let sizes = [("batch", B), ("tokens", T)].into_iter().filter(|(name, _)| {
        graph.inputs().iter().any(|port| graph.ty(port.value).to_string().contains(name))
    });
    let bound = bind(graph, &sizes.map(|(name, n)| (name.to_owned(), n)).collect());
    let bound = bound.unwrap_or_else(|e| panic!("{e}\n{text}"));
    bound.with_initial_values(|name, _| match name.starts_with("cache.") {
        true => Init::ZEROS,
        false => Init::Normal { std: 0.3, seed: 3 },
    })
}

/// A training step with AdamW and clipping. Its eps is far above rounding, so that gradients that
/// are zero stay near it.
fn training(graph: &Graph) -> Graph {
    let b = Builder::new(graph.name());
    let values = b.append(graph).unwrap();
    let y = values[graph.outputs()[0].value.0 as usize];
    let mut rows = y.sizes();
    rows.pop();
    let labels = b.input("labels", TensorType::new(DType::I32, rows.clone()));
    let [losses, _] = y.cross_entropy(labels, None);
    let axes: Vec<usize> = (0..rows.len()).collect();
    b.output("loss", losses.sum(&axes) * (1.0 / rows.iter().product::<usize>() as f64));
    let recipe = Recipe {
        optimizer: Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-2, weight_decay: 0.01 },
        clip_norm: Some(0.5),
        ..Recipe::default()
    };
    training_step(&b.finish().unwrap(), &recipe).unwrap()
}

fn inputs(graph: &Graph) -> Vec<Array> {
    let mut inputs = random_inputs(graph, 5);
    for (port, input) in graph.inputs().iter().zip(&mut inputs) {
        let ty = graph.ty(port.value);
        if ty.dtype == DType::I32 {
            let of = |at: &[usize]| at.iter().fold(7, |sum, i| sum * 5 + i * 3);
            *input = match port.name.as_str() {
                "mask" => Array::build(ty.dtype, &ty.sizes(), |at| f64::from(at[1] < T - 1)),
                _ => Array::build(ty.dtype, &ty.sizes(), |at| (of(at) % V) as f64),
            };
        }
    }
    inputs
}

/// The annotations, batches split along `data` if the mesh has it.
fn annotated(
    graph: &Graph,
    mesh: &Mesh,
    residual: ResidualStream,
) -> Result<BTreeMap<Value, Sharding>, ShardError> {
    let batched = graph.inputs().iter().filter(|port| graph.ty(port.value).rank() > 0);
    let rows = batched.map(|port| {
        let whole = Sharding::whole(graph.ty(port.value).rank());
        (port.value, whole.and_split(0, &"data".into()))
    });
    let has_data = mesh.size(&"data".into()) > 1;
    tensor_parallel(graph, mesh, &rows.filter(|_| has_data).collect(), residual)
}

fn checked(graph: &Graph, mesh: &Mesh, residual: ResidualStream) -> Result<Sharded, String> {
    let graph = to_f64(graph).unwrap();
    let shardings = annotated(&graph, mesh, residual).map_err(|e| e.to_string())?;
    lockstep(&graph, mesh, &shardings, &inputs(&graph))
}

fn agrees(graph: &Graph, mesh: &Mesh, residual: ResidualStream) -> Sharded {
    checked(graph, mesh, residual).unwrap_or_else(|e| panic!("{e}"))
}

const BOTH: [ResidualStream; 2] = [ResidualStream::Whole, ResidualStream::AlongSequence];

fn two() -> Mesh {
    Mesh::new([("tensor", 2)])
}

fn layouts() -> [Mesh; 3] {
    [two(), Mesh::new([("tensor", 4)]), Mesh::new([("data", 2), ("tensor", 2)])]
}

/// Fails with the beginning of each error of every family, mesh and form of the stream.
fn all_agree(of: fn(&Graph) -> Graph) {
    let mut errors = vec![];
    for (name, graph) in families() {
        for (mesh, residual) in layouts().iter().flat_map(|mesh| BOTH.map(|form| (mesh, form))) {
            if let Err(error) = checked(&of(&graph), mesh, residual) {
                let begin: String = error.chars().take(200).collect();
                errors.push(format!("{name}, {mesh}, {residual:?}: {begin}"));
            }
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn forwards_of_every_family_keep_their_meaning() {
    all_agree(Graph::clone);
}

#[test]
fn training_steps_of_every_family_keep_their_meaning() {
    all_agree(training);
}

/// A mask function reads its sequence alone, so that ranks that split sequences split it too.
#[test]
fn attention_beside_padding_stays_whole_on_ranks_that_split_sequences() {
    let [.., (_, bert), _, _] = families();
    for mesh in [Mesh::new([("data", 2)]), Mesh::new([("data", 2), ("tensor", 2)])] {
        let sharded = agrees(&training(&bert), &mesh, ResidualStream::Whole);
        for name in ["attention", "attention_grad"] {
            let found = sharded.graph.nodes().iter().filter(|node| node.op.name() == name);
            assert_eq!(found.count(), LAYERS, "{mesh}, {name}: {}", sharded.graph);
        }
    }
}

/// Collectives of this name whose larger side is as large as the residual stream.
fn of_stream(sharded: &Sharded, name: &str, batch: usize) -> usize {
    let graph = &sharded.graph;
    let named = graph.nodes().iter().filter(|node| node.op.name() == name);
    let of = named.filter(|node| {
        let sizes = [node.operands[0], node.results[0]].map(|value| graph.ty(value).sizes());
        sizes.contains(&vec![batch, T, D])
    });
    of.count()
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(name, n)| (name.to_string(), *n)).collect()
}

/// Two sums a block, and one for the rows of the vocabulary; the logits are gathered.
#[test]
fn a_block_exchanges_twice_forward() {
    let (_, graph) = &families()[0];
    let whole = agrees(graph, &two(), ResidualStream::Whole);
    let sums = 2 * LAYERS + 1;
    let expected = counts(&[("all_gather", 1), ("all_reduce", sums)]);
    assert_eq!(collectives(&whole.graph), expected, "{}", whole.graph);
    assert!(whole.graph.to_string().contains("attention("), "attention is not expanded");
    // Those before each pair, and before the head.
    let along = agrees(graph, &two(), ResidualStream::AlongSequence);
    let expected = counts(&[("all_gather", sums + 1), ("reduce_scatter", sums)]);
    assert_eq!(collectives(&along.graph), expected, "{}", along.graph);
}

#[test]
fn a_block_exchanges_twice_forward_and_twice_backward() {
    for (name, graph) in families().into_iter().take(2) {
        let step = training(&graph);
        let both = 2 * (2 * LAYERS + 1);
        for (mesh, batch) in [(two(), B), (Mesh::new([("data", 2), ("tensor", 2)]), B / 2)] {
            let whole = agrees(&step, &mesh, ResidualStream::Whole);
            assert_eq!(of_stream(&whole, "all_reduce", batch), both, "{name}\n{}", whole.graph);
            assert_eq!(of_stream(&whole, "all_gather", batch), 0, "{name}\n{}", whole.graph);
            let along = agrees(&step, &mesh, ResidualStream::AlongSequence);
            let found = ["reduce_scatter", "all_gather", "all_reduce"];
            let found = found.map(|collective| of_stream(&along, collective, batch));
            assert_eq!(found, [both, both, 0], "{name}\n{}", along.graph);
        }
    }
}

/// Matrices that are gathered.
fn gathered(sharded: &Sharded) -> usize {
    let graph = &sharded.graph;
    let is_gather = |node: &&overdrive_ir::Node| {
        matches!(node.op.prim(), Some(Prim::AllGather { .. }))
            && graph.ty(node.results[0]).rank() == 2
    };
    graph.nodes().iter().filter(is_gather).count()
}

#[test]
fn no_projection_is_gathered_and_gradients_only_of_fused_ones() {
    for (name, graph) in families() {
        for residual in BOTH {
            let sharded = agrees(&training(&graph), &two(), residual);
            let expected = match (name, residual) {
                ("gpt2", _) => 3 * LAYERS,
                // The encoder's positions are added along the sequence, and so updated in parts:
                // the table and its moments.
                ("whisper", ResidualStream::AlongSequence) => 3,
                _ => 0,
            };
            assert_eq!(gathered(&sharded), expected, "{name}\n{}", sharded.graph);
        }
    }
}

#[test]
fn a_rank_holds_its_part_of_parameters_and_moments() {
    let step = training(&families()[0].1);
    for ranks in [2, 4] {
        let mesh = Mesh::new([("tensor", ranks)]);
        let shardings = annotated(&step, &mesh, ResidualStream::default()).unwrap();
        let sharded = shard(&step, &mesh, &shardings).unwrap();
        let elements = |graph: &Graph| -> usize {
            graph.states().iter().map(|state| graph.ty(state.value).elements()).sum()
        };
        let (held, all) = (elements(&sharded.graph), elements(&step));
        assert!(held * ranks < all * 11 / 10, "{ranks} ranks hold {held} of {all} each");
        let of = |name: &str| {
            let index = step.states().iter().position(|state| state.name == name).unwrap();
            sharded.states[index].to_string()
        };
        for prefix in ["", "optimizer.m.", "optimizer.v."] {
            let layer = |name: &str| of(&format!("{prefix}model.layers.1.{name}"));
            assert_eq!(layer("self_attn.k_proj.weight"), "[tensor, -]");
            assert_eq!(layer("self_attn.k_proj.bias"), "[tensor]");
            assert_eq!(layer("self_attn.o_proj.weight"), "[-, tensor]");
            assert_eq!(layer("self_attn.q_norm.weight"), "[-]");
            assert_eq!(layer("mlp.down_proj.weight"), "[-, tensor]");
            assert_eq!(of(&format!("{prefix}model.embed_tokens.weight")), "[tensor, -]");
            assert_eq!(of(&format!("{prefix}lm_head.weight")), "[tensor, -]");
        }
    }
}

/// A fused projection stays whole, and each rank computes its columns of each third.
#[test]
fn a_fused_projection_is_cut_where_it_is_read() {
    let (_, graph) = &families()[1];
    let sharded = agrees(graph, &two(), ResidualStream::Whole);
    let fused = graph.states().iter().position(|s| s.name.ends_with("c_attn.weight")).unwrap();
    assert_eq!(sharded.states[fused], Sharding::whole(2));
    let sums = counts(&[("all_gather", 1), ("all_reduce", 2 * LAYERS + 1)]);
    assert_eq!(collectives(&sharded.graph), sums, "{}", sharded.graph);
}

/// Caches of keys and values lie along the heads, as their projections do.
#[test]
fn a_decoding_step_has_its_part_of_the_caches() {
    for caches in [Caches::of_one(8), Caches::of(3, 8)] {
        for span in [Span::Prefill { tokens: 4, caches }, Span::Step { caches }] {
            let graph = to_f64(&ready(&llama().build(span).unwrap())).unwrap();
            let shardings = annotated(&graph, &two(), ResidualStream::default()).unwrap();
            let mut given = inputs(&graph);
            for (port, input) in graph.inputs().iter().zip(&mut given).skip(1) {
                let value = if port.name == "sequence" { 1.0 } else { 3.0 };
                *input = Array::build(DType::I64, &graph.ty(port.value).sizes(), |_| value);
            }
            let sharded = lockstep(&graph, &two(), &shardings, &given);
            let sharded = sharded.unwrap_or_else(|e| panic!("{e}"));
            for (state, sharding) in graph.states().iter().zip(&sharded.states) {
                if state.name.starts_with("cache.") {
                    assert_eq!(sharding.to_string(), "[-, tensor, -, -]", "{}", state.name);
                }
            }
        }
    }
}

#[test]
fn ranks_that_do_not_divide_the_heads_are_an_error_that_says_which_would() {
    let graph = ready(&Llama { hidden: 48, ..llama() }.build(Span::Whole).unwrap());
    let error = annotated(&graph, &Mesh::new([("tensor", 3)]), ResidualStream::Whole).unwrap_err();
    assert!(matches!(error, ShardError::Undivided { dim: 2, size: 4, ranks: 3, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("model/layers/0/self_attn"), "{text}");
    assert!(text.contains("one of 1, 2, 4, or"), "{text}");
}

#[test]
fn a_vocabulary_that_the_ranks_do_not_divide_stays_whole() {
    let graph = ready(&Llama { vocabulary: 25, ..llama() }.build(Span::Whole).unwrap());
    for residual in BOTH {
        let sharded = agrees(&graph, &two(), residual);
        let head = graph.states().iter().position(|s| s.name == "lm_head.weight").unwrap();
        assert_eq!(sharded.states[head], Sharding::whole(2));
    }
}

#[test]
fn a_graph_without_layers_is_an_error_and_a_mesh_without_the_axis_is_none() {
    let b = Builder::new("sum");
    let x = b.input("x", TensorType::new(DType::F64, [4usize, 4]));
    b.output("y", x + b.constant(Tensor::scalar(DType::F64, 1.0)));
    let graph = b.finish().unwrap();
    let error = annotated(&graph, &two(), ResidualStream::Whole).unwrap_err().to_string();
    assert!(error.contains("sum") && error.contains("leave `tensor` out"), "{error}");
    let none = annotated(&graph, &Mesh::new([("data", 2)]), ResidualStream::Whole).unwrap();
    assert_eq!(none.len(), 1);
}

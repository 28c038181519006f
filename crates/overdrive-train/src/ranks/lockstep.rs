//! Steps of ranks mean what the step of one means: all ranks in lockstep, in f64.

use super::*;
use crate::{Optimizer, training_step, with_loss};
use overdrive_ir::eval::{States, eval, eval_ranks};
use overdrive_ir::ops::Attention;
use overdrive_ir::{Array, Builder, DType, Init, Prim, StateDecl, TensorType};
use overdrive_passes::{ContextExchange, to_f64};

const B: usize = 4;
const T: usize = 4;
const D: usize = 8;
const V: usize = 6;

const MUON: Optimizer =
    Optimizer::Muon { momentum: 0.9, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1 };

/// A step of a transformer block, in f64.
fn step(recipe: &Recipe) -> Graph {
    let b = Builder::new("block");
    let ids = b.input("x", TensorType::new(DType::I32, [B, T]));
    let weight = |name: &str, shape: [usize; 2]| {
        let init = Init::Normal { std: 0.3, seed: 3 };
        b.state_named(name, TensorType::new(DType::F32, shape), init)
    };
    let bias = b.state_named("bias", TensorType::new(DType::F32, [D]), Init::ZEROS);
    let mut x = weight("table", [V, D]).embedding(ids);
    let heads = |name: &str| {
        let projected = x.linear(weight(name, [D, D]), Some(bias));
        projected.reshape([B, T, 2, D / 2]).transpose(&[0, 2, 1, 3])
    };
    let [mixed, _] = heads("q").attention(heads("k"), heads("v"), Attention::CAUSAL);
    x = x + mixed.transpose(&[0, 2, 1, 3]).reshape([B, T, D]).linear(weight("o", [D, D]), None);
    b.output("y", x.tanh().linear(weight("head", [D, V]), None));
    let graph = with_loss(&b.finish().unwrap(), Target::Classes).unwrap();
    to_f64(&training_step(&graph, recipe).unwrap()).unwrap()
}

fn input(graph: &Graph, port: &overdrive_ir::Port) -> Array {
    let (ty, sizes) = (graph.ty(port.value), graph.ty(port.value).sizes());
    let number = |at: &[usize]| match at {
        [row, column] => ((row * 5 + column * 3 + port.name.len()) % V) as f64,
        _ => 0.1,
    };
    Array::build(ty.dtype, &sizes, number)
}

fn close(name: &str, expected: &Array, found: &Array) {
    let (expected, found) = (expected.to_f64(), found.to_f64());
    assert_eq!(expected.len(), found.len(), "{name}");
    for (a, b) in expected.iter().zip(&found) {
        assert!((a - b).abs() <= 1e-9 * (1.0 + a.abs()), "{name}: expected {a}, found {b}");
    }
}

/// Fails unless all ranks in lockstep have their parts of the states of one.
fn agrees(whole: &Graph, mesh: &Mesh, sharing: impl Into<Sharing>) -> Sharded {
    let sharded = sharded(whole, mesh, sharing.into(), None).unwrap();
    let inputs: Vec<Array> = whole.inputs().iter().map(|port| input(whole, port)).collect();
    let part = |of: &Array, sharding: &Sharding, rank: usize| {
        Array::from(&sharded.part(&of.to_tensor(), sharding, rank))
    };
    let mut states = States::new();
    let outputs = eval(whole, &inputs, &mut states);
    let initial =
        |state: &StateDecl| Array::from(&state.init.tensor(&state.name, whole.ty(state.value)));
    let of_rank = |rank: usize| -> Vec<Array> {
        inputs.iter().zip(&sharded.inputs).map(|(x, s)| part(x, s, rank)).collect()
    };
    let given: Vec<Vec<Array>> = (0..mesh.ranks()).map(of_rank).collect();
    let held = |rank: usize| -> States {
        let all = whole.states().iter().zip(&sharded.states);
        all.map(|(s, at)| (s.name.clone(), part(&initial(s), at, rank))).collect()
    };
    let mut of_ranks: Vec<States> = (0..mesh.ranks()).map(held).collect();
    let found = eval_ranks(&sharded.graph, mesh, &given, &mut of_ranks);
    for rank in 0..mesh.ranks() {
        for (at, port) in whole.outputs().iter().enumerate() {
            close(&port.name, &outputs[at], &found[rank][at]);
        }
        for (state, at) in whole.states().iter().zip(&sharded.states) {
            let expected = part(&states[&state.name], at, rank);
            close(&state.name, &expected, &of_ranks[rank][&state.name]);
        }
    }
    sharded
}

#[test]
fn a_step_of_ranks_is_that_of_one_whatever_they_share_out() {
    let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.1 };
    let recipes = [
        Recipe { batch: B, ..Recipe::default() },
        Recipe { batch: B, optimizer: sgd, clip_norm: None, ..Recipe::default() },
        Recipe { batch: B, optimizer: MUON, ..Recipe::default() },
    ];
    for whole in recipes.iter().map(step) {
        for mesh in ["data=2", "data=4", "data=2,context=2", "tensor=2,data=2"] {
            for shards in [Shards::Nothing, Shards::Optimizer, Shards::Parameters] {
                agrees(&whole, &mesh.parse().unwrap(), shards);
            }
        }
        agrees(&whole, &Mesh::new([(CONTEXT, 4)]), Shards::Nothing);
        for exchange in [ContextExchange::Ring, ContextExchange::Ulysses] {
            let sharing = Sharing { states: Shards::Parameters, context: Some(exchange) };
            let sharded = agrees(&whole, &"data=2,context=2".parse().unwrap(), sharing).graph;
            let calls = sharded.nodes().iter().filter_map(|node| node.op.prim());
            let turns = calls.filter(|prim| matches!(prim, Prim::Permute { .. })).count();
            assert_eq!(turns > 0, exchange == ContextExchange::Ring, "{sharded}");
        }
    }
}

fn count(graph: &Graph, is_kind: fn(&Prim) -> bool) -> usize {
    let prims = graph.nodes().iter().filter_map(|node| node.op.prim());
    prims.filter(|prim| is_kind(prim)).count()
}

/// The gradient of a hidden matrix is scattered before its norm, and its moment is gathered once.
#[test]
fn a_matrix_is_made_orthogonal_as_a_whole() {
    let whole = step(&Recipe { batch: B, optimizer: MUON, ..Recipe::default() });
    let sharded = agrees(&whole, &Mesh::new([(DATA, 2)]), Shards::Optimizer);
    let count = |is_kind| count(&sharded.graph, is_kind);
    // Four hidden matrices, and three parameters with AdamW, whose new values are gathered.
    assert_eq!(count(|prim| matches!(prim, Prim::AllGather { .. })), 4 + 3, "{}", sharded.graph);
    assert_eq!(count(|prim| matches!(prim, Prim::AllToAll { .. })), 0, "{}", sharded.graph);
    let scattered = count(|prim| matches!(prim, Prim::ReduceScatter { .. }));
    assert_eq!(scattered, 4 + 3, "{}", sharded.graph);
}

/// The matrices are gathered where they are read, and no product is split along them.
#[test]
fn matrices_are_split_and_gathered() {
    let whole = step(&Recipe { batch: B, ..Recipe::default() });
    let sharded = agrees(&whole, &Mesh::new([(DATA, 2)]), Shards::Parameters);
    let count = |is_kind| count(&sharded.graph, is_kind);
    // Six matrices; the bias is whole, and its new value is gathered.
    assert_eq!(count(|prim| matches!(prim, Prim::AllGather { .. })), 6 + 1, "{}", sharded.graph);
    assert_eq!(count(|prim| matches!(prim, Prim::AllToAll { .. })), 0, "{}", sharded.graph);
    let scattered = count(|prim| matches!(prim, Prim::ReduceScatter { .. }));
    assert_eq!(scattered, 6 + 1, "{}", sharded.graph);
    let split = whole.states().iter().zip(&sharded.states);
    let whole_ones = split.filter(|(_, at)| at.split.iter().all(Option::is_none));
    let names: Vec<&str> = whole_ones.map(|(state, _)| state.name.as_str()).collect();
    assert_eq!(names, ["bias", "optimizer.count"]);
}

#[test]
fn meshes_that_training_does_not_know_are_errors() {
    let whole = step(&Recipe { batch: B, ..Recipe::default() });
    let error = |mesh: &str, sharing: Sharing| {
        let mesh: Mesh = mesh.parse().unwrap();
        sharded_step(&whole, &mesh, sharing, None).unwrap_err().to_string()
    };
    let found = error("data=2,expert=2", Sharing::default());
    assert!(
        found.contains("expected the axes `data`, `pipeline`, `tensor` and `context`"),
        "{found}"
    );
    let found = error("context=2", Shards::Parameters.into());
    assert!(found.contains("expected several ranks along `data`, found context=2"), "{found}");
    let found = error("context=3", Sharing::default());
    assert!(found.contains("one of 1, 2, 4"), "{found}");
    let by_heads = |ranks| Sharing { context: Some(ranks), ..Sharing::default() };
    let found = error("data=2", by_heads(ContextExchange::Ulysses));
    assert!(found.contains("expected several ranks along `context`, found data=2"), "{found}");
    let found = error("context=4", by_heads(ContextExchange::Ulysses));
    assert!(found.contains("found 2 heads of queries and 2 of keys"), "{found}");
}

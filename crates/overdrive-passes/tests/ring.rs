//! Attention whose sequence is split goes round a ring of ranks: with every mask and function, and
//! its gradients, against the whole, in f64.

#![allow(clippy::unwrap_used)]

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::{
    Builder, Compare, DType, Graph, Mesh, Operation, Prim, Sharding, TensorType, Value,
};
use overdrive_passes::{Sharded, differentiate};
use proptest::prelude::*;
use std::collections::BTreeMap;
use testkit::{lockstep, random_inputs};

/// The function that refines the scores.
#[derive(Copy, Clone, Debug)]
enum Refined {
    Not,
    Alibi,
    Documents,
    Window,
}

/// B, H, Hkv, D, and positions of queries and of keys.
type Sizes = ([usize; 4], [usize; 2]);

fn attention(attention: Attention, refined: Refined, ([b, h, kv, d], [t, keys]): Sizes) -> Graph {
    let builder = Builder::new("attention");
    let input =
        |name: &str, sizes: [usize; 4]| builder.input(name, TensorType::new(DType::F64, sizes));
    let q = input("q", [b, h, t, d]);
    let (k, v) = (input("k", [b, kv, keys, d]), input("v", [b, kv, keys, d]));
    let captures = match refined {
        Refined::Not | Refined::Window => vec![],
        Refined::Alibi => vec![builder.input("slopes", TensorType::new(DType::F64, [b, h]))],
        Refined::Documents => {
            vec![builder.input("ids", TensorType::new(DType::I32, [b, t.max(keys)]))]
        }
    };
    let types: Vec<TensorType> = captures.iter().map(|x| x.ty()).collect();
    let regions = match refined {
        Refined::Not => vec![],
        Refined::Alibi => vec![
            score_region(DType::F64, &types, |score, [b, h, q, k], captures| {
                score * 1.5 + captures[0].at(&[b, h]) * (k - q).convert(DType::F64)
            })
            .unwrap(),
        ],
        Refined::Documents => vec![
            mask_region(&types, |[b, _, q, k], captures| {
                let [query, key] = [q, k].map(|at| captures[0].at(&[b, at]));
                query.compare(Compare::Eq, key)
            })
            .unwrap(),
        ],
        Refined::Window => vec![
            mask_region(&types, |[_, h, q, k], _| {
                (q - k).compare(Compare::Lt, h + h.constant(2.0))
            })
            .unwrap(),
        ],
    };
    let [out, lse] = q.attention_with([k, v], attention, regions, &captures);
    builder.output("out", out);
    builder.output("lse", lse);
    builder.finish().unwrap()
}

/// Gradients of the sum of both outputs, with them.
fn with_gradients(graph: &Graph) -> Graph {
    let outputs: Vec<Value> = graph.outputs().iter().map(|port| port.value).collect();
    let floats = graph.inputs().iter().map(|port| port.value);
    let floats: Vec<Value> = floats.filter(|&v| graph.ty(v).dtype.is_float()).collect();
    differentiate(graph, &outputs, &floats).unwrap()
}

/// q, k and v split along the sequence, batch and heads along the mesh's other axes.
fn shardings(graph: &Graph, mesh: &Mesh) -> BTreeMap<Value, Sharding> {
    let axis = |name: &str| mesh.axes.iter().find(|(axis, _)| *axis.0 == *name).map(|(a, _)| a);
    let sharding = |value: Value| {
        let mut to = Sharding::whole(4);
        for (dim, name) in ["data", "tensor", "context"].into_iter().enumerate() {
            to.split[dim] = axis(name).cloned();
        }
        (value, to)
    };
    graph.inputs()[..3].iter().map(|port| sharding(port.value)).collect()
}

fn meshes() -> [Mesh; 5] {
    [
        Mesh::new([("context", 2)]),
        Mesh::new([("context", 3)]),
        Mesh::new([("context", 4)]),
        Mesh::new([("data", 2), ("context", 3)]),
        Mesh::new([("context", 2), ("tensor", 2)]),
    ]
}

fn sharded(graph: &Graph, mesh: &Mesh, seed: u64) -> Sharded {
    let inputs = random_inputs(graph, seed);
    lockstep(graph, mesh, &shardings(graph, mesh), &inputs).unwrap_or_else(|e| panic!("{e}"))
}

/// Calls of the op, and collectives, by name.
fn counted(graph: &Graph, name: &str) -> usize {
    graph.nodes().iter().filter(|node| node.op.name() == name).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn parts_are_those_of_the_whole(
        seed in any::<u64>(),
        mesh in 0usize..5,
        causal in any::<bool>(),
        refined in prop_oneof![
            Just(Refined::Not), Just(Refined::Alibi), Just(Refined::Documents),
            Just(Refined::Window),
        ],
        gradients in any::<bool>(),
        grouped in any::<bool>(),
    ) {
        let mesh = &meshes()[mesh];
        let kind = if causal { Attention::CAUSAL } else { Attention::FULL };
        let kv = if grouped { 2 } else { 4 };
        // Keys of another length, as in attention across two sequences.
        let keys = if causal || grouped { 24 } else { 36 };
        let forward = attention(kind, refined, ([2, 4, kv, 3], [24, keys]));
        let graph = if gradients { with_gradients(&forward) } else { forward };
        let found = sharded(&graph, mesh, seed).graph;
        // Nobody holds all keys.
        prop_assert_eq!(counted(&found, "all_gather"), 0, "{}", found);
        prop_assert!(counted(&found, "permute") > 0);
    }
}

/// Once the rank is known, choices are made: what is left is the work of its turns.
#[test]
fn every_rank_has_the_same_work() {
    let graph =
        with_gradients(&attention(Attention::CAUSAL, Refined::Not, ([1, 2, 2, 4], [16, 16])));
    let mesh = Mesh::new([("context", 4)]);
    let sharded = sharded(&graph, &mesh, 7);
    for rank in 0..4 {
        let own = sharded.at_rank(&graph, rank).unwrap();
        for name in ["attention", "attention_grad"] {
            assert_eq!(counted(&own, name), 3 + 2 * 3, "{own}");
            let is_small = |node: &&overdrive_ir::Node| {
                node.op.name() != name || own.ty(node.operands[0]).sizes()[2] == 2
            };
            assert!(own.nodes().iter().all(|node| is_small(&node)), "{own}");
        }
        assert_eq!(counted(&own, "permute"), counted(&sharded.graph, "permute"), "{own}");
        let is_choice = |node: &&overdrive_ir::Node| match &node.op {
            Operation::Prim(Prim::Select) => own.ty(node.results[0]).rank() == 4,
            _ => false,
        };
        assert_eq!(own.nodes().iter().filter(is_choice).count(), 0, "{own}");
    }
}

/// An odd number of positions a rank cannot be balanced: keys are gathered, and the plan says so.
#[test]
fn what_cannot_go_round_is_gathered() {
    let graph = attention(Attention::CAUSAL, Refined::Not, ([1, 2, 2, 4], [6, 6]));
    let found = sharded(&graph, &Mesh::new([("context", 2)]), 3);
    assert_eq!(counted(&found.graph, "permute"), 0);
    assert!(!found.notes.is_empty());
}

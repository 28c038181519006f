//! Attention whose sequence is split: round a ring of ranks, by heads, and both. With every mask
//! and function, and its gradients, against the whole, in f64.

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::Dropout;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Builder, Compare, DType, Graph, Mesh, Operation, Prim, Sharding, TensorType, Value,
};
use overdrive_passes::{ContextExchange, Sharded, differentiate};
use proptest::prelude::*;
use std::collections::BTreeMap;
use testkit::{lockstep_with, random_inputs};

const RING: Option<ContextExchange> = Some(ContextExchange::Ring);
const ULYSSES: Option<ContextExchange> = Some(ContextExchange::Ulysses);
const PAIRS: Option<ContextExchange> = Some(ContextExchange::Groups(2));

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

fn meshes() -> [Mesh; 7] {
    [
        Mesh::new([("context", 2)]),
        Mesh::new([("context", 3)]),
        Mesh::new([("context", 4)]),
        Mesh::new([("data", 2), ("context", 3)]),
        Mesh::new([("context", 2), ("tensor", 2)]),
        Mesh::new([("context", 12)]),
        Mesh::new([("data", 2), ("context", 4), ("tensor", 2)]),
    ]
}

fn sharded(
    graph: &Graph,
    (mesh, exchange): (&Mesh, Option<ContextExchange>),
    seed: u64,
) -> Result<Sharded, String> {
    let inputs = random_inputs(graph, seed);
    lockstep_with(exchange, graph, mesh, &shardings(graph, mesh), &inputs)
}

/// Four ranks along the sequence.
fn four() -> Mesh {
    Mesh::new([("context", 4)])
}

/// Calls of the op, and collectives, by name.
fn counted(graph: &Graph, name: &str) -> usize {
    graph.nodes().iter().filter(|node| node.op.name() == name).count()
}

/// Whether groups of ranks divide the heads of queries, and those of keys once they are repeated as
/// often as they must.
fn divides(mesh: &Mesh, group: usize, heads: [usize; 2]) -> bool {
    let [context, tensor] = ["context", "tensor"].map(|axis| mesh.size(&axis.into()));
    let [heads, key_heads] = heads.map(|heads| heads / tensor);
    let times = (1..).find(|times| (times * key_heads).is_multiple_of(group)).unwrap();
    context.is_multiple_of(group)
        && heads.is_multiple_of(group)
        && heads.is_multiple_of(times * key_heads)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn parts_are_those_of_the_whole(
        seed in any::<u64>(),
        mesh in 0usize..7,
        causal in any::<bool>(),
        refined in prop_oneof![
            Just(Refined::Not), Just(Refined::Alibi), Just(Refined::Documents),
            Just(Refined::Window),
        ],
        gradients in any::<bool>(),
        heads in prop_oneof![Just([4, 4]), Just([4, 2]), Just([8, 2]), Just([12, 6])],
        exchange in prop_oneof![Just(None), Just(RING), Just(ULYSSES), Just(PAIRS)],
    ) {
        let mesh = &meshes()[mesh];
        let kind = if causal { Attention::CAUSAL } else { Attention::FULL };
        let [h, kv] = heads;
        // Keys of another length, as in attention across two sequences.
        let keys = if causal || h != kv { 24 } else { 36 };
        let forward = attention(kind, refined, ([2, h, kv, 3], [24, keys]));
        let graph = if gradients { with_gradients(&forward) } else { forward };
        let ranks = mesh.size(&"context".into());
        let group = match exchange {
            None | Some(ContextExchange::Ring) => 1,
            Some(ContextExchange::Ulysses) => ranks,
            Some(ContextExchange::Groups(group)) => group,
        };
        let found = match (sharded(&graph, (mesh, exchange), seed), divides(mesh, group, heads)) {
            (Ok(found), true) => found.graph,
            (Err(error), false) if error.contains("dimension 1, the heads") => return Ok(()),
            (found, fits) => panic!("{fits}: {}", found.err().unwrap_or_default()),
        };
        // Nobody holds all keys of all heads.
        prop_assert_eq!(counted(&found, "all_gather"), 0, "{}", found);
        if exchange.is_some() {
            prop_assert_eq!(counted(&found, "permute") > 0, group < ranks, "{}", found);
            prop_assert_eq!(counted(&found, "all_to_all") > 0, group == ranks, "{}", found);
        }
    }
}

/// Once the rank is known, choices are made: what is left is the work of its turns.
#[test]
fn every_rank_has_the_same_work() {
    let graph =
        with_gradients(&attention(Attention::CAUSAL, Refined::Not, ([1, 2, 2, 4], [16, 16])));
    let sharded = sharded(&graph, (&four(), RING), 7).unwrap();
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

/// Each rank computes its heads of the whole sequence in one call, and exchanges each tensor once.
/// These are q, k, v, out and lse, then dout, delta and the three gradients.
#[test]
fn by_heads_each_tensor_is_exchanged_once() {
    for kv in [4, 2] {
        let graph =
            with_gradients(&attention(Attention::CAUSAL, Refined::Not, ([1, 8, kv, 4], [16, 16])));
        let sharded = sharded(&graph, (&four(), ULYSSES), 7).unwrap();
        for rank in 0..4 {
            let own = sharded.at_rank(&graph, rank).unwrap();
            assert_eq!(counted(&own, "all_to_all"), 10, "{own}");
            assert_eq!(testkit::collectives(&own).len(), 1, "{own}");
            for name in ["attention", "attention_grad"] {
                let mut calls = own.nodes().iter().filter(|node| node.op.name() == name);
                let call = calls.next().unwrap();
                let sizes = [0, 1].map(|operand| own.ty(call.operands[operand]).sizes());
                assert_eq!(sizes, [vec![1, 2, 16, 4], vec![1, 1, 16, 4]], "{own}");
                assert!(calls.next().is_none(), "{own}");
            }
        }
    }
}

/// Pairs of ranks exchange heads, and keys go round two places: the work of a ring of two.
#[test]
fn groups_exchange_heads_and_keys_go_round_them() {
    let graph =
        with_gradients(&attention(Attention::CAUSAL, Refined::Not, ([1, 2, 2, 4], [16, 16])));
    let sharded = sharded(&graph, (&four(), PAIRS), 7).unwrap();
    for rank in 0..4 {
        let own = sharded.at_rank(&graph, rank).unwrap();
        for name in ["attention", "attention_grad"] {
            assert_eq!(counted(&own, name), 3 + 2, "{own}");
            let sizes = |node: &overdrive_ir::Node| own.ty(node.operands[0]).sizes();
            let calls = own.nodes().iter().filter(|node| node.op.name() == name);
            assert!(calls.map(sizes).all(|sizes| sizes == [1, 1, 4, 4]), "{own}");
        }
    }
}

#[test]
fn groups_that_do_not_divide_the_heads_are_an_error_that_says_which_do() {
    let graph = attention(Attention::CAUSAL, Refined::Not, ([1, 6, 2, 4], [16, 16]));
    let error = sharded(&graph, (&four(), ULYSSES), 3).unwrap_err();
    let expected = ": expected dimension 1, the heads, to be divided among 4 of the \
                    4 ranks along `context`, found 6 heads of queries and 2 of keys; exchange by \
                    one of `ring`, `ulysses:2`";
    assert!(error.starts_with("attention") && error.contains(expected), "{error}");
    let three = Some(ContextExchange::Groups(3));
    let error = sharded(&graph, (&four(), three), 3).unwrap_err();
    assert!(error.contains("among 3 of the 4 ranks"), "{error}");
}

/// The reasons for which a graph's attention is not shared.
fn reasons(sharded: &Sharded) -> String {
    let reason = |note: &Note| match note {
        Note::Declined { what, reason, .. } if what.starts_with("context parallel") => {
            Some(reason.clone())
        }
        _ => None,
    };
    sharded.notes.iter().filter_map(reason).collect()
}

/// An odd number of positions a rank cannot be balanced: ranks exchange heads. If these cannot be
/// divided either, keys are gathered, and the plan says so.
#[test]
fn what_cannot_go_round_is_exchanged_by_heads_or_gathered() {
    let two = Mesh::new([("context", 2)]);
    let of = |heads| attention(Attention::CAUSAL, Refined::Not, ([1, heads, heads, 4], [6, 6]));
    let found = sharded(&of(2), (&two, None), 3).unwrap();
    assert!(counted(&found.graph, "all_to_all") > 0 && reasons(&found).is_empty());
    for (heads, exchange) in [(3, None), (2, RING)] {
        let found = sharded(&of(heads), (&two, exchange), 3).unwrap();
        assert_eq!(counted(&found.graph, "permute"), 0);
        let reasons = reasons(&found);
        assert!(reasons.contains("cannot halve their parts of 6 causal queries"), "{reasons}");
        assert_eq!(reasons.contains("nor divide 3 heads"), heads == 3, "{reasons}");
    }
}

/// Dropout draws a weight's number at its place among all, which a rank with some heads or some
/// keys would draw elsewhere.
#[test]
fn dropped_weights_are_those_of_the_whole() {
    let builder = Builder::new("attention");
    let input = |name: &str| builder.input(name, TensorType::new(DType::F64, [1, 4, 8, 3]));
    let (q, k, v) = (input("q"), input("k"), input("v"));
    let seed = builder.input("seed", TensorType::scalar(DType::U64));
    let dropout = Dropout { rate: 0.3, site: builder.site() };
    let kind = Attention { dropout: Some(dropout), ..Attention::CAUSAL };
    builder.output("out", q.attention_with([k, v], kind, vec![], &[seed])[0]);
    let graph = builder.finish().unwrap();
    for exchange in [None, RING, ULYSSES] {
        let found = sharded(&graph, (&four(), exchange), 3).unwrap();
        assert!(reasons(&found).contains("dropout draws weights"), "{:?}", found.notes);
        assert_eq!(counted(&found.graph, "all_to_all"), 0, "{}", found.graph);
    }
}

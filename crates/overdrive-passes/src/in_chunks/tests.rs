//! Graphs in chunks compute what they did, on all ranks in lockstep. Plans of them exchange under
//! products.

#![allow(clippy::unwrap_used)]

use super::in_chunks;
use crate::{ResidualStream, plan, shard, tensor_parallel};
use overdrive_ir::eval::{States, eval_ranks};
use overdrive_ir::ops::{Attention, gelu::Approximation};
use overdrive_ir::plan::{Plan, Step, StepKind};
use overdrive_ir::{
    Array, Axis, Builder, DType, Description, Expr, Graph, Init, Mesh, Mode, Prim, Sharding,
    StateDecl, TensorType, Tuning, Value, WithoutKernels, gradients,
};
use std::collections::BTreeMap;
use testkit::{meshes, random_graph, random_inputs, random_shardings};

/// Samples, tokens and width of what is evaluated.
const SMALL: [usize; 3] = [1, 8, 16];
/// Those of what is planned alone: chunks of it are whole buckets.
const LARGE: [usize; 3] = [1, 8192, 2048];

fn device(overlaps_collectives: bool) -> WithoutKernels {
    let dtypes = || [DType::F32, DType::F64].into();
    WithoutKernels(Description {
        contraction_dtypes: dtypes(),
        loop_dtypes: dtypes(),
        overlaps_collectives,
        ..Description::default()
    })
}

fn linear<'b>(x: Expr<'b>, name: &str, [from, to]: [usize; 2]) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let normal = |seed| Init::Normal { std: 0.3, seed };
    let w = b.state("weight", TensorType::new(DType::F64, [from, to]), normal(1));
    x.linear(w, Some(b.state("bias", TensorType::new(DType::F64, [to]), normal(2))))
}

fn norm<'b>(x: Expr<'b>, name: &str) -> Expr<'b> {
    let (b, width) = (x.builder(), x.size(2));
    let _scope = b.scope(name);
    let vector = |name: &str, seed| {
        b.state(name, TensorType::new(DType::F64, [width]), Init::Normal { std: 1.0, seed })
    };
    x.layer_norm(vector("scale", 3), vector("bias", 4), 1e-5)
}

/// Two decoder blocks of one sample, and their gradients if asked.
fn blocks([samples, tokens, width]: [usize; 3], has_gradients: bool) -> Graph {
    let b = Builder::new("blocks");
    let input = b.input("x", TensorType::new(DType::F64, [samples, tokens, width]));
    let mut x = input;
    for block in 0..2 {
        let _scope = b.scope(&format!("block{block}"));
        let seen = norm(x, "norm1");
        let part = |name| {
            linear(seen, name, [width, width])
                .reshape([samples, tokens, 4, width / 4])
                .transpose(&[0, 2, 1, 3])
        };
        let [mixed, _] = part("query").attention(part("key"), part("value"), Attention::CAUSAL);
        let joined = mixed.transpose(&[0, 2, 1, 3]).reshape([samples, tokens, width]);
        x = x + linear(joined, "projection", [width, width]);
        let wide = linear(norm(x, "norm2"), "expand", [width, 4 * width]).gelu(Approximation::Tanh);
        x = x + linear(wide, "contract", [4 * width, width]);
    }
    b.output("y", x);
    let graph = b.finish().unwrap();
    if !has_gradients {
        return graph;
    }
    let b = Builder::new("gradients");
    let map = b.append(&graph).unwrap();
    let y = graph.outputs()[0].value;
    let of_y = map[y.0 as usize];
    let wrt: Vec<Value> = graph.states().iter().map(|state| state.value).collect();
    let found = gradients(&b, &graph, &map, &[(y, of_y)], &wrt);
    b.output("y", of_y);
    for (state, gradient) in graph.states().iter().zip(found) {
        b.output(&format!("of {}", state.name), gradient.unwrap());
    }
    b.finish().unwrap()
}

fn of_ranks(graph: &Graph, mesh: &Mesh) -> Graph {
    let split = tensor_parallel(graph, mesh, &BTreeMap::new(), ResidualStream::Whole).unwrap();
    shard(graph, mesh, &split).unwrap().graph
}

/// All that ranks of a mesh compute.
fn results(graph: &Graph, mesh: &Mesh, inputs: &[Vec<Array>]) -> Vec<Vec<Array>> {
    let state = |state: &StateDecl| {
        // Parts of states have no initial values of their own.
        let init = Init::Normal { std: 0.3, seed: 1 };
        let initial = init.tensor(&state.name, graph.ty(state.value));
        (state.name.clone(), Array::from(&initial))
    };
    let initial: States = graph.states().iter().map(state).collect();
    let mut states = vec![initial; mesh.ranks()];
    let mut found = eval_ranks(graph, mesh, inputs, &mut states);
    for (found, states) in found.iter_mut().zip(states) {
        found.extend(states.into_values());
    }
    found
}

fn are_close(expected: &Array, found: &Array) -> bool {
    let close = |(a, b): (f64, f64)| a == b || (a - b).abs() <= 1e-12 * (1.0 + a.abs());
    expected.to_f64().into_iter().zip(found.to_f64()).all(close)
}

fn count(graph: &Graph, is_wanted: fn(&Prim) -> bool) -> usize {
    graph.nodes().iter().filter(|node| node.op.prim().is_some_and(is_wanted)).count()
}

fn is_exchange(prim: &Prim) -> bool {
    prim.channel().is_some()
}

fn is_concat(prim: &Prim) -> bool {
    matches!(prim, Prim::Concat { .. })
}

#[test]
fn chunks_are_the_same_numbers() {
    for samples in [1, 4] {
        for (has_gradients, ranks) in [(false, 2), (false, 4), (true, 2), (true, 4)] {
            let what = format!("{samples} {has_gradients} {ranks}");
            let mesh = Mesh::new([("tensor", ranks)]);
            let [_, tokens, width] = SMALL;
            let graph = blocks([samples, tokens, width], has_gradients);
            let whole = of_ranks(&graph, &mesh);
            let cut = in_chunks(&whole, &device(true), 1).unwrap();
            let [sums, exchanges] = [&whole, &cut].map(|graph| count(graph, is_exchange));
            assert!(exchanges > sums + 3, "{what}: {sums} and {exchanges}\n{cut}");
            let sizes = whole.ty(whole.inputs()[0].value).sizes();
            let x = Array::build(DType::F64, &sizes, |at| {
                ((at[0] * 5 + at[1] * 7 + at[2] * 3) % 11) as f64
            });
            let inputs = vec![vec![x]; ranks];
            let [expected, found] = [&whole, &cut].map(|graph| results(graph, &mesh, &inputs));
            for (expected, found) in expected.iter().flatten().zip(found.iter().flatten()) {
                assert!(are_close(expected, found), "{what}\n{cut}");
            }
        }
    }
}

#[test]
fn random_graphs_keep_their_meaning() {
    let mut changed = 0;
    for seed in 0..600 {
        let (graph, mesh) = (random_graph(seed, DType::F64), &meshes()[seed as usize % 7]);
        let shardings = random_shardings(&graph, mesh, seed);
        let whole = shard(&graph, mesh, &shardings).unwrap();
        let cut = in_chunks(&whole.graph, &device(true), 1).unwrap();
        let arrays = random_inputs(&graph, seed);
        let part = |rank: usize| {
            let part = |(x, s): (&Array, _)| Array::from(&whole.part(&x.to_tensor(), s, rank));
            arrays.iter().zip(&whole.inputs).map(part).collect()
        };
        let inputs: Vec<Vec<Array>> = (0..mesh.ranks()).map(part).collect();
        let [expected, found] = [&whole.graph, &cut].map(|graph| results(graph, mesh, &inputs));
        for (expected, found) in expected.iter().flatten().zip(found.iter().flatten()) {
            assert!(are_close(expected, found), "{seed}: {graph}\n{}\n{cut}", whole.graph);
        }
        changed += usize::from(cut.nodes().len() != whole.graph.nodes().len());
    }
    assert!(changed > 20, "{changed}");
}

#[test]
fn a_device_that_waits_in_collectives_has_no_chunks() {
    let whole = of_ranks(&blocks(SMALL, false), &Mesh::new([("tensor", 2)]));
    for (overlaps, least) in [(false, 1), (true, SMALL[1] * SMALL[2] * 8 / 2 + 1)] {
        let same = in_chunks(&whole, &device(overlaps), least).unwrap();
        assert_eq!(same.to_string(), whole.to_string());
    }
}

/// Sums of gradients are the work of `bucket`, which starts them as early as can be.
#[test]
fn gradients_of_weights_are_not_cut() {
    let graph = blocks(SMALL, true);
    let data = Axis::from("data");
    let x = graph.inputs()[0].value;
    let split = [(x, Sharding::whole(3).and_split(1, &data))].into();
    let whole = shard(&graph, &Mesh::new([("data", 2)]), &split).unwrap().graph;
    assert!(count(&whole, |prim| matches!(prim, Prim::AllReduce { .. })) > 10, "{whole}");
    let same = in_chunks(&whole, &device(true), 1).unwrap();
    assert_eq!(same.to_string(), whole.to_string());
}

/// The rows of one sum stay in chunks up to the next one, and are joined for attention and the
/// output alone.
#[test]
fn chunks_are_joined_where_somebody_reads_all_rows() {
    let whole = of_ranks(&blocks(SMALL, false), &Mesh::new([("tensor", 2)]));
    let cut = in_chunks(&whole, &device(true), 1).unwrap();
    // Queries, keys and values of the second block, and the output.
    assert_eq!(count(&cut, is_concat), 4, "{cut}");
}

fn planned() -> Plan {
    let graph = of_ranks(&blocks(LARGE, false), &Mesh::new([("tensor", 2)]));
    plan(&graph, Mode::Compile, &device(true), &Tuning::default()).unwrap()
}

/// Joined chunks are written where they are joined.
#[test]
fn nothing_is_copied() {
    let plan = planned();
    let copies: Vec<&Step> = plan.steps.iter().filter(|step| step.name == "concat").collect();
    assert!(copies.is_empty(), "{plan}");
}

/// Every chunk but those of the last sum is on its way while a product runs that does not need it.
#[test]
fn each_exchange_has_a_product_above_it() {
    let plan = planned();
    let starts = |step: &Step| matches!(step.kind, StepKind::CollectiveStart { .. });
    let all: Vec<usize> = (0..plan.steps.len()).filter(|&at| starts(&plan.steps[at])).collect();
    assert_eq!(all.len(), 16, "{plan}");
    let mut hidden = 0;
    for &start in &all {
        let end = plan.steps[start..].iter().position(|step| plan.steps[start].starts(step));
        let under = &plan.steps[start..start + end.unwrap()];
        hidden += usize::from(under.iter().any(|step| matches!(step.kind, StepKind::Gemm(_))));
    }
    assert!(hidden >= all.len() - 1, "{hidden} of {}: {plan}", all.len());
}

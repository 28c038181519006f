//! Attention over pages of a pool is held against its definition. Few queries, and any over codes,
//! are computed where the pages lie.

use crate::support::{MODES, Session, check, graph, random};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::paged_attention::KeysAndValues;
use overdrive_ir::ops::{Attention, PagedAttention};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{Array, DType, Graph, Mode};
use testkit::{PagedCall, Tolerance};

/// The ops of a plan's kernels.
fn kernels(graph: &Graph, mode: Mode, inputs: &[Array]) -> Vec<String> {
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    let session = Session::new(graph, mode, 1, &tensors).unwrap();
    let name = |kind: &StepKind| match kind {
        StepKind::Kernel(call) => match &call.op {
            KernelOp::Composite(op, _) => Some(op.name().to_owned()),
            KernelOp::Prim(prim, _) => Some(prim.name()),
        },
        _ => None,
    };
    session.compiled.plan().steps.iter().filter_map(|step| name(&step.kind)).collect()
}

#[test]
fn results_are_those_of_the_definition() {
    // Each shape with one kind of keys, in turn.
    let calls = PagedCall::every().into_iter().enumerate();
    for (turn, call) in calls.filter(|(turn, _)| turn % 3 == turn / 3 % 3) {
        let q = [DType::F32, DType::BF16, DType::F16][turn / 9];
        let graph = call.graph(q, turn % 2 == 0);
        let given = call.inputs(&graph);
        let tolerance = Tolerance::new(q, call.keys().max(call.channels), 8.0);
        check(&graph, &given, tolerance);
        for mode in MODES {
            assert_eq!(kernels(&graph, mode, &given), ["paged_attention"], "{call:?}");
        }
    }
}

/// More queries than a decoder has at once: those over numbers take pages in order, as tiles do.
#[test]
fn many_queries_are_computed_too() {
    for codes in [None, Some(DType::I8)] {
        let call = PagedCall {
            sequences: 2,
            heads: [4, 2],
            queries: 9,
            channels: 32,
            pages: [20, 16],
            codes,
        };
        let graph = call.graph(DType::F32, true);
        let given = call.inputs(&graph);
        check(&graph, &given, Tolerance::new(DType::F32, call.keys(), 8.0));
        let gathers = kernels(&graph, Mode::Compile, &given).contains(&"gather".to_owned());
        assert_eq!(gathers, codes.is_none());
    }
}

/// Queries in f64 are computed in f64, and a causal mask sees keys by their places in order.
#[test]
fn wide_queries_and_causal_masks_keep_the_order_of_tokens() {
    for dtype in [DType::F64, DType::F32] {
        let [sequences, size, pages] = [3, 5, 4];
        let numbers = philox::uniforms(3, 5).take(sequences * pages).map(|u| (7.0 * u).floor());
        let pool = |seed| random(dtype, &[7, 2, size, 8], seed);
        let given = [
            random(dtype, &[sequences, 4, 2, 8], 1),
            pool(2),
            pool(3),
            Array::from_f64(DType::I32, &[sequences, pages], numbers.collect()),
        ];
        let made = graph("causal", &given, |_, x| {
            let kept = KeysAndValues::Numbers([x[1], x[2]]);
            let op = PagedAttention { attention: Attention::CAUSAL };
            op.of(x[0], (kept, x[3]), vec![], &[]).to_vec()
        });
        check(&made, &given, Tolerance::new(dtype, size * pages, 8.0));
    }
}

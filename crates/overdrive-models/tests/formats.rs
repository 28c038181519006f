//! A decoder whose weights and caches are stored in 16 bits, against the same weights in f32. Both
//! run in the reference evaluator: prompt and steps, logits and greedy tokens.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, DType, Graph, Init, Tensor, TensorType, verify};
use overdrive_models::llama::Llama;
use overdrive_models::{Caches, Rotary, Span};
use overdrive_passes::{Recipe, precision, store};

const CAPACITY: usize = 16;

fn llama() -> Llama {
    Llama {
        layers: 2,
        key_heads: 2,
        eps: 1e-6,
        rotary: Rotary { frequencies: vec![1.0, 0.1], gain: 1.0 },
        ..Llama::plain(32, [16, 24], 4)
    }
}

/// The graph of a span; matrices have random numbers of `low`, in the type that is declared.
fn graph(span: Span, low: DType, is_stored: bool) -> Graph {
    let graph = llama().build(span).unwrap();
    let graph = if is_stored {
        let stored = store(&graph, &|_, ty| (ty.rank() > 1).then_some(low)).unwrap();
        precision(&stored, &Recipe { contractions: low }).unwrap()
    } else {
        graph
    };
    verify(&graph).unwrap();
    graph.with_initial_values(|name, ty: &TensorType| match ty.rank() {
        2 => {
            let wide = ty.with_dtype(DType::F32);
            let drawn = Init::Normal { std: 0.9 / (ty.sizes()[1] as f64).sqrt(), seed: 3 };
            Init::Value(drawn.tensor(name, &wide).convert(low).convert(ty.dtype))
        }
        1 => Init::Constant(1.25),
        _ => Init::ZEROS,
    })
}

/// Logits after each token from the third on: a prompt of three, then a step for each.
fn logits(ids: &[i128], low: DType, is_stored: bool) -> Vec<Vec<f64>> {
    let call = |graph: &Graph, ids: &[i128], position: usize, states: &mut States| {
        let x = Array::int(DType::I32, &[1, ids.len()], ids.to_vec());
        let position = Array::from(&Tensor::scalar(DType::I64, position as f64));
        eval(graph, &[x, position], states).remove(0).floats().to_vec()
    };
    let mut states = States::new();
    let prefill =
        graph(Span::Prefill { tokens: 3, caches: Caches::of_one(CAPACITY) }, low, is_stored);
    let step = graph(Span::Step { caches: Caches::of_one(CAPACITY) }, low, is_stored);
    let mut all = vec![call(&prefill, &ids[..3], 2, &mut states)];
    all.extend((3..ids.len()).map(|at| call(&step, &ids[at..=at], at, &mut states)));
    all
}

fn likeliest(logits: &[f64]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

#[test]
fn sixteen_bits_move_logits_by_their_rounding() {
    let ids: Vec<i128> = (0..14).map(|i| (i * 7 + 3) % 32).collect();
    for (low, bits) in [(DType::BF16, 8), (DType::F16, 11)] {
        let [exact, found] = [false, true].map(|is_stored| logits(&ids, low, is_stored));
        let size = exact.iter().flatten().fold(0.0, |most: f64, y| most.max(y.abs()));
        // Two blocks of six products in a row and the head. The weights are exact, so that each
        // rounds one operand, by at most this part of its size.
        let bound = 13.0 * size * 2f64.powi(-bits);
        let mut most = 0.0f64;
        let mut certain = 0;
        for (exact, found) in exact.iter().zip(&found) {
            most = exact.iter().zip(found).fold(most, |most, (a, b)| most.max((a - b).abs()));
            let best = likeliest(exact);
            let mut others = (0..exact.len()).filter(|&i| i != best);
            if others.all(|i| exact[best] - exact[i] > 2.0 * bound) {
                assert_eq!(likeliest(found), best, "{low}");
                certain += 1;
            }
        }
        assert!(most <= bound, "{low}: off by {most}, expected at most {bound}");
        assert!(most > bound / 1000.0, "{low} rounds nothing: {most} of {bound}");
        assert!(certain > 0, "{low}: no token is far enough ahead to be compared");
    }
}

#[test]
fn matrices_and_caches_are_stored_narrow_and_logits_are_wide() {
    let graph = graph(Span::Step { caches: Caches::of_one(CAPACITY) }, DType::BF16, true);
    for state in graph.states() {
        let ty = graph.ty(state.value);
        let expected = if ty.rank() > 1 { DType::BF16 } else { DType::F32 };
        assert_eq!(ty.dtype, expected, "{}", state.name);
    }
    assert_eq!(graph.ty(graph.outputs()[0].value).dtype, DType::F32);
    // No weight and no cache is widened. The largest widened value is a row of the feed-forward
    // layer.
    let wide = graph.nodes().iter().flat_map(|node| &node.results).map(|&value| graph.ty(value));
    let largest = wide.filter(|ty| ty.dtype == DType::F32).map(TensorType::elements).max();
    assert!(largest.unwrap() <= 4 * CAPACITY, "{largest:?}");
}

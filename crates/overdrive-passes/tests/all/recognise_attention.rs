//! Attention is recognised in the forms of all exporters. It is left alone if a mask might differ
//! from that of the op.
//!
//! Long because all ways of writing attention are held to one op.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::attention::{Mask, find_mask, find_score};
use overdrive_ir::ops::{Attention, AttentionGrad, AttentionSink, Dropout};
use overdrive_ir::{
    Array, Binary, Builder, Compare, DType, Expr, Graph, Init, Reducer, Shape, Tensor, TensorType,
    verify,
};
use overdrive_passes::{recognise, to_f64};
use proptest::prelude::*;
use testkit::{Tolerance, compare, derivative, random_inputs};

/// The place where the scores are scaled.
#[derive(Copy, Clone, Debug)]
enum Scale {
    Scores,
    Divided,
    Queries,
    Roots,
    Nowhere,
}

/// The form of the keys in the product.
#[derive(Copy, Clone, Debug)]
enum Keys {
    Direct,
    Transposed,
    /// As `[B H, D, T]` in between.
    Flattened,
    /// From `[B, T, H, D]` at once.
    FromRows,
}

/// Operations on the scores.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Masked {
    Nothing,
    /// 0 is added everywhere.
    Zeros,
    /// -∞ or the lowest number is added, from index grids.
    Added {
        lowest: bool,
    },
    /// The scores are selected.
    Selected,
    /// A table that the file holds.
    Table,
}

#[derive(Copy, Clone, Debug)]
struct Case {
    scale: Scale,
    keys: Keys,
    masked: Masked,
    guarded: bool,
    /// Query heads of each key head.
    group: usize,
    /// B, key heads, queries, keys beyond the queries, D.
    sizes: [usize; 5],
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape.to_vec())
}

/// True where a query sees a key, as exporters compute it: from positions, with dimensions that
/// nothing changes along.
fn visible<'b>(b: &'b Builder, [batch, queries, keys]: [usize; 3]) -> Expr<'b> {
    let grid = Shape::from([batch, 1, queries, keys]);
    let row = b.iota(DType::I64, [1, 1, queries, 1], 2)
        + b.full(DType::I64, [1, 1, queries, 1], (keys - queries) as f64);
    let column = b.iota(DType::I64, [1, 1, 1, keys], 3);
    let seen = column.broadcast_to(&grid).compare(Compare::Le, row.broadcast_to(&grid));
    b.full(DType::Bool, [batch, 1, queries, keys], 1.0).binary(Binary::And, seen)
}

fn softmax_of_products(case: Case) -> Graph {
    let [batch, shared, queries, more, d] = case.sizes;
    let (heads, keys) = (shared * case.group, queries + more);
    let b = Builder::new("exported");
    let input = |name: &str, t: usize, heads: usize| b.input(name, f32s(&[batch, t, heads * d]));
    let apart =
        |name: &str, t: usize, heads: usize| input(name, t, heads).reshape([batch, t, heads, d]);
    let q = apart("q", queries, heads).transpose(&[0, 2, 1, 3]);
    let rows = apart("k", keys, shared);
    let repeat = |x| repeat_heads(x, case.group);
    let v = repeat(apart("v", keys, shared).transpose(&[0, 2, 1, 3]));
    let k = repeat(rows.transpose(&[0, 2, 1, 3]));
    let factor = 1.0 / (d as f64).sqrt();
    let (k, axis) = match case.keys {
        Keys::Direct => (k, 3),
        Keys::Transposed => (k.transpose(&[0, 1, 3, 2]), 2),
        Keys::Flattened => {
            let flat = k.reshape([batch * heads, keys, d]).transpose(&[0, 2, 1]);
            (flat.reshape([batch, heads, d, keys]), 2)
        }
        Keys::FromRows if case.group == 1 => (rows.transpose(&[0, 2, 3, 1]), 2),
        Keys::FromRows => (k, 3),
    };
    let (q, k) = match case.scale {
        Scale::Queries => (q * factor, k),
        Scale::Roots => (q * factor.sqrt(), k * factor.sqrt()),
        _ => (q, k),
    };
    let mut scores = q.dot(k, &[(0, 0), (1, 1)], &[(3, axis)]);
    scores = match case.scale {
        Scale::Scores => scores * factor,
        Scale::Divided => scores / (d as f64).sqrt(),
        _ => scores,
    };
    let full = scores.shape();
    let seen = || visible(&b, [batch, queries, keys]);
    let low = |lowest: bool| if lowest { f64::from(f32::MIN) } else { f64::NEG_INFINITY };
    scores = match case.masked {
        Masked::Nothing => scores,
        Masked::Zeros => {
            scores + b.full(DType::F32, [batch, 1, queries, keys], 0.0).broadcast_to(&full)
        }
        Masked::Added { lowest } => {
            let seen = seen();
            let number = |n: f64| b.full(DType::F32, seen.shape(), n);
            scores + seen.select(number(0.0), number(low(lowest))).broadcast_to(&full)
        }
        Masked::Selected => {
            seen().broadcast_to(&full).select(scores, scores.constant(f64::NEG_INFINITY))
        }
        Masked::Table => {
            let sees = |i: usize| i % keys <= i / keys + more;
            let values: Vec<f32> = (0..queries * keys)
                .map(|i| if sees(i) { 0.0 } else { f32::NEG_INFINITY })
                .collect();
            let table = Init::Value(Tensor::from_f32([queries, keys], &values));
            scores + b.state_named("table", f32s(&[queries, keys]), table).broadcast_to(&full)
        }
    };
    let mut weights = scores.softmax(3);
    if case.guarded {
        weights = weights.compare(Compare::Ne, weights).select(weights.constant(0.0), weights);
    }
    let y = weights.dot(v, &[(0, 0), (1, 1)], &[(3, 2)]);
    b.output("y", y.transpose(&[0, 2, 1, 3]).reshape([batch, queries, heads * d]));
    b.finish().unwrap()
}

/// `[B, Hkv, T, D]` as `[B, H, T, D]`, as Llama's exports have it.
fn repeat_heads(x: Expr<'_>, group: usize) -> Expr<'_> {
    let [batch, heads, t, d] = [0, 1, 2, 3].map(|axis| x.size(axis));
    let repeated =
        x.reshape([batch, heads, 1, t, d]).broadcast_to(&Shape::from([batch, heads, group, t, d]));
    repeated.reshape([batch, heads * group, t, d])
}

fn attentions(graph: &Graph) -> Vec<(Attention, Vec<usize>)> {
    let key_heads = |v: &overdrive_ir::Value| graph.ty(*v).sizes();
    let nodes = graph.nodes().iter();
    nodes
        .filter_map(|n| n.op.composite::<Attention>().map(|a| (*a, key_heads(&n.operands[1]))))
        .collect()
}

fn same_meaning(before: &Graph, after: &Graph) {
    verify(after).unwrap();
    let inputs = random_inputs(before, 5);
    let [expected, found] = [before, after].map(|graph| eval(graph, &inputs, &mut States::new()));
    for (e, f) in expected.iter().zip(&found) {
        compare(e, f, Tolerance::new(DType::F32, 1 << 6, 1.0)).unwrap();
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let scale = prop_oneof![
        Just(Scale::Scores),
        Just(Scale::Divided),
        Just(Scale::Queries),
        Just(Scale::Roots),
        Just(Scale::Nowhere)
    ];
    let keys = prop_oneof![
        Just(Keys::Direct),
        Just(Keys::Transposed),
        Just(Keys::Flattened),
        Just(Keys::FromRows)
    ];
    let masked = prop_oneof![
        Just(Masked::Nothing),
        Just(Masked::Zeros),
        Just(Masked::Added { lowest: true }),
        Just(Masked::Added { lowest: false }),
        Just(Masked::Selected),
        Just(Masked::Table)
    ];
    let sizes = (1usize..3, 1usize..4, 1usize..7, 0usize..3, 1usize..9)
        .prop_map(|(b, h, q, k, d)| [b, h, q, k, d]);
    (scale, keys, masked, any::<bool>(), 1usize..4, sizes).prop_map(
        |(scale, keys, masked, guarded, group, sizes)| Case {
            scale,
            keys,
            masked,
            guarded,
            group,
            sizes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn however_it_is_written_attention_is_found(case in cases()) {
        let graph = softmax_of_products(case);
        let found = recognise(&graph).unwrap();
        let [(attention, keys)] = &attentions(&found)[..] else { panic!("no attention in \
                                                            {found}") };
        let hides = !matches!(case.masked, Masked::Nothing | Masked::Zeros) && case.sizes[2] > 1;
        prop_assert_eq!(attention.mask, if hides { Mask::Causal } else { Mask::Full });
        let usual = 1.0 / (case.sizes[4] as f64).sqrt();
        let expected = if matches!(case.scale, Scale::Nowhere) { 1.0 } else { usual };
        prop_assert!((attention.factor(case.sizes[4]) - expected).abs() < 1e-6);
        prop_assert_eq!(keys[1], case.sizes[1], "heads are read where they are, not repeated");
        same_meaning(&graph, &found);
    }
}

/// Scores `[1, 2, 4, 6]` of inputs, changed, through a softmax to the values.
fn changed(change: impl for<'b> FnOnce(&'b Builder, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new("changed");
    let [q, k, v] =
        [("q", 4), ("k", 6), ("v", 6)].map(|(name, t)| b.input(name, f32s(&[1, 2, t, 8])));
    let scores = change(&b, q.dot(k, &[(0, 0), (1, 1)], &[(3, 3)]));
    b.output("y", scores.softmax(3).dot(v, &[(0, 0), (1, 1)], &[(3, 2)]));
    b.finish().unwrap()
}

#[test]
fn masks_that_are_not_known_are_left_alone() {
    let kept = |graph: Graph| {
        let found = recognise(&graph).unwrap();
        assert_eq!(attentions(&found), [], "{found}");
    };
    // A mask given by the user, where some row may hide everything.
    kept(changed(|b, s| s + b.input("mask", f32s(&[1, 1, 1, 6])).broadcast_to(&s.shape())));
    kept(changed(|b, s| {
        let mask = b
            .input("mask", TensorType::new(DType::Bool, [1usize, 1, 1, 6]))
            .broadcast_to(&s.shape());
        mask.select(s, s.constant(f64::NEG_INFINITY))
    }));
    let added = |value: fn(usize, usize) -> f32| {
        changed(move |b, s| {
            let values: Vec<f32> = (0..24).map(|i| value(i / 6, i % 6)).collect();
            s + b.constant(Tensor::from_f32([4, 6], &values)).broadcast_to(&s.shape())
        })
    };
    // Causal, but aligned with the first key; a window; a row that sees nothing.
    kept(added(|q, k| if k <= q { 0.0 } else { f32::NEG_INFINITY }));
    kept(added(|q, k| if k <= q + 2 && k > q { 0.0 } else { f32::NEG_INFINITY }));
    kept(added(|q, _| if q == 1 { f32::NEG_INFINITY } else { 0.0 }));
    // Numbers that a score may outweigh, biases, and a sum that is multiplied are functions.
    becomes_a_function(&added(|q, k| if k <= q + 2 { 0.0 } else { -10000.0 }), true);
    becomes_a_function(&added(|q, k| (q + k) as f32), true);
    becomes_a_function(&changed(|b, s| (s + b.full(DType::F32, s.shape(), 1.0)) * 0.5), true);
    // The same with the causal mask of the last keys is one.
    let graph = added(|q, k| if k <= q + 2 { 0.0 } else { f32::NEG_INFINITY });
    let found = recognise(&graph).unwrap();
    assert_eq!(attentions(&found).len(), 1);
    same_meaning(&graph, &found);
}

/// Checks that it becomes attention with a score function, or with a mask function.
fn becomes_a_function(graph: &Graph, is_score: bool) {
    let found = recognise(graph).unwrap();
    let mut nodes = found.nodes().iter().filter(|n| n.op.composite::<Attention>().is_some());
    let node = nodes.next().unwrap_or_else(|| panic!("no attention in {found}"));
    assert_eq!(find_score(&node.regions).is_some(), is_score, "{found}");
    assert_eq!(find_mask(&node.regions).is_some(), !is_score, "{found}");
    same_meaning(graph, &found);
}

/// Scores `[2, 2, 4, 6]` of inputs, changed, and their weights, 0 where they are no numbers.
fn guarded(change: impl for<'b> FnOnce(&'b Builder, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new("guarded");
    let [q, k, v] =
        [("q", 4), ("k", 6), ("v", 6)].map(|(name, t)| b.input(name, f32s(&[2, 2, t, 8])));
    let weights = change(&b, q.dot(k, &[(0, 0), (1, 1)], &[(3, 3)]) * 0.25).softmax(3);
    let weights = weights.compare(Compare::Ne, weights).select(weights.constant(0.0), weights);
    b.output("y", weights.dot(v, &[(0, 0), (1, 1)], &[(3, 2)]));
    b.finish().unwrap()
}

#[test]
fn masks_and_biases_that_are_data_become_functions() {
    // Random keys of each sequence are hidden, all of them in some.
    becomes_a_function(
        &guarded(|b, s| {
            let seen = b.input("seen", TensorType::new(DType::Bool, [2usize, 1, 1, 6]));
            seen.broadcast_to(&s.shape()).select(s, s.constant(f64::NEG_INFINITY))
        }),
        false,
    );
    // The lowest number hides nothing in a row of nothing else, which needs no guard.
    becomes_a_function(
        &changed(|b, s| {
            let seen = b.input("seen", TensorType::new(DType::Bool, [1usize, 1, 1, 6]));
            seen.broadcast_to(&s.shape()).select(s, s.constant(f64::from(f32::MIN)))
        }),
        true,
    );
    // Weights are finite.
    becomes_a_function(
        &changed(|b, s| {
            let table = Init::Normal { std: 1.0, seed: 2 };
            let bias = b.state_named("bias", f32s(&[2, 4, 6]), table);
            s + bias.reshape([1usize, 2, 4, 6]).broadcast_to(&s.shape())
        }),
        true,
    );
}

/// A bias by head and pair, whose gradient is a sum over sequences, and a mask beside it.
#[test]
fn biases_that_are_data_have_their_gradient() {
    let graph = guarded(|b, s| {
        let bias = b.input("bias", f32s(&[1, 2, 4, 6])).broadcast_to(&s.shape());
        let seen = b.input("seen", TensorType::new(DType::Bool, [2usize, 1, 1, 6]));
        seen.broadcast_to(&s.shape()).select(s + bias, s.constant(f64::NEG_INFINITY))
    });
    let found = recognise(&graph).unwrap();
    assert_eq!(attentions(&found).len(), 1, "{found}");
    let [before, after] = [&graph, &found].map(|graph| to_f64(graph).unwrap());
    let mut inputs = random_inputs(&before, 5);
    // Every sequence sees a key: the softmax of none has no gradient.
    inputs[4] = Array::build(DType::Bool, &[2, 1, 1, 6], |at| f64::from(at[3] <= 3 + at[0]));
    let [expected, derived] = [before, after].map(|graph| {
        let (derived, point) = derivative(&graph, &inputs, 3).unwrap();
        (eval(&derived, &point, &mut States::new()), derived)
    });
    let kernels = |graph: &Graph| {
        graph.nodes().iter().filter(|n| n.op.composite::<AttentionGrad>().is_some()).count()
    };
    assert_eq!((kernels(&expected.1), kernels(&derived.1)), (0, 1), "{}", derived.1);
    assert_eq!(expected.0.len(), derived.0.len());
    for (e, f) in expected.0.iter().zip(&derived.0) {
        compare(e, f, Tolerance::new(DType::F64, 1 << 6, 1.0)).unwrap();
    }
}

#[test]
fn weights_that_are_asked_for_stay() {
    let b = Builder::new("weights");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, f32s(&[1, 2, 4, 8])));
    let weights = q.dot(k, &[(0, 0), (1, 1)], &[(3, 3)]).softmax(3);
    b.output("weights", weights);
    b.output("y", weights.dot(v, &[(0, 0), (1, 1)], &[(3, 2)]));
    let graph = b.finish().unwrap();
    assert_eq!(attentions(&recognise(&graph).unwrap()), []);
}

#[test]
fn two_that_share_their_scores_are_both_found() {
    let b = Builder::new("shared");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, f32s(&[2, 2, 4, 8])));
    let scores = q.dot(k, &[(0, 0), (1, 1)], &[(3, 3)]);
    let causal = scores
        + visible(&b, [2, 4, 4])
            .select(
                b.full(DType::F32, [2usize, 1, 4, 4], 0.0),
                b.full(DType::F32, [2usize, 1, 4, 4], f64::NEG_INFINITY),
            )
            .broadcast_to(&scores.shape());
    let [x, y] =
        [scores, causal].map(|scores| scores.softmax(3).dot(v, &[(0, 0), (1, 1)], &[(3, 2)]));
    b.output("y", x + y);
    let graph = b.finish().unwrap();
    let found = recognise(&graph).unwrap();
    assert_eq!(attentions(&found).len(), 2);
    same_meaning(&graph, &found);
}

#[test]
fn batches_of_one_dimension_are_found() {
    let b = Builder::new("flat");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, f32s(&[6, 4, 8])));
    let scores = q.dot(k.transpose(&[0, 2, 1]), &[(0, 0)], &[(2, 1)]) * 0.25;
    b.output("y", scores.softmax(2).dot(v, &[(0, 0)], &[(2, 1)]));
    let graph = b.finish().unwrap();
    let found = recognise(&graph).unwrap();
    assert_eq!(attentions(&found).len(), 1);
    same_meaning(&graph, &found);
}

/// How the weights of attention with sinks are written.
#[derive(Copy, Clone, Debug)]
struct Sinks {
    /// The maximum of each row is subtracted first, as in gpt-oss.
    shifted: bool,
    /// Dropout of weights, before or after the column of sinks is cut off.
    dropped: Option<bool>,
    /// The first key that is kept.
    first: usize,
    /// Whether a sink differs from query to query.
    of_queries: bool,
}

const PLAIN: Sinks = Sinks { shifted: false, dropped: None, first: 0, of_queries: false };

/// Four query heads on two of keys, with sinks, as transformers writes it for gpt-oss.
fn with_sinks(form: Sinks) -> Graph {
    let [batch, heads, queries, keys] = [2, 4, 5, 5];
    let b = Builder::new("sinks");
    let q = b.input("q", f32s(&[batch, heads, queries, 8]));
    let [k, v] = ["k", "v"].map(|name| b.input(name, f32s(&[batch, heads / 2, keys, 8])));
    let [k, v] = [k, v].map(|x| repeat_heads(x, 2));
    let scores = q.dot(k.transpose(&[0, 1, 3, 2]), &[(0, 0), (1, 1)], &[(3, 2)]) * 0.25;
    let seen = visible(&b, [batch, queries, keys]);
    let number = |n: f64| b.full(DType::F32, seen.shape(), n);
    let mask = seen.select(number(0.0), number(f64::from(f32::MIN)));
    let scores = scores + mask.broadcast_to(&scores.shape());
    let column = Shape::from([batch, heads, queries, 1]);
    let sinks = match form.of_queries {
        true => b.input("sinks", f32s(&[queries])).reshape([1, 1, queries, 1]),
        false => b.input("sinks", f32s(&[heads])).reshape([1, heads, 1, 1]),
    };
    let mut joined = b.concat(&[scores, sinks.broadcast_to(&column)], 3);
    if form.shifted {
        joined = joined - joined.reduce_keep(Reducer::Max, &[3]);
    }
    let seed = form.dropped.map(|_| b.input("seed", Dropout::SEED));
    let mut weights = joined.softmax(3);
    if let (Some(true), Some(seed)) = (form.dropped, seed) {
        weights = dropped(weights, seed);
    }
    weights = weights.slice_axis(3, form.first, keys + form.first);
    if let (Some(false), Some(seed)) = (form.dropped, seed) {
        weights = dropped(weights, seed);
    }
    b.output("y", weights.dot(v, &[(0, 0), (1, 1)], &[(3, 2)]));
    b.finish().unwrap()
}

fn dropped<'b>(x: Expr<'b>, seed: Expr<'b>) -> Expr<'b> {
    x.builder().op1(Dropout { rate: 0.5, site: 4 }, &[x, seed])
}

fn sinks(graph: &Graph) -> usize {
    graph.nodes().iter().filter(|n| n.op.composite::<AttentionSink>().is_some()).count()
}

#[test]
fn a_column_of_sinks_is_found() {
    for shifted in [false, true] {
        for dropped in [None, Some(false)] {
            let graph = with_sinks(Sinks { shifted, dropped, ..PLAIN });
            let found = recognise(&graph).unwrap();
            let [(attention, keys)] = &attentions(&found)[..] else { panic!("{found}") };
            assert_eq!(attention.mask, Mask::Causal);
            assert_eq!(keys[1], 2, "heads are read where they are, not repeated");
            let expected = dropped.map(|_| Dropout { rate: 0.5, site: 4 });
            assert_eq!(attention.dropout, expected);
            assert_eq!((sinks(&found), attention.scale), (1, Some(0.25)));
            same_meaning(&graph, &found);
        }
    }
}

#[test]
fn columns_that_are_no_sinks_of_heads_are_left_alone() {
    // The first key is cut off and not the sink; a sink of each query; numbers drawn for the sink's
    // weights too.
    for form in [
        Sinks { first: 1, ..PLAIN },
        Sinks { of_queries: true, ..PLAIN },
        Sinks { dropped: Some(true), ..PLAIN },
    ] {
        let graph = with_sinks(form);
        let found = recognise(&graph).unwrap();
        assert_eq!((attentions(&found), sinks(&found)), (vec![], 0), "{form:?}: {found}");
        same_meaning(&graph, &found);
    }
}

#[test]
fn dropout_of_weights_is_part_of_attention() {
    for guarded in [false, true] {
        let graph = changed_weights(|b, weights| {
            let seed = b.input("seed", Dropout::SEED);
            let kept = match guarded {
                true => {
                    weights.compare(Compare::Ne, weights).select(weights.constant(0.0), weights)
                }
                false => weights,
            };
            kept.dropout(0.25, seed)
        });
        let found = recognise(&graph).unwrap();
        let [(attention, _)] = &attentions(&found)[..] else { panic!("{found}") };
        assert_eq!(attention.dropout.map(|dropout| dropout.rate), Some(0.25));
        same_meaning(&graph, &found);
    }
    // Twice is more than the op does.
    let graph = changed_weights(|b, weights| {
        let seed = b.input("seed", Dropout::SEED);
        weights.dropout(0.25, seed).dropout(0.5, seed)
    });
    assert_eq!(attentions(&recognise(&graph).unwrap()), []);
}

/// Weights `[2, 3, 4, 5]`, changed, to the values.
fn changed_weights(change: impl for<'b> FnOnce(&'b Builder, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new("weights");
    let [q, k, v] =
        [("q", 4), ("k", 5), ("v", 5)].map(|(name, t)| b.input(name, f32s(&[2, 3, t, 8])));
    let weights = change(&b, q.dot(k, &[(0, 0), (1, 1)], &[(3, 3)]).softmax(3));
    b.output("y", weights.dot(v, &[(0, 0), (1, 1)], &[(3, 2)]));
    b.finish().unwrap()
}

//! Attention with sinks and dropped weights against the formula, written out pair by pair. It is a
//! softmax over the keys and one more column; some weights are dropped, and the rest are multiplied
//! by the values.

use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, Dropout};
use overdrive_ir::{Array, Builder, Compare, DType, Graph, TensorType};

const SITE: u64 = 6;
const SEED: u64 = (3 << 40) + 17;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// B, H, Hkv, Tq, Tk.
    sizes: [usize; 5],
    mask: Mask,
    /// Scores through `2 tanh(score / 2)`, and only keys no farther than two.
    has_regions: bool,
    has_sink: bool,
    rate: Option<f64>,
}

const D: usize = 4;
const DV: usize = 3;

fn inputs(case: Case) -> Vec<Array> {
    let [b, h, kv, tq, tk] = case.sizes;
    let floats = |site: u64, shape: &[usize]| {
        let values = philox::normals(5, site).take(shape.iter().product());
        Array::float(DType::F64, shape, values.collect())
    };
    let mut inputs =
        vec![floats(0, &[b, h, tq, D]), floats(1, &[b, kv, tk, D]), floats(2, &[b, kv, tk, DV])];
    inputs.extend(case.has_sink.then(|| floats(3, &[h])));
    inputs.extend(case.rate.map(|_| Array::int(DType::U64, &[], vec![SEED.into()])));
    inputs
}

/// `out` and `lse` by the ops.
fn graph(case: Case, inputs: &[Array]) -> Graph {
    let b = Builder::new("attention");
    let x: Vec<_> =
        inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
    let mut regions = vec![];
    if case.has_regions {
        let capped = score_region(DType::F64, &[], |score, _, _| (score * 0.5).tanh() * 2.0);
        let near = mask_region(&[], |[_, _, q, k], _| {
            (q - k).max(k - q).compare(Compare::Le, q.constant(2.0))
        });
        regions = vec![capped.unwrap(), near.unwrap()];
    }
    let dropout = case.rate.map(|rate| Dropout { rate, site: SITE });
    let attention = Attention { mask: case.mask, dropout, ..Attention::FULL };
    let seed = if dropout.is_some() { &x[x.len() - 1..] } else { &[] };
    let [mut out, mut lse] = x[0].attention_with([x[1], x[2]], attention, regions, seed);
    if case.has_sink {
        [out, lse] = out.attention_sink(lse, x[3]);
    }
    b.output("out", out);
    b.output("lse", lse);
    b.finish().unwrap()
}

/// The same by the formula.
fn by_formula(case: Case, inputs: &[Array]) -> [Vec<f64>; 2] {
    let ([b, h, kv, tq, tk], [q, k, v]) = (case.sizes, [0, 1, 2].map(|i| &inputs[i]));
    let (mut out, mut lse) = (vec![], vec![]);
    for row in 0..b * h * tq {
        let (batch, head, i) = (row / (h * tq), row / tq % h, row % tq);
        let shared = head / (h / kv);
        let seen = |j: usize| {
            let causal = case.mask == Mask::Full || j + tq <= i + tk;
            causal && (!case.has_regions || i.abs_diff(j) <= 2)
        };
        let score = |j: usize| {
            let products =
                (0..D).map(|c| q.at(&[batch, head, i, c]) * k.at(&[batch, shared, j, c]));
            let score = products.sum::<f64>() / (D as f64).sqrt();
            if case.has_regions { 2.0 * (score / 2.0).tanh() } else { score }
        };
        let power = |j: usize| if seen(j) { score(j).exp() } else { 0.0 };
        let sink = if case.has_sink { inputs[3].at(&[head]).exp() } else { 0.0 };
        let whole = (0..tk).map(power).sum::<f64>() + sink;
        let weight = |j: usize| {
            let rate = case.rate.unwrap_or(0.0);
            let bits = philox::bits(SEED, SITE, (row * tk + j) as u64);
            let stays = f64::from(bits) >= (rate * 2f64.powi(32)).round();
            let kept = if stays { 1.0 / (1.0 - rate) } else { 0.0 };
            if whole > 0.0 { power(j) / whole * kept } else { 0.0 }
        };
        let weights: Vec<f64> = (0..tk).map(weight).collect();
        let value = |c: usize| (0..tk).map(|j| weights[j] * v.at(&[batch, shared, j, c])).sum();
        out.extend((0..DV).map(value).collect::<Vec<f64>>());
        lse.push(whole.ln());
    }
    [out, lse]
}

#[test]
fn sinks_and_dropout_are_what_the_formula_says() {
    // Grouped heads. Fewer keys than queries, so that the first queries see none. No key at all.
    for sizes in [[2, 4, 2, 5, 7], [1, 3, 1, 6, 3], [1, 2, 2, 2, 0]] {
        for choice in 0..16 {
            let has = |bit: usize| choice >> bit & 1 == 1;
            let mask = if has(0) { Mask::Causal } else { Mask::Full };
            let rate = has(3).then_some(0.4);
            let case = Case { sizes, mask, has_regions: has(1), has_sink: has(2), rate };
            let inputs = inputs(case);
            let graph = graph(case, &inputs);
            let found = eval(&graph, &inputs, &mut States::new());
            for (expected, found) in by_formula(case, &inputs).iter().zip(&found) {
                for (e, f) in expected.iter().zip(found.floats()) {
                    assert!(e == f || (e - f).abs() < 1e-12, "{case:?}: expected {e}, found {f}");
                }
            }
        }
    }
}

/// Text of before attention had dropout reads as it did, and without it prints so.
#[test]
fn text_without_dropout_is_as_it_was() {
    let text = concat!(
        "overdrive-ir 1\n",
        "graph \"plain\" {\n",
        "  input %0 \"q\" f32[1, 2, 3, 4]\n",
        "  %1, %2 = attention(%0, %0, %0) {\"scale\":null,\"mask\":\"causal\"} ",
        ": f32[1, 2, 3, 4], f32[1, 2, 3]\n",
        "  output \"y\" %1\n",
        "}\n"
    );
    let graph: Graph = text.parse().unwrap();
    assert_eq!(graph.nodes()[0].op.composite::<Attention>(), Some(&Attention::CAUSAL));
    assert_eq!(graph.to_string(), text);
}

/// A graph that is built on draws elsewhere than the dropout of its attention and of the gradient.
#[test]
fn sites_within_attention_are_not_given_out_again() {
    let b = Builder::new("first");
    let q = b.input("q", TensorType::new(DType::F32, [1usize, 1, 2, 4]));
    let seed = b.input("seed", Dropout::SEED);
    b.site();
    let dropout = Some(Dropout { rate: 0.5, site: b.site() });
    let attention = Attention { dropout, ..Attention::FULL };
    let [out, _] = q.attention_with([q, q], attention, vec![], &[seed]);
    b.output("y", out);
    let graph = b.finish().unwrap();
    let own = graph.nodes()[0].op.composite::<Attention>().unwrap().dropout.unwrap().site;
    let b = Builder::new("second");
    b.append(&graph).unwrap();
    assert!(b.site() > own);
}

#[test]
fn a_seed_that_is_missing_is_an_error() {
    let b = Builder::new("no seed");
    let q = b.input("q", TensorType::new(DType::F32, [1usize, 1, 2, 4]));
    let attention = Attention { dropout: Some(Dropout { rate: 0.5, site: 0 }), ..Attention::FULL };
    b.output("y", q.attention(q, q, attention)[0]);
    let error = b.finish().unwrap_err().to_string();
    assert!(error.contains("a u64[] seed") && error.contains("none"), "{error}");
}

#[test]
fn scales_that_are_no_finite_numbers_are_errors() {
    let refused = |scale: f64| {
        let b = Builder::new("scaled");
        let x = b.input("x", TensorType::new(DType::F32, [1usize, 2, 4, 8]));
        let [out, _] = x.attention(x, x, Attention { scale: Some(scale), ..Attention::FULL });
        b.output("y", out);
        b.finish().err().map(|error| error.to_string())
    };
    for scale in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = refused(scale).unwrap();
        assert!(error.contains("a finite scale of the scores"), "{error}");
        assert!(error.contains(&scale.to_string()), "{error}");
        assert!(error.contains("leave the scale out for 1 / √D"), "{error}");
    }
    for scale in [0.0, -0.5, 2.0] {
        assert_eq!(refused(scale), None);
    }
}

#[test]
fn sinks_of_another_number_of_heads_are_an_error() {
    let b = Builder::new("sinks");
    let q = b.input("q", TensorType::new(DType::F32, [1usize, 2, 2, 4]));
    let [out, lse] = q.attention(q, q, Attention::FULL);
    let sink = b.input("sink", TensorType::new(DType::F32, [3usize]));
    b.output("y", out.attention_sink(lse, sink)[0]);
    let error = b.finish().unwrap_err().to_string();
    assert!(error.contains("a sink for each head, [2]") && error.contains("f32[3]"), "{error}");
}

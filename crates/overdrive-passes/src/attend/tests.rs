//! Tests which forms of masks become attention, and that results stay the same.

use super::*;
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::{
    Builder, Compare, DType, Decline, Described, Description, Kernel, Tensor, TensorType, Unary,
};

const BOTH: [(usize, usize); 2] = [(0, 0), (1, 1)];
const LOWEST: f64 = f32::MIN as f64;

/// Two sequences of two heads, five queries, six keys. `masked` makes the operand of the softmax
/// from the product and the visibility of the keys. `after` makes the operand of v from the
/// weights.
fn model(
    masked: impl for<'b> Fn(Expr<'b>, Expr<'b>) -> Expr<'b>,
    after: impl for<'b> Fn(Expr<'b>) -> Expr<'b>,
) -> Graph {
    let b = Builder::new("attention");
    let f32s = |shape: [usize; 4]| TensorType::new(DType::F32, shape);
    let (q, k) = (b.input("q", f32s([2, 2, 5, 4])), b.input("k", f32s([2, 2, 4, 6])));
    let v = b.input("v", f32s([2, 2, 6, 3]));
    let mask = b.input("mask", TensorType::new(DType::I32, [2usize, 6]));
    let visible = mask.compare(Compare::Ne, mask.constant(0.0)).reshape([2usize, 1, 1, 6]);
    let scores = masked(q.dot(k, &BOTH, &[(3, 2)]), visible);
    b.output("y", after(scores.softmax(3)).dot(v, &BOTH, &[(3, 2)]));
    b.finish().expect("the model is well typed")
}

/// A device with a kernel for attention with regions.
fn device() -> impl Target {
    let answer = |call: &Call<'_>| match call {
        Call::Op { op, .. } if op.composite::<Attention>().is_some() => Ok(Kernel::default()),
        _ => Err(Decline::NoKernel),
    };
    Described { description: Description::default(), answer }
}

/// Whether it becomes attention; if so, the same is computed, of a sequence without a visible key
/// too.
fn becomes_attention(graph: &Graph) -> bool {
    let target = device();
    let attended = attend(graph, &target).expect("well typed");
    if !attended.nodes().iter().any(|node| node.op.composite::<Attention>().is_some()) {
        assert_eq!(&attended, graph);
        return false;
    }
    let float = |shape: [usize; 4], seed: usize| {
        let number = |i: usize| ((i * 37 + seed) % 101) as f64 / 25.0 - 2.0;
        let values: Vec<f64> = (0..shape.iter().product()).map(number).collect();
        Tensor::from_f64(DType::F32, shape, &values)
    };
    let seen = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let mask = Tensor::from_f64(DType::I32, [2usize, 6], &seen);
    let inputs = [float([2, 2, 5, 4], 1), float([2, 2, 4, 6], 2), float([2, 2, 6, 3], 3), mask];
    let [expected, found] = [graph, &attended].map(|g| eval_tensors(g, &inputs)[0].to_f64());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
    assert!(expected.iter().zip(&found).all(near), "{expected:?} {found:?}");
    true
}

/// The forms of masks: hidden scores replaced, or something added to them.
fn replaced<'b>(low: f64) -> impl Fn(Expr<'b>, Expr<'b>) -> Expr<'b> {
    move |scores, visible| visible.select(scores * 0.5, scores.constant(low))
}

fn added<'b>(low: f64) -> impl Fn(Expr<'b>, Expr<'b>) -> Expr<'b> {
    move |scores, visible| scores * 0.5 + visible.select(scores.constant(0.0), scores.constant(low))
}

fn guarded(weights: Expr<'_>) -> Expr<'_> {
    weights.compare(Compare::Ne, weights).select(weights.constant(0.0), weights)
}

#[test]
fn masks_that_are_data_become_score_functions() {
    assert!(becomes_attention(&model(|s, v| replaced(LOWEST)(s, v), |w| w)));
    assert!(becomes_attention(&model(|s, v| added(LOWEST)(s, v), |w| w)));
    assert!(becomes_attention(&model(|s, v| replaced(f64::NEG_INFINITY)(s, v), guarded)));
    assert!(becomes_attention(&model(|s, v| added(f64::NEG_INFINITY)(s, v), guarded)));
    assert!(becomes_attention(&model(|s, _| s, |w| w)), "a mask is no condition");
    // A function of the score, which is read twice: its factor is not the op's.
    assert!(becomes_attention(&model(|s, _| (s * 0.5).tanh() + s, |w| w)));
}

fn split<'b>(x: Expr<'b>, order: &[usize; 4]) -> Expr<'b> {
    x.reshape([2usize, 5, 2, 4]).transpose(order)
}

/// As PyTorch's exporter has it: both by the root of the scale, keys turned, in a narrow format
/// too.
#[test]
fn factors_of_queries_and_keys_are_the_scale() {
    for dtype in [DType::F32, DType::BF16] {
        let b = Builder::new("scaled");
        let x = b.input("x", TensorType::new(DType::F32, [2usize, 5, 8]));
        let q = (split(x, &[0, 2, 1, 3]) * 0.7).convert(dtype);
        let k = (split(x + 0.5, &[0, 2, 3, 1]) * 0.7).convert(dtype);
        let weights = q.dot_to(k, &BOTH, &[(3, 2)], DType::F32).softmax(3).convert(dtype);
        let v = split(x, &[0, 2, 1, 3]).convert(dtype);
        b.output("y", weights.dot_to(v, &BOTH, &[(3, 2)], DType::F32).convert(dtype));
        let graph = b.finish().expect("well typed");
        let target = device();
        let attended = crate::dce(&attend(&graph, &target).unwrap()).unwrap();
        let scales =
            attended.nodes().iter().filter_map(|node| node.op.composite::<Attention>()?.scale);
        let scales: Vec<f64> = scales.collect();
        assert!(scales.len() == 1 && (scales[0] - 0.49).abs() < 1e-6, "{scales:?}");
        let products = attended.nodes().iter().filter(|node| node.op.name() == "mul").count();
        assert_eq!(products, 0, "{attended}");
        let values: Vec<f64> = (0..80).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
        let input = [Tensor::from_f64(DType::F32, [2usize, 5, 8], &values)];
        let [expected, found] = [&graph, &attended].map(|g| eval_tensors(g, &input)[0].to_f64());
        let near = if dtype == DType::F32 { 1e-6 } else { 2e-2 };
        assert!(
            expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < near),
            "{expected:?} {found:?}"
        );
    }
}

#[test]
fn rows_that_would_be_nan_stay_as_they_are() {
    assert!(!becomes_attention(&model(|s, v| replaced(f64::NEG_INFINITY)(s, v), |w| w)));
    assert!(!becomes_attention(&model(|s, v| added(f64::NEG_INFINITY)(s, v), |w| w)));
    // Who knows what is added.
    assert!(!becomes_attention(&model(|s, v| s + v.convert(DType::F32).unary(Unary::Log), |w| w)));
}

#[test]
fn scores_that_somebody_sees_stay() {
    let b = Builder::new("seen");
    let x = b.input("x", TensorType::new(DType::F32, [1usize, 2, 5, 4]));
    let weights = x.dot(x, &BOTH, &[(3, 3)]).softmax(3);
    b.output("y", weights.dot(x, &BOTH, &[(3, 2)]));
    b.output("weights", weights);
    let graph = b.finish().expect("well typed");
    assert!(!becomes_attention(&graph));
}

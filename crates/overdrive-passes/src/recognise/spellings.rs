//! How others write ops: the forms that exporters and textbooks use beside our own expansions.
//!
//! A test evaluates each of them against the op's definition, so that a wrong one cannot stay.

use overdrive_ir::ops::{Attention, Gelu, LayerNorm, RmsNorm, attention::Mask, gelu::Approximation};
use overdrive_ir::{Binary, Compare, DType, Expr, Operation, Unary};

/// Writes an op with these attributes on these operands; `None` where this form does not exist.
pub type Spelling = for<'b> fn(&Operation, &[Expr<'b>]) -> Option<Expr<'b>>;

/// Spellings by the name of the op.
pub const SPELLINGS: &[(&str, Spelling)] = &[
    ("attention", attention_by_softmax),
    ("gelu", gelu_by_cube),
    ("gelu", gelu_by_power),
    ("layer_norm", layer_norm_by_division),
    ("rms_norm", rms_norm_by_division),
    ("silu", silu_by_division),
];

/// `softmax(q kᵀ scale) v`, hidden scores being -∞; where every query sees a key.
fn attention_by_softmax<'b>(op: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    let (attention, [q, k, v]) = (op.composite::<Attention>()?, [args[0], args[1], args[2]]);
    let (queries, keys) = (q.size(2), k.size(2));
    let heads = [(0, 0), (1, 1)];
    let plain = q.size(1) == k.size(1) && q.dtype() == q.dtype().accumulation();
    if !plain || (attention.mask == Mask::Causal && queries > keys) {
        return None;
    }
    let mut scores = q.dot(k, &heads, &[(3, 3)]) * attention.factor(q.size(3));
    if attention.mask == Mask::Causal {
        let b = q.builder();
        let last = b.iota(DType::I32, [queries, keys], 0);
        let last = last + last.constant((keys - queries) as f64);
        let visible = b.iota(DType::I32, [queries, keys], 1).compare(Compare::Le, last);
        scores = visible.select(scores, scores.constant(f64::NEG_INFINITY));
    }
    Some(scores.softmax(3).dot(v, &heads, &[(3, 2)]))
}

/// `x / 2 (1 + tanh(√(2/π) (x + c x³)))`
fn gelu_tanh<'b>(op: &Operation, x: Expr<'b>, cube: Expr<'b>) -> Option<Expr<'b>> {
    (op.composite::<Gelu>()?.approximation == Approximation::Tanh).then(|| {
        let slope = (2.0 / std::f64::consts::PI).sqrt();
        x * 0.5 * (((x + cube * 0.044715) * slope).tanh() + 1.0)
    })
}

fn gelu_by_cube<'b>(op: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    gelu_tanh(op, args[0], args[0] * args[0] * args[0])
}

fn gelu_by_power<'b>(op: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    gelu_tanh(op, args[0], args[0].binary(Binary::Pow, args[0].constant(3.0)))
}

fn layer_norm_by_division<'b>(op: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    let (x, eps, row) = (args[0], op.composite::<LayerNorm>()?.eps, [args[0].rank() - 1]);
    let centred = x - x.mean_keep(&row);
    let deviation = ((centred * centred).mean_keep(&row) + eps).sqrt();
    Some(centred / deviation * args[1] + args[2])
}

fn rms_norm_by_division<'b>(op: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    let (x, eps, row) = (args[0], op.composite::<RmsNorm>()?.eps, [args[0].rank() - 1]);
    Some(x / ((x * x).mean_keep(&row) + eps).sqrt() * args[1])
}

fn silu_by_division<'b>(_: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    Some(args[0] / (args[0].unary(Unary::Neg).exp() + 1.0))
}

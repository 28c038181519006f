//! `attention_sink(out, lse, sink)`: attention with a sink, from attention without: a learned logit
//! of each head takes part in the softmax and gives nothing to the output.
//!
//! out `[B, H, Tq, Dv]` and lse `[B, H, Tq]` are what `attention` gives, sink is `[H]`. Results:
//! out times the share `σ(lse - sink)` that the keys have of the softmax, and the log-sum-exp of
//! scores and sink. The log-sum-exp is all that a softmax knows of its keys, so no kernel of
//! attention has to know of sinks. A row that sees no key gives out 0 and its sink as log-sum-exp;
//! a sink of -∞ changes nothing. Sources: Xiao et al., "Efficient streaming language models with
//! attention sinks", arXiv:2309.17453; OpenAI, "gpt-oss model card", arXiv:2508.10925.

use crate::{
    Array, Builder, Compare, DType, Expr, Fill, Gradient, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// A sink in addition to the keys.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttentionSink;

impl<'b> Expr<'b> {
    /// The output of attention, self, and its log-sum-exp with a sink `[H]` beside the keys.
    /// Returns `[out, log-sum-exp]`.
    pub fn attention_sink(self, lse: Expr<'b>, sink: Expr<'b>) -> [Expr<'b>; 2] {
        let results = self.builder().node(AttentionSink, &[self, lse, sink], vec![]);
        [results[0], results[1]]
    }
}

/// The share of one logit beside another, `σ(own - other)`; 0 where it is -∞, whatever the other
/// is.
fn share<'b>(own: Expr<'b>, other: Expr<'b>) -> Expr<'b> {
    let zero = own.constant(0.0);
    let none = own.compare(Compare::Eq, own.constant(f64::NEG_INFINITY));
    let own = none.select(zero, own);
    none.select(zero, (own - other).unary(Unary::Logistic))
}

/// The sinks of the heads, for each row.
fn of_rows<'b>(sink: Expr<'b>, lse: Expr<'b>) -> Expr<'b> {
    sink.convert(lse.dtype()).broadcast_in(&lse.shape(), &[1])
}

impl Op for AttentionSink {
    const NAME: &'static str = "attention_sink";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [out, lse, sink] = types.exactly()?;
        let dtype = types.same_float(&types.operands[..1])?;
        if out.rank() != 4 {
            return Err(Mismatch::new("out of [B, H, Tq, Dv]", out.to_string()));
        }
        let rows = TensorType::new(dtype.accumulation(), Shape(out.shape.0[..3].to_vec()));
        if *lse != rows {
            return Err(Mismatch::new(format!("lse {rows}"), lse.to_string()));
        }
        types.same_float(&types.operands[2..])?;
        if sink.shape.0[..] != out.shape.0[1..2] {
            let expected = format!("a sink for each head, [{}]", out.shape[1]);
            return Err(Mismatch::new(expected, sink.to_string()));
        }
        Ok(vec![out.clone(), lse.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let [out, lse, sink] = [&args[0], &args[1], &args[2]];
        let whole = Array::build(lse.dtype, &lse.shape, |at| {
            let (lse, sink) = (lse.at(at), sink.at(&at[1..2]));
            let max = lse.max(sink);
            if max == f64::NEG_INFINITY {
                return max;
            }
            max + ((lse - max).exp() + (sink - max).exp()).ln()
        });
        let scaled = Array::build(out.dtype, &out.shape, |at| match lse.at(&at[..3]) {
            f64::NEG_INFINITY => 0.0,
            lse => out.at(at) * (lse - whole.at(&at[..3])).exp(),
        });
        vec![scaled, whole]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (out, lse, sink) = (args[0], args[1], of_rows(args[2], args[1]));
        let share = share(lse, sink).broadcast_in(&out.shape(), &[0, 1, 2]);
        let (max, min) = (lse.max(sink), lse.min(sink));
        // If both are -∞, their difference is NaN.
        let none = max.compare(Compare::Eq, max.constant(f64::NEG_INFINITY));
        let gap = none.select(max.constant(0.0), min - max);
        let whole = max + gap.exp().unary(Unary::Log1p);
        vec![(out.widen() * share).convert(out.dtype()), whole]
    }

    /// The share moves by `p (1 - p)` of what its logit does.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let [out, lse, sink] = [g.inputs[0], g.inputs[1], g.inputs[2]];
        let logit = of_rows(sink, lse);
        let (share, rest) = (share(lse, logit), share(logit, lse));
        let mut dout = None;
        let (mut to_keys, mut to_sink) = (lse.constant(0.0), lse.constant(0.0));
        if let Some(dscaled) = g.cotangents[0] {
            let wide = dscaled.widen();
            let each = share.broadcast_in(&out.shape(), &[0, 1, 2]);
            dout = Some((wide * each).convert(out.dtype()));
            let slope = (wide * out.widen()).sum(&[3]) * (share * rest);
            (to_keys, to_sink) = (slope, -slope);
        }
        if let Some(dlse) = g.cotangents[1] {
            (to_keys, to_sink) = (to_keys + dlse * share, to_sink + dlse * rest);
        }
        let dsink = to_sink.broadcast_to(&lse.shape()).sum(&[0, 2]).convert(sink.dtype());
        Some(vec![dout, Some(to_keys.broadcast_to(&lse.shape())), Some(dsink)])
    }

    fn samples() -> Vec<Sample> {
        let sample = |[b, h, t, d]: [usize; 4]| Sample::new(AttentionSink).normal([b, h, t, d]);
        let f32s = |sizes: &[usize]| TensorType::new(DType::F32, sizes.to_vec());
        let unseen = f64::NEG_INFINITY;
        vec![
            Sample::new(AttentionSink)
                .normal(["B", "H", "T", "D"])
                .uniform(["B", "H", "T"], -1.0, 4.0)
                .normal(["H"]),
            // Rows that see no key; a head without a sink; one whose sink takes nearly all.
            sample([2, 3, 2, 4])
                .operand(f32s(&[2, 3, 2]), Fill::Values(vec![unseen, 1.5, 0.25, -2.0]))
                .operand(f32s(&[3]), Fill::Values(vec![0.5, unseen, 40.0])),
        ]
    }
}

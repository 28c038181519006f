//! `attention_grad(q, k, v, lse, dout, delta, captures...)`: the gradients of `attention` from its
//! log-sum-exp.
//!
//! With `p = exp(scores - lse)` and `ds = p (dout vᵀ - delta)`: `dq = ds k scale`, `dk = dsᵀ q
//! scale`, `dv = pᵀ dout`, where delta `[B, H, Tq]` is `Σ dout out` of each row, less the cotangent
//! of the log-sum-exp. An op of its own, so that a back end can compute it tile by tile without
//! ever storing `[Tq, Tk]`. Regions: at most a mask function. Source: Dao et al., "FlashAttention",
//! arXiv:2205.14135, algorithm 4.

use super::attention::{Attention, by_key_head, find_score};
use crate::{
    Array, Builder, Compare, Cost, DType, Expr, Graph, Mismatch, Op, Sample, TensorType, Types,
    ops::attention,
};
use serde::{Deserialize, Serialize};

/// Backward of attention.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The op that it differentiates.
    pub attention: Attention,
}

impl Op for AttentionGrad {
    const NAME: &'static str = "attention_grad";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [q, k, v, lse, dout, delta, captures @ ..] = types.operands else {
            let found = format!("{} operands", types.operands.len());
            return Err(Mismatch::new("q, k, v, lse, dout, delta and captures", found));
        };
        let row = self.attention.check(types, captures)?;
        if find_score(types.regions).is_some() {
            let remedy = "differentiate the expansion of attention";
            return Err(Mismatch::new("no score region", "one").remedy(remedy));
        }
        let mut out = q.clone();
        out.shape.0[3] = v.shape[3].clone();
        if [lse, delta] != [&row, &row] || *dout != out {
            let expected = format!("lse and delta {row}, dout {out}");
            return Err(Mismatch::new(expected, format!("lse {lse}, delta {delta}, dout {dout}")));
        }
        Ok(vec![q.clone(), k.clone(), v.clone()])
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let [q, k, v, lse, dout, delta, captures @ ..] = args else {
            unreachable!("types were inferred")
        };
        let (group, scale) = (q.shape[1] / k.shape[1].max(1), self.attention.factor(q.shape[3]));
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
        let pairs = [&q.shape[..3], &[k.shape[2]]].concat();
        crate::eval::for_each_index(&pairs, |pair| {
            let at: [usize; 4] = pair.try_into().expect("four indices");
            let [b, h, i, j] = at;
            let Some(score) = self.attention.score([q, k], at, (regions, captures)) else { return };
            let (row, head) = ([b, h, i], h / group);
            let weight = (score - lse.at(&row)).exp();
            let dweight: f64 =
                (0..v.shape[3]).map(|c| dout.at(&[b, h, i, c]) * v.at(&[b, head, j, c])).sum();
            let dscore = weight * (dweight - delta.at(&row)) * scale;
            for c in 0..q.shape[3] {
                dq[q.position(&[b, h, i, c])] += dscore * k.at(&[b, head, j, c]);
                dk[k.position(&[b, head, j, c])] += dscore * q.at(&[b, h, i, c]);
            }
            for c in 0..v.shape[3] {
                dv[v.position(&[b, head, j, c])] += weight * dout.at(&[b, h, i, c]);
            }
        });
        [(q, dq), (k, dk), (v, dv)].map(|(x, dx)| Array::float(x.dtype, &x.shape, dx)).to_vec()
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let [q, k, v, lse, dout, delta, captures @ ..] = args else {
            unreachable!("types were inferred")
        };
        let (dtype, wide) = (q.dtype(), lse.dtype());
        let column = [q.size(0), q.size(1), q.size(2), 1];
        // A row that sees nothing has lse -∞; its scores are -∞ too, and any finite shift gives
        // weights of 0.
        let unseen = lse.compare(Compare::Eq, lse.constant(f64::NEG_INFINITY));
        let shift = unseen.select(lse.constant(0.0), *lse).reshape(column);
        let weights = (self.attention.scores([*q, *k], (regions, captures)) - shift).exp();
        let heads = [(0, 0), (1, 1)];
        let (q_rows, dout_rows) = (by_key_head(*q, *k), by_key_head(*dout, *k));
        let dweights = dout_rows.dot_to(*v, &heads, &[(3, 3)], wide).reshape(weights.shape());
        let dscores =
            weights * (dweights - delta.reshape(column)) * self.attention.factor(q.size(3));
        let [weights, dscores] = [weights, dscores].map(|x| by_key_head(x.convert(dtype), *k));
        let dq = dscores.dot(*k, &heads, &[(3, 2)]).reshape(q.shape());
        let dk = dscores.dot(q_rows, &heads, &[(2, 2)]);
        let dv = weights.dot(dout_rows, &heads, &[(2, 2)]);
        vec![dq, dk, dv]
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let bytes = operands.iter().chain(results).map(|t| t.bytes() as u64).sum();
        let (q, v) = (operands[0].sizes(), operands[2].sizes());
        let pairs = self.attention.visible_pairs(q[2], v[2]).saturating_mul((q[0] * q[1]) as u64);
        // Five products: scores again, dweights, dq, dk, dv.
        Some(Cost { flops: pairs.saturating_mul((6 * q[3] + 4 * v[3] + 5) as u64), bytes })
    }

    fn samples() -> Vec<Sample> {
        let sample = |attention, [b, h, kv, tq, tk, d]: [usize; 6]| {
            let (q, k) = ([b, h, tq, d], [b, kv, tk, d]);
            let sample = Sample::new(AttentionGrad { attention }).normal(q).normal(k).normal(k);
            sample.uniform([b, h, tq], 1.0, 3.0).normal(q).normal([b, h, tq])
        };
        let length = TensorType::new(DType::I32, [2usize]);
        let mask =
            attention::mask_region(std::slice::from_ref(&length), |[b, _, _, k], captures| {
                k.compare(Compare::Lt, captures[0].at(&[b]))
            });
        let masked = sample(Attention::FULL, [2, 2, 2, 3, 5, 4])
            .operand(length, crate::Fill::Values(vec![3.0, 0.0]))
            .region(mask.expect("the sample's region is well typed"));
        vec![
            sample(Attention::FULL, [2, 3, 3, 5, 7, 4]),
            sample(Attention::CAUSAL, [1, 6, 2, 7, 7, 8]),
            sample(Attention::CAUSAL, [1, 2, 1, 5, 3, 4]),
            sample(Attention::FULL, [1, 1, 1, 1, 0, 4]),
            masked,
        ]
    }
}

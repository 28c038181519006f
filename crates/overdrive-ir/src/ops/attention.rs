//! `attention(q, k, v, [seed,] captures...)`: `out = softmax(f(q kᵀ scale)) v` over the keys that a
//! query may see.
//!
//! q is `[B, H, Tq, D]`, k `[B, Hkv, Tk, D]`, v `[B, Hkv, Tk, Dv]`; query head h reads key head `h
//! / (H / Hkv)`. Results: out `[B, H, Tq, Dv]`, and the log-sum-exp of the scores `[B, H, Tq]` in
//! the accumulation type, which is all that backward needs besides out. A row that sees no key
//! gives out 0 and log-sum-exp -∞, and finite gradients.
//!
//! Dropout zeroes weights at random and scales the rest, after the softmax: the log-sum-exp is that
//! of all weights. Its numbers are those that `dropout` draws for weights `[B, H, Tq, Tk]`; the
//! seed is the operand behind v.
//!
//! A threshold skips tiles of scores that matter little (`threshold`), for inference. The
//! log-sum-exp is that of the rest. A tile has 64 queries and 128 keys. It is skipped if each score
//! is below `ln threshold` plus the largest of its query in later tiles of keys. Arithmetic of
//! fewer bits may decide otherwise about scores next to that bound.
//!
//! Regions refine it. A score function `(score, b, h, q, k, captures...) -> score` is applied
//! before masking. A mask function `(b, h, q, k, captures...) -> bool` says what is visible.
//! Indices are i32, and regions read captured tensors at computed indices (`Expr::at`).
//! `Mask::Causal` aligns the last query with the last key. Sources: Vaswani et al.,
//! arXiv:1706.03762; grouped queries: Ainslie et al., arXiv:2305.13245; log-sum-exp and tiling: Dao
//! et al., arXiv:2205.14135; score and mask functions: Dong et al., "Flex attention",
//! arXiv:2412.05496; threshold: "BLASST", arXiv:2512.12087.
//!
//! Long because masks, regions, dropout, the f64 meaning and the expansion define one op together.

pub mod threshold;

use super::{AttentionGrad, Dropout};
use crate::graph::{PointValue, check_lanes};
use crate::{
    Array, Builder, Compare, Cost, DType, Expr, Fill, Gradient, Graph, GraphError, Mismatch, Op,
    Reducer, Sample, Shape, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// The keys that a query may see, before a mask region is applied.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// All of them.
    Full,
    /// Query i sees key j where `j - Tk <= i - Tq`.
    Causal,
}

/// Scaled dot-product attention.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attention {
    /// Factor of the scores; `1 / √D` where none is given.
    pub scale: Option<f64>,
    /// The keys that a query may see.
    pub mask: Mask,
    /// Dropout of weights after the softmax.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<Dropout>,
    /// Tiles of scores whose weights are below this share of the largest are skipped; between 0
    /// and 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
}

impl<'b> Expr<'b> {
    /// Attention of the queries self `[B, H, Tq, D]` over k `[B, Hkv, Tk, D]` and v `[B, Hkv, Tk,
    /// Dv]`. Returns `[out, log-sum-exp]`.
    pub fn attention(self, k: Expr<'b>, v: Expr<'b>, attention: Attention) -> [Expr<'b>; 2] {
        self.attention_with([k, v], attention, vec![], &[])
    }

    /// The same with score and mask functions (`score_region`, `mask_region`), which read
    /// `captures`. If `attention` drops weights, the seed is the first of the captures. It is u64[]
    /// and changes from step to step.
    pub fn attention_with(
        self,
        [k, v]: [Expr<'b>; 2],
        attention: Attention,
        regions: Vec<Graph>,
        captures: &[Expr<'b>],
    ) -> [Expr<'b>; 2] {
        let operands = [&[self, k, v], captures].concat();
        let results = self.builder().node(attention, &operands, regions);
        [results[0], results[1]]
    }
}

/// A score function as a region: `f(score, [b, h, q, k], captures)`. `dtype` is that of the scores:
/// f64 for f64 attention, f32 for everything else.
pub fn score_region(
    dtype: DType,
    captures: &[TensorType],
    f: impl for<'b> FnOnce(Expr<'b>, [Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>,
) -> Result<Graph, GraphError> {
    let b = Builder::new("score");
    let score = b.input("score", TensorType::scalar(dtype));
    let index = index_inputs(&b);
    let captures = capture_inputs(&b, captures);
    b.output("score", f(score, index, &captures));
    b.finish()
}

/// A mask function as a region: `f([b, h, q, k], captures)`, true where visible.
pub fn mask_region(
    captures: &[TensorType],
    f: impl for<'b> FnOnce([Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>,
) -> Result<Graph, GraphError> {
    let b = Builder::new("mask");
    let index = index_inputs(&b);
    let captures = capture_inputs(&b, captures);
    b.output("visible", f(index, &captures));
    b.finish()
}

fn index_inputs(b: &Builder) -> [Expr<'_>; 4] {
    ["b", "h", "q", "k"].map(|name| b.input(name, TensorType::scalar(DType::I32)))
}

fn capture_inputs<'b>(b: &'b Builder, captures: &[TensorType]) -> Vec<Expr<'b>> {
    captures.iter().enumerate().map(|(i, ty)| b.input(&format!("capture{i}"), ty.clone())).collect()
}

/// The region that gives a score, if there is one.
pub fn find_score(regions: &[Graph]) -> Option<&Graph> {
    regions.iter().find(|region| region.ty(region.outputs()[0].value).dtype.is_float())
}

/// The region that gives visibility, if there is one.
pub fn find_mask(regions: &[Graph]) -> Option<&Graph> {
    regions.iter().find(|region| region.ty(region.outputs()[0].value).dtype == DType::Bool)
}

/// Errs unless `regions` are at most one score and one mask function with the parameters that
/// attention passes.
fn check_regions(
    regions: &[Graph],
    captures: &[TensorType],
    scores: DType,
) -> Result<(), Mismatch> {
    let list = |types: &[TensorType]| {
        types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
    };
    let mut seen = [false; 2];
    for region in regions {
        let outputs: Vec<TensorType> =
            region.outputs().iter().map(|port| region.ty(port.value).clone()).collect();
        let is_mask = outputs == [TensorType::scalar(DType::Bool)];
        if !is_mask && outputs != [TensorType::scalar(scores)] {
            let expected = format!("a region that gives one {scores}[] score or one bool[] mask");
            return Err(Mismatch::new(
                expected,
                format!("`{}` giving ({})", region.name(), list(&outputs)),
            ));
        }
        if std::mem::replace(&mut seen[is_mask as usize], true) {
            return Err(Mismatch::new(
                "at most one score and one mask region",
                format!("`{}` again", region.name()),
            ));
        }
        let scalars = (!is_mask).then_some(scores).into_iter().chain([DType::I32; 4]);
        let mut expected: Vec<TensorType> = scalars.map(TensorType::scalar).collect();
        let each = expected.len();
        expected.extend_from_slice(captures);
        let inputs: Vec<TensorType> =
            region.inputs().iter().map(|port| region.ty(port.value).clone()).collect();
        if inputs != expected {
            let expected = format!("region `{}` with inputs ({})", region.name(), list(&expected));
            return Err(Mismatch::new(expected, format!("({})", list(&inputs))));
        }
        check_lanes(region, each)?;
    }
    Ok(())
}

impl Attention {
    /// Every query sees every key; the usual scale.
    pub const FULL: Attention =
        Attention { scale: None, mask: Mask::Full, dropout: None, threshold: None };
    /// Every query sees the keys up to its own position; the usual scale.
    pub const CAUSAL: Attention = Attention { mask: Mask::Causal, ..Attention::FULL };

    /// The seed, where weights are dropped, and the captures: `rest` is all operands behind those
    /// that every call has.
    pub fn seed_and_captures<'a, T>(&self, rest: &'a [T]) -> (Option<&'a T>, &'a [T]) {
        match (self.dropout, rest) {
            (Some(_), [seed, captures @ ..]) => (Some(seed), captures),
            _ => (None, rest),
        }
    }

    /// The factor of the scores for heads of `d` channels.
    pub fn factor(&self, d: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt())
    }

    /// How many (query, key) pairs of one head the mask lets through, regions left aside.
    pub fn visible_pairs(&self, queries: usize, keys: usize) -> u64 {
        let seen = |i: usize| match self.mask {
            Mask::Full => keys,
            Mask::Causal => (i + 1 + keys).saturating_sub(queries).min(keys),
        };
        (0..queries).map(|i| seen(i) as u64).sum()
    }

    /// Types of q, k, v (operands 0 to 2), regions, and `rest`, which are the seed and the
    /// captures; returns the type of the log-sum-exp.
    pub(super) fn check(
        &self,
        types: &Types<'_>,
        rest: &[TensorType],
    ) -> Result<TensorType, Mismatch> {
        let [q, k, v] = &types.operands[..3] else {
            unreachable!("the caller checked the number of operands")
        };
        let dtype = types.same_float(&types.operands[..3])?;
        let found = || format!("q {q}, k {k}, v {v}");
        if [q, k, v].iter().any(|ty| ty.rank() != 4) {
            let expected = "q of [B, H, Tq, D], k of [B, Hkv, Tk, D], v of [B, Hkv, Tk, Dv]";
            return Err(Mismatch::new(expected, found()));
        }
        let equal = k.shape.0[..3] == v.shape.0[..3]
            && q.shape[0] == k.shape[0]
            && q.shape[3] == k.shape[3];
        if !equal {
            let expected = "equal B of all three, Hkv and Tk of k and v, D of q and k";
            return Err(Mismatch::new(expected, found())
                .remedy("transpose heads to the front: [B, H, T, D]"));
        }
        if let (Some(heads), Some(shared)) = (q.shape[1].size(), k.shape[1].size()) {
            let divides = if shared == 0 { heads == 0 } else { heads.is_multiple_of(shared) };
            if !divides {
                return Err(Mismatch::new(
                    "a number of query heads that the key heads divide",
                    found(),
                ));
            }
        }
        let (seed, captures) = self.seed_and_captures(rest);
        if let Some(dropout) = self.dropout {
            dropout.check(seed)?;
        }
        if let Some(scale) = self.scale.filter(|scale| !scale.is_finite()) {
            return Err(Mismatch::new("a finite scale of the scores", scale.to_string())
                .remedy("leave the scale out for 1 / √D"));
        }
        if let Some(threshold) = self.threshold {
            if !(threshold > 0.0 && threshold < 1.0) {
                return Err(Mismatch::new("a threshold between 0 and 1", threshold.to_string()));
            }
            if self.dropout.is_some() {
                let expected = "a threshold without dropout of weights";
                return Err(Mismatch::new(expected, "both".to_owned())
                    .remedy("train without a threshold, which is for inference"));
            }
        }
        check_regions(types.regions, captures, dtype.accumulation())?;
        Ok(TensorType::new(dtype.accumulation(), Shape(q.shape.0[..3].to_vec())))
    }

    /// The scaled product of a query and a key by the definition; `None` where it is masked.
    pub(super) fn product(
        &self,
        [q, k]: [&Array; 2],
        at: [usize; 4],
        given: (&[Graph], &[Array]),
    ) -> Option<f64> {
        let ([b, h, i, j], (regions, captures)) = (at, given);
        let (queries, keys, d) = (q.shape[2], k.shape[2], q.shape[3]);
        if self.mask == Mask::Causal && j + queries > i + keys {
            return None;
        }
        if find_mask(regions).is_some_and(|mask| call(mask, at, (None, captures))[0].get(0) == 0.0)
        {
            return None;
        }
        let head = h / (q.shape[1] / k.shape[1]);
        let product: f64 = (0..d).map(|c| q.at(&[b, h, i, c]) * k.at(&[b, head, j, c])).sum();
        Some(product * self.factor(d))
    }

    /// The score of one pair by the definition; `None` where it is masked.
    fn score(
        &self,
        [q, k]: [&Array; 2],
        at: [usize; 4],
        given: (&[Graph], &[Array]),
    ) -> Option<f64> {
        let product = self.product([q, k], at, given)?;
        let score = |region| {
            let product = Array::float(q.dtype.accumulation(), &[], vec![product]);
            call(region, at, (Some(product), given.1))[0].get(0)
        };
        Some(find_score(given.0).map_or(product, score))
    }

    /// Factor on the weight of a pair, by the definition; 1 without dropout.
    pub(super) fn kept(
        &self,
        [q, k]: [&Array; 2],
        [b, h, i, j]: [usize; 4],
        seed: Option<&Array>,
    ) -> f64 {
        let (Some(dropout), Some(seed)) = (self.dropout, seed) else { return 1.0 };
        let [heads, queries, keys] = [q.shape[1], q.shape[2], k.shape[2]];
        dropout.factor(seed.ints()[0] as u64, ((b * heads + h) * queries + i) * keys + j)
    }

    /// Applies dropout, if any, to weights `[B, H, Tq, Tk]` or to their cotangents.
    pub(super) fn dropped<'b>(&self, weights: Expr<'b>, seed: Option<&Expr<'b>>) -> Expr<'b> {
        match (self.dropout, seed) {
            (Some(dropout), Some(&seed)) => weights.builder().op1(dropout, &[weights, seed]),
            _ => weights,
        }
    }

    /// All scaled products `[B, H, Tq, Tk]` in the accumulation type.
    pub(super) fn products<'b>(&self, [q, k]: [Expr<'b>; 2]) -> Expr<'b> {
        let grid = [q.size(0), q.size(1), q.size(2), k.size(2)];
        let product =
            by_key_head(q, k).dot_to(k, &[(0, 0), (1, 1)], &[(3, 3)], q.dtype().accumulation());
        product.reshape(grid) * self.factor(q.size(3))
    }

    /// Scores `[B, H, Tq, Tk]` in the accumulation type, -∞ where masked, before any tile is
    /// skipped.
    pub fn all_scores<'b>(
        &self,
        [q, k]: [Expr<'b>; 2],
        (regions, captures): (&[Graph], &[Expr<'b>]),
    ) -> Expr<'b> {
        let mut scores = self.products([q, k]);
        if let Some(region) = find_score(regions) {
            scores = call_over(q.builder(), &scores.sizes(), region, (Some(scores), captures));
        }
        self.masked(scores, (regions, captures))
    }

    /// Scores `[B, H, Tq, Tk]`, -∞ where masked.
    pub(super) fn masked<'b>(
        &self,
        scores: Expr<'b>,
        (regions, captures): (&[Graph], &[Expr<'b>]),
    ) -> Expr<'b> {
        let b = scores.builder();
        let (queries, keys) = (scores.size(2), scores.size(3));
        let hide = |visible: Expr<'b>, scores: Expr<'b>| {
            visible.select(scores, scores.constant(f64::NEG_INFINITY))
        };
        let mut result = scores;
        if self.mask == Mask::Causal {
            let last = b.iota(DType::I32, [queries, keys], 0);
            let last = last + last.constant(keys as f64 - queries as f64);
            let visible = b.iota(DType::I32, [queries, keys], 1).compare(Compare::Le, last);
            result = hide(visible, result);
        }
        match find_mask(regions) {
            Some(region) => hide(call_over(b, &scores.sizes(), region, (None, captures)), result),
            None => result,
        }
    }
}

/// A score or mask function of one pair of a query and a key, with the arguments that stand before
/// and after the indices.
pub(super) fn call(
    region: &Graph,
    at: [usize; 4],
    (product, after): (Option<Array>, &[Array]),
) -> Vec<Array> {
    let index = at.iter().map(|&i| Array::int(DType::I32, &[], vec![i as i128]));
    let arguments: Vec<Array> = product.into_iter().chain(index).chain(after.to_vec()).collect();
    crate::eval::eval_region(region, &arguments)
}

/// The same of all pairs `[B, H, Tq, Tk]`.
pub(super) fn call_over<'b>(
    b: &'b Builder,
    grid: &[usize],
    region: &Graph,
    (products, captures): (Option<Expr<'b>>, &[Expr<'b>]),
) -> Expr<'b> {
    let index = (0..4).map(PointValue::Index);
    let captures = captures.iter().map(|&capture| PointValue::Shared(capture));
    let lanes: Vec<PointValue<'b>> =
        products.map(PointValue::Each).into_iter().chain(index).chain(captures).collect();
    b.inline_over(grid, region, &lanes)[0]
}

/// `[B, H, T, X]` as `[B, Hkv, (H / Hkv) T, X]`: the query heads of a group are more rows for their
/// key head.
pub(super) fn by_key_head<'b>(x: Expr<'b>, k: Expr<'b>) -> Expr<'b> {
    let (heads, group) = (k.size(1), x.size(1) / k.size(1).max(1));
    x.reshape([x.size(0), heads, group * x.size(2), x.size(3)])
}

impl Op for Attention {
    const NAME: &'static str = "attention";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        if types.operands.len() < 3 {
            return Err(Mismatch::new(
                "q, k, v, a seed where weights are dropped, and captures",
                format!("{} operands", types.operands.len()),
            ));
        }
        let lse = self.check(types, &types.operands[3..])?;
        let mut out = types.operands[0].clone();
        out.shape.0[3] = types.operands[2].shape[3].clone();
        Ok(vec![out, lse])
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let [q, k, v] = [&args[0], &args[1], &args[2]];
        let (group, channels) = (q.shape[1] / k.shape[1].max(1), v.shape[3]);
        let (queries, keys) = (q.shape[2], k.shape[2]);
        let (seed, captures) = self.seed_and_captures(&args[3..]);
        let mut tile = vec![];
        let mut out = Vec::with_capacity(q.len());
        let lse = Array::build(q.dtype.accumulation(), &q.shape[..3], |at| {
            let (b, h, i) = (at[0], at[1], at[2]);
            let row = |i: usize| -> Vec<f64> {
                let score = |j| self.score([q, k], [b, h, i, j], (regions, captures));
                (0..keys).map(|j| score(j).unwrap_or(f64::NEG_INFINITY)).collect()
            };
            let scores = match self.threshold {
                None => row(i),
                Some(threshold) => {
                    // Rows come in order.
                    let within = i % threshold::TILE[0];
                    if within == 0 {
                        tile = (i..queries.min(i + threshold::TILE[0])).map(row).collect();
                        threshold::skip_of_tile(&mut tile, threshold);
                    }
                    std::mem::take(&mut tile[within])
                }
            };
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max == f64::NEG_INFINITY {
                out.extend(vec![0.0; channels]);
                return max;
            }
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let kept: Vec<f64> =
                (0..keys).map(|j| weights[j] * self.kept([q, k], [b, h, i, j], seed)).collect();
            out.extend((0..channels).map(|c| {
                let products =
                    kept.iter().enumerate().map(|(j, w)| w * v.at(&[b, h / group, j, c]));
                products.sum::<f64>() / sum
            }));
            max + sum.ln()
        });
        let shape = [&q.shape[..3], &[channels]].concat();
        vec![Array::float(q.dtype, &shape, out), lse]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let [q, k, v] = [args[0], args[1], args[2]];
        let (seed, captures) = self.seed_and_captures(&args[3..]);
        let mut scores = self.all_scores([q, k], (regions, captures));
        if let Some(threshold) = self.threshold {
            scores = threshold::skip(scores, threshold);
        }
        let none = scores.constant(f64::NEG_INFINITY);
        let max = scores.reduce_keep(Reducer::Max, &[3]);
        // A row that sees nothing has maximum -∞, and -∞ - -∞ is NaN: any finite shift will do
        // there.
        let shift = max.compare(Compare::Eq, none).select(max.constant(0.0), max);
        let weights = (scores - shift).exp();
        let sum = weights.reduce_keep(Reducer::Sum, &[3]);
        let seen = sum.compare(Compare::Gt, sum.constant(0.0));
        let divisor = seen.select(sum, sum.constant(1.0));
        let rows = by_key_head(self.dropped(weights, seed).convert(q.dtype()), k);
        let out = rows.dot_to(v, &[(0, 0), (1, 1)], &[(3, 2)], scores.dtype());
        let out = out.reshape([q.size(0), q.size(1), q.size(2), v.size(3)]) / divisor;
        let lse = seen.select(divisor.log() + shift, none);
        vec![out.convert(q.dtype()), lse.reshape([q.size(0), q.size(1), q.size(2)])]
    }

    /// From the log-sum-exp, without storing the weights (`attention_grad`). With a threshold it is
    /// derived from the expansion: that of the tiles that are kept.
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        if self.threshold.is_some() {
            return None;
        }
        let [q, k, v] = [g.inputs[0], g.inputs[1], g.inputs[2]];
        let (out, lse) = (g.outputs[0], g.outputs[1]);
        let dout =
            g.cotangents[0].unwrap_or_else(|| out.builder().full(out.dtype(), out.shape(), 0.0));
        // Each row's share that leaves through the sum of its weights; the log-sum-exp's cotangent
        // enters with it.
        let mut delta = (dout.widen() * out.widen()).sum(&[3]);
        if let Some(dlse) = g.cotangents[1] {
            delta = delta - dlse;
        }
        let operands = [&[q, k, v, lse, dout, delta], &g.inputs[3..]].concat();
        let mut grads = g
            .builder
            .node(AttentionGrad { attention: *self }, &operands, g.regions.to_vec())
            .into_iter();
        let mut cotangents: Vec<Option<Expr<'b>>> = grads.by_ref().take(3).map(Some).collect();
        // The seed has no cotangent.
        cotangents.extend(
            g.inputs[3..]
                .iter()
                .map(|other| if other.dtype().is_float() { grads.next() } else { None }),
        );
        Some(cotangents)
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let bytes = operands.iter().chain(results).map(|t| t.bytes() as u64).sum();
        let (q, v) = (operands[0].sizes(), operands[2].sizes());
        let pairs = self.visible_pairs(q[2], v[2]).saturating_mul((q[0] * q[1]) as u64);
        // Two products, and scaling, shifting, exponential and sum per pair; a comparison and a
        // factor where weights are dropped.
        let each = 2 * q[3] + 2 * v[3] + if self.dropout.is_some() { 6 } else { 4 };
        Some(Cost { flops: pairs.saturating_mul(each as u64), bytes })
    }

    fn samples() -> Vec<Sample> {
        let sample = |attention| Sample::new(attention);
        let plain = |attention, tk: &str| {
            sample(attention)
                .normal(["B", "H", "T", "D"])
                .normal(["B", "H", tk, "D"])
                .normal(["B", "H", tk, "D"])
        };
        let fixed =
            |attention, [q, k, v]: [[usize; 4]; 3]| sample(attention).normal(q).normal(k).normal(v);
        let bias = TensorType::new(DType::F32, [2usize, 9]);
        let length = TensorType::new(DType::I32, [2usize]);
        let captures = [bias.clone(), length.clone()];
        // T5-like relative bias, then soft-capping; keys beyond each sequence's length are masked.
        let score = score_region(DType::F32, &captures, |score, [_, h, q, k], captures| {
            let biased = score + captures[0].at(&[h, k - q + k.constant(4.0)]);
            (biased * 0.5).tanh() * 2.0
        });
        let mask = mask_region(&captures, |[b, _, _, k], captures| {
            k.compare(Compare::Lt, captures[1].at(&[b]))
        });
        let regions =
            [score, mask].map(|region| region.expect("the sample's regions are well typed"));
        let dropping = |rate, attention| {
            let dropout = Some(Dropout { rate, site: 3 });
            Attention { dropout, ..attention }
        };
        let seeded =
            |sample: Sample| sample.operand(Dropout::SEED, Fill::Values(vec![5.0 + 2f64.powi(33)]));
        let shapes = [[2, 2, 5, 4], [2, 1, 5, 4], [2, 1, 5, 3]];
        // Three tiles of keys, the middle one far below. Queries are 1 to 2, so that scores are 3
        // to 6, -8 to -4 and 4 to 8.
        let stepped = |attention| {
            let keys = [(128, 1.5), (128, -2.0), (44, 2.0)];
            let keys = keys.iter().flat_map(|&(count, key)| vec![key; 4 * count]).collect();
            sample(Attention { threshold: Some(0.01), ..attention })
                .uniform([1usize, 1, 70, 4], 1.0, 2.0)
                .operand(TensorType::new(DType::F32, [1usize, 1, 300, 4]), Fill::Values(keys))
                .normal([1usize, 1, 300, 3])
        };
        let with_regions = |sample: Sample, regions: &[Graph]| {
            let sample = sample.operand(bias.clone(), Fill::Normal);
            // The second sequence is empty: none of its rows sees a key.
            let sample = sample.operand(length.clone(), Fill::Values(vec![3.0, 0.0]));
            regions.iter().cloned().fold(sample, Sample::region)
        };
        vec![
            plain(Attention::FULL, "S"),
            plain(Attention::CAUSAL, "T"),
            // Grouped queries. Decoding: few queries, aligned with the last keys. More queries than
            // keys: the first queries see nothing.
            fixed(Attention::CAUSAL, [[2, 6, 7, 8], [2, 2, 7, 8], [2, 2, 7, 5]]),
            fixed(Attention::CAUSAL, [[1, 4, 2, 8], [1, 4, 9, 8], [1, 4, 9, 8]]),
            fixed(Attention::CAUSAL, [[1, 2, 5, 4], [1, 1, 3, 4], [1, 1, 3, 4]]),
            // Scores of about 240, whose exponentials overflow without the shift. They are close to
            // each other: if they were far apart, exponentials would magnify the rounding of any
            // implementation.
            sample(Attention { scale: Some(1.0), ..Attention::FULL })
                .uniform([1usize, 1, 4, 8], 5.0, 6.0)
                .uniform([1usize, 1, 6, 8], 5.0, 6.0)
                .normal([1usize, 1, 6, 8]),
            with_regions(fixed(Attention::FULL, shapes), &regions),
            with_regions(fixed(Attention::FULL, shapes), &regions[1..]),
            seeded(plain(dropping(0.5, Attention::FULL), "S")),
            seeded(fixed(
                dropping(0.3, Attention::CAUSAL),
                [[2, 6, 7, 8], [2, 2, 7, 8], [2, 2, 7, 5]],
            )),
            // The first queries see nothing.
            seeded(fixed(
                dropping(0.1, Attention::CAUSAL),
                [[1, 2, 5, 4], [1, 1, 3, 4], [1, 1, 3, 4]],
            )),
            with_regions(seeded(fixed(dropping(0.4, Attention::FULL), shapes)), &regions),
            stepped(Attention::FULL),
            stepped(Attention::CAUSAL),
        ]
    }
}

//! `attention_grad(q, k, v, lse, dout, delta, [seed,] captures...)`: the gradients of `attention`
//! from its log-sum-exp.
//!
//! With `p = exp(scores - lse)`, `ds = p (dout vᵀ - delta)` and the score function's slope `f'`:
//! `dq = ds f' k scale`, `dk = (ds f')ᵀ q scale`, `dv = pᵀ dout`, where delta `[B, H, Tq]` is `Σ
//! dout out` of each row, less the cotangent of the log-sum-exp. A score function adds one more
//! result for each captured tensor of floats, in their order: the sum over all pairs of `ds
//! ∂f/∂capture`. If weights are dropped, with `m` 0 or `1 / (1 - rate)` of each pair, drawn as
//! forward drew it: `ds = p (m dout vᵀ - delta)`, `dv = (p m)ᵀ dout`; delta stays. An op of its
//! own, so that a back end can compute it tile by tile without ever storing `[Tq, Tk]`. Regions:
//! those of `attention`. Sources: Dao et al., "FlashAttention", arXiv:2205.14135, algorithm 4; Dong
//! et al., "Flex attention", arXiv:2412.05496.

use super::Dropout;
use super::attention::{Attention, by_key_head, call, call_over, find_score};
use crate::gradients::cotangent_type;
use crate::{
    Array, Builder, Compare, Cost, DType, Expr, Fill, Graph, GraphError, Mismatch, Op, Prim,
    Sample, TensorType, Types, Value, gradients, ops::attention,
};
use serde::{Deserialize, Serialize};

/// Backward of attention.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The op that it differentiates.
    pub attention: Attention,
}

/// A score function with its derivatives, as kernels compute them: all are scalars.
#[derive(Clone, Debug)]
pub struct Slopes {
    /// From the inputs of the score function: the score, and its derivative with respect to the
    /// given score. For each of `reads`: the derivative with respect to the element read, and the
    /// index `[rank]` of that element, not yet clamped.
    pub region: Graph,
    /// The number of the capture that is read, for each read of a capture of floats.
    pub reads: Vec<usize>,
}

impl Slopes {
    /// Those of a score function.
    ///
    /// # Errors
    /// If it does anything with a captured tensor of floats except reading its elements.
    pub fn of(score: &Graph) -> Result<Self, Mismatch> {
        let reads = reads(score)?;
        let b = Builder::new("slopes");
        let map = b.inline_values(score, &inputs_like(&b, score));
        let at = |v: Value| map[v.0 as usize];
        let value = at(score.outputs()[0].value);
        let given = score.inputs()[0].value;
        let wrt: Vec<Value> = [given].into_iter().chain(reads.iter().map(|r| r.element)).collect();
        let seeds = [(score.outputs()[0].value, value.constant(1.0))];
        let found = gradients(&b, score, &map, &seeds, &wrt);
        let slopes = wrt.iter().zip(found).map(|(v, slope)| {
            slope.unwrap_or_else(|| b.full(cotangent_type(score.ty(*v)).dtype, [0usize; 0], 0.0))
        });
        b.output("score", value);
        for (i, slope) in slopes.enumerate() {
            b.output(&format!("slope{i}"), slope);
            if i > 0 {
                let none = || b.full(DType::I32, [0usize], 0.0);
                b.output(&format!("index{i}"), reads[i - 1].index.map_or_else(none, at));
            }
        }
        let region = b.finish().expect("the derivatives of a score function are well typed");
        Ok(Self { region, reads: reads.into_iter().map(|read| read.capture).collect() })
    }
}

/// A read of an element of a capture; without an index, of its only one.
struct ElementRead {
    capture: usize,
    index: Option<Value>,
    element: Value,
}

/// The reads of captures of floats.
fn reads(score: &Graph) -> Result<Vec<ElementRead>, Mismatch> {
    let ports = score.inputs()[5..].iter().map(|port| port.value).enumerate();
    let (numbers, tensors): (Vec<_>, Vec<_>) = ports
        .filter(|(_, v)| score.ty(*v).dtype.is_float())
        .partition(|(_, v)| score.ty(*v).rank() == 0);
    let mut reads: Vec<ElementRead> = numbers
        .into_iter()
        .map(|(capture, element)| ElementRead { capture, index: None, element })
        .collect();
    for node in score.nodes() {
        let read = tensors.iter().find(|(_, v)| node.operands.contains(v));
        let Some(&(capture, tensor)) = read else { continue };
        let (whole, element) = (score.ty(tensor), node.results[0]);
        let is_gather = matches!(node.op.prim(), Some(Prim::Gather { axes })
            if axes.len() == whole.rank());
        let is_read = is_gather && score.ty(element).rank() == 0;
        if !is_read {
            let found = format!("`{}` of capture {capture}, {whole}", node.op.name());
            return Err(Mismatch::new("reads of single elements of captured tensors", found));
        }
        reads.push(ElementRead { capture, index: Some(node.operands[1]), element });
    }
    Ok(reads)
}

fn inputs_like<'b>(b: &'b Builder, graph: &Graph) -> Vec<Expr<'b>> {
    let inputs = graph.inputs().iter();
    inputs.map(|port| b.input(&port.name, graph.ty(port.value).clone())).collect()
}

/// A score function with its derivatives by the definition. Its results are the score, then the
/// derivatives with respect to the given score and to every captured tensor of floats.
///
/// # Errors
/// When what it does to captured tensors has no gradient.
fn derivatives(score: &Graph) -> Result<Graph, GraphError> {
    let b = Builder::new("derivatives");
    let map = b.inline_values(score, &inputs_like(&b, score));
    let value = map[score.outputs()[0].value.0 as usize];
    b.output("score", value);
    let found = cotangents(score, (&b, &map), value.constant(1.0));
    found.iter().enumerate().for_each(|(i, found)| b.output(&i.to_string(), *found));
    b.finish()
}

/// Cotangents of the first input of `scores` and of its captures of floats, from the cotangent of
/// its output. Zeros for inputs without a gradient.
fn cotangents<'b>(
    scores: &Graph,
    (b, map): (&'b Builder, &[Expr<'b>]),
    cotangent: Expr<'b>,
) -> Vec<Expr<'b>> {
    let inputs = scores.inputs().iter().map(|port| port.value);
    let wrt: Vec<Value> = inputs.filter(|&v| scores.ty(v).dtype.is_float()).collect();
    let found = gradients(b, scores, map, &[(scores.outputs()[0].value, cotangent)], &wrt);
    let zeros = |&v: &Value| {
        let ty = cotangent_type(scores.ty(v));
        b.full(ty.dtype, ty.shape, 0.0)
    };
    wrt.iter().zip(found).map(|(v, found)| found.unwrap_or_else(|| zeros(v))).collect()
}

/// The score function of all pairs at once: a graph of the scaled products `[B, H, Tq, Tk]` and of
/// the captures.
fn all_scores(score: &Graph, products: &TensorType, captures: &[Expr<'_>]) -> Graph {
    let b = Builder::new("scores");
    let given = b.input("products", products.clone());
    let captures: Vec<Expr<'_>> = captures
        .iter()
        .enumerate()
        .map(|(i, capture)| b.input(&format!("capture{i}"), capture.ty()))
        .collect();
    b.output("scores", call_over(&b, &given.sizes(), score, (Some(given), &captures)));
    b.finish().expect("the region passed the checks of attention")
}

impl Op for AttentionGrad {
    const NAME: &'static str = "attention_grad";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [q, k, v, lse, dout, delta, rest @ ..] = types.operands else {
            let found = format!("{} operands", types.operands.len());
            let expected = "q, k, v, lse, dout, delta, a seed where weights are dropped, captures";
            return Err(Mismatch::new(expected, found));
        };
        if self.attention.threshold.is_some() {
            return Err(Mismatch::new("attention that skips no tiles", "a threshold".to_owned())
                .remedy("differentiate `attention`, whose expansion has the gradient"));
        }
        let row = self.attention.check(types, rest)?;
        let (_, captures) = self.attention.seed_and_captures(rest);
        let mut out = q.clone();
        out.shape.0[3] = v.shape[3].clone();
        if [lse, delta] != [&row, &row] || *dout != out {
            let expected = format!("lse and delta {row}, dout {out}");
            return Err(Mismatch::new(expected, format!("lse {lse}, delta {delta}, dout {dout}")));
        }
        if let Some(score) = find_score(types.regions).filter(|score| score.is_bound()) {
            derivatives(score)
                .map_err(|e| Mismatch::new("a score function with a gradient", e.to_string()))?;
        }
        let floats = captures.iter().filter(|ty| ty.dtype.is_float()).map(cotangent_type);
        let of_captures = floats.filter(|_| find_score(types.regions).is_some());
        Ok([q, k, v].into_iter().cloned().chain(of_captures).collect())
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let [q, k, v, lse, dout, delta, rest @ ..] = args else {
            unreachable!("types were inferred")
        };
        let (seed, captures) = self.attention.seed_and_captures(rest);
        let (group, scale) = (q.shape[1] / k.shape[1].max(1), self.attention.factor(q.shape[3]));
        let [mut dq, mut dk, mut dv] = [q, k, v].map(|x| vec![0.0; x.len()]);
        let score = find_score(regions)
            .map(|region| derivatives(region).expect("`infer` saw that it has a gradient"));
        let floats = captures.iter().filter(|x| x.dtype.is_float() && score.is_some());
        let mut dcaptures: Vec<(TensorType, Vec<f64>)> =
            floats.map(|x| (cotangent_type(&x.ty()), vec![0.0; x.len()])).collect();
        let pairs = [&q.shape[..3], &[k.shape[2]]].concat();
        crate::eval::for_each_index(&pairs, |pair| {
            let at: [usize; 4] = pair.try_into().expect("four indices");
            let [b, h, i, j] = at;
            let Some(product) = self.attention.product([q, k], at, (regions, captures)) else {
                return;
            };
            let found = score.as_ref().map(|f| {
                call(f, at, (Some(Array::float(lse.dtype, &[], vec![product])), captures))
            });
            let score_of_pair = found.as_ref().map_or(product, |found| found[0].get(0));
            // Hidden by the score function.
            if score_of_pair == f64::NEG_INFINITY {
                return;
            }
            let (row, head) = ([b, h, i], h / group);
            let weight = (score_of_pair - lse.at(&row)).exp();
            let dweight: f64 =
                (0..v.shape[3]).map(|c| dout.at(&[b, h, i, c]) * v.at(&[b, head, j, c])).sum();
            let kept = self.attention.kept([q, k], at, seed);
            let mut dscore = weight * (kept * dweight - delta.at(&row));
            if let Some(found) = found {
                for ((_, sum), slope) in dcaptures.iter_mut().zip(&found[2..]) {
                    let terms = slope.floats().iter().map(|slope| dscore * slope);
                    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                }
                dscore *= found[1].get(0);
            }
            for c in 0..q.shape[3] {
                dq[q.position(&[b, h, i, c])] += dscore * scale * k.at(&[b, head, j, c]);
                dk[k.position(&[b, head, j, c])] += dscore * scale * q.at(&[b, h, i, c]);
            }
            for c in 0..v.shape[3] {
                dv[v.position(&[b, head, j, c])] += weight * kept * dout.at(&[b, h, i, c]);
            }
        });
        let heads = [(q, dq), (k, dk), (v, dv)].map(|(x, dx)| (x.ty(), dx));
        let all = heads.into_iter().chain(dcaptures);
        all.map(|(ty, dx)| Array::float(ty.dtype, &ty.sizes(), dx)).collect()
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let [q, k, v, lse, dout, delta, rest @ ..] = args else {
            unreachable!("types were inferred")
        };
        let (seed, captures) = self.attention.seed_and_captures(rest);
        let (dtype, wide) = (q.dtype(), lse.dtype());
        let column = [q.size(0), q.size(1), q.size(2), 1];
        let products = self.attention.products([*q, *k]);
        let score = find_score(regions).map(|region| {
            let graph = all_scores(region, &products.ty(), captures);
            let map = b.inline_values(&graph, &[&[products], captures].concat());
            (graph, map)
        });
        let scores = match &score {
            Some((graph, map)) => map[graph.outputs()[0].value.0 as usize],
            None => products,
        };
        // A row that sees nothing has lse -∞; its scores are -∞ too, and any finite shift gives
        // weights of 0.
        let unseen = lse.compare(Compare::Eq, lse.constant(f64::NEG_INFINITY));
        let shift = unseen.select(lse.constant(0.0), *lse).reshape(column);
        let weights = (self.attention.masked(scores, (regions, captures)) - shift).exp();
        let heads = [(0, 0), (1, 1)];
        let (q_rows, dout_rows) = (by_key_head(*q, *k), by_key_head(*dout, *k));
        let dweights = dout_rows.dot_to(*v, &heads, &[(3, 3)], wide).reshape(weights.shape());
        let dropped = |x| self.attention.dropped(x, seed);
        let dscores = weights * (dropped(dweights) - delta.reshape(column));
        let found = match &score {
            Some((graph, map)) => cotangents(graph, (b, map), dscores),
            None => vec![dscores],
        };
        let dproducts = found[0] * self.attention.factor(q.size(3));
        let [weights, dproducts] =
            [dropped(weights), dproducts].map(|x| by_key_head(x.convert(dtype), *k));
        let dq = dproducts.dot(*k, &heads, &[(3, 2)]).reshape(q.shape());
        let dk = dproducts.dot(q_rows, &heads, &[(2, 2)]);
        let dv = weights.dot(dout_rows, &heads, &[(2, 2)]);
        [&[dq, dk, dv], &found[1..]].concat()
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let bytes = operands.iter().chain(results).map(|t| t.bytes() as u64).sum();
        let (q, v) = (operands[0].sizes(), operands[2].sizes());
        let pairs = self.attention.visible_pairs(q[2], v[2]).saturating_mul((q[0] * q[1]) as u64);
        // Five products: scores again, dweights, dq, dk, dv.
        let each = 6 * q[3] + 4 * v[3] + if self.attention.dropout.is_some() { 8 } else { 5 };
        Some(Cost { flops: pairs.saturating_mul(each as u64), bytes })
    }

    fn samples() -> Vec<Sample> {
        let sample = |attention, [b, h, kv, tq, tk, d]: [usize; 6]| {
            let (q, k) = ([b, h, tq, d], [b, kv, tk, d]);
            let sample = Sample::new(AttentionGrad { attention }).normal(q).normal(k).normal(k);
            sample.uniform([b, h, tq], 1.0, 3.0).normal(q).normal([b, h, tq])
        };
        let values = |dtype, sizes: &[usize]| TensorType::new(dtype, sizes.to_vec());
        let length = values(DType::I32, &[2]);
        let mask =
            attention::mask_region(std::slice::from_ref(&length), |[b, _, _, k], captures| {
                k.compare(Compare::Lt, captures[0].at(&[b]))
            });
        let masked = sample(Attention::FULL, [2, 2, 2, 3, 5, 4])
            .operand(length, Fill::Values(vec![3.0, 0.0]))
            .region(mask.expect("the sample's region is well typed"));
        let score = |captures: &[TensorType], f: Score| {
            attention::score_region(DType::F32, captures, f)
                .expect("the sample's region is well typed")
        };
        let capped = sample(Attention::CAUSAL, [1, 2, 1, 4, 6, 4])
            .region(score(&[], |score, _, _| (score * 0.5).tanh() * 2.0));
        let slopes = values(DType::F32, &[3]);
        let alibi = sample(Attention::CAUSAL, [2, 3, 3, 5, 5, 4])
            .operand(slopes.clone(), Fill::Uniform(0.1, 0.9))
            .region(score(&[slopes], |score, [_, h, q, k], captures| {
                score + captures[0].at(&[h]) * (k - q).convert(DType::F32)
            }));
        // Far keys share the ends of the table, where indices are clamped.
        let table = values(DType::F32, &[2, 5]);
        let relative = sample(Attention::FULL, [2, 2, 1, 4, 7, 4])
            .operand(table.clone(), Fill::Normal)
            .region(score(&[table], |score, [_, h, q, k], captures| {
                score + captures[0].at(&[h, k - q + k.constant(2.0)])
            }));
        // Keys of other documents are hidden by the score; the last query is a document of its own,
        // and the temperature of a head multiplies.
        let (documents, heat) = (values(DType::I32, &[2, 5]), values(DType::F32, &[2]));
        let other = vec![0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        let documented = sample(Attention::CAUSAL, [2, 2, 2, 5, 5, 4])
            .operand(documents.clone(), Fill::Values(other))
            .operand(heat.clone(), Fill::Uniform(0.5, 1.5))
            .region(score(&[documents, heat], |score, [b, h, q, k], captures| {
                let same = captures[0].at(&[b, q]).compare(Compare::Eq, captures[0].at(&[b, k]));
                same.select(score * captures[1].at(&[h]), score.constant(f64::NEG_INFINITY))
            }));
        let dropping = |rate, attention| {
            let dropout = Some(Dropout { rate, site: 9 });
            Attention { dropout, ..attention }
        };
        let seeded = |sample: Sample| sample.operand(Dropout::SEED, Fill::Values(vec![11.0]));
        let dropped = seeded(sample(dropping(0.25, Attention::CAUSAL), [2, 2, 1, 4, 6, 4]))
            .region(score(&[], |score, _, _| (score * 0.5).tanh() * 2.0));
        vec![
            sample(Attention::FULL, [2, 3, 3, 5, 7, 4]),
            sample(Attention::CAUSAL, [1, 6, 2, 7, 7, 8]),
            sample(Attention::CAUSAL, [1, 2, 1, 5, 3, 4]),
            sample(Attention::FULL, [1, 1, 1, 1, 0, 4]),
            masked,
            capped,
            alibi,
            relative,
            documented,
            seeded(sample(dropping(0.5, Attention::FULL), [2, 3, 3, 5, 7, 4])),
            seeded(sample(dropping(0.1, Attention::CAUSAL), [1, 6, 2, 7, 7, 8])),
            dropped,
        ]
    }
}

/// A score function that captures nothing of its surroundings.
type Score = for<'b> fn(Expr<'b>, [Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>;

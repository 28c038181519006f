//! `paged_attention(q, k, v, [k_scale, v_scale,] pages, captures...)`: `attention` over keys and
//! values that lie in pages of a pool, as sequences of a decoder share one.
//!
//! k `[P, Hkv, size, D]` and v `[P, Hkv, size, Dv]` are pools of P pages of `size` tokens each. The
//! i32 numbers pages `[B, n]` are those of each sequence's pages, in the order of its tokens. So a
//! sequence has `Tk = n size` keys; key t is row `t % size` of page `pages[b, t / size]`. Numbers
//! beyond the pool are clamped. Pools may hold codes as those of `quantized_attention` do; then
//! their scales `[P, Hkv, size, 1]` follow them. Everything else is that of `attention`, or of
//! `quantized_attention`, results included. Neither are weights dropped nor tiles skipped.
//!
//! A kernel reads rows where they lie. The expansion gathers them into order first, which writes
//! and reads every key once more. Source: Kwon et al., "PagedAttention", arXiv:2309.06180.

use super::attention::{Mask, mask_region, score_region};
use super::quantized_attention::CodedRows;
use super::{Attention, QuantizedAttention};
use crate::{
    Array, Builder, Compare, Cost, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention over pages.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PagedAttention {
    /// The same over keys and values in order.
    pub attention: Attention,
}

/// Keys and values, as a cache or a pool keeps them.
#[derive(Copy, Clone, Debug)]
pub enum KeysAndValues<'b> {
    /// As numbers.
    Numbers([Expr<'b>; 2]),
    /// As codes with scales.
    Codes([CodedRows<'b>; 2]),
}

impl PagedAttention {
    /// Attention of the queries q `[B, H, Tq, D]` over the keys and values of these pages, with
    /// score and mask functions as [`Expr::attention_with`] takes them. Returns `[out,
    /// log-sum-exp]`.
    pub fn of<'b>(
        self,
        q: Expr<'b>,
        (pools, pages): (KeysAndValues<'b>, Expr<'b>),
        regions: Vec<Graph>,
        captures: &[Expr<'b>],
    ) -> [Expr<'b>; 2] {
        let pools = match pools {
            KeysAndValues::Numbers(pools) => pools.to_vec(),
            KeysAndValues::Codes([k, v]) => vec![k.codes, v.codes, k.scales, v.scales],
        };
        let operands = [&[q], &pools[..], &[pages], captures].concat();
        let results = q.builder().node(self, &operands, regions);
        [results[0], results[1]]
    }

    /// Place of the numbers of pages among the operands, behind the pools. `keys` is the type of
    /// the keys' elements.
    pub const fn place_of_pages(keys: DType) -> usize {
        if QuantizedAttention::takes(keys) { QuantizedAttention::OPERANDS } else { 3 }
    }

    /// The type of rows of a pool in order, for sequences of these pages.
    pub(crate) fn in_order(pool: &TensorType, pages: &TensorType) -> Result<TensorType, Mismatch> {
        let found = || format!("a pool {pool}, pages {pages}");
        let ([_, heads, size, depth], [sequences, count]) = (&pool.shape.0[..], &pages.shape.0[..])
        else {
            let expected = "pools of [P, Hkv, size, D], pages of [B, n]";
            return Err(Mismatch::new(expected, found()));
        };
        let (Dim::Size(size), Dim::Size(count)) = (size, count) else {
            return Err(Mismatch::new("a number of pages and of their tokens", found()));
        };
        let tokens = Dim::Size(size * count);
        let shape = Shape(vec![sequences.clone(), heads.clone(), tokens, depth.clone()]);
        Ok(TensorType::new(pool.dtype, shape))
    }

    /// Types of the operands of attention in order.
    fn ordered(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let keys = operands.get(1).map(|k| k.dtype);
        let place = keys.map_or(3, Self::place_of_pages);
        let rows = &operands[..place.min(operands.len())];
        let (Some(pages), [q, pools @ ..]) = (operands.get(place), rows) else {
            let found = format!("{} operands", operands.len());
            let expected = "q, pools of k and v, of scales if those are codes, pages, and captures";
            return Err(Mismatch::new(expected, found));
        };
        if pages.dtype != DType::I32 {
            return Err(Mismatch::new("numbers of pages in i32", pages.to_string()));
        }
        let mut ordered = vec![q.clone()];
        for pool in pools {
            ordered.push(Self::in_order(pool, pages)?);
        }
        ordered.extend_from_slice(&operands[place + 1..]);
        Ok(ordered)
    }
}

/// Rows of a pool in the order of each sequence's tokens, `[B, Hkv, n size, D]`.
fn rows_in_order<'b>(pool: Expr<'b>, pages: Expr<'b>) -> Expr<'b> {
    let [sequences, count] = [0, 1].map(|i| pages.size(i));
    let [heads, size, depth] = [1, 2, 3].map(|i| pool.size(i));
    // A row for each head, so that a page's part of it is copied whole and lands in order.
    let rows = Shape::from([sequences, heads, count, 1]);
    let page = pages.broadcast_in(&rows, &[0, 2]);
    let rows = pool.builder().concat(&[page, pool.builder().iota(DType::I32, rows, 1)], 3);
    pool.gather(rows, &[0, 1]).reshape([sequences, heads, count * size, depth])
}

impl Op for PagedAttention {
    const NAME: &'static str = "paged_attention";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let operands = self.ordered(types.operands)?;
        if self.attention.threshold.is_some() || self.attention.dropout.is_some() {
            let found = "a threshold or dropout".to_owned();
            return Err(Mismatch::new("attention that drops no weights and skips no tiles", found)
                .remedy("leave them out: they are for whole sequences"));
        }
        let ordered = Types { operands: &operands, regions: types.regions };
        if QuantizedAttention::takes(operands[1].dtype) {
            return QuantizedAttention { attention: self.attention }.infer(&ordered);
        }
        self.attention.infer(&ordered)
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let place = Self::place_of_pages(args[1].dtype);
        let pages = &args[place];
        let in_order = |pool: &Array| {
            let [all, heads, size, depth] = [0, 1, 2, 3].map(|i| pool.shape[i]);
            let shape = [pages.shape[0], heads, pages.shape[1] * size, depth];
            Array::build(pool.dtype, &shape, |at| {
                let page = pages.ints()[at[0] * pages.shape[1] + at[2] / size];
                pool.at(&[page.clamp(0, all as i128 - 1) as usize, at[1], at[2] % size, at[3]])
            })
        };
        let mut operands = vec![args[0].clone()];
        operands.extend(args[1..place].iter().map(in_order));
        operands.extend_from_slice(&args[place + 1..]);
        if QuantizedAttention::takes(args[1].dtype) {
            return QuantizedAttention { attention: self.attention }.eval(&operands, regions);
        }
        self.attention.eval(&operands, regions)
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let place = Self::place_of_pages(args[1].dtype());
        let rows: Vec<Expr<'b>> =
            args[1..place].iter().map(|&pool| rows_in_order(pool, args[place])).collect();
        let (captures, regions) = (&args[place + 1..], regions.to_vec());
        let results = match rows[..] {
            [k, v, k_scales, v_scales] => {
                let rows = [(k, k_scales), (v, v_scales)]
                    .map(|(codes, scales)| CodedRows { codes, scales });
                args[0].quantized_attention(rows, self.attention, regions, captures)
            }
            _ => args[0].attention_with([rows[0], rows[1]], self.attention, regions, captures),
        };
        results.to_vec()
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let pages = &operands[Self::place_of_pages(operands[1].dtype)];
        let cost = self.attention.cost(&self.ordered(operands).ok()?, results)?;
        Some(Cost { bytes: cost.bytes + pages.bytes() as u64, ..cost })
    }

    fn samples() -> Vec<Sample> {
        // Three sequences of two pages out of five; two of them share one, and the last page is
        // beyond the pool.
        let pages = |sample: Sample| {
            let numbers = Fill::Values(vec![3.0, 1.0, 4.0, 2.0, 2.0, 7.0]);
            sample.operand(TensorType::new(DType::I32, [3usize, 2]), numbers)
        };
        let length = TensorType::new(DType::I64, [3usize]);
        let lengths = |sample: Sample| {
            // The second sequence is empty: its row sees no key.
            sample.operand(length.clone(), Fill::Values(vec![7.0, 0.0, 3.0]))
        };
        let score = score_region(DType::F32, std::slice::from_ref(&length), |score, _, _| {
            (score * 0.5).tanh() * 2.0
        });
        let mask = mask_region(std::slice::from_ref(&length), |[b, _, _, k], captures| {
            k.convert(DType::I64).compare(Compare::Lt, captures[0].at(&[b]))
        });
        let [score, mask] =
            [score, mask].map(|region| region.expect("the sample's regions are well typed"));
        let of = |attention| Sample::new(PagedAttention { attention });
        let full = Attention { mask: Mask::Full, ..Attention::FULL };
        let numbers = |attention, [heads, queries, depth, values]: [usize; 4]| {
            let sample = of(attention).normal([3usize, heads, queries, depth]);
            pages(sample.normal([5usize, 2, 4, depth]).normal([5usize, 2, 4, values]))
        };
        let codes = |dtype: DType, depth: usize| {
            let values = match dtype {
                DType::I8 => vec![-127.0, 127.0, 0.0, 3.0, -41.0, 88.0, 17.0],
                _ => vec![-448.0, 448.0, 0.0, 0.013671875, -36.0, 208.0, 15.0],
            };
            let pool = TensorType::new(dtype, [5usize, 2, 4, depth]);
            let largest = dtype.max_value();
            let mut sample = of(full).normal([3usize, 6, 1, depth]);
            for _ in ["k", "v"] {
                sample = sample.operand(pool.clone(), Fill::Values(values.clone()));
            }
            for _ in ["k", "v"] {
                sample = sample.uniform([5usize, 2, 4, 1], 0.5 / largest, 2.0 / largest);
            }
            lengths(pages(sample)).region(mask.clone())
        };
        vec![
            numbers(Attention::CAUSAL, [4, 3, 8, 5]),
            lengths(numbers(full, [6, 1, 8, 8])).region(score).region(mask.clone()),
            lengths(numbers(full, [2, 2, 32, 32])).region(mask.clone()),
            codes(DType::I8, 8),
            codes(DType::F8E4M3, 32),
        ]
    }
}

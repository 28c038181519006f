//! Ring attention: attention whose queries and keys are split along the sequence, without a rank
//! that ever holds all keys.
//!
//! Each rank keeps its queries. Keys and values go round the ring of ranks: while a rank attends to
//! those that it has, the next ones arrive. Results of parts are merged by their log-sum-exp, in
//! f32 (f64 for f64). In the backward the gradients of keys and values go round with them, summed
//! in the accumulation type. They end at the rank that holds their keys.
//!
//! Under a causal mask a rank at the front would have next to nothing to do. So the sequence is cut
//! into two chunks a rank. Each rank works on a chunk of the front and its mirror image at the
//! back: `c` and `2 N - 1 - c`. A rank holds chunks 2 r and 2 r + 1. It keeps the even one and
//! swaps the odd one with rank N - 1 - r, for chunk 2 N - 1 - 2 r. Then each turn of the ring is
//! the same work for all: two products of chunks without a mask. Sources: Liu et al., "Ring
//! attention with blockwise transformers", arXiv:2310.01889; balance: Zhu, "zigzag ring attention",
//! 2024.
//!
//! All ranks run the same graph. Tables of the rank's position choose what depends on the rank, and
//! fold away once the rank is known. Positions that score and mask functions see are those of the
//! whole sequence.
//!
//! Long because the forward and the backward turn one ring with the same chunks and choices.

use super::layout::{Laid, over, position};
use super::walk::Ranks;
use overdrive_ir::ops::attention::{Mask, find_mask, find_score, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad};
use overdrive_ir::{
    Axis, Builder, Compare, DType, Expr, Graph, Mesh, Node, Operation, Prim, Sharding, Tensor,
    TensorType,
};
use std::rc::Rc;

/// The dimension of the sequence, in `[B, H, T, D]` and `[B, H, T]`.
const TIME: usize = 2;

/// Operands of attention before the captures.
const FORWARD: usize = 3;

/// Operands of its gradient before the captures: q, k, v, lse, dout, delta.
const BACKWARD: usize = 6;

impl<'b> Ranks<'b, '_> {
    /// The results of attention or of its gradient, if queries and keys are split along the same
    /// axis of the mesh. `None` for another node, and if the ring does not apply. It does not apply
    /// to dropout, whose numbers have the places of whole weights. It also does not apply to causal
    /// attention of other keys than the queries', or of an odd number of positions on each rank.
    pub(super) fn ring(
        &mut self,
        node: &Node,
        operands: &[Rc<Laid<'b>>],
        results: &[TensorType],
    ) -> Option<Vec<Rc<Laid<'b>>>> {
        let Operation::Composite(op) = &node.op else { return None };
        let gradient = op.downcast::<AttentionGrad>();
        let attention = *op.downcast::<Attention>().or(gradient.map(|of| &of.attention))?;
        let [q, k] = [&operands[0], &operands[1]];
        let axis = q.sharding.split[TIME].clone()?;
        let is_split = operands[..3].iter().all(|x| x.sharding.dim_of(&axis) == Some(TIME));
        let [queries, keys] = [q, k].map(|x| x.ty.sizes()[TIME]);
        let count = self.mesh.size(&axis);
        let is_causal = attention.mask == Mask::Causal;
        let balances = queries == keys && queries.is_multiple_of(2 * count);
        if !is_split || attention.dropout.is_some() || (is_causal && !balances) {
            return None;
        }
        let batch = q.sharding.split[0].clone();
        let heads = q.sharding.split[1].clone().filter(|a| k.sharding.dim_of(a) == Some(1));
        let to = |rank: usize| {
            let mut to = Sharding::whole(rank);
            (to.split[0], to.split[1]) = (batch.clone(), heads.clone());
            to.split[TIME] = Some(axis.clone());
            to
        };
        let fixed = if gradient.is_some() { BACKWARD } else { FORWARD };
        let at = |(i, x): (usize, &Rc<Laid<'b>>)| {
            let rank = x.ty.rank();
            x.at(self.b, self.mesh, &if i < fixed { to(rank) } else { Sharding::whole(rank) })
        };
        let all: Vec<Expr<'b>> = operands.iter().enumerate().map(at).collect();
        let (parts, captures) = all.split_at(fixed);
        let first = [(0, &batch), (1, &heads)].map(|(dim, axis)| match axis {
            Some(axis) => (position(self.b, axis) * parts[0].size(dim) as f64).convert(DType::I32),
            None => self.b.full(DType::I32, [0usize; 0], 0.0),
        });
        let ring = Ring {
            b: self.b,
            mesh: self.mesh,
            axis: axis.clone(),
            count,
            attention,
            functions: functions(&node.regions, captures),
            captures: captures.iter().copied().chain(first).collect(),
        };
        let found = match gradient {
            None => ring.forward(parts),
            Some(_) => ring.backward(parts),
        };
        let along: Vec<Axis> =
            [Some(axis.clone()), batch.clone(), heads.clone()].into_iter().flatten().collect();
        let laid = found.into_iter().zip(results).enumerate().map(|(i, (expr, ty))| {
            // Behind the gradients of q, k and v stand those of captures: sums over all pairs.
            let sharding = match gradient.is_some() && i >= FORWARD {
                true => {
                    let mut partial = along.clone();
                    partial.sort();
                    Sharding { partial, ..Sharding::whole(ty.rank()) }
                }
                false => to(ty.rank()),
            };
            Laid::new(ty.clone(), sharding, expr.convert(ty.dtype))
        });
        Some(laid.collect())
    }
}

/// The functions of scores and visibility as parts of the sequence call them. They take four more
/// captures: the first sample, head, query and key of the part.
fn functions(regions: &[Graph], captures: &[Expr<'_>]) -> Vec<Graph> {
    let index = std::iter::repeat_n(TensorType::scalar(DType::I32), 4);
    let types: Vec<TensorType> = captures.iter().map(|x| x.ty()).chain(index).collect();
    let score = find_score(regions).map(|region| {
        let dtype = region.ty(region.inputs()[0].value).dtype;
        score_region(dtype, &types, |score, at, all| moved(region, Some(score), at, all))
    });
    let mask = find_mask(regions)
        .map(|region| mask_region(&types, |at, all| moved(region, None, at, all)));
    let built = score.into_iter().chain(mask);
    built.map(|region| region.expect("a region at other indices is as well typed")).collect()
}

/// A function at a pair of a part, which begins where the last four captures say.
fn moved<'r>(
    region: &Graph,
    score: Option<Expr<'r>>,
    at: [Expr<'r>; 4],
    all: &[Expr<'r>],
) -> Expr<'r> {
    let (captures, first) = all.split_at(all.len() - 4);
    let at = at.iter().zip(first).map(|(index, first)| *index + *first);
    let arguments: Vec<Expr<'r>> =
        score.into_iter().chain(at).chain(captures.iter().copied()).collect();
    all[captures.len()].builder().inline(region, &arguments)[0]
}

/// Attention `[out, lse]` to the keys of two parts, both in the accumulation type.
fn merged<'b>(one: &[Expr<'b>], other: &[Expr<'b>]) -> Vec<Expr<'b>> {
    let most = one[1].max(other[1]);
    // Rows that have seen no key: any finite shift gives weights of 0.
    let unseen = most.compare(Compare::Eq, most.constant(f64::NEG_INFINITY));
    let base = unseen.select(most.constant(0.0), most);
    let weights = [one, other].map(|part| (part[1] - base).exp());
    let total = weights[0] + weights[1];
    let divisor = unseen.select(total.constant(1.0), total);
    let column = [most.size(0), most.size(1), most.size(TIME), 1];
    let [own, others] = weights.map(|weight| (weight / divisor).reshape(column));
    vec![one[0] * own + other[0] * others, base + total.log()]
}

fn summed<'b>(one: &[Expr<'b>], other: &[Expr<'b>]) -> Vec<Expr<'b>> {
    one.iter().zip(other).map(|(x, y)| *x + *y).collect()
}

/// How what parts give is put together.
type Merge = for<'b> fn(&[Expr<'b>], &[Expr<'b>]) -> Vec<Expr<'b>>;

/// A chunk of those that a rank works on.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Chunk {
    /// The one that the rank holds anyway.
    Kept,
    /// The one that it has from another rank, under a causal mask.
    Swapped,
    /// That of the front.
    Low,
    /// That of the back.
    High,
    /// After so many turns: that of the front where the keys are from before the rank's own front.
    Turned(usize),
}

/// Queries, keys, and what the queries see of them.
type Call = (Chunk, Chunk, Mask);

/// One rank's view of the ring.
struct Ring<'b, 'm> {
    b: &'b Builder,
    mesh: &'m Mesh,
    axis: Axis,
    /// Ranks.
    count: usize,
    attention: Attention,
    functions: Vec<Graph>,
    /// Those of the functions, the first sample and the first head.
    captures: Vec<Expr<'b>>,
}

impl<'b> Ring<'b, '_> {
    /// `[out, lse]`.
    fn forward(&self, parts: &[Expr<'b>]) -> Vec<Expr<'b>> {
        let queries = self.chunks(&parts[..1]);
        let mut keys = self.chunks(&parts[1..]);
        let mut found = vec![vec![]; queries.len()];
        for turn in 0..self.count {
            if turn > 0 {
                keys = self.turned(&keys);
            }
            for call @ (of_queries, of_keys, _) in self.calls(turn) {
                let q = self.get(&queries, (of_queries, 0))[0];
                let kv = self.get(&keys, (of_keys, turn));
                let (attention, captures) = self.call(call, turn, [q, kv[0]].map(|x| x.size(TIME)));
                let regions = self.functions.clone();
                let [out, lse] = q.attention_with([kv[0], kv[1]], attention, regions, &captures);
                let part = vec![out.convert(lse.dtype()), lse];
                self.add(&mut found, (of_queries, 0), part, merged);
            }
        }
        self.joined(&found)
    }

    /// The gradients of q, k and v, and of captures.
    fn backward(&self, parts: &[Expr<'b>]) -> Vec<Expr<'b>> {
        let [q, k, v, lse, dout, delta] = parts else {
            unreachable!("the op has so many operands")
        };
        let wide = lse.dtype();
        let rows = self.chunks(&[*q, *lse, *dout, *delta]);
        let mut keys = self.chunks(&[*k, *v]);
        let mut of_rows = vec![vec![]; rows.len()];
        let mut of_keys = of_rows.clone();
        let mut of_captures = vec![];
        for turn in 0..self.count {
            if turn > 0 {
                (keys, of_keys) = (self.turned(&keys), self.turned(&of_keys));
            }
            for call @ (which_rows, which_keys, _) in self.calls(turn) {
                let row = self.get(&rows, (which_rows, 0));
                let kv = self.get(&keys, (which_keys, turn));
                let (attention, captures) =
                    self.call(call, turn, [row[0], kv[0]].map(|x| x.size(TIME)));
                let operands = [&[row[0], kv[0], kv[1]], &row[1..], &captures].concat();
                let grad = AttentionGrad { attention };
                let results = self.b.node(grad, &operands, self.functions.clone());
                let results: Vec<Expr<'b>> = results.iter().map(|x| x.convert(wide)).collect();
                self.add(&mut of_rows, (which_rows, 0), results[..1].to_vec(), summed);
                self.add(&mut of_keys, (which_keys, turn), results[1..3].to_vec(), summed);
                of_captures = match of_captures.is_empty() {
                    true => results[3..].to_vec(),
                    false => summed(&of_captures, &results[3..]),
                };
            }
        }
        // Home again: in the type of the results, which is narrower.
        let narrow = |chunks: &[Vec<Expr<'b>>]| -> Vec<Vec<Expr<'b>>> {
            let chunk =
                |chunk: &Vec<Expr<'b>>| chunk.iter().map(|x| x.convert(q.dtype())).collect();
            chunks.iter().map(chunk).collect()
        };
        let of_keys = self.joined(&self.turned(&narrow(&of_keys)));
        [self.joined(&narrow(&of_rows)), of_keys, of_captures].concat()
    }

    fn is_causal(&self) -> bool {
        self.attention.mask == Mask::Causal
    }

    /// The products of chunks that a rank computes after so many turns. The first needs none of the
    /// other ranks, so that chunks are swapped meanwhile.
    fn calls(&self, turn: usize) -> Vec<Call> {
        let turned = Chunk::Turned(turn);
        match (self.is_causal(), turn) {
            (false, _) => vec![(Chunk::Kept, Chunk::Kept, Mask::Full)],
            (true, 0) => vec![
                (Chunk::Kept, Chunk::Kept, Mask::Causal),
                (Chunk::Swapped, Chunk::Swapped, Mask::Causal),
                (Chunk::High, Chunk::Low, Mask::Full),
            ],
            // All of the back sees all of any front. The own front sees the front of a rank further
            // at the front too. The own back sees the back of a rank further inside too.
            (true, _) => vec![(Chunk::High, Chunk::Low, Mask::Full), (turned, turned, Mask::Full)],
        }
    }

    /// The op of a call, and its captures. `sizes` are positions of the chunk of queries and of
    /// that of keys.
    fn call(&self, call: Call, turn: usize, sizes: [usize; 2]) -> (Attention, Vec<Expr<'b>>) {
        let (queries, keys, mask) = call;
        let attention = Attention { mask, ..self.attention };
        if self.functions.is_empty() {
            return (attention, vec![]);
        }
        // The chunk that the rank has, after so many turns.
        let start = |rank: usize, turn: usize, chunk: Chunk| {
            let of = self.source(rank, turn);
            match (self.is_causal(), self.is_kept(rank, (chunk, turn))) {
                (false, _) => of,
                (true, true) => 2 * of,
                (true, false) => 2 * self.count - 1 - 2 * of,
            }
        };
        let first_query = self.number(|rank| sizes[0] * start(rank, 0, queries));
        let first_key = self.number(|rank| sizes[1] * start(rank, turn, keys));
        (attention, [self.captures.as_slice(), &[first_query, first_key]].concat())
    }

    /// The rank whose keys this one has after some turns.
    fn source(&self, rank: usize, turns: usize) -> usize {
        (rank + self.count - turns) % self.count
    }

    /// The number of a rank's chunk of the front.
    fn front(&self, rank: usize) -> usize {
        (2 * rank).min(2 * self.count - 1 - 2 * rank)
    }

    /// Whether the keys after some turns are from before a rank's own front.
    fn is_before(&self, rank: usize, turns: usize) -> bool {
        self.front(self.source(rank, turns)) < self.front(rank)
    }

    /// Whether a chunk of those that a rank has after some turns is the one that their owner keeps.
    fn is_kept(&self, rank: usize, (which, turns): (Chunk, usize)) -> bool {
        let owner = self.source(rank, turns);
        let keeps_low = self.front(owner) == 2 * owner;
        match which {
            Chunk::Kept => true,
            Chunk::Swapped => false,
            Chunk::Low => keeps_low,
            Chunk::High => !keeps_low,
            Chunk::Turned(turn) => self.is_before(rank, turn) == keeps_low,
        }
    }

    /// A number of this rank.
    fn number(&self, of: impl Fn(usize) -> usize) -> Expr<'b> {
        let table: Vec<i128> = (0..self.count).map(|rank| of(rank) as i128).collect();
        let table = self.b.constant(Tensor::from_ints(DType::I32, [self.count], &table));
        table.at(&[position(self.b, &self.axis)])
    }

    /// The first of two where `of` this rank, else the second.
    fn pick(&self, of: impl Fn(usize) -> bool, [yes, no]: [Expr<'b>; 2]) -> Expr<'b> {
        let number = self.number(|rank| usize::from(of(rank)));
        let condition = number.compare(Compare::Eq, number.constant(1.0));
        condition.broadcast_in(&yes.shape(), &[]).select(yes, no)
    }

    fn picked(&self, of: impl Fn(usize) -> bool, [yes, no]: [&[Expr<'b>]; 2]) -> Vec<Expr<'b>> {
        yes.iter().zip(no).map(|(yes, no)| self.pick(&of, [*yes, *no])).collect()
    }

    /// The tensors of a chunk of those that a rank has after some turns.
    fn get(&self, chunks: &[Vec<Expr<'b>>], which: (Chunk, usize)) -> Vec<Expr<'b>> {
        match which.0 {
            Chunk::Kept => chunks[0].clone(),
            Chunk::Swapped => chunks[1].clone(),
            _ => self.picked(|rank| self.is_kept(rank, which), [&chunks[0], &chunks[1]]),
        }
    }

    /// Merges a part into what a chunk has so far.
    fn add(
        &self,
        chunks: &mut [Vec<Expr<'b>>],
        which: (Chunk, usize),
        part: Vec<Expr<'b>>,
        merge: Merge,
    ) {
        let so_far = self.get(chunks, which);
        let sum = if so_far.is_empty() { part } else { merge(&so_far, &part) };
        match which.0 {
            Chunk::Kept => chunks[0] = sum,
            Chunk::Swapped => chunks[1] = sum,
            _ => {
                let is_kept = |rank| self.is_kept(rank, which);
                let kept = self.picked(is_kept, [&sum, &chunks[0]]);
                (chunks[0], chunks[1]) = (kept, self.picked(is_kept, [&chunks[1], &sum]));
            }
        }
    }

    fn permuted(&self, x: Expr<'b>, target: impl Fn(usize) -> usize) -> Expr<'b> {
        let pairs = (0..self.count).map(|rank| (rank, target(rank))).collect();
        self.b.op1(Prim::Permute { pairs, channel: over(self.b, self.mesh, &self.axis) }, &[x])
    }

    /// The tensors of the rank before.
    fn turned(&self, chunks: &[Vec<Expr<'b>>]) -> Vec<Vec<Expr<'b>>> {
        let next = |x: &Expr<'b>| self.permuted(*x, |rank| (rank + 1) % self.count);
        chunks.iter().map(|chunk| chunk.iter().map(next).collect()).collect()
    }

    fn swapped(&self, x: Expr<'b>) -> Expr<'b> {
        self.permuted(x, |rank| self.count - 1 - rank)
    }

    /// The chunks that a rank works on, from its part of the sequence. It keeps the first, and
    /// swaps the second for another.
    fn chunks(&self, all: &[Expr<'b>]) -> Vec<Vec<Expr<'b>>> {
        if !self.is_causal() {
            return vec![all.to_vec()];
        }
        let half = all[0].size(TIME) / 2;
        let even = all.iter().map(|x| x.slice_axis(TIME, 0, half)).collect();
        let odd = all.iter().map(|x| self.swapped(x.slice_axis(TIME, half, 2 * half))).collect();
        vec![even, odd]
    }

    /// A rank's part of the sequence, from the chunks that it worked on.
    fn joined(&self, chunks: &[Vec<Expr<'b>>]) -> Vec<Expr<'b>> {
        let [kept, other] = chunks else { return chunks[0].clone() };
        let join = |(kept, other): (&Expr<'b>, &Expr<'b>)| {
            self.b.concat(&[*kept, self.swapped(*other)], TIME)
        };
        kept.iter().zip(other).map(join).collect()
    }
}

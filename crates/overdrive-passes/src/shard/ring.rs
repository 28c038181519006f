//! Ring attention: keys and values go round groups of ranks that have each a part of the sequence.
//!
//! Each rank keeps its queries. While it attends to the keys that it has, the next ones arrive.
//! Results of parts are merged by their log-sum-exp, in f32 (f64 for f64). In the backward the
//! gradients of keys and values go round with them, summed in the accumulation type. They end at
//! the rank that holds their keys.
//!
//! Under a causal mask a rank at the front would have next to nothing to do. So the sequence is cut
//! into two chunks a rank. Each rank works on a chunk of the front and its mirror image at the
//! back: `c` and `2 N - 1 - c`. A rank holds chunks 2 r and 2 r + 1. It keeps the even one and
//! swaps the odd one with rank N - 1 - r, for chunk 2 N - 1 - 2 r. Then each turn of the ring is
//! the same work for all: two products of chunks without a mask. Sources: Liu et al., "Ring
//! attention with blockwise transformers", arXiv:2310.01889; balance: Zhu, "zigzag ring attention",
//! 2024.
//!
//! A place of the ring is a rank, or a group of them that share the heads. Ranks of a group have
//! the same positions, and each exchanges with its like in other groups. A ring of one place is one
//! call, with nothing to merge.

use super::line::Line;
use super::ulysses::TIME;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::ops::{Attention, AttentionGrad};
use overdrive_ir::{Compare, DType, Expr, Graph};

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
pub(super) struct Ring<'a, 'b, 'm> {
    pub(super) line: &'a Line<'b, 'm>,
    /// Ranks of each place of the ring.
    pub(super) group: usize,
    /// Places.
    pub(super) count: usize,
    pub(super) attention: Attention,
    pub(super) functions: Vec<Graph>,
    /// Those of the functions, the first sample and the first head.
    pub(super) captures: Vec<Expr<'b>>,
}

impl<'b> Ring<'_, 'b, '_> {
    /// `[out, lse]`.
    pub(super) fn forward(&self, parts: &[Expr<'b>]) -> Vec<Expr<'b>> {
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
                let part = vec![self.wide(out, lse.dtype()), lse];
                self.add(&mut found, (of_queries, 0), part, merged);
            }
        }
        self.joined(&found)
    }

    /// The gradients of q, k and v, and of captures.
    pub(super) fn backward(&self, parts: &[Expr<'b>]) -> Vec<Expr<'b>> {
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
                let results = self.line.b.node(grad, &operands, self.functions.clone());
                let results: Vec<Expr<'b>> = results.iter().map(|x| self.wide(*x, wide)).collect();
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
        let of_keys = match self.count {
            1 => narrow(&of_keys),
            _ => self.turned(&narrow(&of_keys)),
        };
        let of_keys = self.joined(&of_keys);
        [self.joined(&narrow(&of_rows)), of_keys, of_captures].concat()
    }

    /// A part in the type in which parts are summed. One part stays as it is.
    fn wide(&self, part: Expr<'b>, dtype: DType) -> Expr<'b> {
        if self.count > 1 { part.convert(dtype) } else { part }
    }

    /// Whether each place works on two chunks.
    fn balances(&self) -> bool {
        self.attention.mask == Mask::Causal && self.count > 1
    }

    /// The products of chunks that a rank computes after so many turns. The first needs none of the
    /// other ranks, so that chunks are swapped meanwhile.
    fn calls(&self, turn: usize) -> Vec<Call> {
        let turned = Chunk::Turned(turn);
        match (self.balances(), turn) {
            (false, _) => vec![(Chunk::Kept, Chunk::Kept, self.attention.mask)],
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
            match (self.balances(), self.is_kept(rank, (chunk, turn))) {
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

    /// The place of a rank.
    fn place(&self, rank: usize) -> usize {
        rank / self.group
    }

    /// A number of this rank's place.
    fn number(&self, of: impl Fn(usize) -> usize) -> Expr<'b> {
        self.line.number(|rank| of(self.place(rank)))
    }

    fn picked(&self, of: impl Fn(usize) -> bool, [yes, no]: [&[Expr<'b>]; 2]) -> Vec<Expr<'b>> {
        let of = |rank| of(self.place(rank));
        yes.iter().zip(no).map(|(yes, no)| self.line.pick(of, [*yes, *no])).collect()
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
        let to = |rank: usize| target(self.place(rank)) * self.group + rank % self.group;
        self.line.permuted(x, to)
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
        if !self.balances() {
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
            self.line.b.concat(&[*kept, self.swapped(*other)], TIME)
        };
        kept.iter().zip(other).map(join).collect()
    }
}

//! `AttentionSizes`: attention whose sequence is split, and the groups of ranks that can share its
//! heads. An estimate says which group takes the least time.
//!
//! The estimate needs no fabric. It counts all time in bytes on the wire, by rates of GPUs that are
//! joined by NVLink. Exchanges of positions for heads hide behind nothing. Keys on their way round
//! a ring hide behind products. A ring swaps halves of a causal sequence, merges its parts in
//! memory, and calls attention several times on few positions.

/// Bytes of memory that a device reads or writes in the time of a byte on the wire: 3.5 TB/s over
/// 300 GB/s.
const MEMORY: f64 = 12.0;

/// FLOPs of attention in that time: 600 TFLOP/s over 300 GB/s.
const FLOPS: f64 = 2000.0;

/// Bytes on the wire in the time of a launch and of multiprocessors that are idle at its end: 27 us
/// at 300 GB/s.
const CALL: f64 = 8e6;

/// Bytes of memory for an element of a part that is merged. It is written and read in the narrow
/// type and in f32, read from the sum, and written to it.
const MERGE: f64 = 20.0;

/// Attention of a whole sequence, as far as ranks along other axes leave it.
pub(super) struct AttentionSizes {
    pub(super) batch: usize,
    /// Heads of queries.
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// Positions of queries and of keys.
    pub(super) positions: [usize; 2],
    /// Channels of keys and of values.
    pub(super) channels: [usize; 2],
    pub(super) element_bytes: usize,
    pub(super) is_causal: bool,
    /// Ranks that share the sequence.
    pub(super) ranks: usize,
}

impl AttentionSizes {
    /// The times that each head of keys is repeated, so that `group` ranks divide the heads. None
    /// if they do not.
    pub(super) fn repeats(&self, group: usize) -> Option<usize> {
        let (heads, key_heads) = (self.heads, self.key_heads);
        let common =
            (1..=group).rev().find(|n| group.is_multiple_of(*n) && key_heads.is_multiple_of(*n))?;
        let times = group / common;
        let fits = heads.is_multiple_of(group) && heads.is_multiple_of(key_heads * times);
        fits.then_some(times)
    }

    /// Whether each of the groups gets the same work.
    pub(super) fn balances(&self, group: usize) -> bool {
        let groups = self.ranks / group;
        let [queries, keys] = self.positions;
        let halves = queries == keys && queries.is_multiple_of(2 * groups);
        !self.is_causal || groups == 1 || halves
    }

    /// Sizes of groups that can share the heads, 1 among them.
    pub(super) fn dividing(&self) -> impl Iterator<Item = usize> {
        (1..=self.ranks)
            .filter(|&group| self.ranks.is_multiple_of(group) && self.repeats(group).is_some())
    }

    /// The ranks of a group with which attention takes the least time. None if no size of groups
    /// is possible.
    pub(super) fn fastest(&self) -> Option<usize> {
        let possible = self.dividing().filter(|&group| self.balances(group));
        possible.min_by(|&x, &y| self.cost(x).total_cmp(&self.cost(y)))
    }

    /// Estimated time that the split adds to a forward, in bytes on the wire.
    fn cost(&self, group: usize) -> f64 {
        let of = |sizes: [usize; 4]| sizes.into_iter().map(|n| n as f64).product::<f64>();
        let [queries, keys] = self.positions;
        let times = self.repeats(group).unwrap_or(1);
        let groups = self.ranks / group;
        let part = |heads: usize, positions: usize, channels: usize| {
            of([self.batch, heads, positions, channels]) / self.ranks as f64
        };
        let channels: usize = self.channels.iter().sum();
        let bytes = self.element_bytes as f64;
        let rows = bytes * part(self.heads, queries, channels);
        let columns = bytes * part(self.key_heads * times, keys, channels);
        let mut cost = 0.0;
        if group > 1 {
            // Each tensor is packed before and unpacked behind.
            let others = (group - 1) as f64 / group as f64;
            let exchanges = if groups > 1 { 4 * (group - 1) } else { 2 };
            cost += (rows + columns) * (others + 4.0 / MEMORY) + exchanges as f64 * CALL;
        }
        if groups > 1 {
            let turns = (groups - 1) as f64;
            let pairs = of([self.batch, self.heads, queries, keys]) / self.ranks as f64;
            let flops = 2.0 * pairs * channels as f64 / groups as f64;
            let out = part(self.heads, queries, self.channels[1]);
            // A causal turn has half of the pairs, in two calls, each of half of the queries.
            let (seen, calls, merges, swapped) = match self.is_causal {
                true => (0.5, 2.0 * turns + 3.0, turns + 0.5, 0.5 * (rows + columns)),
                false => (1.0, turns + 1.0, turns, 0.0),
            };
            let exposed = (columns - seen * flops / FLOPS).max(0.0);
            cost +=
                swapped + turns * exposed + merges * MERGE * out / MEMORY + (calls - 1.0) * CALL;
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::AttentionSizes;

    fn sizes(heads: [usize; 2], tokens: usize, ranks: usize) -> AttentionSizes {
        let [heads, key_heads] = heads;
        AttentionSizes {
            batch: 1,
            heads,
            key_heads,
            positions: [tokens; 2],
            channels: [128; 2],
            element_bytes: 2,
            is_causal: true,
            ranks,
        }
    }

    #[test]
    fn keys_are_repeated_no_more_than_the_ranks_need() {
        let repeats = |heads, group| sizes(heads, 1024, group).repeats(group);
        assert_eq!(repeats([8, 8], 4), Some(1));
        assert_eq!(repeats([8, 2], 4), Some(2));
        assert_eq!(repeats([8, 1], 8), Some(8));
        assert_eq!(repeats([12, 6], 4), Some(2));
        assert_eq!(repeats([6, 6], 4), None);
        assert_eq!(repeats([12, 4], 6), Some(3));
        assert_eq!(repeats([8, 8], 1), Some(1));
    }

    #[test]
    fn causal_sequences_exchange_heads_and_many_keys_for_few_queries_go_round() {
        for tokens in [64 << 10, 256 << 10, 1 << 20] {
            assert_eq!(sizes([16, 16], tokens, 4).fastest(), Some(4), "{tokens}");
        }
        // Pairs of ranks can share six heads, but exchange them and swap halves too.
        let pairs = sizes([6, 6], 64 << 10, 4);
        assert!(pairs.dividing().eq([1, 2]) && pairs.fastest() == Some(1));
        // No mask, so nothing is swapped, and keys hide behind products.
        let full = AttentionSizes { is_causal: false, ..sizes([16, 16], 1 << 20, 4) };
        assert_eq!(full.fastest(), Some(1));
        // An odd number of positions cannot go round.
        assert_eq!(sizes([16, 16], 4 * 1023, 4).fastest(), Some(4));
        assert_eq!(sizes([3, 3], 4 * 1023, 4).fastest(), None);
    }
}

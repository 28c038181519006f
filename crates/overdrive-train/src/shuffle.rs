//! A random order of `0..len` that can be asked for any place of it and is never stored.
//!
//! It is a Feistel network over the smallest even number of bits, with rounds drawn by Philox. A
//! result outside the range is put through again until it is inside. That is cycle walking (Black
//! and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). A data set of any size is
//! shuffled in no memory, and a run resumes anywhere.

use overdrive_ir::eval::philox;

/// Rounds of the network; four make a permutation that cannot be told from a random one (Luby and
/// Rackoff, 1988).
const ROUNDS: u64 = 4;

/// A permutation of `0..len`, fixed by its seed.
#[derive(Copy, Clone, Debug)]
pub struct Shuffle {
    len: u64,
    seed: u64,
    half_bits: u32,
}

impl Shuffle {
    /// The order of `len` things under this seed.
    pub fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { len, seed, half_bits: bits.div_ceil(2).max(1) }
    }

    /// The index at `place`, which must be below `len`.
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} of {}", self.len);
        let mut value = self.network(place);
        while value >= self.len {
            value = self.network(value);
        }
        value
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let drawn = u64::from(philox::bits(self.seed, round, right)) & mask;
            (left, right) = (right, left ^ drawn);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_taken_once() {
        for len in [1, 2, 3, 5, 64, 1437, 5000] {
            let order = Shuffle::new(len, 9);
            let mut seen: Vec<u64> = (0..len).map(|i| order.at(i)).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..len), "{len}");
        }
    }

    #[test]
    fn seeds_give_different_orders_and_nothing_stays_where_it_was() {
        let order = |seed| (0..1000).map(|i| Shuffle::new(1000, seed).at(i)).collect::<Vec<_>>();
        assert_ne!(order(1), order(2));
        let fixed = order(1).iter().enumerate().filter(|(i, v)| *i as u64 == **v).count();
        assert!(fixed < 10, "{fixed} of 1000 stay; 1 is expected");
    }
}

//! Which pages of a pool each sequence has, and which are free.
//!
//! A sequence takes a page as its tokens reach it, and gives all back as it leaves. Invariant: no
//! page belongs to two sequences, and page 0 to none.

use super::DecodeError;
use overdrive_models::Pages;

/// The pages of a pool.
pub(crate) struct PagePool {
    pages: Pages,
    /// The next one to be taken is the last.
    free: Vec<usize>,
    /// Those of each sequence, in the order of its tokens.
    taken: Vec<Vec<usize>>,
}

impl PagePool {
    pub(crate) fn new(pages: Pages, sequences: usize) -> Self {
        let free = (1..=pages.count).rev().collect();
        Self { pages, free, taken: vec![vec![]; sequences] }
    }

    /// Errs where the whole pool has fewer pages than so many tokens take.
    pub(crate) fn holds(&self, tokens: usize) -> Result<(), DecodeError> {
        self.check(tokens, self.pages.count)
    }

    /// Gives a sequence the pages that it lacks for so many tokens; all of them, or none.
    pub(crate) fn grow(&mut self, sequence: usize, tokens: usize) -> Result<(), DecodeError> {
        let taken = self.taken[sequence].len();
        self.check(tokens, taken + self.free.len())?;
        let lacking = self.pages.of(tokens).saturating_sub(taken);
        self.taken[sequence].extend(self.free.drain(self.free.len() - lacking..).rev());
        Ok(())
    }

    fn check(&self, tokens: usize, found: usize) -> Result<(), DecodeError> {
        let (needed, count) = (self.pages.of(tokens), self.pages.count);
        if needed <= found {
            return Ok(());
        }
        Err(DecodeError::Pages { tokens, needed, size: self.pages.size.get(), found, count })
    }

    /// Takes the pages of a sequence back that its first tokens do not lie in.
    pub(crate) fn shrink(&mut self, sequence: usize, tokens: usize) {
        let kept = self.pages.of(tokens).min(self.taken[sequence].len());
        self.free.extend(self.taken[sequence].drain(kept..).rev());
    }

    /// Takes all pages of a sequence back.
    pub(crate) fn leave(&mut self, sequence: usize) {
        self.shrink(sequence, 0);
    }

    /// The pages of a sequence that its first tokens lie in, as many as asked for; 0, nobody's,
    /// where it has no more.
    pub(crate) fn row(&self, sequence: usize, pages: usize) -> impl Iterator<Item = usize> + '_ {
        self.taken[sequence].iter().copied().chain(std::iter::repeat(0)).take(pages)
    }

    /// Pages that so many tokens take.
    pub(crate) fn of(&self, tokens: usize) -> usize {
        self.pages.of(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn pool() -> PagePool {
        PagePool::new(Pages { size: NonZeroUsize::new(4).unwrap(), count: 5 }, 2)
    }

    #[test]
    fn sequences_take_pages_as_they_grow_and_give_them_back() {
        let mut pool = pool();
        pool.grow(0, 4).unwrap();
        pool.grow(1, 9).unwrap();
        pool.grow(0, 5).unwrap();
        assert_eq!(pool.row(0, 4).collect::<Vec<_>>(), [1, 5, 0, 0]);
        assert_eq!(pool.row(1, 2).collect::<Vec<_>>(), [2, 3], "a prompt fills its first pages");
        assert!(pool.grow(0, 9).is_err());
        assert_eq!(pool.row(0, 3).collect::<Vec<_>>(), [1, 5, 0], "a refusal takes nothing");
        pool.shrink(1, 4);
        assert_eq!(pool.row(1, 3).collect::<Vec<_>>(), [2, 0, 0], "one is enough for four");
        pool.grow(1, 9).unwrap();
        assert_eq!(pool.row(1, 3).collect::<Vec<_>>(), [2, 3, 4]);
        pool.leave(1);
        pool.grow(0, 20).unwrap();
        let mut all: Vec<usize> = pool.row(0, 5).collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5]);
        assert_eq!(pool.row(1, 3).collect::<Vec<_>>(), [0; 3]);
    }

    #[test]
    fn a_pool_that_is_too_small_says_how_many_pages_are_needed() {
        let mut pool = pool();
        pool.holds(20).unwrap();
        let error = pool.holds(21).unwrap_err().to_string();
        assert!(error.contains("6 pages of 4 tokens") && error.contains("found 5"), "{error}");
        pool.grow(1, 12).unwrap();
        let error = pool.grow(0, 9).unwrap_err().to_string();
        assert!(error.contains("3 pages of 4") && error.contains("found 2 of 5"), "{error}");
    }
}

//! The parts of a worker's scratch: one type says how long each is, where it begins, and that
//! nothing was written behind it.
//!
//! In builds with debug assertions the bytes from the end of a part to the next hold a pattern, 64
//! of them at least. The pattern is checked when the task is done with its parts. Other builds have
//! no guard and check nothing.
#![allow(unsafe_code)] // Parts begin inside of memory that is lent to them.

use std::marker::PhantomData;
use std::ops::Range;

/// The bytes of a cache line, and of the widest vector register.
pub(super) const LINE: usize = 64;

/// Bytes behind each part that nobody may write.
const GUARD: usize = if cfg!(debug_assertions) { LINE } else { 0 };

/// The content of guards: no zeros, which padding is made of, and no small number.
const PATTERN: u8 = 0xC7;

/// Names and bytes of parts, which lie one behind the other and begin on 64-byte boundaries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScratchParts<const N: usize>([(&'static str, usize); N]);

impl<const N: usize> ScratchParts<N> {
    pub(crate) const fn new(parts: [(&'static str, usize); N]) -> Self {
        Self(parts)
    }

    /// Bytes of all parts and of their guards.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|&(_, bytes)| room(bytes)).sum()
    }

    /// The parts in `memory`, which begins on a 64-byte boundary and has [`bytes`](Self::bytes) at
    /// least.
    pub(crate) fn place(self, memory: &mut [u8]) -> PlacedParts<'_, N> {
        let mut starts = [std::ptr::null_mut(); N];
        let mut rest = &mut memory[..self.bytes()];
        for (&(_, bytes), start) in self.0.iter().zip(&mut starts) {
            let (part, behind) = rest.split_at_mut(room(bytes));
            *start = part.as_mut_ptr();
            if GUARD > 0 {
                part[bytes..].fill(PATTERN);
            }
            rest = behind;
        }
        PlacedParts { starts, parts: self, memory: PhantomData }
    }
}

/// Bytes from the start of a part to that of the next.
const fn room(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE) + GUARD
}

/// Parts in their places, for as long as a task works with them.
#[derive(Debug)]
pub(crate) struct PlacedParts<'a, const N: usize> {
    /// Address of each part.
    pub(crate) starts: [*mut u8; N],
    parts: ScratchParts<N>,
    memory: PhantomData<&'a mut [u8]>,
}

impl<const N: usize> PlacedParts<'_, N> {
    /// The name of the first part that something was written behind, and the bytes that were, from
    /// its end on.
    fn overrun(&self) -> Option<(&'static str, Range<usize>)> {
        self.starts.iter().zip(self.parts.0).find_map(|(&start, (name, bytes))| {
            // SAFETY: `place` left this many bytes behind the part, initialised, and the memory is
            // still lent.
            let guard =
                unsafe { std::slice::from_raw_parts(start.add(bytes), room(bytes) - bytes) };
            let written = |byte: &u8| *byte != PATTERN;
            let first = guard.iter().position(written)?;
            Some((name, first..guard.iter().rposition(written).map_or(first, |last| last + 1)))
        })
    }
}

impl<const N: usize> Drop for PlacedParts<'_, N> {
    fn drop(&mut self) {
        if GUARD == 0 || std::thread::panicking() {
            return;
        }
        if let Some((name, Range { start, end })) = self.overrun() {
            panic!(
                "a task wrote bytes {start}..{end} behind the end of `{name}`, a part of its \
                 scratch"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::*;

    /// Writes `bytes` bytes of the second of three parts, which has 70.
    fn write(bytes: usize) {
        let parts = ScratchParts::new([("left", 3), ("right", 70), ("sums", 0)]);
        let mut scratch = Scratch::default();
        let placed = scratch.place(parts);
        assert!(placed.starts.iter().all(|start| start.addr().is_multiple_of(LINE)));
        // SAFETY: the bytes behind the part belong to the same memory.
        unsafe { placed.starts[1].write_bytes(0, bytes) };
    }

    #[test]
    fn a_part_may_be_written_to_its_end() {
        write(70);
    }

    #[test]
    #[should_panic(expected = "bytes 0..1 behind the end of `right`")]
    fn one_byte_behind_a_part_is_seen() {
        write(71);
    }

    #[test]
    #[should_panic(expected = "bytes 0..122 behind the end of `right`")]
    fn a_guard_that_is_written_over_is_seen() {
        write(192);
    }
}

//! A worker's own memory: aligned to a cache line, grown when a task asks for more than any before
//! it did.

use super::parts::{LINE, PlacedParts, ScratchParts};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine(#[expect(dead_code, reason = "read through a pointer to all lines")] [u8; LINE]);

/// Memory that a task may use until it returns. Nothing is promised about its content.
#[derive(Default)]
pub struct Scratch {
    lines: Vec<CacheLine>,
    /// Most bytes that a task has asked for since this was forgotten.
    asked: usize,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scratch({} bytes)", self.lines.len() * LINE)
    }
}

impl Scratch {
    /// Bytes that it has grown to.
    pub(super) fn len(&self) -> usize {
        self.lines.len() * LINE
    }

    /// Most bytes that a task has asked for since the last look.
    pub(super) fn take_asked(&mut self) -> usize {
        std::mem::take(&mut self.asked)
    }

    /// Room for some parts, in their places.
    pub(crate) fn place<const N: usize>(&mut self, parts: ScratchParts<N>) -> PlacedParts<'_, N> {
        parts.place(self.bytes(parts.bytes()))
    }

    /// `bytes` bytes that start on a 64-byte boundary. Allocates if no earlier call needed as many.
    pub fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        let lines = bytes.div_ceil(LINE);
        self.asked = self.asked.max(lines * LINE);
        if self.lines.len() < lines {
            // The old content is worth nothing: free it first, so that growing never holds both.
            self.lines = Vec::new();
            self.lines = vec![CacheLine([0; LINE]); lines];
        }
        // SAFETY: `lines` lines are at least `bytes` initialised bytes, borrowed for as long as
        // `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), bytes) }
    }
}

//! Host memory of buffers and arenas: aligned, initialised, and on large pages where it is large.
//!
//! A buffer carries a *stamp* that changes with every write. Data derived from it (packed weights)
//! knows by the stamp when to be derived again. Invariants: every byte is initialised from the
//! start; the address of an allocation never changes; no two writes in a process have the same
//! stamp.
#![allow(unsafe_code)] // The allocator's interface, `madvise`, and slices over what they gave.

mod available;

pub use available::available_bytes;

use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::ptr::NonNull;

use overdrive_ir::backend::Memory;
use overdrive_ir::plan::{Addressed, new_stamp};
use overdrive_ir::{BackendError, Plan};

/// The size of a large page on x86-64 and AArch64, and the alignment of whatever is as long as one.
const LARGE_PAGE: usize = 2 << 20;

/// From this size on it is worth asking the system for its free memory, which takes some
/// microseconds.
const LARGE_REQUEST: usize = 64 << 20;

/// Bytes that start on a cache line, or on a large page where they fill one.
#[derive(Debug)]
pub struct AlignedBytes {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the bytes are plain, and belong to this value and to no thread.
unsafe impl Send for AlignedBytes {}
// SAFETY: writing takes `&mut`, or a pointer whose user answers for it.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` bytes, each `fill`.
    ///
    /// # Errors
    /// `OutOfMemory` when the system refuses.
    pub fn filled(len: usize, fill: u8) -> Result<Self, BackendError> {
        let refused = || BackendError::OutOfMemory {
            needed: len as u64,
            available: available_bytes(),
            remedy: "use a smaller batch or a smaller model, or free memory".to_owned(),
        };
        // Linux promises memory that it does not have and ends the process that touches it.
        if len >= LARGE_REQUEST && len as u64 > available_bytes() {
            return Err(refused());
        }
        let align = if len >= LARGE_PAGE { LARGE_PAGE } else { Plan::ALIGNMENT };
        // One cache line more than asked for: a vector load at the end may look past it.
        let layout =
            Layout::from_size_align(len + Plan::ALIGNMENT, align).map_err(|_| refused())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(refused)?;
        // Before the first touch: pages that exist are not made larger in time.
        ask_for_large_pages(start, layout);
        // SAFETY: the allocation is this long.
        unsafe { start.write_bytes(fill, layout.size()) };
        Ok(Self { start, layout, len })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte. Who writes through it answers for having them alone.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: initialised when allocated, and borrowed for as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All of them, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: initialised when allocated, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A hint, where the system takes it: an arena of 30 MB then costs the TLB 15 entries and not
/// 7,500.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(start: NonNull<u8>, layout: Layout) {
    if layout.align() >= LARGE_PAGE {
        // SAFETY: the range was just allocated. The call changes its mapping, not its content.
        // Failure means pages of the usual size.
        unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: NonNull<u8>, _: Layout) {}

/// The memory behind this back end's buffers.
#[derive(Debug)]
pub struct CpuMemory {
    bytes: AlignedBytes,
    stamp: u64,
}

impl Memory for CpuMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl CpuMemory {
    /// Takes over bytes.
    pub fn new(bytes: AlignedBytes) -> Self {
        Self { bytes, stamp: new_stamp() }
    }

    /// The content.
    pub fn bytes(&self) -> &AlignedBytes {
        &self.bytes
    }

    /// The content, about to change.
    pub fn bytes_mut(&mut self) -> &mut AlignedBytes {
        self.touch();
        &mut self.bytes
    }
}

impl Addressed for CpuMemory {
    type Address = *mut u8;

    fn address(&self) -> *mut u8 {
        self.bytes.start()
    }

    fn stamp(&self) -> u64 {
        self.stamp
    }

    fn touch(&mut self) {
        self.stamp = new_stamp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_filled_and_aligned() {
        for len in [0, 1, 63, 4096, LARGE_PAGE - 1, LARGE_PAGE, 2 * LARGE_PAGE + 5] {
            let bytes = AlignedBytes::filled(len, 0xAB).unwrap();
            let align = if len >= LARGE_PAGE { LARGE_PAGE } else { 64 };
            assert!(bytes.start().addr().is_multiple_of(align));
            assert_eq!(bytes.as_slice(), vec![0xAB; len]);
        }
    }

    #[test]
    fn more_than_there_is_is_an_error_with_its_size() {
        let error = AlignedBytes::filled(1 << 60, 0).unwrap_err();
        assert!(
            matches!(error, BackendError::OutOfMemory { needed, .. } if needed == 1 << 60),
            "{error}"
        );
    }

    #[test]
    fn every_write_changes_the_stamp() {
        let mut a = CpuMemory::new(AlignedBytes::filled(8, 0).unwrap());
        let b = CpuMemory::new(AlignedBytes::filled(8, 0).unwrap());
        let before = a.stamp();
        assert_eq!(a.stamp(), before);
        a.bytes_mut().as_mut_slice().fill(1);
        assert!(a.stamp() != before && a.stamp() != b.stamp());
    }
}

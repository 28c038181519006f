//! A pointer that the tasks of a call share.
#![allow(unsafe_code)] // One `Sync`.

/// The start of elements that tasks share out: each touches elements of its own, or all only read.
#[derive(Debug)]
pub(crate) struct Apart<T>(*mut T);

// SAFETY: an address; whoever reads or writes through it vouches for the elements being its own.
unsafe impl<T> Sync for Apart<T> {}

impl<T> Apart<T> {
    pub(crate) fn new(start: *mut T) -> Self {
        Self(start)
    }

    /// The address of an element, which need not exist.
    pub(crate) fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

//! The memory in which sums are accumulated, and the epilogue that they are passed to.
#![allow(unsafe_code)] // Threads write disjoint parts of one output.

use super::epilogue::{AccumulatorBlock, Epilogue, ProductOutput};
use super::view::{ViewMut, batch_offset};

/// C, or who takes its blocks.
pub(crate) enum SumsTarget<'a, A> {
    /// Rows of adjacent elements: sums are kept right here.
    Rows(Memory<A>),
    /// Rows of adjacent elements too; sums are kept here, and handed on when they are finished.
    InPlace(Memory<A>, &'a dyn Epilogue<A>),
    /// Elements apart from each other: sums are kept in scratch.
    Apart(Memory<A>),
    /// Sums are kept in scratch.
    Epilogue(&'a dyn Epilogue<A>),
}

impl<'a, A: Copy + Sync> SumsTarget<'a, A> {
    pub(crate) fn new(output: ProductOutput<'a, A>) -> Self {
        match output {
            ProductOutput::Apply(_, epilogue) => SumsTarget::Epilogue(epilogue),
            ProductOutput::Store(view) => match Memory::new(view) {
                c if c.has_rows() => SumsTarget::Rows(c),
                c => SumsTarget::Apart(c),
            },
            ProductOutput::InPlace(view, epilogue) => match Memory::new(view) {
                c if c.has_rows() => SumsTarget::InPlace(c, epilogue),
                _ => SumsTarget::Epilogue(epilogue),
            },
        }
    }

    /// The memory of the sums, if they are not in scratch.
    pub(crate) fn memory(&self) -> Option<&Memory<A>> {
        match self {
            SumsTarget::Rows(c) | SumsTarget::InPlace(c, _) => Some(c),
            SumsTarget::Apart(_) | SumsTarget::Epilogue(_) => None,
        }
    }

    /// Who takes blocks that are not where they belong.
    pub(crate) fn epilogue(&self) -> &dyn Epilogue<A> {
        match self {
            SumsTarget::Rows(c) | SumsTarget::Apart(c) => c,
            SumsTarget::InPlace(_, epilogue) | SumsTarget::Epilogue(epilogue) => *epilogue,
        }
    }
}

/// A [`ViewMut`] that threads share.
pub(crate) struct Memory<A> {
    start: *mut A,
    shape: [usize; 4],
    pub(crate) strides: [usize; 4],
}

// SAFETY: parts of C are disjoint, and so are the elements of a `ViewMut`.
unsafe impl<A: Sync> Sync for Memory<A> {}

impl<A> Memory<A> {
    pub(super) fn new(ViewMut { data, shape, strides }: ViewMut<'_, A>) -> Self {
        Self { start: data.as_mut_ptr(), shape, strides }
    }

    /// Whether rows are of adjacent elements.
    pub(super) fn has_rows(&self) -> bool {
        self.strides[3] == 1 || self.shape[3] <= 1
    }

    pub(crate) fn at(&self, batch: [usize; 2], row: usize, col: usize) -> *mut A {
        let matrix = batch_offset(self.shape, self.strides, batch);
        self.start.wrapping_add(matrix + row * self.strides[2] + col * self.strides[3])
    }
}

/// Stores where columns are not adjacent.
impl<A: Copy + Sync> Epilogue<A> for Memory<A> {
    fn apply(&self, mut block: AccumulatorBlock<'_, A>, _: &mut [u8]) {
        for i in 0..block.rows {
            let to = self.at(block.batch, block.row0 + i, block.col0);
            for (j, value) in block.row(i).iter().enumerate() {
                // SAFETY: the view that this was made from has the element.
                unsafe { *to.wrapping_add(j * self.strides[3]) = *value }
            }
        }
    }
}

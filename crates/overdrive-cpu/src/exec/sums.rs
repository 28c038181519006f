//! `Sums`: the use of a product's sums. They are stored unchanged or passed to a compiled epilogue.
#![allow(unsafe_code)] // Slices over slots.

use overdrive_ir::Plan;
use overdrive_ir::plan::{Access, Epilogue};

use super::format::Named;
use super::runnable::Unsupported;
use crate::gemm::{self, Accumulator, ProductOutput, ViewMut};
use crate::loops::{AccumulatorTile, CompiledEpilogue};
use crate::slots::SlotTable;

/// Destination of the sums `[batch0, batch1, m, n]` of a product.
#[derive(Debug)]
pub(crate) enum Sums {
    /// They are stored unchanged.
    Stored(Access),
    /// They go through an epilogue, and may wait where it puts its results, if that is a place for
    /// them.
    Applied(Box<CompiledEpilogue>, Option<Access>),
}

/// An epilogue with the addresses of a call.
struct Applied<'a> {
    epilogue: &'a CompiledEpilogue,
    slots: &'a SlotTable,
    /// Extent of the second batch dimension.
    inner: usize,
}

impl<A> gemm::Epilogue<A> for Applied<'_> {
    fn scratch_bytes(&self) -> usize {
        self.epilogue.scratch_bytes()
    }

    fn apply(&self, block: gemm::AccumulatorBlock<'_, A>, scratch: &mut [u8]) {
        let tile = AccumulatorTile {
            sums: block.start().cast(),
            row_bytes: block.row_stride * size_of::<A>(),
            batch: block.batch[0] * self.inner + block.batch[1],
            row: block.row0,
            col: block.col0,
            rows: block.rows,
            cols: block.cols,
        };
        // SAFETY: the block lies within the product. Blocks are apart, and so are the results of
        // their elements.
        unsafe { self.epilogue.apply(self.slots, tile, scratch) }
    }
}

impl Sums {
    /// Compiles an epilogue over `[batch0, batch1, m, n]` of sums in `A`.
    pub(crate) fn new<A: Named>(plan: &Plan, epilogue: &Epilogue) -> Result<Self, Unsupported> {
        let forward =
            |access: &&Access| access.offset >= 0 && access.strides.iter().all(|&s| s >= 0);
        let takes = |access: &&Access| plan.slot(access.slot).ty.dtype == A::DTYPE;
        if let Some(access) = epilogue.plain_store().filter(takes).filter(forward) {
            return Ok(Self::Stored(access.clone()));
        }
        let place = match epilogue.0.stores.as_slice() {
            [store] => Some(&store.access).filter(takes),
            _ => None,
        };
        let place = place.filter(|access| forward(access) && access.strides[3] == 1).cloned();
        let compiled = CompiledEpilogue::new(&epilogue.0, &|slot| plan.slot(slot).ty.dtype);
        compiled
            .map(|epilogue| Self::Applied(Box::new(epilogue), place))
            .map_err(|e| Unsupported::new(e.to_string()))
    }

    /// Calls `product` with the output that takes sums of this shape.
    ///
    /// # Safety
    /// The slots have their memory, and what the product reads shares no bytes with what is
    /// written.
    pub(crate) unsafe fn take<A: Accumulator>(
        &self,
        slots: &SlotTable,
        shape: [usize; 4],
        product: impl FnOnce(ProductOutput<'_, A>),
    ) {
        match self {
            Self::Stored(access) => {
                // SAFETY: `view` asks for what `take` was promised: the slot's memory, apart from
                // what the product reads.
                product(ProductOutput::Store(unsafe { view(slots, shape, access) }));
            }
            Self::Applied(epilogue, place) => {
                let applied = Applied { epilogue, slots, inner: shape[1] };
                let place = place.as_ref().filter(|_| epilogue.lends_its_place(slots));
                product(match place {
                    Some(access) => {
                        // SAFETY: the slot is one of the step's, with its memory; the epilogue
                        // writes an element after it has read its sum.
                        ProductOutput::InPlace(unsafe { view(slots, shape, access) }, &applied)
                    }
                    None => ProductOutput::Apply(shape, &applied),
                });
            }
        }
    }
}

/// The elements that an access writes.
///
/// # Safety
/// The slot has its memory, and no operand of the product shares bytes with it.
unsafe fn view<'a, A>(slots: &'a SlotTable, shape: [usize; 4], access: &Access) -> ViewMut<'a, A> {
    let strides = [0, 1, 2, 3].map(|d| access.strides[d] as usize);
    let last = |d: usize| shape[d].saturating_sub(1) * strides[d];
    let (first, reach) = (access.offset as usize, (0..4).map(last).sum::<usize>() + 1);
    // SAFETY: the access stays inside of its slot, so `first + reach` elements exist; no operand of
    // the product shares their bytes.
    let data = unsafe { slots.slice_mut::<A>(access.slot, first + reach) };
    ViewMut::new(&mut data[first..], shape, strides)
}

//! Places from which the gradient's kernels read operands, and to which they write results: their
//! slots, or scratch. Copies fill the scratch before the kernels and empty it after them.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;
use overdrive_ir::plan::View;

use super::hopper::is_copied;
use crate::kernels::nest::ViewStart;
use crate::kernels::transfer::{Transfer, TransferShape};
use crate::launch::{Addresses, Refusal};
use crate::{Device, Error};

/// Alignment of the scratch of a step, in bytes.
const ALIGNMENT: usize = 256;

/// The place where the kernels read an operand or write a result.
pub(super) enum Home {
    /// In its slot of the plan.
    There(ViewStart),
    /// A dense copy so many bytes into the scratch.
    Scratch(usize),
}

impl Home {
    pub(super) fn of(&self, addresses: &Addresses) -> CUdeviceptr {
        match self {
            Self::There(place) => place.of(addresses),
            Self::Scratch(offset) => addresses.workspace() + *offset as u64,
        }
    }
}

/// A copy between a view of the plan and its dense form in the scratch. `T` is the copy's shape, or
/// what it was compiled to.
pub(super) struct HomeCopy<T> {
    pub(super) transfer: T,
    pub(super) view: ViewStart,
    pub(super) offset: usize,
}

/// Scratch for copies of views that TMA cannot copy, and for results that are not requested.
pub(super) struct Staging<T> {
    pub(super) bytes: usize,
    pub(super) before: Vec<HomeCopy<T>>,
    pub(super) after: Vec<HomeCopy<T>>,
}

impl Staging<TransferShape> {
    pub(super) fn new() -> Self {
        Self { bytes: 0, before: Vec::new(), after: Vec::new() }
    }

    /// The same with copies that the device can run.
    pub(super) fn load(self, device: &Device) -> Result<Staging<Transfer>, Error> {
        let load = |copies: Vec<HomeCopy<TransferShape>>| {
            let load = |HomeCopy { transfer, view, offset }: HomeCopy<TransferShape>| {
                Ok(HomeCopy { transfer: transfer.load(device)?, view, offset })
            };
            copies.into_iter().map(load).collect::<Result<Vec<_>, Error>>()
        };
        Ok(Staging { bytes: self.bytes, before: load(self.before)?, after: load(self.after)? })
    }

    pub(super) fn room(&mut self, bytes: usize) -> usize {
        let offset = self.bytes;
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        offset
    }

    /// The place where an operand is read, and the view that it has there.
    pub(super) fn operand(&mut self, view: &View) -> Result<(Home, View), Refusal> {
        if is_copied(view) {
            return Ok((Home::There(ViewStart::new(view)), view.clone()));
        }
        let (offset, dense) =
            (self.room(view.ty.bytes()), View::row_major(view.slot, view.ty.clone()));
        let transfer = TransferShape::new(view, &dense)?;
        self.before.push(HomeCopy { transfer, view: ViewStart::new(view), offset });
        Ok((Home::Scratch(offset), dense))
    }

    /// The place of a result of the type of `like`.
    pub(super) fn result(
        &mut self,
        view: Option<&View>,
        like: &View,
    ) -> Result<(Home, View), Refusal> {
        if let Some(view) = view.filter(|view| is_copied(view)) {
            return Ok((Home::There(ViewStart::new(view)), view.clone()));
        }
        let (offset, dense) =
            (self.room(like.ty.bytes()), View::row_major(like.slot, like.ty.clone()));
        if let Some(view) = view {
            let transfer = TransferShape::new(&dense, view)?;
            self.after.push(HomeCopy { transfer, view: ViewStart::new(view), offset });
        }
        Ok((Home::Scratch(offset), dense))
    }

    /// The place of a result that the kernels write densely.
    pub(super) fn dense_result(&mut self, view: &View) -> Result<Home, Refusal> {
        let dense = View::row_major(view.slot, view.ty.clone());
        if dense.strides == view.strides {
            return Ok(Home::There(ViewStart::new(view)));
        }
        let offset = self.room(view.ty.bytes());
        let transfer = TransferShape::new(&dense, view)?;
        self.after.push(HomeCopy { transfer, view: ViewStart::new(view), offset });
        Ok(Home::Scratch(offset))
    }
}

impl Staging<Transfer> {
    /// Enqueues the copies before the kernels.
    ///
    /// # Safety
    /// The addresses are those of the views and of the scratch, for all of them.
    pub(super) unsafe fn fill(
        &self,
        stream: &Arc<CudaStream>,
        addresses: &Addresses,
    ) -> Result<(), Error> {
        self.before.iter().try_for_each(|copy| {
            let ends = [copy.view.of(addresses), addresses.workspace() + copy.offset as u64];
            // SAFETY: the caller's.
            unsafe { copy.transfer.run(stream, ends) }
        })
    }

    /// Enqueues the copies after the kernels.
    ///
    /// # Safety
    /// As `fill`.
    pub(super) unsafe fn empty(
        &self,
        stream: &Arc<CudaStream>,
        addresses: &Addresses,
    ) -> Result<(), Error> {
        self.after.iter().try_for_each(|copy| {
            let ends = [addresses.workspace() + copy.offset as u64, copy.view.of(addresses)];
            // SAFETY: the caller's.
            unsafe { copy.transfer.run(stream, ends) }
        })
    }
}

//! `Kernel`: a function with its grid, launched with what a product's kernels all take.

use crate::Error;
use crate::compiler::Source;
use crate::launch::{Addresses, Site};
use cudarc::driver::sys::{CUdeviceptr, CUfunction_attribute};
use cudarc::driver::{CudaFunction, CudaStream, result};
use overdrive_ir::DType;
use overdrive_ir::plan::{MatrixView, SlotId};
use std::ffi::c_void;
use std::sync::Arc;

/// A compiled kernel and how it is launched.
pub(super) struct Kernel {
    function: CudaFunction,
    grid: (u32, u32, u32),
    threads: u32,
    shared_bytes: u32,
}

/// Blocks, threads of each, and bytes of dynamic shared memory of each.
pub(super) struct Shape {
    pub(super) grid: (u32, u32, u32),
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
}

impl Kernel {
    /// Compiles `entry` of a source for the site's device.
    pub(super) fn new(site: &Site<'_>, source: &Source, entry: &str, shape: Shape) -> Result<Self, Error> {
        let function = site.device.function(source, entry)?;
        let Shape { grid, threads, shared_bytes } = shape;
        // Beyond what a kernel may have unasked.
        if shared_bytes > 48 << 10 {
            let limit = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(limit, shared_bytes as i32)?;
        }
        Ok(Self { function, grid, threads, shared_bytes })
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// `parameters` point to values of the types that the kernel takes, in order, and what these point to is there.
    pub(super) unsafe fn launch(
        &self,
        stream: &Arc<CudaStream>,
        parameters: &mut [*mut c_void],
    ) -> Result<(), Error> {
        stream.context().bind_to_thread()?;
        // SAFETY: as the caller promised.
        unsafe {
            let (function, threads) = (self.function.cu_function(), (self.threads, 1, 1));
            let stream = stream.cu_stream();
            result::launch_kernel(function, self.grid, threads, self.shared_bytes, stream, parameters)?;
        }
        Ok(())
    }
}

/// An operand's slot, and the bytes from its beginning to an element.
#[derive(Copy, Clone, Debug)]
pub(super) struct Base {
    pub(super) slot: SlotId,
    pub(super) bytes: i64,
}

impl Base {
    /// The first element of a view.
    pub(super) fn of(view: &MatrixView) -> Self {
        Self::at(view.slot, view.dtype, view.offset)
    }

    /// Element `offset` of a slot.
    pub(super) fn at(slot: SlotId, dtype: DType, offset: i64) -> Self {
        Self { slot, bytes: offset * dtype.bits() as i64 / 8 }
    }

    /// Its address in a call.
    pub(super) fn address(self, addresses: &Addresses) -> CUdeviceptr {
        addresses.of(self.slot).wrapping_add_signed(self.bytes)
    }
}

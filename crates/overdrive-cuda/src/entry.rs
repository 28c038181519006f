//! `Entry`: a kernel of ours with its grid, which may be placed on the device while the kernel
//! before it still runs.
//!
//! Some work of a kernel touches no memory of the call: barriers, tensor maps, its own launch. That
//! work then hides under the end of the kernel before it. The mechanism is programmatic dependent
//! launch (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization").
//!
//! Invariants:
//!
//! - Every entry begins with `after_previous()` or its half. It waits for all that was written
//!   before, even by kernels that nobody waited for directly, since each kernel ends only after it
//!   has waited.
//! - The first kernel of a call is an ordinary launch, so that no time of one call is counted as
//!   another's.

use crate::compiler::{Architecture, KernelSource};
use crate::{Device, Error};
use cudarc::driver::sys::{
    self, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig,
};
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

/// The beginning of every entry's text.
pub(crate) const WAIT: &str = "after_previous();";
/// The first half of it, in those that say themselves when the next kernel may begin.
pub(crate) const WAIT_ALONE: &str = "wait_for_previous();";

/// Beyond this much a kernel may have dynamic shared memory only when asked.
const UNASKED_SHARED_BYTES: u32 = 48 << 10;

thread_local! {
    /// Whether the next kernel of this thread is the first of a call.
    static BEGINS_CALL: Cell<bool> = const { Cell::new(true) };
}

/// Says that the next kernel of this thread is the first of a call.
pub(crate) fn begin_call() {
    BEGINS_CALL.set(true);
}

/// A function with its grid.
#[derive(Debug)]
pub(crate) struct Entry {
    function: CudaFunction,
    config: LaunchConfig,
    overlaps: bool,
}

impl Entry {
    /// `entry` of a source on a device.
    ///
    /// # Errors
    /// Those of `Device::function`, and the driver's if it refuses that much shared memory.
    pub(crate) fn new(
        device: &Device,
        (source, entry): (&KernelSource, &str),
        config: LaunchConfig,
    ) -> Result<Self, Error> {
        let waits = [WAIT, WAIT_ALONE].iter().any(|wait| source.text.contains(wait));
        assert!(waits, "`{entry}` would not wait for what it reads");
        let function = device.function(source, entry)?;
        // Shared memory that a kernel declares itself counts too.
        let declared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let declared = function.get_attribute(declared)?.unsigned_abs();
        if config.shared_mem_bytes + declared > UNASKED_SHARED_BYTES {
            let limit = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(limit, config.shared_mem_bytes as i32)?;
        }
        Ok(Self { function, config, overlaps: overlaps(device.architecture()) })
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// `parameters` point to values of the kernel's parameter types, in order. Addresses among the
    /// values point to valid memory.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Arc<CudaStream>,
        parameters: &mut [*mut c_void],
    ) -> Result<(), Error> {
        stream.context().bind_to_thread()?;
        let LaunchConfig { grid_dim: grid, block_dim: block, shared_mem_bytes } = self.config;
        // SAFETY: all zeros is a value of a plain struct of numbers and pointers; the one member
        // that is read is set.
        let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let is_first = BEGINS_CALL.replace(false);
        let config = CUlaunchConfig {
            gridDimX: grid.0,
            gridDimY: grid.1,
            gridDimZ: grid.2,
            blockDimX: block.0,
            blockDimY: block.1,
            blockDimZ: block.2,
            sharedMemBytes: shared_mem_bytes,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(self.overlaps && !is_first),
        };
        let (function, parameters) = (self.function.cu_function(), parameters.as_mut_ptr());
        // SAFETY: as the caller promised; the driver copies configuration and parameters before it
        // returns.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, parameters, std::ptr::null_mut())
                .result()?
        };
        Ok(())
    }
}

/// Whether kernels can wait for others on the device itself.
fn overlaps(architecture: Architecture) -> bool {
    match architecture {
        Architecture::Sm80 | Architecture::Sm89 => false,
        Architecture::Sm90a | Architecture::Sm100a => true,
        Architecture::Other(capability) => capability >= 90,
    }
}

/// The address of a parameter.
pub(crate) fn pointer<T>(parameter: &mut T) -> *mut c_void {
    (&raw mut *parameter).cast()
}

/// The addresses of parameters, in order.
pub(crate) fn pointers<T>(parameters: &mut [T]) -> impl Iterator<Item = *mut c_void> {
    parameters.iter_mut().map(pointer)
}

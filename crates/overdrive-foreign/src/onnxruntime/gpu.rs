//! Memory of an NVIDIA GPU, in the context that ONNX Runtime's providers work in: the device's
//! primary one.
//!
//! Invariant: copies are on the default stream, which is waited for before they return.
#![allow(unsafe_code)] // The loader is asked for the driver.

use crate::device::{Allocation, DeviceAllocator};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError};
use overdrive_ir::BackendError;
use std::sync::Arc;

/// One GPU.
pub(super) struct Gpu {
    stream: Arc<CudaStream>,
}

impl Gpu {
    /// GPU `ordinal`.
    ///
    /// # Errors
    /// If there is no driver, or with the driver's own error.
    pub(super) fn open(ordinal: usize) -> Result<Self, String> {
        // SAFETY: it only asks the loader, whose panic would follow otherwise.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err("no libcuda.so.1, which NVIDIA's driver brings".to_owned());
        }
        let context = CudaContext::new(ordinal).map_err(|e| format!("GPU {ordinal}: {e}"))?;
        Ok(Self { stream: context.default_stream() })
    }
}

impl DeviceAllocator for Gpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>, BackendError> {
        // A block of nothing would have no address.
        let slice = self.stream.alloc_zeros(bytes.max(1)).map_err(failed)?;
        self.stream.synchronize().map_err(failed)?;
        let (address, _) = slice.device_ptr(&self.stream);
        Ok(Box::new(OnGpu { address, slice, stream: Arc::clone(&self.stream), bytes }))
    }
}

struct OnGpu {
    slice: CudaSlice<u8>,
    address: CUdeviceptr,
    stream: Arc<CudaStream>,
    bytes: usize,
}

impl Allocation for OnGpu {
    fn address(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    fn fill_from(&mut self, bytes: &[u8]) -> Result<(), BackendError> {
        assert_eq!(bytes.len(), self.bytes, "a buffer has the bytes of its type");
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream.memcpy_htod(bytes, &mut self.slice).map_err(failed)?;
        self.stream.synchronize().map_err(failed)
    }

    fn copy_to(&self, bytes: &mut [u8]) -> Result<(), BackendError> {
        assert_eq!(bytes.len(), self.bytes, "a buffer has the bytes of its type");
        if bytes.is_empty() {
            return Ok(());
        }
        self.stream.memcpy_dtoh(&self.slice, bytes).map_err(failed)?;
        self.stream.synchronize().map_err(failed)
    }
}

fn failed(error: DriverError) -> BackendError {
    BackendError::Device { step: "memory of the GPU".to_owned(), message: error.to_string() }
}

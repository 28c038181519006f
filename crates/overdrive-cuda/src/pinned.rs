//! Pinned host memory, which copies of the device reach at the full speed of its link.
//!
//! Mapped, and under unified addressing at one address for both sides, so that a copy names it like
//! device memory. Invariant: bytes are freed once the work stream is done, which ends after every
//! copy of a call.

use crate::{Device, Error};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use std::sync::Arc;

/// Bytes of the host that do not move.
#[derive(Debug)]
pub struct PinnedBytes {
    device: Arc<Device>,
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is owned; the host reaches it through `&mut self` or `&self` as any bytes.
unsafe impl Send for PinnedBytes {}
// SAFETY: through `&self` the host only reads the bytes, and `read` waits for the device first.
unsafe impl Sync for PinnedBytes {}

impl PinnedBytes {
    /// `len` zeros.
    ///
    /// # Errors
    /// `PinnedMemory` when the host has no more; `Driver` with CUDA's words.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, Error> {
        let _turn = device.turn();
        device.context().bind_to_thread()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: plain pinned memory, freed in `drop`.
        let start = unsafe { result::malloc_host(len.max(1), flags) };
        let start = start.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::PinnedMemory { needed: len as u64 },
            _ => error.into(),
        })?;
        let start = start.cast::<u8>();
        // SAFETY: just allocated, of this many bytes.
        unsafe { start.write_bytes(0, len) };
        Ok(Self { device: Arc::clone(device), start, len })
    }

    /// The first byte, for host and device alike.
    pub fn address(&self) -> CUdeviceptr {
        self.start as CUdeviceptr
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, once all that was enqueued is done.
    ///
    /// # Errors
    /// The driver's error about the work before.
    pub fn read(&self) -> Result<&[u8], Error> {
        let _turn = self.device.turn();
        self.device.stream().synchronize()?;
        // SAFETY: owned and initialised; no work is under way that writes them.
        Ok(unsafe { std::slice::from_raw_parts(self.start, self.len) })
    }

    /// Overwrites all bytes, once all that was enqueued is done.
    ///
    /// # Errors
    /// The driver's error about the work before.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(bytes.len(), self.len, "as many bytes as there are");
        let _turn = self.device.turn();
        self.device.stream().synchronize()?;
        // SAFETY: owned, and no work is under way that uses them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }.copy_from_slice(bytes);
        Ok(())
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        let _turn = self.device.turn();
        if self.device.stream().synchronize().is_ok() {
            // SAFETY: allocated once, and no copy uses it any more.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

//! Copies between host and device through pinned memory.
//!
//! The driver copies pageable memory through a buffer of its own, synchronously. Two pinned halves
//! let the host fill one while the device reads the other. Invariant: a half is not touched before
//! the copy that uses it is over.

use crate::Error;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys::CUdeviceptr};
use std::sync::Arc;

/// Size of a half in bytes: a copy of this takes some 80 us over PCIe 5, far more than its launch.
const HALF: usize = 4 << 20;

/// Two pinned halves.
#[derive(Debug)]
pub(crate) struct Staging {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    start: *mut u8,
    /// Recorded after the last copy that uses each half.
    free: [CudaEvent; 2],
}

// SAFETY: the memory is owned, and only reached through `&mut self`.
unsafe impl Send for Staging {}

impl Staging {
    pub(crate) fn new(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Result<Self, Error> {
        context.bind_to_thread()?;
        // SAFETY: plain pinned memory, freed in `drop`.
        let start = unsafe { result::malloc_host(2 * HALF, 0)? };
        let free = [context.new_event(None)?, context.new_event(None)?];
        Ok(Self {
            context: Arc::clone(context),
            stream: Arc::clone(stream),
            start: start.cast(),
            free,
        })
    }

    fn half(&mut self, index: usize, len: usize) -> &mut [u8] {
        assert!(len <= HALF, "a part fits in a half");
        // SAFETY: inside of the allocation; whoever asks has waited for the half's event.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index % 2 * HALF), len) }
    }

    /// Enqueues a copy to the device; `from` may be reused at once.
    pub(crate) fn upload(&mut self, from: &[u8], to: CUdeviceptr) -> Result<(), Error> {
        self.context.bind_to_thread()?;
        for (index, part) in from.chunks(HALF).enumerate() {
            self.free[index % 2].synchronize()?;
            self.half(index, part.len()).copy_from_slice(part);
            let stream = Arc::clone(&self.stream);
            let pinned = self.half(index, part.len());
            // SAFETY: the half stays as it is until its event, recorded next, has come.
            unsafe {
                result::memcpy_htod_async(to + (index * HALF) as u64, pinned, stream.cu_stream())?;
            }
            self.free[index % 2].record(&stream)?;
        }
        Ok(())
    }

    /// Copies from the device once all that was enqueued before is done.
    pub(crate) fn download(&mut self, from: CUdeviceptr, to: &mut [u8]) -> Result<(), Error> {
        self.context.bind_to_thread()?;
        let parts = to.len().div_ceil(HALF);
        let length = to.len();
        let size = |index: usize| HALF.min(length - index * HALF);
        for index in 0..parts + 1 {
            if index < parts {
                // The half was read back two rounds ago; an upload may still use it.
                self.free[index % 2].synchronize()?;
                let stream = Arc::clone(&self.stream);
                let pinned = self.half(index, size(index));
                // SAFETY: the half is read only after its event, recorded next, has come.
                unsafe {
                    result::memcpy_dtoh_async(
                        pinned,
                        from + (index * HALF) as u64,
                        stream.cu_stream(),
                    )?;
                }
                self.free[index % 2].record(&stream)?;
            }
            if let Some(done) = index.checked_sub(1) {
                self.free[done % 2].synchronize()?;
                let len = size(done);
                to[done * HALF..][..len].copy_from_slice(self.half(done, len));
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let waited = self.stream.synchronize();
        if waited.is_ok() {
            // SAFETY: allocated once, and no copy uses it any more.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

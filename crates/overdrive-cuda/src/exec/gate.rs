//! A gate on the work stream: what is enqueued behind it starts when the host opens it.
//!
//! Launches cost the host microseconds each; with all of them waiting behind a gate, the time
//! between two events is the device's alone. The stream waits for a word of pinned memory
//! (`cuStreamWaitValue32`), which occupies no multiprocessor. Invariant: a closed gate is opened
//! before anything waits for the stream.

use crate::{Device, Error};
use cudarc::driver::{result, sys};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Launches that a stream surely takes while it waits; beyond them the host might wait for a stream
/// that waits for it.
pub(super) const CAPACITY: usize = 400;

/// A word that the stream waits for.
#[derive(Debug)]
pub(super) struct Gate {
    device: Arc<Device>,
    word: *mut AtomicU32,
    passed: u32,
}

// SAFETY: the word is owned and atomic.
unsafe impl Send for Gate {}

impl Gate {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Error> {
        device.context().bind_to_thread()?;
        // SAFETY: pinned memory at least as large and as aligned as the word.
        let word =
            unsafe { result::malloc_host(4, sys::CU_MEMHOSTALLOC_DEVICEMAP)? }.cast::<AtomicU32>();
        // SAFETY: just allocated.
        unsafe { word.write(AtomicU32::new(0)) };
        Ok(Self { device: Arc::clone(device), word, passed: 0 })
    }

    /// Closes the gate: work enqueued from now on waits.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        self.passed = self.passed.wrapping_add(1);
        let mut address = 0;
        let wait = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: the word lives as long as the gate, and the gate outlives the wait: `drop` opens
        // it.
        unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut address, self.word.cast(), 0).result()?;
            let stream = self.device.stream().cu_stream();
            sys::cuStreamWaitValue32_v2(stream, address, self.passed, wait).result()?;
        }
        Ok(())
    }

    /// Opens it.
    pub(super) fn open(&self) {
        // SAFETY: the word lives as long as the gate.
        unsafe { (*self.word).store(self.passed, Ordering::SeqCst) };
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
        if self.device.stream().synchronize().is_ok() {
            // SAFETY: allocated once, and nothing waits for it any more.
            let _ = unsafe { result::free_host(self.word.cast()) };
        }
    }
}

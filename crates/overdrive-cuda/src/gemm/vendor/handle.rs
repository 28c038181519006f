//! `Handle`: cuBLASLt on one device, opened once.

use crate::{Device, Error};
use cudarc::cublaslt::{result, sys};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A handle of cuBLASLt.
pub(super) struct Handle {
    handle: sys::cublasLtHandle_t,
}

// SAFETY: cuBLASLt allows a handle in any thread.
unsafe impl Send for Handle {}
// SAFETY: cuBLASLt allows several threads to use a handle at once.
unsafe impl Sync for Handle {}

/// By ordinal of the device. A handle holds the device's primary context, which outlives every
/// `Device`.
static OPEN: Mutex<Option<HashMap<usize, Arc<Handle>>>> = Mutex::new(None);

impl Handle {
    /// The library for a device; `None` where it is not installed.
    pub(super) fn of(device: &Device) -> Result<Option<Arc<Self>>, Error> {
        if !crate::Library::CublasLt.is_present() {
            return Ok(None);
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        let ordinal = device.context().ordinal();
        if let Some(library) = open.get(&ordinal) {
            return Ok(Some(Arc::clone(library)));
        }
        device.context().bind_to_thread()?;
        let library = Arc::new(Self { handle: result::create_handle()? });
        open.insert(ordinal, Arc::clone(&library));
        Ok(Some(library))
    }

    pub(super) fn raw(&self) -> sys::cublasLtHandle_t {
        self.handle
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle. That closing fails at the end of the process is
        // nobody's concern.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

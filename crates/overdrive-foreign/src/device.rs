//! Memory of a device apart from the host, for engines that take inputs and leave outputs there.
//!
//! Why: copies to and from a device are no part of its engine's calls, so that calls of all engines
//! on it can be compared. Invariant: a copy is over when it returns.
// The memory of the device that tests have is written to by its address.
#![cfg_attr(test, allow(unsafe_code))]

use overdrive_ir::BackendError;

/// A device that has memory.
pub(crate) trait DeviceAllocator: Send + Sync {
    /// So many bytes of it.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>, BackendError>;
}

/// A piece of a device's memory, freed with its owner.
pub(crate) trait Allocation: Send + Sync {
    /// Its address; the host may not read there.
    fn address(&self) -> *mut u8;
    /// Copies as many bytes as it has to it.
    fn fill_from(&mut self, bytes: &[u8]) -> Result<(), BackendError>;
    /// Copies all of it to the host.
    fn copy_to(&self, bytes: &mut [u8]) -> Result<(), BackendError>;
}

#[cfg(test)]
pub(crate) use beside::Beside;

#[cfg(test)]
mod beside {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A device whose memory is more of the host's, and which counts what is copied there and back,
    /// in bytes.
    #[derive(Clone, Default)]
    pub(crate) struct Beside {
        copied: Arc<[AtomicU64; 2]>,
    }

    struct Words {
        /// Atomic, since whoever knows the address writes there too.
        words: Box<[AtomicU64]>,
        len: usize,
        copied: Arc<[AtomicU64; 2]>,
    }

    impl Beside {
        /// Bytes copied to the device, and from it.
        pub(crate) fn copies(&self) -> [u64; 2] {
            [0, 1].map(|way| self.copied[way].load(Ordering::Relaxed))
        }
    }

    impl DeviceAllocator for Beside {
        fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>, BackendError> {
            let words = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
            Ok(Box::new(Words { words, len: bytes, copied: Arc::clone(&self.copied) }))
        }
    }

    impl Allocation for Words {
        fn address(&self) -> *mut u8 {
            self.words.as_ptr().cast_mut().cast()
        }

        fn fill_from(&mut self, bytes: &[u8]) -> Result<(), BackendError> {
            assert_eq!(bytes.len(), self.len);
            self.copied[0].fetch_add(self.len as u64, Ordering::Relaxed);
            // SAFETY: the memory has as many bytes, as asserted.
            unsafe { self.address().copy_from_nonoverlapping(bytes.as_ptr(), self.len) };
            Ok(())
        }

        fn copy_to(&self, bytes: &mut [u8]) -> Result<(), BackendError> {
            assert_eq!(bytes.len(), self.len);
            self.copied[1].fetch_add(self.len as u64, Ordering::Relaxed);
            // SAFETY: the memory has as many bytes, as asserted.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.address(), self.len) };
            Ok(())
        }
    }
}

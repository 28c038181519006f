//! `Pool`: the driver's pool that the memory of a device comes from.

use crate::Error;
use cudarc::driver::sys::{self, CUmemPool_attribute};
use cudarc::driver::{CudaContext, result};

/// The driver's pool of the device; lives as long as the device does.
#[derive(Debug)]
pub(crate) struct Pool(sys::CUmemoryPool);

// SAFETY: a handle; the driver's functions on it may be called from any thread.
unsafe impl Send for Pool {}
// SAFETY: the driver's functions on the handle may be called from several threads at once.
unsafe impl Sync for Pool {}

/// Bytes of the device's pool: in use now, and the most since the last reset.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PoolUse {
    /// Bytes in use now.
    pub used_bytes: u64,
    /// The high-water mark of it.
    pub used_high_bytes: u64,
    /// Held from the system, used or not.
    pub reserved_bytes: u64,
}

impl Pool {
    /// The device's own pool, told to keep freed memory: a request to the system costs far more
    /// than a kernel.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn keeping(context: &CudaContext) -> Result<Self, Error> {
        // SAFETY: the device is open, and the attribute is a 64-bit number.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device())?;
            let mut keep = u64::MAX;
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast())?;
            Ok(Self(pool))
        }
    }

    /// Reads its marks.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn used(&self) -> Result<PoolUse, Error> {
        let read = |attribute| {
            let mut value = 0u64;
            // SAFETY: these attributes are 64-bit numbers.
            unsafe { result::mem_pool::get_attribute(self.0, attribute, (&raw mut value).cast())? };
            Ok::<_, Error>(value)
        };
        Ok(PoolUse {
            used_bytes: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_high_bytes: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved_bytes: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        })
    }

    /// Gives unused memory back to the system.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn trim(&self) -> Result<(), Error> {
        // SAFETY: the pool is that of a device which is open.
        unsafe { result::mem_pool::trim_to(self.0, 0)? };
        Ok(())
    }
}

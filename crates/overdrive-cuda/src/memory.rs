//! Device memory: stream-ordered blocks of the device's pool, and the memory behind buffers.
//!
//! Blocks come from the driver's pool (`cuMemAllocAsync`) and go back to it in the order of the
//! work stream, so that freeing never waits; the pool keeps what it has, so that from the second
//! call on nothing reaches the system. Invariants: a block's address never changes; no two writes
//! in a process have the same stamp.

use crate::{Device, Error};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemPool_attribute, CUresult};
use overdrive_ir::backend::Memory;
use overdrive_ir::plan::{Addressed, new_stamp};
use std::any::Any;
use std::sync::Arc;

/// What every block is aligned to, and the unit of the pool, in bytes.
pub const BLOCK: usize = 512;

/// Bytes on a device, freed in the order of its stream.
#[derive(Debug)]
pub struct DeviceBytes {
    device: Arc<Device>,
    address: CUdeviceptr,
    len: usize,
}

impl DeviceBytes {
    /// `len` bytes of no particular content.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no more, even after the pool gave back what nobody uses.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, Error> {
        let _turn = device.turn();
        let address = match allocate(device, len) {
            Err(Error::Driver(e)) if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                device.stream().synchronize()?;
                device.trim_pool()?;
                allocate(device, len).map_err(|error| match error {
                    Error::Driver(e) if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                        let available =
                            device.context().mem_get_info().map_or(0, |(free, _)| free as u64);
                        Error::OutOfMemory { needed: len as u64, available }
                    }
                    other => other,
                })?
            }
            other => other?,
        };
        Ok(Self { device: Arc::clone(device), address, len })
    }

    /// The first byte.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that they are on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Enqueues a copy of another block of this length.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn copy_from(&self, other: &Self) -> Result<(), Error> {
        assert_eq!(self.len, other.len, "blocks that are copied have one length");
        if self.len > 0 && self.address != other.address {
            let _turn = self.device.turn();
            let stream = self.device.stream();
            // SAFETY: both blocks have this many bytes, are apart, and are freed later in the
            // stream.
            unsafe {
                result::memcpy_dtod_async(
                    self.address,
                    other.address,
                    self.len,
                    stream.cu_stream(),
                )?
            };
        }
        Ok(())
    }

    /// Enqueues setting every byte.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        if self.len > 0 {
            let _turn = self.device.turn();
            // SAFETY: the block has this many bytes, and frees follow in the stream.
            unsafe {
                result::memset_d8_async(
                    self.address,
                    byte,
                    self.len,
                    self.device.stream().cu_stream(),
                )?
            };
        }
        Ok(())
    }
}

fn allocate(device: &Arc<Device>, len: usize) -> Result<CUdeviceptr, Error> {
    // A block for nothing too, so that every slot has an address of its own.
    let bytes = len.next_multiple_of(BLOCK).max(BLOCK);
    device.context().bind_to_thread()?;
    // SAFETY: the stream is alive; all uses of the block are on it.
    Ok(unsafe { result::malloc_async(device.stream().cu_stream(), bytes)? })
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        let _turn = self.device.turn();
        let context = self.device.context();
        // After a fault the context is lost and the block with it: there is nobody to tell and
        // nothing to do.
        if context.bind_to_thread().is_ok() {
            // SAFETY: allocated once on this stream; work that was enqueued before ends before the
            // block is reused.
            let _ = unsafe { result::free_async(self.address, self.device.stream().cu_stream()) };
        }
    }
}

/// Bytes of the device's pool: in use now, and the most since the last reset.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PoolUse {
    /// In use now.
    pub used_bytes: u64,
    /// The high-water mark of it.
    pub used_high_bytes: u64,
    /// Held from the system, used or not.
    pub reserved_bytes: u64,
}

/// Reads a pool's marks.
pub(crate) fn pool_use(pool: sys::CUmemoryPool) -> Result<PoolUse, Error> {
    let read = |attribute| {
        let mut value = 0u64;
        // SAFETY: these attributes are 64-bit numbers.
        unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast())? };
        Ok::<_, Error>(value)
    };
    Ok(PoolUse {
        used_bytes: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        used_high_bytes: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        reserved_bytes: read(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
    })
}

/// The memory behind this back end's buffers.
#[derive(Debug)]
pub struct CudaMemory {
    bytes: DeviceBytes,
    stamp: u64,
}

impl CudaMemory {
    /// Takes over a block.
    pub fn new(bytes: DeviceBytes) -> Self {
        Self { bytes, stamp: new_stamp() }
    }

    /// The block.
    pub fn bytes(&self) -> &DeviceBytes {
        &self.bytes
    }
}

impl Memory for CudaMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Addressed for CudaMemory {
    type Address = CUdeviceptr;

    fn address(&self) -> CUdeviceptr {
        self.bytes.address
    }

    fn stamp(&self) -> u64 {
        self.stamp
    }

    fn touch(&mut self) {
        self.stamp = new_stamp();
    }
}

//! Device memory: stream-ordered blocks of the device's pool, and the memory behind buffers.
//!
//! Blocks come from the driver's pool (`cuMemAllocAsync`) and go back to it in the order of the
//! work stream, so that freeing never waits. The pool keeps its memory, so that from the second
//! call on no request reaches the system. Invariants: a block's address never changes; no two
//! writes in a process have the same stamp.

use crate::pinned::PinnedBytes;
use crate::{Device, Error};
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};
use cudarc::driver::{CudaStream, result};
use overdrive_ir::backend::Memory;
use overdrive_ir::plan::{Addressed, Space, new_stamp};
use std::any::Any;
use std::sync::Arc;

/// The alignment of every block, and the unit of the pool, in bytes.
pub const BLOCK: usize = 512;

/// Pinned memory of the host, as a memory space of a GPU's plans.
pub const PINNED: Space = Space(1);

/// Bytes on a device, freed in the order of its stream.
#[derive(Debug)]
pub struct DeviceBytes {
    device: Arc<Device>,
    address: CUdeviceptr,
    len: usize,
    /// The owner of bytes that are not of the pool.
    lender: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceBytes {
    /// `len` bytes of no particular content.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no more, even after the pool gave back its unused memory.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, Error> {
        let _turn = device.turn();
        let address = or_trimmed(device, len, || allocate(device, len))?;
        Ok(Self { device: Arc::clone(device), address, len, lender: None })
    }

    /// `len` bytes from `address` on, which are the lender's.
    pub(crate) fn lent(
        device: &Arc<Device>,
        (address, len): (CUdeviceptr, usize),
        lender: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { device: Arc::clone(device), address, len, lender: Some(lender) }
    }

    /// The first byte.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// The number of elements.
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

    /// Enqueues setting every byte.
    ///
    /// # Errors
    /// The driver's error.
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

/// Enqueues a copy between two places of so many bytes each, in whatever memory they are.
///
/// # Safety
/// Both places have these bytes, are apart, and stay until the copy is done.
///
/// # Errors
/// The driver's error.
pub(crate) unsafe fn copy(
    stream: &CudaStream,
    (from, to): (CUdeviceptr, CUdeviceptr),
    bytes: usize,
) -> Result<(), Error> {
    if bytes > 0 && from != to {
        // SAFETY: as the caller promised; addresses are unified, so that the driver knows the way.
        unsafe { sys::cuMemcpyAsync(to, from, bytes, stream.cu_stream()).result()? };
    }
    Ok(())
}

/// Allocates `len` bytes, where needed after the pool gave back its unused memory.
///
/// # Errors
/// `OutOfMemory` when the device has no more even then.
pub(crate) fn or_trimmed(
    device: &Device,
    len: usize,
    allocate: impl Fn() -> Result<CUdeviceptr, Error>,
) -> Result<CUdeviceptr, Error> {
    let full = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let is_full = |error: &Error| matches!(error, Error::Driver(e) if e.0 == full);
    match allocate() {
        Err(error) if is_full(&error) => {}
        done => return done,
    }
    device.stream().synchronize()?;
    device.trim_pool()?;
    allocate().map_err(|error| {
        if !is_full(&error) {
            return error;
        }
        let available = device.context().mem_get_info().map_or(0, |(free, _)| free as u64);
        Error::OutOfMemory { needed: len as u64, available }
    })
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
        if self.lender.is_some() {
            return;
        }
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

/// Bytes in one of the memory spaces of a device.
#[derive(Debug)]
pub enum SpaceBytes {
    /// Its own memory.
    Device(DeviceBytes),
    /// Pinned memory of the host.
    Pinned(PinnedBytes),
}

impl SpaceBytes {
    /// `len` bytes of a memory space.
    ///
    /// # Errors
    /// As the memory of that space.
    pub fn new(device: &Arc<Device>, space: Space, len: usize) -> Result<Self, Error> {
        match space {
            Space::MAIN => Ok(Self::Device(DeviceBytes::new(device, len)?)),
            PINNED => Ok(Self::Pinned(PinnedBytes::new(device, len)?)),
            Space(other) => unreachable!("no plan for a GPU has a memory space {other}"),
        }
    }

    /// The first byte.
    pub fn address(&self) -> CUdeviceptr {
        match self {
            Self::Device(bytes) => bytes.address(),
            Self::Pinned(bytes) => bytes.address(),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Device(bytes) => bytes.len(),
            Self::Pinned(bytes) => bytes.len(),
        }
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The memory behind this back end's buffers.
#[derive(Debug)]
pub struct CudaMemory {
    block: SpaceBytes,
    stamp: u64,
}

impl CudaMemory {
    /// Takes over a block.
    pub fn new(block: SpaceBytes) -> Self {
        Self { block, stamp: new_stamp() }
    }

    /// The block.
    pub fn block(&self) -> &SpaceBytes {
        &self.block
    }

    /// The same, to be written by the host.
    pub(crate) fn block_mut(&mut self) -> &mut SpaceBytes {
        &mut self.block
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
        self.block.address()
    }

    fn stamp(&self) -> u64 {
        self.stamp
    }

    fn touch(&mut self) {
        self.stamp = new_stamp();
    }
}

//! Memory that other GPUs of the host write into: `ExportedBytes` as its owner has it, and
//! `Import` as another member reaches it.
//!
//! They are apart from `DeviceBytes`, which come from the driver's pool. Blocks of the pool have no
//! handle that another process could open. No other GPU of the same process reaches them either.

use crate::memory::or_trimmed;
use crate::{Device, Error};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr};
use std::sync::Arc;

/// Unit of the blocks, in bytes: those of the driver. A smaller block might share its memory, and
/// so its handle, with another.
const UNIT: usize = 2 << 20;

/// Bytes of a handle of the driver.
const HANDLE: usize = 64;

/// Bytes on a device that can be shown to other members.
#[derive(Debug)]
pub(crate) struct ExportedBytes {
    device: Arc<Device>,
    shown: ShownBlock,
    len: usize,
}

/// A block as its owner shows it to the others.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct ShownBlock {
    /// In the process of its owner.
    pub(super) address: CUdeviceptr,
    /// For other processes; absent where the system has none.
    pub(super) handle: Option<[u8; HANDLE]>,
}

impl ShownBlock {
    /// Bytes of `to_bytes`.
    pub(super) const BYTES: usize = 8 + 1 + HANDLE;

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.address.to_le_bytes().to_vec();
        bytes.push(u8::from(self.handle.is_some()));
        bytes.extend(self.handle.unwrap_or([0; HANDLE]));
        bytes
    }

    /// Reads what `to_bytes` wrote.
    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (address, rest) = bytes.split_first_chunk().expect("a block begins with its address");
        let handle = rest[1..].try_into().expect("a block ends with its handle");
        let address = u64::from_le_bytes(*address);
        Self { address, handle: (rest[0] == 1).then_some(handle) }
    }
}

impl ExportedBytes {
    /// At least `len` bytes of no particular content.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no more.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Self, Error> {
        let _turn = device.turn();
        let len = len.max(1).next_multiple_of(UNIT);
        let address = or_trimmed(device, len, || {
            device.context().bind_to_thread()?;
            // SAFETY: freed once, in `drop`.
            Ok(unsafe { result::malloc_sync(len)? })
        })?;
        let mut handle = sys::CUipcMemHandle_st { reserved: [0; HANDLE] };
        // SAFETY: the address is the first of a block, and the handle outlives the call.
        let exported = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) }.result();
        let handle = exported.is_ok().then(|| handle.reserved.map(|byte| byte as u8));
        Ok(Self { device: Arc::clone(device), shown: ShownBlock { address, handle }, len })
    }

    /// The first byte.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.shown.address
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address and the handle by which the others reach it.
    pub(super) fn shown(&self) -> ShownBlock {
        self.shown
    }
}

impl Drop for ExportedBytes {
    fn drop(&mut self) {
        let _turn = self.device.turn();
        if self.device.context().bind_to_thread().is_ok() {
            // SAFETY: allocated once; the driver waits for work that uses it.
            let _ = unsafe { result::free_sync(self.shown.address) };
        }
    }
}

/// Another member's block, as this device reaches it.
#[derive(Debug)]
pub(crate) struct Import {
    device: Arc<Device>,
    address: CUdeviceptr,
    is_opened: bool,
}

impl Import {
    /// A block of a member of the same process, whose memory the device reaches.
    pub(super) fn of_this_process(device: &Arc<Device>, shown: ShownBlock) -> Self {
        Self { device: Arc::clone(device), address: shown.address, is_opened: false }
    }

    /// A block of another process.
    ///
    /// # Errors
    /// `Peers` without a handle; the driver's error if this device does not reach the memory.
    pub(super) fn of_another_process(
        device: &Arc<Device>,
        shown: ShownBlock,
    ) -> Result<Self, Error> {
        let Some(handle) = shown.handle else {
            let message = "expected memory with a handle for other processes, found none; the \
                           system of that rank gives none"
                .to_owned();
            return Err(Error::Peers { message });
        };
        device.context().bind_to_thread()?;
        let handle = sys::CUipcMemHandle_st { reserved: handle.map(|byte| byte as _) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the pointer is to a number that outlives the call. The driver checks the handle,
        // and counts how often a block was opened.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags).result()? };
        Ok(Self { device: Arc::clone(device), address, is_opened: true })
    }

    /// The first byte.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if self.is_opened && self.device.context().bind_to_thread().is_ok() {
            // SAFETY: opened once, and no copy to it is under way: its holder has waited.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_shown() {
        for handle in [None, Some(std::array::from_fn(|at| at as u8 * 3))] {
            let shown = ShownBlock { address: 0x1234_5678_9abc, handle };
            let bytes: [u8; ShownBlock::BYTES] = shown.to_bytes().try_into().unwrap();
            assert_eq!(ShownBlock::from_bytes(&bytes), shown);
        }
    }
}

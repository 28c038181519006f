//! `Flags`: the words by which the streams of two members wait for each other.
//!
//! They lie in pinned memory of the host. The host can therefore end every wait of its device,
//! also one that holds up all other streams. Words count copies, and a wait is over once its word
//! has come to a count or is ahead of it.

use super::shared_page::{BYTES, SharedPage, WORDS};
use crate::{Device, Error};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{
    self, CUdeviceptr, CUstreamWaitValue_flags_enum, CUstreamWriteValue_flags_enum,
};
use std::sync::Arc;

/// Members that a page has words for.
pub(super) const MOST_MEMBERS: usize = WORDS / 2;

/// The meaning of a word between the owner of a page and another member.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Flag {
    /// The other's place is free for this copy of the owner.
    Free,
    /// This copy of the other has arrived at the owner.
    Arrived,
}

impl Flag {
    fn word(self, member: usize) -> usize {
        2 * member + usize::from(self == Self::Arrived)
    }
}

/// The page of one member, as this device reaches it.
#[derive(Debug)]
pub(super) struct Flags {
    device: Arc<Device>,
    page: SharedPage,
    address: CUdeviceptr,
}

impl Flags {
    /// Pins a page and maps it for a device.
    pub(super) fn new(device: &Arc<Device>, page: SharedPage) -> Result<Self, Error> {
        device.context().bind_to_thread()?;
        let (start, mut address) = (page.start().cast(), 0);
        // SAFETY: the mapping has this many bytes and outlives its registration, which `drop`
        // ends first; the pointer is to a number that outlives the call.
        unsafe {
            sys::cuMemHostRegister_v2(start, BYTES, sys::CU_MEMHOSTREGISTER_DEVICEMAP).result()?;
            let mapped = sys::cuMemHostGetDevicePointer_v2(&raw mut address, start, 0).result();
            if let Err(error) = mapped {
                let _ = sys::cuMemHostUnregister(start);
                return Err(error.into());
            }
        }
        Ok(Self { device: Arc::clone(device), page, address })
    }

    /// Nobody else is to open the page.
    pub(super) fn hide(&mut self) {
        self.page.hide();
    }

    fn address(&self, (member, flag): (usize, Flag)) -> CUdeviceptr {
        self.address + (flag.word(member) * size_of::<u32>()) as u64
    }

    /// Enqueues writing a word, after all that the stream wrote before, as every device sees it.
    pub(super) fn write(
        &self,
        stream: &CudaStream,
        word: (usize, Flag),
        count: u32,
    ) -> Result<(), Error> {
        // This way to write is behind a barrier for the whole system.
        let way = CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the word is pinned and mapped for the stream's device, as long as `self` lives.
        // The group waits for its streams before it gives up its pages.
        unsafe {
            sys::cuStreamWriteValue32_v2(stream.cu_stream(), self.address(word), count, way)
                .result()?
        };
        Ok(())
    }

    /// Enqueues waiting until a word has come to `count`, in the cyclic order of 32 bits.
    pub(super) fn wait(
        &self,
        stream: &CudaStream,
        word: (usize, Flag),
        count: u32,
    ) -> Result<(), Error> {
        let until = CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: as in `write`.
        unsafe {
            sys::cuStreamWaitValue32_v2(stream.cu_stream(), self.address(word), count, until)
                .result()?
        };
        Ok(())
    }

    /// Writes a word from the host, at once.
    pub(super) fn set(&self, (member, flag): (usize, Flag), count: u32) {
        self.page.store(flag.word(member), count);
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        if self.device.context().bind_to_thread().is_ok() {
            // SAFETY: registered once, and no work uses it any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.page.start().cast()) };
        }
    }
}

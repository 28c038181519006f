//! `Link`: the way from this device to the memory of another member, and what members tell each
//! other to find it.
//!
//! Ranks may be threads of one process, which reach each other's addresses as they are, or
//! processes, which open a handle of the driver. Invariant: a link was tried before it is one.

use super::flags::Flags;
use super::memory::{Import, ShownBlock};
use super::shared_page::SharedPage;
use crate::{Device, Error};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

/// A member as it introduces itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Greeting {
    /// Equal for ranks of one process.
    process: u64,
    /// Number of the GPU in that process.
    ordinal: u64,
    /// The id of its page of flags.
    pub(super) page: u64,
    /// A block to try the way to its memory.
    block: ShownBlock,
}

/// A number that nobody else has.
pub(super) fn random() -> u64 {
    // Its keys are random: they come from the system.
    RandomState::new().build_hasher().finish()
}

/// The number of this process. The system's own numbers repeat from container to container.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(random)
}

impl Greeting {
    pub(super) fn new(device: &Device, page: u64, block: ShownBlock) -> Self {
        Self { process: process(), ordinal: device.context().ordinal() as u64, page, block }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.process, self.ordinal, self.page];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(self.block.to_bytes());
        bytes
    }

    /// Reads what `to_bytes` wrote; `None` for anything else, such as the nothing of a member that
    /// has nothing to show.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, block) = bytes.split_at_checked(3 * size_of::<u64>())?;
        let block = ShownBlock::from_bytes(block.try_into().ok()?);
        let mut numbers = numbers
            .chunks_exact(size_of::<u64>())
            .map(|number| u64::from_le_bytes(number.try_into().expect("chunks of a number")));
        let mut next = || numbers.next().expect("three numbers");
        Some(Self { process: next(), ordinal: next(), page: next(), block })
    }
}

/// How a device reaches the memory of a member.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// It is this rank's own, or that of a thread of this process.
    ThisProcess,
    /// By handles.
    AnotherProcess,
}

impl Link {
    /// Tries the ways to a member's flags and memory.
    ///
    /// # Errors
    /// In words, why there is none.
    pub(super) fn to(device: &Arc<Device>, member: &Greeting) -> Result<(Self, Flags), String> {
        let page = SharedPage::open(member.page).map_err(|error| {
            format!("it is on another host, or in a container with a memory of its own ({error})")
        })?;
        let flags = Flags::new(device, page).map_err(|error| error.to_string())?;
        if member.process == process() {
            enable(device, member.ordinal as usize)?;
            return Ok((Self::ThisProcess, flags));
        }
        let link = Self::AnotherProcess;
        let tried = link.import(device, member.block);
        tried.map_err(|error| format!("its memory cannot be opened ({error})"))?;
        Ok((link, flags))
    }

    /// A block of the member as this device reaches it.
    pub(super) fn import(self, device: &Arc<Device>, shown: ShownBlock) -> Result<Import, Error> {
        match self {
            Self::ThisProcess => Ok(Import::of_this_process(device, shown)),
            Self::AnotherProcess => Import::of_another_process(device, shown),
        }
    }
}

/// Lets a device reach the memory of another GPU of this process.
fn enable(device: &Device, ordinal: usize) -> Result<(), String> {
    let own = device.context();
    let enabled = || {
        // Makes the other context this thread's.
        let other = CudaContext::new(ordinal)?;
        own.bind_to_thread()?;
        let mut can = 0;
        // SAFETY: both devices are there, and the pointer is to a number that outlives the call.
        unsafe {
            let (from, to) = (own.cu_device(), other.cu_device());
            sys::cuDeviceCanAccessPeer(&raw mut can, from, to).result()?;
            if can == 0 {
                return Ok(false);
            }
            match sys::cuCtxEnablePeerAccess(other.cu_ctx(), 0) {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
                result => result.result().map(|()| true),
            }
        }
    };
    let reaches = enabled();
    // The end of the other context's handle has made it this thread's again.
    own.bind_to_thread().map_err(|error| Error::from(error).to_string())?;
    match reaches {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("GPU {} cannot reach the memory of GPU {ordinal}", own.ordinal())),
        Err(error) => Err(Error::from(error).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_as_it_was_said() {
        let block = ShownBlock { address: 5, handle: Some([9; 64]) };
        let greeting = Greeting { process: process(), ordinal: 3, page: random(), block };
        assert_eq!(Greeting::from_bytes(&greeting.to_bytes()), Some(greeting));
        assert_eq!(Greeting::from_bytes(&[]), None);
        assert_eq!(Greeting::from_bytes(&greeting.to_bytes()[1..]), None);
        assert_ne!(random(), random());
    }
}

//! `Copies`: a collective as copies into the results of other members.

use super::group::{Delivery, PeerGroup};
use super::movement::{CollectivePart, Movement};
use crate::Error;
use crate::entry::begin_call;
use crate::launch::{Addresses, Launch};
use cudarc::driver::{CudaStream, result};
use std::sync::Arc;

/// A movement of bytes between the members of a group.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) group: Arc<PeerGroup>,
    pub(crate) movement: Movement,
    pub(crate) parts: Vec<CollectivePart>,
}

/// Bytes of a part for one member: `bytes` from `from` on in the operand, to `to` in its result.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Block {
    from: usize,
    to: usize,
    bytes: usize,
}

impl Copies {
    /// The block that a member gets of a part; `None` where it gets nothing.
    fn block(&self, part: &CollectivePart, member: usize) -> Option<Block> {
        let ([bytes, result_bytes], own) = (part.bytes, self.group.position());
        match self.movement {
            Movement::AllGather => Some(Block { from: 0, to: own * bytes, bytes }),
            Movement::AllToAll => {
                let bytes = result_bytes / self.group.members().len();
                Some(Block { from: member * bytes, to: own * bytes, bytes })
            }
            Movement::Permute { to, .. } => {
                (to == Some(member)).then_some(Block { from: 0, to: 0, bytes })
            }
        }
    }

    /// Copies to all members. Each begins with the member after it, so that no two write to the
    /// same one at a time, and ends with itself.
    fn deliveries(&self, addresses: &Addresses) -> Vec<Delivery> {
        let (own, members) = (self.group.position(), self.group.members().len());
        let in_turn = (1..=members).map(|step| (own + step) % members);
        let to = |member: usize| {
            self.parts.iter().filter_map(move |part| {
                let Block { from, to, bytes } = self.block(part, member)?;
                let from = addresses.of(part.operand) + from as u64;
                let to = addresses.of_peer(part.result, member) + to as u64;
                Some(Delivery { to: member, places: (from, to), bytes })
            })
        };
        in_turn.flat_map(to).collect()
    }

    /// The other members that copy to here.
    fn sources(&self) -> Vec<usize> {
        let own = self.group.position();
        let comes = |member: &usize| match self.movement {
            Movement::AllGather | Movement::AllToAll => true,
            Movement::Permute { from, .. } => from == Some(*member),
        };
        (0..self.group.members().len()).filter(|member| *member != own).filter(comes).collect()
    }
}

impl Launch for Copies {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        stream.context().bind_to_thread()?;
        if let Movement::Permute { from: None, .. } = self.movement {
            for part in &self.parts {
                let (to, bytes) = (addresses.of(part.result), part.bytes[1]);
                // SAFETY: the slot has so many bytes, and the stream is of its device.
                unsafe { result::memset_d8_async(to, 0, bytes, stream.cu_stream())? };
            }
        }
        // SAFETY: slots have the sizes of the plan, which has them apart and in use until the step
        // ends. The plan lets a result be written once the stream is here, on every member.
        unsafe { self.group.deliver(stream, &self.deliveries(addresses), &self.sources())? };
        // The next kernel is not to begin under one before the copies.
        begin_call();
        Ok(())
    }
}

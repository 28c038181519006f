//! Collectives of GPUs of one host by copies of the driver, which occupy no multiprocessor
//! (docs/decisions/0021).
//!
//! A member's copy engine writes straight into the other members' results, over NVLink or PCI
//! Express. `group` are the members and the order of their copies; `copies` is the collective as a
//! launch; `movement` says which bytes go where. Invariants: a member writes into another's memory
//! only once that one said that the place is free. All waits of a device end when a rank fails.

mod copies;
mod flags;
mod group;
mod link;
mod memory;
mod movement;
mod shared_page;

pub(crate) use copies::Copies;
pub(crate) use group::{Introduced, PeerGroup};
pub(crate) use memory::ExportedBytes;
pub(crate) use movement::{CollectivePart, Movement};

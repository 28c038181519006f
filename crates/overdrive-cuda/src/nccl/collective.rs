//! `Collective`: a collective as a launch of NCCL.

use super::group::NcclGroup;
use super::library::{Comm, Library, SUCCESS};
use crate::Error;
use crate::launch::{Addresses, Launch};
use crate::peers::{CollectivePart, Movement};
use cudarc::driver::{CudaStream, result};
use overdrive_ir::{DType, Prim, Reducer};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Bytes, to NCCL.
const U8: c_int = 1;

/// A collective along axis 0, as the pass `in_blocks` leaves it.
pub(super) struct Collective {
    pub(super) group: Arc<NcclGroup>,
    pub(super) kind: NcclCollective,
    /// One, or those of a bucket.
    pub(super) parts: Vec<CollectivePart>,
}

/// The collective, with NCCL's numbers of the element type and the fold.
#[derive(Copy, Clone)]
pub(super) enum NcclCollective {
    AllReduce { dtype: c_int, fold: c_int },
    ReduceScatter { dtype: c_int, fold: c_int },
    Move(Movement),
}

impl NcclCollective {
    /// The collective of a primitive on elements of a type, as the member at position `own` sees
    /// it; `None` if NCCL does not fold them.
    pub(super) fn of(prim: &Prim, dtype: DType, own: usize) -> Option<Self> {
        let folded = |reducer: &Reducer| number(dtype).zip(fold(*reducer, dtype));
        match prim {
            Prim::AllReduce { reducer, .. } => {
                folded(reducer).map(|(dtype, fold)| Self::AllReduce { dtype, fold })
            }
            Prim::ReduceScatter { reducer, .. } => {
                folded(reducer).map(|(dtype, fold)| Self::ReduceScatter { dtype, fold })
            }
            other => Movement::of(other, own).map(Self::Move),
        }
    }
}

/// NCCL's number of an element type that it folds.
fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool => U8,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => return None,
    })
}

/// NCCL's number of a fold. For bools, which are 0 or 1, "and" is the minimum and "or" the maximum.
fn fold(reducer: Reducer, dtype: DType) -> Option<c_int> {
    Some(match (reducer, dtype == DType::Bool) {
        (Reducer::Sum, false) => 0,
        (Reducer::Prod, false) => 1,
        (Reducer::Max, _) | (Reducer::Or, true) => 2,
        (Reducer::Min, _) | (Reducer::And, true) => 3,
        _ => return None,
    })
}

/// Makes calls one after another, up to the first that fails.
struct Calls(c_int);

impl Calls {
    fn then(&mut self, call: impl FnOnce() -> c_int) {
        if self.0 == SUCCESS {
            self.0 = call();
        }
    }
}

impl Collective {
    /// Calls that belong together; the library checks and begins them at the end.
    ///
    /// # Safety
    /// As the functions of NCCL: the slots are memory of the device, of the sizes of `parts`, and
    /// the stream is one of it.
    unsafe fn calls(
        &self,
        (library, comm): (&Library, Comm),
        stream: *mut c_void,
        addresses: &Addresses,
    ) -> c_int {
        let (mut calls, ranks) = (Calls(SUCCESS), self.group.ranks);
        // SAFETY: the caller promises what each of the functions asks for.
        unsafe {
            calls.then(|| (library.group_start)());
            if calls.0 != SUCCESS {
                return calls.0;
            }
            for part in &self.parts {
                let from = addresses.of(part.operand) as *const c_void;
                let to = addresses.of(part.result) as *mut c_void;
                let (count, [bytes, result_bytes]) = (part.elements, part.bytes);
                match self.kind {
                    NcclCollective::AllReduce { dtype, fold } => calls
                        .then(|| (library.all_reduce)(from, to, count, dtype, fold, comm, stream)),
                    NcclCollective::ReduceScatter { dtype, fold } => calls.then(|| {
                        (library.reduce_scatter)(from, to, count, dtype, fold, comm, stream)
                    }),
                    NcclCollective::Move(Movement::AllGather) => {
                        calls.then(|| (library.all_gather)(from, to, bytes, U8, comm, stream));
                    }
                    NcclCollective::Move(Movement::AllToAll) => {
                        let block = result_bytes / ranks;
                        for other in 0..ranks {
                            let (at, peer) = (other * block, other as c_int);
                            let (from, to) = (from.byte_add(at), to.byte_add(at));
                            calls.then(|| (library.send)(from, block, U8, peer, comm, stream));
                            calls.then(|| (library.receive)(to, block, U8, peer, comm, stream));
                        }
                    }
                    NcclCollective::Move(Movement::Permute { to: target, from: source }) => {
                        if let Some(peer) = target.map(|peer| peer as c_int) {
                            calls.then(|| (library.send)(from, bytes, U8, peer, comm, stream));
                        }
                        if let Some(peer) = source.map(|peer| peer as c_int) {
                            calls.then(|| (library.receive)(to, bytes, U8, peer, comm, stream));
                        }
                    }
                }
            }
            // A group that was begun is ended, whatever happened in it.
            let ended = (library.group_end)();
            if calls.0 == SUCCESS { ended } else { calls.0 }
        }
    }
}

impl Launch for Collective {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        if let NcclCollective::Move(Movement::Permute { from: None, .. }) = self.kind {
            for part in &self.parts {
                let (to, bytes) = (addresses.of(part.result), part.bytes[1]);
                // SAFETY: the slot has so many bytes, and the stream is of its device.
                unsafe { result::memset_d8_async(to, 0, bytes, stream.cu_stream())? };
            }
        }
        let raw = stream.cu_stream().cast::<c_void>();
        // SAFETY: slots have the sizes of the plan, which has them apart and in use until the step
        // ends; the stream is of their device.
        let calls =
            |library: &Library, comm| unsafe { self.calls((library, comm), raw, addresses) };
        self.group.call("a collective", calls)
    }
}

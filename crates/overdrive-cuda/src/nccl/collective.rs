//! Collectives as launches: what NCCL calls them.

use super::group::NcclGroup;
use super::library::{Comm, IN_PROGRESS, Library, SUCCESS};
use super::ranks::Ranks;
use crate::Error;
use crate::launch::{Addresses, Launch, Refusal, Site};
use cudarc::driver::{CudaStream, result};
use overdrive_ir::{DType, Operation, Prim, Reducer, SlotId};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Bytes, to NCCL.
const U8: c_int = 1;

/// A collective along axis 0, as the pass `in_blocks` leaves it.
struct Collective {
    group: Arc<NcclGroup>,
    kind: NcclCollective,
    /// One, or those of a bucket.
    parts: Vec<CollectivePart>,
}

/// An operand and its result.
struct CollectivePart {
    operand: SlotId,
    result: SlotId,
    /// Bytes of the operand and of the result.
    bytes: [usize; 2],
    /// Elements of the result.
    elements: usize,
}

/// The collective, with NCCL's numbers of the element type and the fold.
enum NcclCollective {
    AllReduce { dtype: c_int, fold: c_int },
    ReduceScatter { dtype: c_int, fold: c_int },
    AllGather,
    AllToAll,
    Permute { to: Option<c_int>, from: Option<c_int> },
}

/// Compiles the collective of a step.
///
/// # Errors
/// `Unsupported` for elements that NCCL does not fold; as the groups of `Ranks`.
pub(crate) fn compile(
    site: &Site<'_>,
    prim: &Prim,
    ranks: Option<&Arc<Ranks>>,
) -> Result<Box<dyn Launch>, Refusal> {
    let axes = &prim.channel().expect("collectives have a channel").group;
    let Some(ranks) = ranks else {
        return Err(Refusal::Unsupported(format!(
            "it is one rank of {axes}, and this back end has no way to the others: open it with \
             `on` a communicator"
        )));
    };
    let (plan, step) = (site.plan, site.step);
    let dtype = plan.slot(step.reads[0]).ty.dtype;
    let refused = || {
        let name = Operation::Prim(prim.clone()).name();
        let reason = format!("no `{name}` on {dtype}; convert to a wider type before it");
        Refusal::Unsupported(reason)
    };
    let folded = |reducer: &Reducer| number(dtype).zip(fold(*reducer, dtype)).ok_or_else(refused);
    if !dtype.bits().is_multiple_of(8) {
        return Err(refused());
    }
    let group = ranks.group(axes)?;
    let own = group.position;
    let kind = match prim {
        Prim::AllReduce { reducer, .. } => {
            let (dtype, fold) = folded(reducer)?;
            NcclCollective::AllReduce { dtype, fold }
        }
        Prim::ReduceScatter { reducer, .. } => {
            let (dtype, fold) = folded(reducer)?;
            NcclCollective::ReduceScatter { dtype, fold }
        }
        Prim::AllGather { .. } => NcclCollective::AllGather,
        Prim::AllToAll { .. } => NcclCollective::AllToAll,
        Prim::Permute { pairs, .. } => {
            let to = pairs.iter().find(|(from, _)| *from == own).map(|(_, to)| *to as c_int);
            let from = pairs.iter().find(|(_, to)| *to == own).map(|(from, _)| *from as c_int);
            NcclCollective::Permute { to, from }
        }
        other => unreachable!("`{}` is no collective", other.name()),
    };
    let part = |(&operand, &result): (&SlotId, &SlotId)| CollectivePart {
        operand,
        result,
        bytes: [operand, result].map(|slot| plan.slot(slot).bytes()),
        elements: plan.slot(result).ty.elements(),
    };
    let parts = step.reads.iter().zip(&step.writes).map(part).collect();
    Ok(Box::new(Collective { group, kind, parts }))
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
            // Within a group nothing is done yet, which is no error.
            self.0 = Some(call()).filter(|result| *result != IN_PROGRESS).unwrap_or(SUCCESS);
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
                    NcclCollective::AllGather => {
                        calls.then(|| (library.all_gather)(from, to, bytes, U8, comm, stream));
                    }
                    NcclCollective::AllToAll => {
                        let block = result_bytes / ranks;
                        for other in 0..ranks {
                            let (at, peer) = (other * block, other as c_int);
                            let (from, to) = (from.byte_add(at), to.byte_add(at));
                            calls.then(|| (library.send)(from, block, U8, peer, comm, stream));
                            calls.then(|| (library.receive)(to, block, U8, peer, comm, stream));
                        }
                    }
                    NcclCollective::Permute { to: target, from: source } => {
                        if let Some(peer) = target {
                            calls.then(|| (library.send)(from, bytes, U8, peer, comm, stream));
                        }
                        if let Some(peer) = source {
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
        if let NcclCollective::Permute { from: None, .. } = self.kind {
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

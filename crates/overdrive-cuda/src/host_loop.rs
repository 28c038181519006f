//! Loops over pinned memory that the host runs, in the order of a stream.
//!
//! `cuLaunchHostFunc` has a thread of the driver call us once all work before it on the stream has
//! ended. Work behind it waits for our return. The same call is captured as a node of a graph. By
//! the driver's manual such a function makes no call of CUDA, and waits for no work that need not
//! have ended. Ours runs a loop of the CPU back end on all cores, and nothing else.
//!
//! Invariant: what a call points to lives until the stream is done with it. A captured graph may
//! call it again, so calls are kept as long as their step, one for each set of addresses.

use crate::host_cores::HostCores;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::{Device, Error};
use cudarc::driver::result::stream::launch_host_function;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, DriverError};
use overdrive_cpu::loops::CompiledLoop;
use overdrive_cpu::slots::SlotTable;
use overdrive_ir::SlotId;
use overdrive_ir::plan::Program;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A loop and who runs it.
struct Work {
    body: CompiledLoop,
    cores: Arc<HostCores>,
    name: String,
}

/// The driver hands it back to `run`.
struct HostCall {
    work: Arc<Work>,
    places: Vec<CUdeviceptr>,
    slots: SlotTable,
}

/// A step that the host runs.
pub(crate) struct HostLoop {
    device: Arc<Device>,
    work: Arc<Work>,
    touched: Vec<SlotId>,
    slot_count: usize,
    /// One for each set of addresses.
    #[expect(clippy::vec_box, reason = "the driver has their addresses")]
    calls: Mutex<Vec<Box<HostCall>>>,
}

/// Compiles the loop of `site` for the host. All that it touches is pinned memory.
pub(crate) fn compile(site: &Site<'_>, program: &Program) -> Result<Box<dyn Launch>, Refusal> {
    let (plan, step) = (site.plan, site.step);
    let cores = site.device.host_cores()?;
    let dtype = |slot| plan.slot(slot).ty.dtype;
    let body = cores.set.during(|| CompiledLoop::new(program, &dtype));
    let body = body.map_err(|e| Refusal::Unsupported(e.to_string()))?;
    // So that no call allocates.
    cores.pool.reserve_scratch(body.scratch_bytes());
    Ok(Box::new(HostLoop {
        device: Arc::clone(site.device),
        work: Arc::new(Work { body, cores, name: format!("{} at {}", step.name, step.scope) }),
        touched: step.reads.iter().chain(&step.writes).copied().collect(),
        slot_count: plan.slots.len(),
        calls: Mutex::default(),
    }))
}

impl HostLoop {
    /// The call on these addresses, made when they are first seen.
    fn call(&self, addresses: &Addresses) -> *const HostCall {
        let places: Vec<_> = self.touched.iter().map(|slot| addresses.of(*slot)).collect();
        let mut calls = self.calls.lock();
        if let Some(known) = calls.iter().find(|call| call.places == places) {
            return &raw const **known;
        }
        let mut slots = SlotTable::new(self.slot_count);
        for (&slot, &place) in self.touched.iter().zip(&places) {
            // Pinned memory has one address for device and host.
            slots.set(slot, std::ptr::with_exposed_provenance_mut(place as usize));
        }
        let call = Box::new(HostCall { work: Arc::clone(&self.work), places, slots });
        let at = &raw const *call;
        calls.push(call);
        at
    }
}

impl Launch for HostLoop {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let call = self.call(addresses).cast_mut().cast::<c_void>();
        // SAFETY: the call lives until `drop`, which waits for the stream of work. That stream ends
        // after all streams of a call.
        let launched: Result<(), DriverError> =
            unsafe { launch_host_function(stream.cu_stream(), run, call) };
        Ok(launched?)
    }
}

impl Drop for HostLoop {
    fn drop(&mut self) {
        let _turn = self.device.turn();
        if self.device.stream().synchronize().is_err() {
            // Who knows whether the driver still calls them.
            std::mem::forget(std::mem::take(&mut *self.calls.lock()));
        }
    }
}

/// Runs a call on a thread of the driver. No panic leaves it.
unsafe extern "C" fn run(call: *mut c_void) {
    // SAFETY: `launch` gave this pointer, and what it points to lives; nobody changes it.
    let HostCall { work, slots, .. } = unsafe { &*call.cast::<HostCall>() };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the table has all slots of the loop, in pinned memory. By the order of the plan
        // nobody else touches what it writes, or writes what it reads.
        work.cores.set.during(|| unsafe { work.body.run(&work.cores.pool, slots) });
    }));
    if ran.is_err() {
        work.cores.fail(&work.name);
    }
}

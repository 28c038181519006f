//! Times the candidates of a product on data of its own.

use super::beside::{self, BESIDE};
use super::candidate::{GemmCandidate, TILES};
use super::compile::{compile, key};
use super::following::{self, ReadyCandidates, key_following};
use super::hopper::{self, HopperWork};
use super::summed::{self, key_summed};
use super::together::{self, key_together};
use crate::compiler::KernelSource;
use crate::entry::begin_call;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::{Device, Error};
use cudarc::driver::sys::{CUdevice_attribute, CUevent_flags};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, result};
use overdrive_ir::plan::{GemmCall, Instr, Program, SlotId};
use overdrive_ir::{Choice, DType};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Timed calls of each candidate, after one that warms up.
const SAMPLES: usize = 9;

/// Times every candidate of a product with cold caches; `None` where there is nothing to choose.
/// The key is the one by which `compile` looks the choice up.
///
/// # Errors
/// As `compile`, and CUDA's errors while candidates run.
pub fn tune(site: &Site<'_>, call: &GemmCall) -> Result<Option<(String, Choice)>, Refusal> {
    if call.epilogue.0.points() == 0 || call.lhs.dtype.bits() < 8 || call.rhs.dtype.bits() < 8 {
        return Ok(None);
    }
    let mut ready = ReadyCandidates::new();
    for candidate in GemmCandidate::all(site, call)? {
        if let Some(launch) = candidate.compile(site, call)? {
            ready.push((candidate.to_string(), launch));
        }
    }
    if ready.len() < 2 {
        return Ok(None);
    }
    Ok(fastest(site, (std::slice::from_ref(call), None), ready)?.map(|choice| (key(call), choice)))
}

/// The same for products that may run in one launch: in each tile, and one by one, each in its own
/// best way.
///
/// # Errors
/// As `tune`.
pub(crate) fn tune_together(
    site: &Site<'_>,
    calls: &[GemmCall],
) -> Result<Option<(String, Choice)>, Refusal> {
    let mut ready = ReadyCandidates::new();
    for tile in
        together::tiles(calls, site.device.properties().multiprocessors).into_iter().take(TILES)
    {
        if let Some(launch) = hopper::compile(site, HopperWork::of(calls), tile)? {
            ready.push((tile.to_string(), launch));
        }
    }
    if beside::takes(&calls[0]) {
        ready.push((BESIDE.to_owned(), beside::compile(site, calls)?));
    }
    if ready.is_empty() {
        return Ok(None);
    }
    let apart = calls.iter().map(|call| compile(site, call)).collect::<Result<_, _>>()?;
    ready.push((together::APART.to_owned(), Box::new(Apart { launches: apart })));
    Ok(fastest(site, (calls, None), ready)?.map(|choice| (key_together(calls), choice)))
}

/// The same for a product that a loop follows: in each tile, and one after the other, each in its
/// own best way.
///
/// # Errors
/// As `tune`.
pub(crate) fn tune_following(
    site: &Site<'_>,
    (call, program): (&GemmCall, &Program),
) -> Result<Option<(String, Choice)>, Refusal> {
    let mut ready = following::candidates(site, (call, program))?;
    if ready.is_empty() {
        return Ok(None);
    }
    let launches = vec![compile(site, call)?, crate::loops::compile(site, program)?];
    ready.push((together::APART.to_owned(), Box::new(Apart { launches })));
    let choice = fastest(site, (std::slice::from_ref(call), Some(program)), ready)?;
    Ok(choice.map(|choice| (key_following(call, program), choice)))
}

/// The same for products that are added up: in each tile, and one after the other, each in its own
/// best way.
///
/// # Errors
/// As `tune`.
pub(crate) fn tune_summed(
    site: &Site<'_>,
    calls: &[GemmCall],
) -> Result<Option<(String, Choice)>, Refusal> {
    let mut ready = summed::candidates(site, calls, TILES)?;
    if ready.is_empty() {
        return Ok(None);
    }
    let apart = calls.iter().map(|call| compile(site, call)).collect::<Result<_, _>>()?;
    ready.push((together::APART.to_owned(), Box::new(Apart { launches: apart })));
    Ok(fastest(site, (calls, None), ready)?.map(|choice| (key_summed(calls), choice)))
}

/// Launches one after the other.
struct Apart {
    launches: Vec<Box<dyn Launch>>,
}

impl Launch for Apart {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        self.launches.iter().try_for_each(|launch| launch.launch(stream, addresses))
    }

    fn workspace_bytes(&self) -> usize {
        self.launches.iter().map(|launch| launch.workspace_bytes()).max().unwrap_or(0)
    }
}

/// Times the launches that are ready, on the buffers of products and of the loops that follow them.
fn fastest(
    site: &Site<'_>,
    (calls, program): (&[GemmCall], Option<&Program>),
    mut ready: ReadyCandidates,
) -> Result<Option<Choice>, Refusal> {
    let workspace_bytes =
        ready.iter().map(|(_, launch)| launch.workspace_bytes()).max().unwrap_or(0);
    let bench = Bench::new(site, (calls, program), workspace_bytes)?;
    // A launch that fails here is no candidate; `compile` says whether anything works.
    ready.retain(|(_, launch)| bench.time_ns(launch.as_ref()).is_ok());
    let mut samples = vec![Vec::with_capacity(SAMPLES); ready.len()];
    // Round after round, so that a change of clocks meets all.
    for _ in 0..SAMPLES {
        for ((_, launch), samples) in ready.iter().zip(&mut samples) {
            samples.push(bench.time_ns(launch.as_ref())?);
        }
    }
    let timings_ns: BTreeMap<String, f64> = ready
        .iter()
        .zip(samples)
        .map(|((name, _), samples)| (name.clone(), median(samples)))
        .collect();
    Ok(Choice::fastest(timings_ns))
}

/// Buffers for every slot that a call touches.
struct Bench {
    device: Arc<Device>,
    addresses: Addresses,
    /// Written between calls, to put everything else out of the cache, and long enough to launch
    /// behind.
    flush: CudaSlice<u8>,
    /// The memory that `addresses` points into.
    _memory: Vec<CudaSlice<u8>>,
}

impl Bench {
    fn new(
        site: &Site<'_>,
        (calls, program): (&[GemmCall], Option<&Program>),
        workspace_bytes: usize,
    ) -> Result<Self, Error> {
        let (device, stream) = (site.device, site.device.stream());
        let l2 =
            device.context().attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        // SAFETY: `noise` or a candidate writes the bytes before anything reads them.
        let allocate = |bytes: usize| unsafe { stream.alloc::<u8>(bytes.max(1)) };
        let address = |slice: &CudaSlice<u8>| slice.device_ptr(stream).0;
        let workspace = allocate(workspace_bytes)?;
        let mut addresses = Addresses::new(site.plan.slots.len(), address(&workspace));
        let mut memory = vec![workspace];
        let of_program = |program: &Program| -> Vec<SlotId> {
            let loads = program.instrs.iter().filter_map(|i| match i {
                Instr::Load(access) => Some(access.slot),
                _ => None,
            });
            loads.chain(program.stores.iter().map(|store| store.access.slot)).collect()
        };
        let operands = calls.iter().flat_map(|call| [call.lhs.slot, call.rhs.slot]);
        let programs = calls.iter().map(|call| &call.epilogue.0).chain(program);
        let mut slots: Vec<SlotId> = operands.chain(programs.flat_map(of_program)).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            let slice = allocate(site.plan.slot(slot).bytes())?;
            noise(
                device,
                address(&slice),
                site.plan.slot(slot).ty.dtype,
                site.plan.slot(slot).bytes(),
            )?;
            addresses.set(slot, address(&slice));
            memory.push(slice);
        }
        Ok(Self {
            device: Arc::clone(device),
            addresses,
            flush: allocate(4 * l2 as usize)?,
            _memory: memory,
        })
    }

    /// One call, by the device's clock.
    fn time_ns(&self, launch: &dyn Launch) -> Result<f64, Error> {
        let stream = self.device.stream();
        let event = || self.device.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (start, end) = (event()?, event()?);
        let flush = self.flush.device_ptr(stream).0;
        // SAFETY: `flush` is a live allocation of this length.
        unsafe { result::memset_d8_async(flush, 0, self.flush.len(), stream.cu_stream())? };
        start.record(stream)?;
        begin_call();
        launch.launch(stream, &self.addresses)?;
        end.record(stream)?;
        end.synchronize()?;
        Ok(f64::from(start.elapsed_ms(&end)?) * 1e6)
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The kernel that makes random numbers of a type. Its macro has a word of its own. A macro named
/// like parameters of templates would be read in the compiler's own headers, where `template
/// <typename bool>` is an error.
pub(super) fn noise_source(dtype: DType) -> KernelSource {
    let defines = vec![("ELEMENT", dtype.to_string())];
    KernelSource { name: "noise".into(), text: include_str!("kernels/noise.cu").into(), defines }
}

/// Fills a buffer with random numbers of a type.
fn noise(device: &Device, address: u64, dtype: DType, bytes: usize) -> Result<(), Error> {
    // Types without whole bytes take part in no product; any bits do for them.
    let dtype = if dtype.bits() < 8 { DType::U8 } else { dtype };
    let function = device.function(&noise_source(dtype), "noise")?;
    let count = (bytes * 8 / dtype.bits()) as u64;
    let shape =
        LaunchConfig { grid_dim: (1024, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes an address and a count, and writes that many elements.
    unsafe { device.stream().launch_builder(&function).arg(&address).arg(&count).launch(shape)? };
    Ok(())
}

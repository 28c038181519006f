//! From `--device` and `--threads` to back ends.

use crate::cli::{Isa, Machine};
use crate::failure::Failure;
use crate::terminal::note;
use overdrive::bench::energy::{Gpu, Meter, Selector};
use overdrive::bench::environment::{self, Environment};
use overdrive::bench::exit::Exit;
use overdrive::bench::failure;
use overdrive::cpu::CpuBackend;
use overdrive::cuda::{CudaBackend, Library, gpus};
use overdrive::ir::{Backend, BackendError, Communicator, Description, Mode};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// A device to measure.
pub(crate) struct Opened {
    /// The back end.
    pub backend: Box<dyn Backend>,
    /// Host threads that it was given.
    pub threads: u32,
    /// Its description in results, if it is not the processor.
    pub described: Option<environment::Accelerator>,
}

/// The device that `--device` asks for.
enum DeviceChoice {
    /// The first GPU that works, or else the CPU.
    Auto,
    Cpu,
    Cuda(usize),
}

fn choice(machine: &Machine) -> Result<DeviceChoice, Failure> {
    let unknown = || {
        let found = &machine.device;
        Failure::bad_input(format!("unknown device `{found}`: expected `auto`, `cpu` or `cuda:N`"))
    };
    match machine.device.as_str() {
        "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        other => {
            let ordinal = other.strip_prefix("cuda:").and_then(|n| n.parse().ok());
            Ok(DeviceChoice::Cuda(ordinal.ok_or_else(unknown)?))
        }
    }
}

/// Errs for a mode that a device lacks, as `option` asks for it.
pub(crate) fn check_mode(mode: Mode, device: &Description, option: &str) -> Result<(), Failure> {
    if mode != Mode::Graph || device.replays {
        return Ok(());
    }
    Err(Failure::bad_input(format!(
        "{option} graph: expected a GPU, whose launches are captured and replayed, found a CPU; \
         use {option} compile"
    )))
}

/// The GPU that `--device` names, if it names one.
pub(crate) fn named_gpu(machine: &Machine) -> Result<Option<usize>, Failure> {
    Ok(match choice(machine)? {
        DeviceChoice::Cuda(ordinal) => Some(ordinal),
        DeviceChoice::Auto | DeviceChoice::Cpu => None,
    })
}

/// The number of threads to use.
pub(crate) fn threads(machine: &Machine) -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    machine.threads.map_or(available, |n| n as usize)
}

/// The device asked for.
pub(crate) fn open(machine: &Machine) -> Result<Opened, Failure> {
    match choice(machine)? {
        DeviceChoice::Cpu => cpu(machine),
        DeviceChoice::Cuda(ordinal) => cuda(ordinal, machine),
        DeviceChoice::Auto if gpus() == 0 => cpu(machine),
        DeviceChoice::Auto => cuda(0, machine).or_else(|failure| {
            note!("note: using the CPU instead of the GPU: {failure}");
            cpu(machine)
        }),
    }
}

/// A rank's number on its machine, and its connection to the others.
pub(crate) struct OfRank {
    /// The GPU that it takes, if it is not told another.
    pub local_rank: Option<usize>,
    /// Ranks that share the cores of the machine.
    pub sharing: usize,
    pub communicator: Arc<dyn Communicator>,
}

/// The device asked for; of a rank, the one that is its own.
pub(crate) fn open_as(machine: &Machine, rank: Option<OfRank>) -> Result<Opened, Failure> {
    let Some(OfRank { local_rank, sharing, communicator }) = rank else { return open(machine) };
    let threads = match machine.threads {
        Some(asked) => asked as usize,
        None => threads(machine).div_ceil(sharing),
    };
    match gpu_of_rank(choice(machine)?, gpus(), local_rank)? {
        None => {
            let backend = processor(Some(threads), machine.isa)?.on(communicator);
            Ok(Opened { backend: Box::new(backend), threads: threads as u32, described: None })
        }
        // No rank does without its GPU: the others would wait for a processor.
        Some(ordinal) => {
            let backend = gpu_backend(ordinal, threads, machine.isa)?;
            let described = Some(describe(&backend));
            let backend = Box::new(backend.on(communicator));
            Ok(Opened { backend, threads: 1, described })
        }
    }
}

/// The GPU of a rank that sees so many; none where it works on the processor.
fn gpu_of_rank(
    choice: DeviceChoice,
    seen: usize,
    local_rank: Option<usize>,
) -> Result<Option<usize>, Failure> {
    let unnumbered = || {
        Failure::bad_input(format!(
            "expected LOCAL_RANK, which says which of the {seen} GPUs here this rank takes, found \
             none; let torchrun start a rank for each GPU, or give --device cuda:0 where this rank \
             is the only one on its machine"
        ))
    };
    Ok(match (choice, seen) {
        (DeviceChoice::Cpu, _) | (DeviceChoice::Auto, 0) => None,
        (DeviceChoice::Cuda(ordinal), _) => Some(ordinal),
        // The launcher may show each rank its GPU alone.
        (DeviceChoice::Auto, 1) => Some(0),
        (DeviceChoice::Auto, _) => Some(local_rank.ok_or_else(unnumbered)?),
    })
}

/// Devices for ranks that are threads of this process: GPUs from the one that was opened on, or
/// shares of the processor's cores.
pub(crate) struct ForRanks<'a> {
    machine: &'a Machine,
    /// The first GPU; none of a processor.
    first: Option<usize>,
    /// Numbers of ranks to measure.
    pub counts: Vec<usize>,
}

/// Ranks of a processor, if no number was asked for.
const RANKS_OF_PROCESSOR: usize = 2;

impl<'a> ForRanks<'a> {
    /// For as many ranks as were asked for, or as there are devices; none, where there is one.
    pub(crate) fn beside(
        opened: &Opened,
        machine: &'a Machine,
        asked: &[u32],
    ) -> Result<Option<Self>, Failure> {
        let is_gpu = opened.described.is_some();
        let ordinal = opened.backend.name().strip_prefix("cuda:").filter(|_| is_gpu);
        let first: Option<usize> = ordinal.and_then(|ordinal| ordinal.parse().ok());
        let counts = counts(asked, first.map(|first| gpus().saturating_sub(first)))?;
        Ok((!counts.is_empty()).then_some(Self { machine, first, counts }))
    }

    /// For exactly so many ranks, on the device asked for and those after it.
    pub(crate) fn of(machine: &'a Machine, ranks: usize) -> Result<Self, Failure> {
        let first = match choice(machine)? {
            DeviceChoice::Cpu => None,
            DeviceChoice::Cuda(ordinal) => Some(ordinal),
            DeviceChoice::Auto => (gpus() > 0).then_some(0),
        };
        let seen = first.map(|first| gpus().saturating_sub(first));
        match seen {
            Some(seen) if ranks > seen => Err(Failure::bad_input(format!(
                "--mesh: expected at most {seen} ranks, the GPUs from that of --device on, found \
                 {ranks}; use fewer ranks, or --device cpu"
            ))),
            _ => Ok(Self { machine, first, counts: vec![ranks] }),
        }
    }

    /// Opens the device of a rank.
    pub(crate) fn open(
        &self,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Box<dyn Backend>, failure::Failure> {
        let threads = threads(self.machine).div_ceil(communicator.mesh().ranks());
        if let Some(first) = self.first {
            let gpu = gpu_backend(first + communicator.rank(), threads, self.machine.isa);
            let gpu = gpu.map_err(|e| failure::Failure::failed(e.message))?;
            return Ok(Box::new(gpu.on(communicator)));
        }
        let processor = processor(Some(threads), self.machine.isa);
        let processor = processor.map_err(|e| failure::Failure::failed(e.message))?;
        Ok(Box::new(processor.on(communicator)))
    }

    /// The counter of energy of all of them. GPUs are counted in the order of their places on the
    /// bus, which a choice of visible GPUs changes: then nothing is told.
    pub(crate) fn meter(&self, ranks: usize) -> Option<Box<dyn Meter>> {
        let first = self.first.filter(|_| std::env::var_os("CUDA_VISIBLE_DEVICES").is_none())?;
        let of = |at: usize| Gpu::open(Selector::Index(at as u32));
        let gpus: Result<Vec<Gpu>, _> = (first..first + ranks).map(of).collect();
        Some(Box::new(gpus.ok()?))
    }
}

/// Numbers of ranks, ascending: those asked for, or as many as there are GPUs. A processor, whose
/// ranks share its cores, has a few.
fn counts(asked: &[u32], gpus: Option<usize>) -> Result<Vec<usize>, Failure> {
    let mut counts: Vec<usize> = asked.iter().map(|&ranks| ranks as usize).collect();
    if asked.is_empty() {
        counts.extend(Some(gpus.unwrap_or(RANKS_OF_PROCESSOR)).filter(|&ranks| ranks > 1));
    }
    counts.sort_unstable();
    counts.dedup();
    match (counts.last(), gpus) {
        (Some(&ranks), Some(gpus)) if ranks > gpus => Err(Failure::bad_input(format!(
            "--ranks: expected at most {gpus}, the GPUs from that of --device on, found {ranks}; \
             use fewer ranks, or another first GPU"
        ))),
        _ => Ok(counts),
    }
}

/// The devices of a run: a GPU alone; the CPU with the threads asked for, and with one where that
/// differs.
pub(crate) fn open_all(machine: &Machine) -> Result<Vec<Opened>, Failure> {
    let first = open(machine)?;
    let has_single = first.described.is_some() || first.threads == 1;
    let single = (!has_single).then(|| with_threads(1, machine.isa)).transpose()?;
    Ok([Some(first), single].into_iter().flatten().collect())
}

fn cpu(machine: &Machine) -> Result<Opened, Failure> {
    with_threads(threads(machine), machine.isa)
}

fn with_threads(threads: usize, isa: Isa) -> Result<Opened, Failure> {
    let backend = processor(Some(threads), isa)?;
    Ok(Opened { backend: Box::new(backend), threads: threads as u32, described: None })
}

/// The CPU as asked for: what every other device is compared with.
pub(crate) fn reference(machine: &Machine) -> Result<CpuBackend, Failure> {
    processor(Some(threads(machine)), machine.isa)
}

/// The CPU with this many threads, or with one per core.
pub(crate) fn processor(threads: Option<usize>, isa: Isa) -> Result<CpuBackend, Failure> {
    CpuBackend::with_instruction_set(threads, isa.set()).map_err(Failure::harness)
}

/// A GPU, whose steps on the host take the threads and instructions asked for.
fn gpu_backend(ordinal: usize, threads: usize, isa: Isa) -> Result<CudaBackend, Failure> {
    let failed = |e| Failure::bad_input(format!("cuda:{ordinal}: {e}"));
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
    Ok(CudaBackend::new(ordinal).map_err(failed)?.with_host(threads, isa.set()))
}

fn cuda(ordinal: usize, machine: &Machine) -> Result<Opened, Failure> {
    let backend = gpu_backend(ordinal, threads(machine), machine.isa)?;
    let described = Some(describe(&backend));
    Ok(Opened { backend: Box::new(backend), threads: 1, described })
}

/// Descriptions of a run's devices, for results.
pub(crate) fn describe_all<'d>(
    environment: &mut Environment,
    opened: impl IntoIterator<Item = &'d Opened>,
    machine: &Machine,
) {
    environment.devices.extend(opened.into_iter().filter_map(|device| device.described.clone()));
    environment.cpu.instruction_set = machine.isa.set.map(|set| set.name().to_owned());
}

/// Description of a GPU, for results. Its UUID stays out: it tells one card from all others, which
/// no reader needs.
pub(crate) fn describe(backend: &CudaBackend) -> environment::Accelerator {
    let properties = backend.device().properties();
    let version = |library: Library| {
        library
            .version()
            .map_or_else(|| "not found".to_owned(), |(major, minor)| format!("{major}.{minor}"))
    };
    let entries = [
        ("architecture", properties.architecture.to_string()),
        ("multiprocessors", properties.multiprocessors.to_string()),
        ("memory_bytes", properties.memory_bytes.to_string()),
        ("l2_bytes", properties.l2_bytes.to_string()),
        ("highest_sm_clock_mhz", format!("{:.0}", properties.clock_hertz / 1e6)),
        ("cuda_of_driver", version(Library::Driver)),
        ("nvrtc", version(Library::Nvrtc)),
        ("cublaslt", version(Library::CublasLt)),
    ];
    let driver = properties.driver.clone().map(|version| ("driver", version));
    let properties_by_name: BTreeMap<String, String> =
        entries.into_iter().chain(driver).map(|(key, value)| (key.to_owned(), value)).collect();
    environment::Accelerator {
        key: backend.name().to_owned(),
        name: properties.name.clone(),
        properties: properties_by_name,
    }
}

/// A failure of a back end: too little memory is something that the user can mend.
pub(crate) fn failure(error: BackendError) -> Failure {
    match error {
        BackendError::OutOfMemory { .. } => Failure::bad_input(error),
        BackendError::Unsupported { .. }
        | BackendError::Mismatch { .. }
        | BackendError::Device { .. } => Failure::harness(error),
        BackendError::Ranks(error) => Failure { message: error.to_string(), exit: Exit::OtherRank },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_many_as_asked_for_or_as_there_are_gpus() {
        assert_eq!(counts(&[], Some(4)).ok(), Some(vec![4]));
        assert_eq!(counts(&[], Some(1)).ok(), Some(vec![]), "one GPU has nobody to exchange with");
        assert_eq!(counts(&[], None).ok(), Some(vec![2]));
        assert_eq!(counts(&[4, 2, 4], Some(8)).ok(), Some(vec![2, 4]));
        let failure = counts(&[2, 4], Some(2)).expect_err("there are two GPUs");
        assert_eq!(failure.exit, Exit::BadInput);
        assert!(failure.message.contains("at most 2") && failure.message.contains("found 4"));
    }

    #[test]
    fn a_rank_takes_no_gpu_that_may_be_anothers() {
        let gpu = |choice, seen, local_rank| gpu_of_rank(choice, seen, local_rank).ok();
        assert_eq!(gpu(DeviceChoice::Auto, 8, Some(3)), Some(Some(3)));
        assert_eq!(gpu(DeviceChoice::Auto, 1, None), Some(Some(0)));
        assert_eq!(gpu(DeviceChoice::Auto, 0, None), Some(None));
        assert_eq!(gpu(DeviceChoice::Cuda(2), 8, None), Some(Some(2)));
        let failure = gpu_of_rank(DeviceChoice::Auto, 8, None).expect_err("it would be a guess");
        let expected = "expected LOCAL_RANK, which says which of the 8 GPUs";
        assert!(failure.message.starts_with(expected), "{}", failure.message);
    }
}

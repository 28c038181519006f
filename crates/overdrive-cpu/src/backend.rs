//! `CpuBackend`: the CPU as a device with a compiler for graphs.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use overdrive_ir::{
    Backend, BackendError, Buffer, Call, Communicator, DType, Decline, Description, Executable,
    Graph, Init, Kernel, Mode, Target, Tensor, TensorType, Tuning,
};
use overdrive_passes::{draw, plan, plan_of_rank};

use crate::exec::{CpuExecutable, uploaded};
use crate::isa::InstructionSet;
use crate::kernels;
use crate::memory::{AlignedBytes, CpuMemory, available_bytes};
use crate::peaks::peaks;
use crate::threads::Pool;

/// The owner of its buffers, as errors name it.
const OWNER: &str = "the cpu back end";

/// FLOPs that a core of a present server does while it reads a byte from memory; nominal.
const FLOPS_PER_BYTE: f64 = 16.0;

/// The processor as passes see it.
#[derive(Clone, Debug)]
struct Cpu {
    description: Description,
    set: InstructionSet,
}

impl Target for Cpu {
    fn description(&self) -> &Description {
        &self.description
    }

    fn kernel(&self, call: &Call<'_>) -> Result<Kernel, Decline> {
        self.set.during(|| kernels::answer(call))
    }
}

/// The CPU, with a fixed number of threads.
#[derive(Debug)]
pub struct CpuBackend {
    target: Cpu,
    threads: NonZeroUsize,
    /// By number of threads: a `Tuning` may ask for another than the back end's own.
    pools: Mutex<BTreeMap<NonZeroUsize, Arc<Pool>>>,
    communicator: Option<Arc<dyn Communicator>>,
}

impl CpuBackend {
    /// A back end with `threads` threads, the caller's included; `None` means one per core that the
    /// process may use.
    ///
    /// # Errors
    /// `Mismatch` for zero threads; `Device` when the system refuses to start them.
    pub fn new(threads: Option<usize>) -> Result<Self, BackendError> {
        Self::with_instruction_set(threads, InstructionSet::best())
    }

    /// The same back end, limited to an instruction set and those that it includes.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and `Mismatch` for a set that this machine lacks.
    pub fn with_instruction_set(
        threads: Option<usize>,
        set: InstructionSet,
    ) -> Result<Self, BackendError> {
        if !InstructionSet::available().any(|has| has == set) {
            return Err(BackendError::Mismatch {
                what: "instruction set".to_owned(),
                expected: format!("one that this machine has ({})", InstructionSet::names()),
                found: set.to_string(),
            });
        }
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = at_least_one(threads.unwrap_or_else(cores))?;
        let description = set.during(|| describe(threads.get()));
        let target = Cpu { description, set };
        let pools = Mutex::default();
        let backend = Self { target, threads, pools, communicator: None };
        backend.pool(threads)?;
        Ok(backend)
    }

    /// The same as one rank of several: it runs graphs with collectives. All ranks compile such a
    /// graph at the same time.
    #[must_use]
    pub fn on(self, communicator: Arc<dyn Communicator>) -> Self {
        Self { communicator: Some(communicator), ..self }
    }

    /// The instruction set that it is limited to.
    pub fn instruction_set(&self) -> InstructionSet {
        self.target.set
    }

    fn pool(&self, threads: NonZeroUsize) -> Result<Arc<Pool>, BackendError> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&threads) {
            return Ok(Arc::clone(pool));
        }
        let refused = |e: std::io::Error| BackendError::Device {
            step: format!("starting {threads} threads"),
            message: e.to_string(),
        };
        let pool = Arc::new(self.target.set.during(|| Pool::new(threads)).map_err(refused)?);
        pools.insert(threads, Arc::clone(&pool));
        Ok(pool)
    }
}

fn at_least_one(threads: usize) -> Result<NonZeroUsize, BackendError> {
    NonZeroUsize::new(threads).ok_or_else(|| BackendError::Mismatch {
        what: "threads".to_owned(),
        expected: "at least 1".to_owned(),
        found: "0".to_owned(),
    })
}

/// The capabilities of this CPU and this crate.
fn describe(threads: usize) -> Description {
    let halves = [DType::F16, DType::BF16];
    Description {
        device: "cpu".to_owned(),
        memory_bytes: available_bytes(),
        // All memory is main memory: there is nowhere to offload to.
        spaces: vec![],
        kernels: kernels::KERNELS.iter().map(|kernel| kernel.op).collect(),
        contraction_dtypes: [DType::F64, DType::F32, DType::I8].into_iter().chain(halves).collect(),
        native_halves: native_halves(),
        replays: false,
        // Threads of ranks exchange where they are.
        overlaps_collectives: false,
        // Lanes are loaded by address: types that share bytes are not.
        loop_dtypes: DType::ALL.into_iter().filter(|dtype| dtype.bits() >= 8).collect(),
        flops_per_byte: FLOPS_PER_BYTE,
        bytes_of_latency: 0,
        folds_space: true,
        peaks: peaks(threads),
    }
}

/// bf16 where there are instructions for its products; f16 has none here.
fn native_halves() -> BTreeSet<DType> {
    #[cfg(target_arch = "x86_64")]
    let has_bf16 = InstructionSet::Avx512Bf16.is_usable() || InstructionSet::Amx.is_usable();
    #[cfg(not(target_arch = "x86_64"))]
    let has_bf16 = false;
    has_bf16.then_some(DType::BF16).into_iter().collect()
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        if mode == Mode::Graph {
            let reason = "a CPU has no launches to capture and replay; use mode `compile`";
            return Err(BackendError::Unsupported {
                backend: "cpu".to_owned(),
                op: "mode graph".to_owned(),
                scope: graph.name().to_owned(),
                reason: reason.to_owned(),
            });
        }
        let threads = tuning.threads.map_or(Ok(self.threads), at_least_one)?;
        let pool = self.pool(threads)?;
        self.target.set.during(|| {
            let ranks = self.communicator.clone();
            let plan = match &ranks {
                None => plan(graph, mode, &self.target, tuning),
                Some(ranks) => plan_of_rank(graph, mode, &self.target, tuning, ranks.as_ref()),
            };
            let plan = plan.map_err(|error| error.refused_by("cpu", graph.name()))?;
            let names = |ports: &[overdrive_ir::Port]| -> Vec<String> {
                ports.iter().map(|p| p.name.clone()).collect()
            };
            let names = [names(graph.inputs()), names(graph.outputs())];
            Ok(Arc::new(CpuExecutable::new(plan, pool, names, ranks)?) as Arc<dyn Executable>)
        })
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        Ok(buffer(tensor.ty(), uploaded(tensor)?))
    }

    fn initial(&self, init: &Init, name: &str, ty: &TensorType) -> Result<Buffer, BackendError> {
        self.upload(&draw(init, name, ty))
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        let memory: &CpuMemory = buffer.memory_of(OWNER)?;
        Ok(Tensor::from_bytes(buffer.ty.clone(), memory.bytes().as_slice())
            .expect("a buffer has the bytes of its type"))
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        // All ones is a NaN in every float format that has one.
        Ok(buffer(ty, AlignedBytes::filled(ty.bytes(), 0xFF)?))
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        buffer.check_type("tensor to write", tensor.ty())?;
        let memory: &mut CpuMemory = buffer.memory_of_mut(OWNER)?;
        memory.bytes_mut().as_mut_slice().copy_from_slice(tensor.bytes());
        Ok(())
    }
}

fn buffer(ty: &TensorType, bytes: AlignedBytes) -> Buffer {
    Buffer { ty: ty.clone(), memory: Box::new(CpuMemory::new(bytes)) }
}

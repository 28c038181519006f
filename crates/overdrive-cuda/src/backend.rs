//! `CudaBackend`: one GPU as a device with a compiler for graphs.

use crate::choices::{self, Choices};
use crate::compiler::Architecture;
use crate::device::{self, Properties};
use crate::draw::Drawing;
use crate::exec::CudaExecutable;
use crate::host_cores::HostShare;
use crate::host_memory::{self, host_bytes, loop_bytes_per_second};
use crate::launch::{Refusal, Site};
use crate::loops::PrinterMachine;
use crate::memory::{CudaMemory, DeviceBytes, SpaceBytes, copy};
use crate::nccl::Ranks;
use crate::{Device, Error, gemm, joined, kernels};
use overdrive_cpu::InstructionSet;
use overdrive_ir::plan::{Space, Step, StepKind};
use overdrive_ir::{
    Backend, BackendError, Buffer, Call, Choice, Communicator, DType, Decline, Description,
    Executable, Graph, Init, Kernel, MemorySpace, Mode, Peaks, Target, Tensor, TensorType, Tuning,
};
use overdrive_passes::{plan, plan_of_rank};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Memory that is left to the context, to kernels and to libraries, in bytes.
const RESERVE: u64 = 1 << 30;

/// One GPU.
#[derive(Debug)]
pub struct CudaBackend {
    name: String,
    target: Gpu,
    device: Arc<Device>,
    /// Choices of earlier processes, with the place that they hold for.
    choices: Option<(Choices, String)>,
    ranks: Option<Arc<Ranks>>,
}

/// Number of GPUs that a `CudaBackend` can be opened on; none without a driver.
pub fn gpus() -> usize {
    device::count().unwrap_or(0)
}

impl CudaBackend {
    /// GPU `ordinal`.
    ///
    /// # Errors
    /// As `Device::open`.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        let device = Device::open(ordinal)?;
        let (free, _) = device.context().mem_get_info()?;
        let memory_bytes = (free as u64).saturating_sub(RESERVE);
        let mut target = Gpu::new(device.properties());
        target.description.memory_bytes = memory_bytes;
        for space in &mut target.description.spaces {
            space.bytes = host_bytes().unwrap_or(space.bytes);
        }
        let choices = Choices::of_user().map(|choices| (choices, choices::place(&device)));
        let name = format!("cuda:{ordinal}");
        Ok(Self { name, target, device, choices, ranks: None }.share(HostShare::default()))
    }

    /// The same where steps that run on the host have so many threads of it, and its instructions
    /// up to `set`.
    #[must_use]
    pub fn with_host(self, threads: NonZeroUsize, set: InstructionSet) -> Self {
        self.share(HostShare { threads, set })
    }

    fn share(mut self, share: HostShare) -> Self {
        self.device.share_host(share);
        for space in &mut self.target.description.spaces {
            space.loop_bytes_per_second = Some(loop_bytes_per_second(share.threads.get()));
        }
        self
    }

    /// The same as one rank of several, each on a GPU of its own: it runs graphs with collectives,
    /// by NCCL or by copies. All ranks compile such a graph, and make its sessions, at the same
    /// time.
    #[must_use]
    pub fn on(self, communicator: Arc<dyn Communicator>) -> Self {
        let ranks = Some(Arc::new(Ranks::new(&self.device, communicator)));
        Self { ranks, ..self }
    }

    /// The device behind it.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

/// The part of a step's latency that the next step does not hide.
const STEP_SECONDS: f64 = 0.25e-6;

/// A GPU as passes see it.
#[derive(Clone, Debug)]
pub struct Gpu {
    description: Description,
    machine: PrinterMachine,
}

impl Gpu {
    /// A device of these properties, all of whose memory is for one plan.
    pub fn new(properties: &Properties) -> Self {
        let peaks = peaks(properties);
        let half_rate = peaks.flops_per_second.get(&DType::BF16).copied().unwrap_or(0.0);
        let architecture = properties.architecture;
        let description = Description {
            device: properties.name.clone(),
            memory_bytes: properties.memory_bytes,
            spaces: vec![MemorySpace {
                name: "pinned host",
                bytes: u64::MAX,
                bytes_per_second: link(architecture),
                loop_bytes_per_second: Some(loop_bytes_per_second(host_memory::CORES)),
            }],
            kernels: kernels::names(architecture),
            contraction_dtypes: gemm::DTYPES.into(),
            // Every architecture that runs here has them, from Ampere on.
            native_halves: BTreeSet::from([DType::F16, DType::BF16]),
            loop_dtypes: BTreeSet::from(DType::ALL),
            replays: true,
            overlaps_collectives: true,
            folds_space: false,
            flops_per_byte: half_rate / properties.bytes_per_second.max(1.0),
            bytes_of_latency: (properties.bytes_per_second * STEP_SECONDS) as u64,
            peaks,
        };
        Self { description, machine: properties.into() }
    }
}

impl Target for Gpu {
    fn description(&self) -> &Description {
        &self.description
    }

    fn kernel(&self, call: &Call<'_>) -> Result<Kernel, Decline> {
        kernels::answer(call, self.machine)
    }
}

/// Bytes per second each way between host and device. Such devices come with a generation of PCI
/// Express. The figure is the rate of its 16 lanes, less an eighth for its packets.
fn link(architecture: Architecture) -> f64 {
    let gigabytes = match architecture {
        Architecture::Sm90a | Architecture::Sm100a => 64.0,
        Architecture::Sm80 | Architecture::Sm89 | Architecture::Other(_) => 32.0,
    };
    gigabytes * 1e9 * 7.0 / 8.0
}

/// Rates at the highest clock, from the FLOPs that a multiprocessor does in a cycle: NVIDIA's
/// tuning guides and architecture white papers.
fn peaks(properties: &Properties) -> Peaks {
    let cycles = f64::from(properties.multiprocessors) * properties.clock_hertz;
    // f64; f32 operands as tf32; bf16 and f16; fp8; int8.
    let per_cycle = match properties.architecture {
        Architecture::Sm80 => [128.0, 1024.0, 2048.0, 0.0, 4096.0],
        Architecture::Sm89 => [4.0, 512.0, 1024.0, 2048.0, 2048.0],
        Architecture::Sm90a => [256.0, 2048.0, 4096.0, 8192.0, 8192.0],
        Architecture::Sm100a => [256.0, 4096.0, 8192.0, 16384.0, 16384.0],
        Architecture::Other(_) => return Peaks::default(),
    };
    let [double, single, half, fp8, int8] = per_cycle.map(|flops| flops * cycles);
    let rates = [
        (DType::F64, double),
        (DType::F32, single),
        (DType::F16, half),
        (DType::BF16, half),
        (DType::F8E4M3, fp8),
        (DType::F8E5M2, fp8),
        (DType::I8, int8),
    ];
    Peaks {
        flops_per_second: rates.into_iter().filter(|(_, rate)| *rate > 0.0).collect(),
        levels: vec![(properties.memory_bytes, properties.bytes_per_second)],
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.name
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
        let plan = match &self.ranks {
            None => plan(graph, mode, &self.target, tuning),
            Some(ranks) => plan_of_rank(graph, mode, &self.target, tuning, ranks.communicator()),
        };
        let plan = plan.map_err(|error| error.refused_by(&self.name, graph.name()))?;
        let names = |ports: &[overdrive_ir::Port]| -> Vec<String> {
            ports.iter().map(|p| p.name.clone()).collect()
        };
        let names = [names(graph.inputs()), names(graph.outputs())];
        let ranks = self.ranks.as_ref();
        Ok(Arc::new(CudaExecutable::new(plan, &self.device, tuning, names, ranks)?))
    }

    fn tune(&self, graph: &Graph, mode: Mode, tuning: &mut Tuning) -> Result<(), BackendError> {
        let plan = plan(graph, mode, &self.target, tuning);
        let plan = plan.map_err(|error| error.refused_by(&self.name, graph.name()))?;
        let _turn = self.device.turn();
        let device = &self.device;
        for step in plan.steps.iter().flat_map(Step::parts) {
            let StepKind::Gemm(call) = &step.kind else { continue };
            let site = Site { plan: &plan, step, device, tuning, mode };
            let timed = self.choose(&site, gemm::key(call), || gemm::tune(&site, call))?;
            tuning.choices.extend(timed);
        }
        // A launch of several steps is compared with the steps one by one, so it comes second.
        for step in &plan.steps {
            let StepKind::Joined(bond, steps) = &step.kind else { continue };
            let Some(key) = joined::key(*bond, &steps.iter().collect::<Vec<_>>()) else { continue };
            let site = Site { plan: &plan, step, device, tuning, mode };
            let timed = self.choose(&site, key, || joined::tune(&site, *bond, steps))?;
            tuning.choices.extend(timed);
        }
        Ok(())
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        self.upload_to(tensor, Space::MAIN)
    }

    /// Zeros and random values never lie on the host: moments are zeros, and twice as many bytes as
    /// parameters.
    fn initial(&self, init: &Init, name: &str, ty: &TensorType) -> Result<Buffer, BackendError> {
        if init.is_zero(ty.dtype) {
            return self.filled(ty, 0);
        }
        let Some(drawing) = Drawing::of(init, name, ty) else {
            return self.upload(&init.tensor(name, ty));
        };
        let failed = |e: Error| e.during(format!("drawing {ty}"));
        let to = DeviceBytes::new(&self.device, ty.bytes()).map_err(failed)?;
        drawing.enqueue(&self.device, &to).map_err(failed)?;
        Ok(Self::buffer(ty, to))
    }

    fn upload_to(&self, tensor: &Tensor, space: Space) -> Result<Buffer, BackendError> {
        let mut block = self.block(tensor.ty(), space)?;
        self.copy_in(tensor, &mut block)?;
        Ok(Buffer { ty: tensor.ty().clone(), memory: Box::new(CudaMemory::new(block)) })
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        let mut bytes = vec![0; buffer.ty.bytes()];
        self.copy_out(buffer, 0, &mut bytes)?;
        Ok(Tensor::sharing(buffer.ty.clone(), bytes.into())
            .expect("a buffer has the bytes of its type"))
    }

    fn download_rows(&self, buffer: &Buffer, rows: &[usize]) -> Result<Tensor, BackendError> {
        let mut shape = buffer.ty.sizes();
        let bytes = buffer.ty.bytes() / shape[0];
        let mut picked = vec![0; bytes * rows.len()];
        for (part, row) in picked.chunks_mut(bytes.max(1)).zip(rows) {
            self.copy_out(buffer, row * bytes, part)?;
        }
        shape[0] = rows.len();
        let ty = buffer.ty.with_shape(shape);
        Ok(Tensor::sharing(ty, picked.into()).expect("rows are whole bytes"))
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        // All ones is a NaN in every float format that has one.
        self.filled(ty, 0xFF)
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        buffer.check_type("tensor to write", tensor.ty())?;
        let memory: &mut CudaMemory = buffer.memory_of_mut(&self.name)?;
        overdrive_ir::plan::Addressed::touch(memory);
        self.copy_in(tensor, memory.block_mut())
    }

    fn copy(&self, from: &Buffer, to: &mut Buffer) -> Result<(), BackendError> {
        to.check_type("buffer to copy", &from.ty)?;
        let source: &CudaMemory = from.memory_of(&self.name)?;
        let memory: &mut CudaMemory = to.memory_of_mut(&self.name)?;
        overdrive_ir::plan::Addressed::touch(memory);
        let _turn = self.device.turn();
        let places = (source.block().address(), memory.block().address());
        // SAFETY: both have the bytes of one type; device memory is freed later in the stream, and
        // pinned memory once the stream is done.
        let copied = unsafe { copy(self.device.stream(), places, from.ty.bytes()) };
        copied.map_err(|e| e.during(format!("copying {}", from.ty)))
    }
}

impl CudaBackend {
    /// The choice under a key, if that is news: as an earlier process found, else as `time` finds
    /// now.
    fn choose(
        &self,
        site: &Site<'_>,
        key: String,
        time: impl FnOnce() -> Result<Option<(String, Choice)>, Refusal>,
    ) -> Result<Option<(String, Choice)>, BackendError> {
        if site.tuning.choices.contains_key(&key) {
            return Ok(None);
        }
        let known = self.choices.as_ref().and_then(|(choices, place)| choices.get(place, &key));
        if let Some(choice) = known {
            return Ok(Some((key, choice)));
        }
        let timed =
            time().map_err(|refusal| self.refused(refusal, (&site.step.name, &site.step.scope)))?;
        if let (Some((choices, place)), Some((key, choice))) = (&self.choices, &timed) {
            choices.put(place, key, choice);
        }
        Ok(timed)
    }

    fn refused(&self, refusal: Refusal, (op, scope): (&str, &str)) -> BackendError {
        match refusal {
            Refusal::Unsupported(reason) => BackendError::Unsupported {
                backend: self.name.clone(),
                op: op.to_owned(),
                scope: scope.to_owned(),
                reason,
            },
            Refusal::Failed(error) => error.during(format!("`{op}` at {scope}")),
        }
    }

    /// A buffer whose bytes are all the same.
    fn filled(&self, ty: &TensorType, byte: u8) -> Result<Buffer, BackendError> {
        let allocating = |e: Error| e.during(format!("allocating {ty}"));
        let bytes = DeviceBytes::new(&self.device, ty.bytes()).map_err(allocating)?;
        bytes.fill(byte).map_err(|e| e.during(format!("filling {ty}")))?;
        Ok(Self::buffer(ty, bytes))
    }

    fn buffer(ty: &TensorType, bytes: DeviceBytes) -> Buffer {
        let memory = Box::new(CudaMemory::new(SpaceBytes::Device(bytes)));
        Buffer { ty: ty.clone(), memory }
    }

    fn block(&self, ty: &TensorType, space: Space) -> Result<SpaceBytes, BackendError> {
        let block = SpaceBytes::new(&self.device, space, ty.bytes());
        block.map_err(|e| e.during(format!("allocating {ty}")))
    }

    fn copy_in(&self, tensor: &Tensor, to: &mut SpaceBytes) -> Result<(), BackendError> {
        let copied = match to {
            SpaceBytes::Device(to) => self.device.upload(tensor.bytes(), to.address()),
            SpaceBytes::Pinned(to) => to.write(tensor.bytes()),
        };
        copied.map_err(|e| e.during(format!("uploading {}", tensor.ty())))
    }

    /// Fills `to` from these bytes of a buffer on.
    fn copy_out(&self, buffer: &Buffer, from: usize, to: &mut [u8]) -> Result<(), BackendError> {
        let memory: &CudaMemory = buffer.memory_of(&self.name)?;
        let copied = match memory.block() {
            SpaceBytes::Device(bytes) => self.device.download(bytes.address() + from as u64, to),
            SpaceBytes::Pinned(bytes) => {
                bytes.read().map(|bytes| to.copy_from_slice(&bytes[from..][..to.len()]))
            }
        };
        copied.map_err(|e| e.during(format!("downloading {}", buffer.ty)))
    }
}

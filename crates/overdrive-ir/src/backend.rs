//! The contract between plans and the devices that run them.
//!
//! `Backend` turns a graph into an `Executable`: code and plan, which any number of threads share.
//! A `Session` of it has the memory that calls work in. `Buffer` is a value that lives with a back
//! end. `State` is keyed by stable name and lives outside any session, so that training and
//! evaluation, prefill and decoding share it. Invariant: `run` never changes its inputs, and a
//! state that is replaced keeps its address.
//!
//! Long because the types of one contract are kept together.

use crate::plan::{Space, Step};
use crate::{
    BackendError, Description, Graph, Init, Mode, Plan, Target, Tensor, TensorType, Tuning,
};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Memory of some device behind a `Buffer`.
pub trait Memory: Any + Send + Sync {
    /// For the owning back end to recognise its own kind.
    fn as_any(&self) -> &dyn Any;
    /// The same, for a buffer that is written.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// A value that lives with a back end.
pub struct Buffer {
    /// Its logical type.
    pub ty: TensorType,
    /// The back end's memory.
    pub memory: Box<dyn Memory>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.ty)
    }
}

impl Buffer {
    /// Errs unless it has this type.
    ///
    /// # Errors
    /// `Mismatch`; `what` is whatever has the other type.
    pub fn check_type(&self, what: &str, found: &TensorType) -> Result<(), BackendError> {
        if self.ty == *found {
            return Ok(());
        }
        let (expected, found) = (self.ty.to_string(), found.to_string());
        Err(BackendError::Mismatch { what: what.to_owned(), expected, found })
    }

    /// The memory of a back end of this name.
    ///
    /// # Errors
    /// `Mismatch` where the buffer is another back end's.
    pub fn memory_of<M: Memory>(&self, backend: &str) -> Result<&M, BackendError> {
        self.memory.as_any().downcast_ref().ok_or_else(|| foreign(&self.ty, backend))
    }

    /// The same, to be written.
    ///
    /// # Errors
    /// As [`memory_of`](Self::memory_of).
    pub fn memory_of_mut<M: Memory>(&mut self, backend: &str) -> Result<&mut M, BackendError> {
        let Self { ty, memory } = self;
        memory.as_any_mut().downcast_mut().ok_or_else(|| foreign(ty, backend))
    }
}

fn foreign(ty: &TensorType, backend: &str) -> BackendError {
    BackendError::Mismatch {
        what: "buffer".to_owned(),
        expected: format!("{ty} of {backend}"),
        found: "a buffer of another back end".to_owned(),
    }
}

/// Buffers by stable name.
pub type Buffers = BTreeMap<String, Buffer>;

/// Named values that persist across calls: parameters, optimizer moments, caches.
#[derive(Debug, Default)]
pub struct State {
    /// Its own, which calls may change.
    pub buffers: Buffers,
    /// Those that it shares with others: calls read them, and nobody changes them.
    pub weights: Arc<Buffers>,
}

impl State {
    /// A call with these values: inputs and outputs in the graph's order, outputs of the declared
    /// types.
    pub fn with<'a>(
        &'a mut self,
        inputs: &'a [Buffer],
        outputs: &'a mut [Buffer],
    ) -> Arguments<'a> {
        Arguments { state: self, inputs, outputs }
    }

    /// The value of this name, its own or shared.
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.buffers.get(name).or_else(|| self.weights.get(name))
    }

    /// The same with every state that `graph` does not change among the weights, for
    /// [`Self::beside`].
    #[must_use]
    pub fn share(self, graph: &Graph) -> Self {
        assert!(self.weights.is_empty(), "what others read already is not added to");
        let changes = |name: &str| {
            graph.states().iter().any(|state| state.name == name && state.update.is_some())
        };
        let (buffers, weights) = self.buffers.into_iter().partition(|(name, _)| changes(name));
        Self { buffers, weights: Arc::new(weights) }
    }

    /// The state of one more session of `graph`: the same weights, and its own copies of all else,
    /// at the declared initial values.
    ///
    /// # Errors
    /// The device's error, if it has no room.
    pub fn beside(&self, graph: &Graph, backend: &dyn Backend) -> Result<Self, BackendError> {
        let mut state = State { weights: Arc::clone(&self.weights), ..State::default() };
        for declared in graph.states().iter().filter(|d| !self.weights.contains_key(&d.name)) {
            let value =
                backend.initial(&declared.init, &declared.name, graph.ty(declared.value))?;
            state.buffers.insert(declared.name.clone(), value);
        }
        Ok(state)
    }

    /// Every state that `graph` declares, at its declared initial value.
    pub fn initial(graph: &Graph, backend: &dyn Backend) -> Result<Self, BackendError> {
        State::default().beside(graph, backend)
    }
}

/// Work that may still be under way.
pub trait Pending {
    /// Blocks until the work is done and reports its error, if any.
    fn wait(self: Box<Self>) -> Result<(), BackendError>;
}

/// Work that was already complete when it was returned.
#[derive(Debug)]
pub struct Ready;

impl Pending for Ready {
    fn wait(self: Box<Self>) -> Result<(), BackendError> {
        Ok(())
    }
}

/// How a device is to take samples by itself (GPU protocols need to control the queue between
/// calls).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Protocol {
    /// Samples to take.
    pub samples: u32,
    /// Calls per sample; the sample's time is divided by it.
    pub calls_per_sample: u32,
    /// Whether caches are flushed before each sample.
    pub cache: CacheState,
}

/// The content of the caches when a sample starts.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// As the call before left them.
    Warm,
    /// Evicted.
    Cold,
}

/// One timed sample, per call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TimedSample {
    /// Time between events on the device, in ns, where it keeps its own.
    pub device_ns: Option<f64>,
    /// Time on the host from call to completion, in ns.
    pub host_ns: f64,
    /// Device clock cycles, where counted.
    pub cycles: Option<f64>,
    /// Labels such as `thermal` or `power-cap`.
    pub flags: Vec<String>,
}

/// Bytes that an executable holds, by purpose.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Peak of transient memory during a call (the arena; for eager the pool's high-water mark).
    pub transient_bytes: u64,
    /// Results of `prepare` steps: packed weights, masks.
    pub persistent_bytes: u64,
    /// States (parameters and the like) in main memory.
    pub state_bytes: u64,
    /// States and transient memory in other memory spaces of the device.
    #[serde(default)]
    pub offloaded_bytes: u64,
    /// Scratch of worker threads and libraries.
    pub workspace_bytes: u64,
    /// The memory that the driver took on the device for the process itself when it was opened,
    /// where that can be told.
    #[serde(default)]
    pub context_bytes: Option<u64>,
}

/// Self time of one step, summed over the profiled calls.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepProfile {
    /// Name of the step.
    pub name: String,
    /// Scope of the step.
    pub scope: String,
    /// Start of each call relative to the start of its run, in ns.
    pub start_ns: Vec<f64>,
    /// Duration of each call, in ns.
    pub time_ns: Vec<f64>,
    /// FLOPs of one call.
    pub flops: u64,
    /// Bytes read and written by one call.
    pub bytes: u64,
    /// Bytes that the step's results occupy.
    pub result_bytes: u64,
}

impl StepProfile {
    /// One for each step of `plan`, no call recorded yet, with room for `calls` of them.
    pub fn of_steps(plan: &Plan, calls: u32) -> Vec<StepProfile> {
        let of_step = |step: &Step| StepProfile {
            name: step.name.clone(),
            scope: step.scope.clone(),
            start_ns: Vec::with_capacity(calls as usize),
            time_ns: Vec::with_capacity(calls as usize),
            flops: step.cost.flops,
            bytes: step.cost.bytes,
            result_bytes: step.writes.iter().map(|&slot| plan.slot(slot).bytes() as u64).sum(),
        };
        plan.steps.iter().map(of_step).collect()
    }
}

/// Who allocates what an executable works in, so that whoever measures memory asks the witness that
/// sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Heap {
    /// The process's own allocator, or a device's.
    #[default]
    Process,
    /// The library has its own allocator, whose figures only [`Session::memory`] can give.
    Library,
}

/// The arguments of a call.
pub struct Arguments<'a> {
    /// Holds every state of the graph.
    pub state: &'a mut State,
    /// In the graph's order.
    pub inputs: &'a [Buffer],
    /// In the graph's order, of the declared types; what they hold is overwritten.
    pub outputs: &'a mut [Buffer],
}

impl Arguments<'_> {
    /// The same, for one of several calls.
    pub fn again(&mut self) -> Arguments<'_> {
        self.state.with(self.inputs, self.outputs)
    }
}

/// A compiled graph: code and plan, for any number of sessions.
pub trait Executable: Send + Sync {
    /// The plan of a call.
    fn plan(&self) -> &Plan;
    /// Time of `compile` that went into writing the graph down in the format of another program, in
    /// ns. It is paid once like the rest, but is not that program's own.
    fn translation_ns(&self) -> u64 {
        0
    }
    /// Memory to call it with. Sessions on several threads run at the same time where the device
    /// can, and in turn where it cannot.
    ///
    /// # Errors
    /// `OutOfMemory` if the arena does not fit; otherwise the device's error.
    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, BackendError>;
}

/// The memory that calls of an executable work in. Data prepared from weights is shared by the
/// sessions that share the weights.
pub trait Session: Send {
    /// The plan of a call. Beside the executable's plan it notes what calls so far have shown.
    fn plan(&self) -> &Plan;
    /// Who allocates what it works in.
    fn heap(&self) -> Heap {
        Heap::Process
    }
    /// Whether the device has a clock of its own, so that `sample` knows its time apart from the
    /// host's.
    fn keeps_time(&self) -> bool {
        false
    }
    /// Enqueues one call.
    ///
    /// # Errors
    /// `Mismatch` naming the argument; what the device says.
    fn run(&mut self, call: Arguments<'_>) -> Result<Box<dyn Pending>, BackendError>;
    /// Takes timed samples by the device's own means.
    ///
    /// # Errors
    /// As `run`.
    fn sample(
        &mut self,
        call: Arguments<'_>,
        protocol: Protocol,
    ) -> Result<Vec<TimedSample>, BackendError>;
    /// Bytes held, and the peak of the last call.
    fn memory(&self) -> MemoryReport;
    /// Runs `calls` calls with a clock around each step; one entry for each step of the plan, in
    /// its order.
    ///
    /// # Errors
    /// As `run`.
    fn profile(
        &mut self,
        call: Arguments<'_>,
        calls: u32,
    ) -> Result<Vec<StepProfile>, BackendError>;
}

/// A device with a compiler for graphs.
pub trait Backend: Send + Sync {
    /// `cpu`, `cuda:0`, `onnxruntime`, ...
    fn name(&self) -> &str;
    /// The abilities of the device, for passes.
    fn target(&self) -> &dyn Target;
    /// Plain data about the device.
    fn description(&self) -> &Description {
        self.target().description()
    }
    /// Compiles a bound graph.
    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError>;
    /// Times the candidates of steps of `graph` and adds the winners to `tuning`. A step is timed
    /// where it has several candidates and `tuning` holds no choice for it yet. `compile` with this
    /// tuning then needs no clock and is reproducible. A back end whose steps have one
    /// implementation each has nothing to add.
    ///
    /// # Errors
    /// As `compile`, and the device's own errors while candidates run.
    fn tune(&self, graph: &Graph, mode: Mode, tuning: &mut Tuning) -> Result<(), BackendError> {
        let _ = (graph, mode, tuning);
        Ok(())
    }
    /// Copies a tensor to the device.
    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError>;
    /// The value of the state `name` before the first call.
    fn initial(&self, init: &Init, name: &str, ty: &TensorType) -> Result<Buffer, BackendError> {
        self.upload(&init.tensor(name, ty))
    }
    /// Copies a tensor to a memory space of the device ([`Description::spaces`]).
    fn upload_to(&self, tensor: &Tensor, space: Space) -> Result<Buffer, BackendError> {
        assert_eq!(space, Space::MAIN, "a back end with several memory spaces knows them all");
        self.upload(tensor)
    }
    /// Copies a buffer back to the host.
    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError>;
    /// Copies these entries of the first axis of a buffer back to the host, where the device can
    /// without the others.
    fn download_rows(&self, buffer: &Buffer, rows: &[usize]) -> Result<Tensor, BackendError> {
        Ok(self.download(buffer)?.rows(rows))
    }
    /// An uninitialised buffer filled with NaN (or all-ones) bytes, so that a missing write is
    /// seen.
    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError>;
    /// Overwrites a buffer of the same type without moving it.
    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError>;
    /// Overwrites a buffer with what another of the same type holds, without moving it; by way of
    /// the host, unless the device knows better.
    fn copy(&self, from: &Buffer, to: &mut Buffer) -> Result<(), BackendError> {
        self.write(to, &self.download(from)?)
    }
}

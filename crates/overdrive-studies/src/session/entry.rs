//! A configuration of a workload: as it is asked for, compiled, and ready to be sampled.

use crate::drawn::Drawn;
use crate::tolerance::tolerance;
use crate::{Context, Device, Workload};
use overdrive_bench::case::{Case, Configuration};
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Overhead;
use overdrive_bench::oracle::Oracle;
use overdrive_bench::session_calls::{CallTarget, Calls};
use overdrive_ir::{Backend, DType, Graph, Mode, Session, State, Tuning};

/// One configuration of a workload.
pub struct Entry<'a> {
    /// The computation.
    pub workload: &'a Workload,
    /// The device that it runs on.
    pub device: &'a Device<'a>,
    /// How.
    pub mode: Mode,
    /// The number format that contractions run in.
    pub dtype: DType,
    /// The graph to compile: the workload's, or what passes made of it.
    pub graph: Graph,
    /// Its variant, if it has one.
    pub variant: Option<&'a str>,
    /// Time that reading the model took before there was a graph to compile, where that is part of
    /// the comparison.
    pub load_ns: Option<u64>,
}

impl<'a> Entry<'a> {
    /// The workload as it is.
    pub fn plain(workload: &'a Workload, device: &'a Device<'a>, mode: Mode) -> Self {
        let graph = workload.graph.clone();
        Self { workload, device, mode, dtype: DType::F32, graph, variant: None, load_ns: None }
    }

    /// The same with drawn values in place of their descriptions, for a `workload` with drawn
    /// values.
    pub(super) fn valued<'w>(&self, workload: &'w Workload, drawn: &Drawn) -> Entry<'w>
    where
        'a: 'w,
    {
        let described: &Entry<'w> = self;
        Entry { workload, graph: drawn.graph(&self.graph), ..*described }
    }

    /// The key of its record.
    pub fn case(&self, study: &str) -> Case {
        let configuration = Configuration {
            backend: self.device.backend.name().to_owned(),
            device: self.device.backend.description().device.clone(),
            mode: self.mode.name().to_owned(),
            dtype: self.dtype.name().to_owned(),
            threads: self.device.threads,
            variant: self.variant.map(str::to_owned),
        };
        Case { study: study.to_owned(), workload: self.workload.key.clone(), configuration }
    }
}

/// A compiled entry with its state.
pub(crate) struct ReadyEntry {
    pub(super) session: Box<dyn Session>,
    pub(super) state: State,
    /// Costs paid for it.
    pub(super) paid: Overhead,
}

/// Tunes, compiles and gives a session of an entry.
pub(crate) fn ready(context: &Context<'_>, entry: &Entry<'_>) -> Result<ReadyEntry, Failure> {
    let backend: &dyn Backend = entry.device.backend;
    let clock = context.sampling.clock;
    let (needed, available) = (entry.workload.least_bytes(), backend.description().memory_bytes);
    if needed > available {
        let reason = format!(
            "parameters, inputs and outputs alone need {needed} bytes, the device has {available}; \
             use a smaller batch, or `quantize` the model"
        );
        return Err(Failure::out_of_memory(reason));
    }
    let known = context.tuning.borrow().clone();
    let mut tuning = Tuning { threads: Some(entry.device.threads as usize), ..known.clone() };
    let start = clock.now_ns();
    backend.tune(&entry.graph, entry.mode, &mut tuning)?;
    let autotune_ns = (tuning.choices != known.choices).then(|| clock.now_ns() - start);
    context.tuning.borrow_mut().choices.clone_from(&tuning.choices);
    let start = clock.now_ns();
    let executable = backend.compile(&entry.graph, entry.mode, &tuning)?;
    let spent_ns = clock.now_ns() - start;
    // The time to hand an engine the model in its own format counts as reading the model, not as
    // its compiling.
    let translation_ns = executable.translation_ns().min(spent_ns);
    let load_ns = if translation_ns > 0 { Some(translation_ns) } else { entry.load_ns };
    let compile_ns = Some(spent_ns - translation_ns);
    let paid = Overhead { load_ns, compile_ns, autotune_ns, ..Overhead::default() };
    let session = executable.session()?;
    Ok(ReadyEntry { session, state: State::initial(&entry.graph, backend)?, paid })
}

/// Calls of a compiled entry, judged by its oracle.
pub(crate) fn prepare<'a>(
    context: &Context<'_>,
    entry: &Entry<'a>,
    oracle: &'a Oracle<'a>,
    ready: &'a mut ReadyEntry,
) -> Result<Calls<'a>, Failure> {
    let ReadyEntry { session, state, .. } = ready;
    let target = CallTarget { backend: entry.device.backend, session: session.as_mut(), state };
    let limit = tolerance(entry.dtype, &entry.workload.graph, (oracle, context.sampling.seed))?;
    Calls::new(target, oracle, limit, context.sampling.seed)
}

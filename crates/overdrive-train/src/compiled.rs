//! A compiled graph that runs on tensors by name.

use overdrive_ir::backend::MemoryReport;
use overdrive_ir::{
    Backend, BackendError, Buffer, Executable, Graph, Mode, Plan, Session, State, Tensor,
    TensorType, Tuning,
};
use std::sync::Arc;

/// A compiled graph with buffers for its inputs and outputs.
pub(crate) struct Compiled {
    graph: Graph,
    executable: Arc<dyn Executable>,
    /// The memory of calls; `None` while it [rests](Self::rest).
    session: Option<Box<dyn Session>>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

impl Compiled {
    pub(crate) fn new(
        backend: &dyn Backend,
        graph: Graph,
        tuning: &Tuning,
    ) -> Result<Self, BackendError> {
        Self::in_mode(backend, graph, backend.description().fastest_mode(), tuning)
    }

    /// The same in another mode than the fastest.
    pub(crate) fn in_mode(
        backend: &dyn Backend,
        graph: Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Self, BackendError> {
        let executable = backend.compile(&graph, mode, tuning)?;
        let session = Some(Arc::clone(&executable).session()?);
        let types = |ports: &[overdrive_ir::Port]| -> Vec<TensorType> {
            ports.iter().map(|port| graph.ty(port.value).clone()).collect()
        };
        let buffers = |types: Vec<TensorType>| {
            types.iter().map(|ty| backend.output(ty)).collect::<Result<_, _>>()
        };
        let (inputs, outputs) = (buffers(types(graph.inputs()))?, buffers(types(graph.outputs()))?);
        Ok(Self { graph, executable, session, inputs, outputs })
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn plan(&self) -> &Plan {
        self.session.as_ref().map_or_else(|| self.executable.plan(), |session| session.plan())
    }

    pub(crate) fn memory(&self) -> MemoryReport {
        self.session.as_ref().map_or_else(MemoryReport::default, |session| session.memory())
    }

    /// Gives back the memory of calls until the next one.
    pub(crate) fn rest(&mut self) {
        self.session = None;
    }

    /// Runs on tensors by name, and gives the outputs in order.
    pub(crate) fn run(
        &mut self,
        backend: &dyn Backend,
        state: &mut State,
        tensors: &[(&str, &Tensor)],
    ) -> Result<Vec<Tensor>, BackendError> {
        self.run_beside(backend, state, tensors, || ()).map(|(outputs, ())| outputs)
    }

    /// The same; `meanwhile` runs on the host while the device works.
    pub(crate) fn run_beside<R>(
        &mut self,
        backend: &dyn Backend,
        state: &mut State,
        tensors: &[(&str, &Tensor)],
        meanwhile: impl FnOnce() -> R,
    ) -> Result<(Vec<Tensor>, R), BackendError> {
        for (port, buffer) in self.graph.inputs().iter().zip(&mut self.inputs) {
            let given = tensors.iter().find(|(name, _)| *name == port.name);
            let (_, tensor) = given.ok_or_else(|| BackendError::Mismatch {
                what: format!("input `{}` of `{}`", port.name, self.graph.name()),
                expected: "a tensor".to_owned(),
                found: "none".to_owned(),
            })?;
            backend.write(buffer, tensor)?;
        }
        let session = match &mut self.session {
            Some(session) => session,
            resting => resting.insert(Arc::clone(&self.executable).session()?),
        };
        let pending = session.run(state.with(&self.inputs, &mut self.outputs))?;
        let result = meanwhile();
        pending.wait()?;
        let outputs = self.outputs.iter().map(|buffer| backend.download(buffer));
        Ok((outputs.collect::<Result<_, _>>()?, result))
    }
}

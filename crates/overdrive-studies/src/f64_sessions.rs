//! Graphs in f64 on a back end, and the sessions that run them.
//!
//! A graph as it is and perturbed have the same states, which are uploaded once for all seeds:
//! compiling and uploading took longer than running.

use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::compared_rows;
use overdrive_ir::{
    Backend, Builder, DType, Graph, GraphError, Mode, Session, State, Tensor, Tuning, Value,
};
use overdrive_passes::compute_in_f64;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Share of itself that a perturbed value is off by at most: small enough that responses are
/// linear, and far above what f64 itself rounds.
pub(crate) const SHARE: f64 = 1.0 / 4096.0;
/// The graph in f64 with only what is [compared](overdrive_bench::oracle::compared) of each output.
pub(crate) fn in_f64(graph: &Graph) -> Result<Graph, GraphError> {
    compute_in_f64(graph).and_then(|wide| with_compared_rows(&wide))
}

/// The graph with only what is compared of each output: the rest need not cross to the host.
fn with_compared_rows(graph: &Graph) -> Result<Graph, GraphError> {
    let rows_of = |value: Value| compared_rows(graph.ty(value)).map(|rows| (value, rows));
    let known: BTreeMap<Value, Vec<usize>> =
        graph.outputs().iter().filter_map(|port| rows_of(port.value)).collect();
    // The value of an output that is an update too has to stay as it is.
    let is_kept = |value: &Value| graph.states().iter().any(|state| state.update == Some(*value));
    if known.is_empty() || known.keys().any(is_kept) {
        return Ok(graph.clone());
    }
    let b = Builder::new(graph.name());
    let copied = b.append(graph)?;
    b.conclude(graph, |value| match known.get(&value) {
        None => copied[value.0 as usize],
        Some(rows) => {
            let width = graph.ty(value).sizes().last().copied().unwrap_or(1);
            let indices: Vec<i128> = rows.iter().map(|row| *row as i128).collect();
            let indices = b.constant(Tensor::from_ints(DType::I64, [rows.len(), 1], &indices));
            let matrix =
                copied[value.0 as usize].reshape([graph.ty(value).elements() / width, width]);
            matrix.gather(indices, &[0])
        }
    });
    b.finish()
}

/// Sessions over one set of states, kept from one run to the next.
#[derive(Default)]
pub(crate) struct F64Sessions(RefCell<Ready>);

/// Graphs compiled over one set of states.
#[derive(Default)]
struct Ready {
    state: Option<State>,
    /// As it is, and perturbed.
    sessions: [Option<Box<dyn Session>>; 2],
}

impl F64Sessions {
    /// Runs the graph that has the place `which` among the sessions. A session that takes more than
    /// `most_kept_bytes` is not kept for the next run.
    ///
    /// # Errors
    /// When the back end cannot run the graph.
    pub(crate) fn run(
        &self,
        (backend, most_kept_bytes): (&dyn Backend, u64),
        (graph, which): (&Graph, usize),
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Failure> {
        let run = self.run_on((backend, most_kept_bytes), (graph, which), inputs);
        run.map_err(|failure| Failure {
            reason: format!("the f64 reference on {}: {}", backend.name(), failure.reason),
            ..failure
        })
    }

    fn run_on(
        &self,
        (backend, most_kept_bytes): (&dyn Backend, u64),
        (graph, which): (&Graph, usize),
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Failure> {
        let Ready { state, mut sessions } = self.0.take();
        let mut session = match sessions[which].take() {
            Some(known) => known,
            None => backend.compile(graph, Mode::Jit, &Tuning::default())?.session()?,
        };
        let mut state = match state {
            Some(known) => known,
            None => State::initial(graph, backend)?,
        };
        let inputs = inputs.iter().map(|t| backend.upload(t)).collect::<Result<Vec<_>, _>>()?;
        let types = graph.outputs().iter().map(|o| graph.ty(o.value));
        let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
        let memory = session.memory();
        let bytes = memory.transient_bytes + memory.persistent_bytes + memory.state_bytes;
        // A state that the graph updates has to begin anew.
        if bytes <= most_kept_bytes && graph.states().iter().all(|state| state.update.is_none()) {
            sessions[which] = Some(session);
            self.0.replace(Ready { state: Some(state), sessions });
        }
        Ok(outputs.iter().map(|o| backend.download(o)).collect::<Result<_, _>>()?)
    }
}

//! `Team`: ranks that are threads of this process, each with a device of its own.
//!
//! Ranks are handed functions, all of them the same one, so that they do the same in the same
//! order. Invariant: a rank whose function failed ends, and its end ends the others ([decision
//! 0014](../../../../docs/decisions/0014-ranks-show-each-other-bytes.md)).

use crate::RankDevices;
use overdrive_bench::clock::{Clock, SystemClock};
use overdrive_bench::failure::Failure;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::plan::{Note, Space, StepKind};
use overdrive_ir::{
    Backend, Buffer, Communicator, Exchange, Executable, Graph, Mesh, RankError, Session, State,
    Tensor, Tuning,
};
use overdrive_train::drawn_as;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::Scope;
use std::time::Duration;

/// Longest time for which a rank waits for another: the slowest compilation, with room.
const PATIENCE: Duration = Duration::from_secs(120);

/// The work of one rank.
pub(super) struct RankWork {
    /// Its graph, states with the values that the rank begins with.
    pub(super) graph: Graph,
    /// In the graph's order.
    pub(super) inputs: Vec<Tensor>,
}

/// Gives the work of a rank; called on that rank's thread.
pub(super) type WorkOf<'a> = dyn Fn(usize) -> Result<RankWork, Failure> + Sync + 'a;

/// Memory of a rank's calls. Fields are dropped in this order, sessions before what they run on.
struct Ready {
    session: Box<dyn Session>,
    state: State,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

/// One rank, on its thread.
pub(super) struct Member {
    ready: Option<Ready>,
    work: RankWork,
    executable: Arc<dyn Executable>,
    backend: Box<dyn Backend>,
    communicator: Arc<dyn Communicator>,
}

impl Member {
    fn compiled(
        devices: RankDevices<'_>,
        communicator: Arc<dyn Communicator>,
        work: &WorkOf<'_>,
    ) -> Result<Self, Failure> {
        let work = work(communicator.rank())?;
        let backend = (devices.open)(Arc::clone(&communicator))?;
        let mode = backend.description().fastest_mode();
        let executable = backend.compile(&work.graph, mode, &Tuning::default())?;
        Ok(Self { ready: None, work, executable, backend, communicator })
    }

    /// Takes the memory that calls need, and fills states and inputs.
    pub(super) fn allocate(&mut self) -> Result<(), Failure> {
        let (graph, backend) = (&self.work.graph, self.backend.as_ref());
        let session = Arc::clone(&self.executable).session()?;
        let mut state = State::default();
        for declared in graph.states() {
            let ty = graph.ty(declared.value);
            let value = backend.initial(&declared.init, drawn_as(&declared.name), ty)?;
            state.buffers.insert(declared.name.clone(), value);
        }
        let given = std::mem::take(&mut self.work.inputs);
        let inputs = given.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        let outputs = types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
        self.ready = Some(Ready { session, state, inputs, outputs });
        Ok(())
    }

    fn ready(&mut self) -> &mut Ready {
        self.ready.as_mut().expect("a team is allocated before it is called")
    }

    /// Waits for all ranks.
    fn meet(&self) -> Result<(), RankError> {
        let group: Vec<usize> = (0..self.communicator.mesh().ranks()).collect();
        let exchange = Exchange { group: &group, what: "the start of a sample", bytes: &[] };
        self.communicator.share(&exchange, &mut |_, _| ())
    }

    /// So many calls back to back, begun by all ranks together; the span on the host's clock in
    /// nanoseconds, to the end of the last.
    pub(super) fn calls(&mut self, count: u64) -> Result<u64, Failure> {
        self.meet().map_err(overdrive_ir::BackendError::from)?;
        let Ready { session, state, inputs, outputs } = self.ready();
        let clock = SystemClock::new();
        let start = clock.now_ns();
        let mut under_way = Vec::with_capacity(count as usize);
        for _ in 0..count {
            under_way.push(session.run(state.with(inputs, outputs))?);
        }
        for call in under_way {
            call.wait()?;
        }
        Ok(clock.now_ns() - start)
    }

    /// These rows of each output of the last call; all where none are named.
    pub(super) fn outputs(&mut self, rows: Option<&[usize]>) -> Result<Vec<Tensor>, Failure> {
        let ready = self.ready.as_ref().expect("a team is allocated before it is called");
        let fetch = |buffer| match rows {
            Some(rows) => self.backend.download_rows(buffer, rows),
            None => self.backend.download(buffer),
        };
        Ok(ready.outputs.iter().map(fetch).collect::<Result<_, _>>()?)
    }

    /// These rows of each input.
    pub(super) fn input_rows(&mut self, rows: &[usize]) -> Result<Vec<Tensor>, Failure> {
        let ready = self.ready.as_ref().expect("a team is allocated before it is called");
        let fetch = |buffer| self.backend.download_rows(buffer, rows);
        Ok(ready.inputs.iter().map(fetch).collect::<Result<_, _>>()?)
    }

    /// Rows of an input.
    pub(super) fn rows_of_input(&self, input: usize) -> usize {
        let graph = &self.work.graph;
        graph.ty(graph.inputs()[input].value).sizes()[0]
    }

    /// Rows of an output.
    pub(super) fn rows_of_output(&self, output: usize) -> usize {
        let graph = &self.work.graph;
        graph.ty(graph.outputs()[output].value).sizes()[0]
    }

    /// Time of all collectives in each of so many calls, in nanoseconds, hidden behind other work
    /// or not.
    pub(super) fn collectives_ns(&mut self, calls: u32) -> Result<Vec<f64>, Failure> {
        self.meet().map_err(overdrive_ir::BackendError::from)?;
        let Ready { session, state, inputs, outputs } = self.ready();
        let profiles = session.profile(state.with(inputs, outputs), calls)?;
        let mut sums = vec![0.0; calls as usize];
        for (step, profile) in session.plan().steps.iter().zip(&profiles) {
            if matches!(step.kind, StepKind::CollectiveStart { .. }) {
                sums.iter_mut().zip(&profile.time_ns).for_each(|(sum, ns)| *sum += ns);
            }
        }
        Ok(sums)
    }

    /// Most memory of a call on this rank's device, by its plan.
    pub(super) fn planned_bytes(&self) -> u64 {
        self.executable.plan().peak_bytes(Space::MAIN)
    }

    /// Which collectives the device does in another way than it could, and why; each reason once.
    pub(super) fn declined(&self) -> BTreeSet<String> {
        let of_collective = |what: &str| what.ends_with(BETWEEN_DEVICES);
        let reason = |note: &Note| match note {
            Note::Declined { what, reason, .. } if of_collective(what) => {
                Some(format!("{what}: {reason}"))
            }
            _ => None,
        };
        self.executable.plan().notes.iter().filter_map(reason).collect()
    }

    /// Memory as the session tells it.
    pub(super) fn memory(&mut self) -> MemoryReport {
        self.ready().session.memory()
    }
}

/// Ends what a back end's notes say of a collective that could go another way.
const BETWEEN_DEVICES: &str = "between GPUs";

/// A function for a rank; false ends the rank.
type Order = Box<dyn FnOnce(&mut Member) -> bool + Send>;

/// Ranks that wait for orders until this is dropped.
pub(super) struct Team {
    orders: Vec<mpsc::Sender<Order>>,
    /// Says nothing, and is closed when all ranks have ended.
    running: mpsc::Receiver<()>,
}

impl Team {
    /// Opens a device for each rank and compiles its work. Returns the team with the most bytes
    /// that a rank plans to take.
    ///
    /// # Errors
    /// The first rank's that failed.
    pub(super) fn start<'scope, 'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        devices: RankDevices<'env>,
        mesh: Mesh,
        work: &'env WorkOf<'env>,
    ) -> Result<(Self, u64), Failure> {
        let ranks = mesh.ranks();
        let (orders, receivers): (Vec<_>, Vec<_>) =
            (0..ranks).map(|_| mpsc::channel::<Order>()).unzip();
        let receivers: Vec<_> = receivers.into_iter().map(Mutex::new).collect();
        let (ready, compiled) = mpsc::channel();
        let (runs, running) = mpsc::channel::<()>();
        scope.spawn(move || {
            let _runs = runs;
            let of_rank = |communicator: Arc<dyn Communicator>| {
                let rank = communicator.rank();
                let member = caught(|| Member::compiled(devices, communicator, work));
                let told = member.as_ref().map(Member::planned_bytes).map_err(Clone::clone);
                // Nobody waits for it any more only if another rank has failed.
                drop(ready.send((rank, told)));
                let Ok(mut member) = member else { return Err(()) };
                let orders = receivers[rank].lock().unwrap_or_else(PoisonError::into_inner);
                while let Ok(order) = orders.recv() {
                    if !order(&mut member) {
                        return Err(());
                    }
                }
                Ok(())
            };
            // Ranks have told why they failed.
            drop(overdrive_ranks::run(&mesh, PATIENCE, of_rank));
        });
        let team = Self { orders, running };
        let bytes = gathered(&compiled, ranks)?;
        Ok((team, bytes.into_iter().max().unwrap_or(0)))
    }

    /// Ends all ranks, and waits until their memory is given back.
    pub(super) fn end(self) {
        drop(self.orders);
        let _ = self.running.recv();
    }

    /// Has all ranks do this; their answers in the order of ranks.
    ///
    /// # Errors
    /// That of the first rank to fail. The team has ended then.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        what: impl Fn(&mut Member) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Failure> {
        let (what, (reply, replies)) = (Arc::new(what), mpsc::channel());
        for orders in &self.orders {
            let (what, reply) = (Arc::clone(&what), reply.clone());
            let order: Order = Box::new(move |member| {
                let answer = caught(|| what(member));
                let goes_on = answer.is_ok();
                drop(reply.send((member.communicator.rank(), answer)));
                goes_on
            });
            orders.send(order).map_err(|_| ended())?;
        }
        drop(reply);
        gathered(&replies, self.orders.len())
    }
}

/// The answers of all ranks in their order. The first failure to arrive is the cause of others.
fn gathered<T>(
    replies: &mpsc::Receiver<(usize, Result<T, Failure>)>,
    ranks: usize,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::with_capacity(ranks);
    for _ in 0..ranks {
        let (rank, answer) = replies.recv().map_err(|_| ended())?;
        let of_rank = |failure: Failure| Failure {
            reason: format!("rank {rank}: {}", failure.reason),
            ..failure
        };
        all.push((rank, answer.map_err(of_rank)?));
    }
    all.sort_by_key(|(rank, _)| *rank);
    Ok(all.into_iter().map(|(_, answer)| answer).collect())
}

fn ended() -> Failure {
    Failure::failed("the ranks have ended, after one of them failed")
}

/// A panic as a failure, so that other ranks and cases go on.
fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Failure::failed(format!("panicked: {}", words.unwrap_or("no message"))))
    })
}

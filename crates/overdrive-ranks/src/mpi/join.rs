//! `join`: this process becomes a rank of an MPI program.

use super::thread::{ENDING, Known, Order, Shown, Talk};
use super::wire::Wire;
use crate::Launch;
use overdrive_ir::{Communicator, Exchange, Mesh, RankError, agree};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the thread may take beyond the patience. If it takes longer, MPI hangs.
const GRACE: Duration = Duration::from_secs(5);

/// A rank that reaches the others over MPI.
#[derive(Debug)]
struct OfMpi {
    rank: usize,
    mesh: Mesh,
    patience: Duration,
    known: Arc<Known>,
    /// One exchange at a time.
    line: Mutex<Line>,
}

/// The way to the thread that makes the calls, and back.
#[derive(Debug)]
struct Line {
    orders: Option<Sender<Order>>,
    answers: Receiver<Shown>,
}

/// Starts MPI, and gives the way to the other ranks once all are here.
pub(crate) fn join(
    launch: &Launch,
    mesh: &Mesh,
    patience: Duration,
) -> Result<Arc<dyn Communicator>, RankError> {
    let Launch { rank, size, .. } = *launch;
    let (orders, to_do) = channel();
    let (answered, answers) = channel();
    let known = Arc::new(Known::default());
    let shared = Arc::clone(&known);
    let serve = move || match Wire::start(rank, size) {
        Err(message) => drop(answered.send(Err(RankError::Unreachable { rank, message }))),
        Ok(wire) => {
            let _ = answered.send(Ok(vec![]));
            Talk::new(wire, (rank, size), patience, shared).serve(&to_do, &answered);
        }
    };
    let started = thread::Builder::new().name("mpi".to_owned()).spawn(serve);
    started.map_err(|error| {
        let message = format!("cannot start the thread of MPI: {error}");
        RankError::Unreachable { rank, message }
    })?;
    let started = answers.recv_timeout(patience);
    started.unwrap_or_else(|_| Err(hangs(rank, "MPI_Init", patience)))?;
    let line = Mutex::new(Line { orders: Some(orders), answers });
    let joined = OfMpi { rank, mesh: mesh.clone(), patience, known, line };
    agree(&joined, "the version", env!("CARGO_PKG_VERSION"))?;
    agree(&joined, "the mesh", &mesh.to_string())?;
    Ok(Arc::new(joined))
}

/// Said where MPI itself does not go on. It does not tell for which rank it waits.
fn hangs(own: usize, call: &str, waited: Duration) -> RankError {
    let message = format!(
        "{call} did not end in {} s: expected all ranks there, found that one is missing, and MPI \
         does not tell which; look into the processes, then start all ranks again",
        waited.as_secs()
    );
    RankError::Unreachable { rank: usize::from(own == 0), message }
}

impl OfMpi {
    /// The answer of the thread to an order.
    fn order(&self, order: Order, call: &str) -> Shown {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = self.known.fault.get() {
            return Err(fault.clone());
        }
        // If the thread has ended, so has the way back.
        let _ = line.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        let waited = self.patience + GRACE;
        loop {
            let looks = self.known.looks.load(Ordering::Relaxed);
            match line.answers.recv_timeout(waited) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout)
                    if self.known.looks.load(Ordering::Relaxed) != looks => {}
                Err(_) => {
                    let fault = self.known.fault.get_or_init(|| hangs(self.rank, call, waited));
                    return Err(fault.clone());
                }
            }
        }
    }
}

impl Communicator for OfMpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    fn share(
        &self,
        exchange: &Exchange<'_>,
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), RankError> {
        let Exchange { group, what, bytes } = *exchange;
        assert!(group.contains(&self.rank), "a rank takes part in its own groups");
        let (group, what, bytes) = (group.to_vec(), what.to_owned(), bytes.to_vec());
        let all = self.order(Order::Share { group, what, bytes }, exchange.what)?;
        all.iter().enumerate().for_each(|(position, bytes)| read(position, bytes));
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn check(&self) -> Result<(), RankError> {
        self.known.error().map_or(Ok(()), Err)
    }

    /// Once all ranks have left, MPI ends.
    fn leave(&self) {
        // A fault of another rank is no longer this one's.
        let _ = self.order(Order::Leave, "MPI_Finalize");
    }
}

impl Drop for OfMpi {
    /// If the rank has not left, the thread now tells the others that it has failed.
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        line.orders = None;
        let _ = line.answers.recv_timeout(ENDING + GRACE);
    }
}

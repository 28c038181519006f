//! A thread for each rank.

use crate::Meeting;
use overdrive_ir::{Communicator, Mesh};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Runs `work` on a thread for each rank of a mesh, and returns their results in the order of
/// ranks. A rank that errs or panics has failed. The others hear of it at their next exchange.
///
/// # Panics
/// When the work of a rank has, after all have ended.
pub fn run<T: Send, E: Send>(
    mesh: &Mesh,
    patience: Duration,
    work: impl Fn(Arc<dyn Communicator>) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>> {
    let work = &work;
    thread::scope(|scope| {
        let start = |member| {
            scope.spawn(move || {
                let communicator: Arc<dyn Communicator> = Arc::new(member);
                let result = work(Arc::clone(&communicator));
                if result.is_ok() {
                    communicator.leave();
                }
                result
            })
        };
        let threads: Vec<_> = Meeting::of(mesh, patience).into_iter().map(start).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let result = |ended: thread::Result<_>| {
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        ended.into_iter().map(result).collect()
    })
}

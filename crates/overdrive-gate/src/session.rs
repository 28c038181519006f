//! Runs the blocks of a session, each of every case, until everything is decided or time is up.

use std::time::Duration;

use super::block::order;
use super::judge::is_settled;
use super::sequential::{FIRST_LOOK, MOST_BLOCKS, is_look};
use overdrive_bench::failure::{Failure, FailureKind};
use overdrive_bench::runner::Stop;
use overdrive_bench::verdicts::{Block, Evidence, Observations, Side};

/// Processes that end without results before the session gives up: one may be bad luck, three are a
/// fault.
const MOST_LOST: usize = 3;
/// Time that a session takes where the user sets none and processes are quick.
const USUAL_BUDGET: Duration = Duration::from_mins(1);
/// After so many blocks a session ends that can have no interval: its cases failed, or have no
/// times.
const BLOCKS_WITHOUT_TIMES: usize = 2;

/// Brings the observations of one fresh process.
pub trait Processes {
    /// Starts the program of `side`, waits for it and reads what it wrote.
    ///
    /// # Errors
    /// When there are no results: it did not start, crashed, ran out of time, or was stopped.
    fn run(&mut self, side: Side, request: &ProcessRequest) -> Result<Observations, Failure>;

    /// Time since the session began.
    fn elapsed(&self) -> Duration;
}

/// A request to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessRequest {
    /// Its number in the session.
    pub process: usize,
    /// Seed of its inputs: all processes of a block have the same.
    pub seed: u64,
}

/// Told what runs next.
pub trait Progress {
    /// A block is about to start.
    fn block(&self, step: &SessionProgress);
}

/// The progress of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionProgress {
    /// Blocks that have ended.
    pub blocks: usize,
    /// Time since the session began.
    pub elapsed: Duration,
    /// When it ends at the latest, where that is set.
    pub budget: Duration,
}

/// A session to be run.
pub struct GateSession<'a> {
    processes: &'a mut dyn Processes,
    progress: &'a dyn Progress,
    stop: Stop,
    seed: u64,
    budget: Option<Duration>,
    next_process: usize,
    evidence: Evidence,
}

impl<'a> GateSession<'a> {
    /// A session over these processes. `seed` decides the inputs and the order of every block.
    pub fn new(processes: &'a mut dyn Processes, progress: &'a dyn Progress, seed: u64) -> Self {
        let evidence = Evidence::default();
        let stop = Stop::default();
        Self { processes, progress, stop, seed, budget: None, next_process: 0, evidence }
    }

    /// Ends between two processes once `stop` is requested. Evidence seen by then is kept.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self { stop, ..self }
    }

    /// Begins no block that would end after `budget`. Without one it is a minute, or ten blocks if
    /// they take longer.
    #[must_use]
    pub fn with_budget(self, budget: Duration) -> Self {
        Self { budget: Some(budget), ..self }
    }

    /// Runs it to its end, or to where it was stopped.
    pub fn run(mut self) -> Evidence {
        if let Err(failure) = self.blocks() {
            self.evidence.ended_early = Some(failure);
        }
        self.evidence.elapsed_s = self.processes.elapsed().as_secs_f64();
        self.evidence
    }

    fn blocks(&mut self) -> Result<(), Failure> {
        while !self.is_time_up() {
            let step = SessionProgress {
                blocks: self.evidence.blocks.len(),
                elapsed: self.processes.elapsed(),
                budget: self.budget.unwrap_or(USUAL_BUDGET),
            };
            self.progress.block(&step);
            self.block()?;
            let count = self.evidence.blocks.len();
            if (count == BLOCKS_WITHOUT_TIMES || is_look(count)) && is_settled(&self.evidence) {
                self.evidence.settled = true;
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_time_up(&self) -> bool {
        let count = self.evidence.blocks.len();
        if count == 0 || (self.budget.is_none() && count < FIRST_LOOK) {
            return false;
        }
        let elapsed = self.processes.elapsed();
        let next = elapsed / u32::try_from(count).unwrap_or(u32::MAX);
        elapsed + next > self.budget.unwrap_or(USUAL_BUDGET) || count >= MOST_BLOCKS
    }

    /// Runs the processes of a block. A process without results makes its block incomplete. The
    /// others still run, so that the order of the session does not change.
    fn block(&mut self) -> Result<(), Failure> {
        let index = self.evidence.blocks.len();
        let seed = self.seed.wrapping_add(index as u64);
        self.evidence.blocks.push(Block::default());
        for side in order(self.seed, index) {
            if self.stop.is_requested() {
                return Err(Failure::skipped(
                    "interrupted: what had been measured by then is kept",
                ));
            }
            let request = ProcessRequest { process: self.next_process, seed };
            self.next_process += 1;
            match self.processes.run(side, &request) {
                Ok(said) => self.evidence.blocks[index].runs.push((side, said)),
                Err(failure) => self.lose(side, failure)?,
            }
        }
        Ok(())
    }

    /// Keeps a process without results; ends the session when it was stopped, or when such
    /// processes are no accident.
    fn lose(&mut self, side: Side, failure: Failure) -> Result<(), Failure> {
        let lost = &mut self.evidence.lost;
        lost.push((side, failure.clone()));
        if failure.kind == FailureKind::Skipped {
            return Err(failure);
        }
        // The first process of a side is its test: what cannot run once will not run again.
        let never_ran =
            self.evidence.blocks.iter().all(|block| block.runs.iter().all(|(ran, _)| *ran != side));
        if never_ran || lost.len() >= MOST_LOST {
            return Err(Failure { reason: format!("the {side}'s process {failure}"), ..failure });
        }
        Ok(())
    }
}

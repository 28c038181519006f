//! Runs the blocks of a session: screening of everything, then fresh blocks for what looked slower, and the same
//! for the baseline against itself.

use std::collections::BTreeSet;

use super::block::{Block, Side, order};
use super::judgement::{ALPHA, CANDIDATE, JUDGING_BLOCKS, SCREENING_BLOCKS};
use super::observation::Observations;
use crate::outcome::{Failure, FailureKind};
use crate::runner::Stop;
use crate::statistics::fewest_differences;

/// Processes that end without results before the session gives up: one may be bad luck, three are a fault.
const MOST_LOST: usize = 3;

/// Brings the observations of one fresh process.
pub trait Processes {
    /// Starts the program of `side`, waits for it and reads what it wrote.
    ///
    /// # Errors
    /// When there are no results: it did not start, crashed, ran out of time, or was stopped.
    fn run(&mut self, side: Side, request: &Request<'_>) -> Result<Observations, Failure>;
}

/// What a process is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its number in the session.
    pub process: usize,
    /// Seed of its inputs: all processes of a block have the same.
    pub seed: u64,
    /// The cases wanted; empty for all.
    pub cases: &'a BTreeSet<String>,
}

/// Told what runs next.
pub trait Progress {
    /// A process is about to start.
    fn step(&self, step: &Step);
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Screening or judging.
    pub stage: Stage,
    /// Who runs against whom.
    pub pairing: Pairing,
    /// The program that runs.
    pub side: Side,
    /// Processes of this stage that have ended.
    pub done: usize,
    /// Processes of this stage in all.
    pub of: usize,
    /// Cases asked for; 0 for all.
    pub cases: usize,
}

/// The two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Few blocks of every case.
    Screening,
    /// Many fresh blocks of the candidates.
    Judging,
}

/// Who runs against whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Baseline against current.
    Rivals,
    /// Baseline against itself.
    Control,
}

/// The blocks of one pairing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Blocks {
    /// Of every case.
    pub screening: Vec<Block>,
    /// Cases that got fresh blocks.
    pub candidates: BTreeSet<String>,
    /// Fresh blocks of the candidates.
    pub judging: Vec<Block>,
}

/// Everything that a session saw.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Baseline against current.
    pub rivals: Blocks,
    /// Baseline against itself, the sides of its blocks being names only.
    pub control: Blocks,
    /// Processes that ended without results.
    pub lost: Vec<(Side, Failure)>,
    /// Why it ended before its plan, if it did.
    pub ended_early: Option<Failure>,
}

/// A session to be run.
pub struct Session<'a> {
    processes: &'a mut dyn Processes,
    progress: &'a dyn Progress,
    stop: Stop,
    seed: u64,
    next_process: usize,
    evidence: Evidence,
}

impl<'a> Session<'a> {
    /// A session over these processes. `seed` decides the inputs of every block.
    pub fn new(processes: &'a mut dyn Processes, progress: &'a dyn Progress, seed: u64) -> Self {
        let evidence = Evidence::default();
        Self { processes, progress, stop: Stop::default(), seed, next_process: 0, evidence }
    }

    /// Ends between two processes once `stop` is asked for; what was seen by then is kept.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self { stop, ..self }
    }

    /// Runs it to its end, or to where it was stopped.
    pub fn run(mut self) -> Evidence {
        if let Err(failure) = self.stages() {
            self.evidence.ended_early = Some(failure);
        }
        self.evidence
    }

    fn stages(&mut self) -> Result<(), Failure> {
        let total = 4 * 2 * SCREENING_BLOCKS;
        for block in 0..SCREENING_BLOCKS {
            for pairing in [Pairing::Rivals, Pairing::Control] {
                self.block(Stage::Screening, pairing, [block, total])?;
            }
        }
        let candidates = slower(&self.evidence.rivals.screening);
        // The control has no better or worse side: a difference either way is false.
        let differing = different(&self.evidence.control.screening);
        let blocks = |cases: &BTreeSet<String>| match cases.len() {
            0 => 0,
            count => JUDGING_BLOCKS.max(fewest_differences(count, ALPHA)),
        };
        let counts = [(Pairing::Rivals, blocks(&candidates)), (Pairing::Control, blocks(&differing))];
        self.evidence.rivals.candidates = candidates;
        self.evidence.control.candidates = differing;
        let total = 4 * (counts[0].1 + counts[1].1);
        for block in 0..counts[0].1.max(counts[1].1) {
            for (pairing, _) in counts.into_iter().filter(|(_, count)| block < *count) {
                self.block(Stage::Judging, pairing, [block, total])?;
            }
        }
        Ok(())
    }

    /// Runs the four processes of a block. A process without results makes its block incomplete, which then
    /// counts for nothing; the others still run, so that the order of the session stays what it was.
    fn block(&mut self, stage: Stage, pairing: Pairing, [block, total]: [usize; 2]) -> Result<(), Failure> {
        let first = self.blocks(pairing).screening.len() + self.blocks(pairing).judging.len();
        let seed = self.seed.wrapping_add(first as u64);
        let cases = match stage {
            Stage::Screening => BTreeSet::new(),
            Stage::Judging => self.blocks(pairing).candidates.clone(),
        };
        match stage {
            Stage::Screening => self.blocks(pairing).screening.push(Block::default()),
            Stage::Judging => self.blocks(pairing).judging.push(Block::default()),
        }
        let done = self.stage_start(stage);
        for side in order(block) {
            if self.stop.is_requested() {
                return Err(Failure::skipped("interrupted: what had been measured by then is kept"));
            }
            let program = if pairing == Pairing::Control { Side::Baseline } else { side };
            let step = Step {
                stage,
                pairing,
                side: program,
                done: self.next_process - done,
                of: total,
                cases: cases.len(),
            };
            self.progress.step(&step);
            let request = Request { process: self.next_process, seed, cases: &cases };
            self.next_process += 1;
            match self.processes.run(program, &request) {
                Ok(observations) => {
                    let blocks = self.blocks(pairing);
                    let all =
                        if stage == Stage::Screening { &mut blocks.screening } else { &mut blocks.judging };
                    all.last_mut().expect("it was pushed above").runs.push((side, observations));
                }
                Err(failure) => self.lose(program, failure)?,
            }
        }
        Ok(())
    }

    /// Keeps a process without results; ends the session when it was stopped, or when such processes are no
    /// accident.
    fn lose(&mut self, side: Side, failure: Failure) -> Result<(), Failure> {
        let lost = &mut self.evidence.lost;
        lost.push((side, failure.clone()));
        if failure.kind == FailureKind::Skipped {
            return Err(failure);
        }
        // The first process of a side is its test: what cannot run once will not run twelve times.
        let never_ran =
            self.evidence.rivals.screening.iter().all(|block| block.runs.iter().all(|(ran, _)| *ran != side));
        if never_ran || lost.len() >= MOST_LOST {
            return Err(Failure { reason: format!("the {side}'s process {failure}"), ..failure });
        }
        Ok(())
    }

    fn blocks(&mut self, pairing: Pairing) -> &mut Blocks {
        match pairing {
            Pairing::Rivals => &mut self.evidence.rivals,
            Pairing::Control => &mut self.evidence.control,
        }
    }

    /// The number of the stage's first process.
    fn stage_start(&self, stage: Stage) -> usize {
        if stage == Stage::Screening { 0 } else { 4 * 2 * SCREENING_BLOCKS }
    }
}

/// The mean ratio of a case over complete blocks.
fn mean_ratio(blocks: &[Block], case: &str) -> Option<f64> {
    let logs: Vec<f64> =
        blocks.iter().filter_map(|block| block.log_ratio(case, |observed| observed.median_ns)).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Every case that any process named.
pub(super) fn cases<'b>(blocks: impl IntoIterator<Item = &'b Block>) -> BTreeSet<String> {
    let runs = blocks.into_iter().flat_map(|block| &block.runs);
    runs.flat_map(|(_, observations)| observations.keys().cloned()).collect()
}

fn slower(blocks: &[Block]) -> BTreeSet<String> {
    let is_slower = |case: &String| mean_ratio(blocks, case).is_some_and(|ratio| ratio > CANDIDATE);
    cases(blocks).into_iter().filter(is_slower).collect()
}

fn different(blocks: &[Block]) -> BTreeSet<String> {
    let differs = |ratio: f64| !(1.0 / CANDIDATE..=CANDIDATE).contains(&ratio);
    cases(blocks).into_iter().filter(|case| mean_ratio(blocks, case).is_some_and(differs)).collect()
}

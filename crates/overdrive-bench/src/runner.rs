//! Takes samples of one subject, or of several in alternation, by the rules of the protocol.
//!
//! Order of a case: first call (a metric of its own), comparison with the reference, warm-up,
//! samples. If a ratio looks too good, a second method follows. Several subjects go through it as
//! one session, with the same warm-up and the same number of samples. They alternate A B B A, so
//! that drift of the machine falls on all alike. Time is read from the injected clock alone. A
//! subject that errs, panics, is wrong or takes too long leaves the session with its reason; the
//! others go on.

mod lane;
mod setting;
mod warmup;

pub use overdrive_process::Stop;

use crate::clock::{Clock, Timer};
use crate::environment::context_switches;
use crate::outcome::Outcome;
use crate::rules::Rules;
use crate::subject::Subject;
use lane::{Alternation, Lane};
use setting::Setting;

/// A ratio of medians beyond which a second method must confirm it.
pub const SUSPECT_RATIO: f64 = 10.0;

/// Measures subjects.
pub struct Runner<'a>(Setting<'a>);

impl<'a> Runner<'a> {
    /// A runner on `clock`, whose cost and grain it measures now. `seed` is the first of the seeds
    /// on which outputs are compared.
    pub fn new(clock: &'a dyn Clock, rules: Rules, seed: u64) -> Self {
        Self(Setting { clock, timer: Timer::measure(clock), rules, seed, stop: Stop::default() })
    }

    /// Ends early, between two samples, once `stop` is asked for.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self(Setting { stop, ..self.0 })
    }

    /// The rules that are obeyed.
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// The clock's cost and grain.
    pub fn timer(&self) -> &Timer {
        &self.0.timer
    }

    /// Measures one subject.
    pub fn measure(&self, subject: &mut dyn Subject) -> Outcome {
        self.compare(&mut [subject]).pop().expect("one subject has one outcome")
    }

    /// Measures several subjects of the same workload in one session; the outcomes are in their
    /// order.
    pub fn compare(&self, subjects: &mut [&mut dyn Subject]) -> Vec<Outcome> {
        let rivals = subjects.len().saturating_sub(1);
        let mut lanes: Vec<Lane<'_>> =
            subjects.iter_mut().map(|subject| Lane::new(&self.0, &mut **subject, rivals)).collect();
        for lane in &mut lanes {
            lane.attempt(Lane::first_call);
            lane.attempt(Lane::verify);
        }
        for lane in &mut lanes {
            lane.attempt(Lane::warm_up);
        }
        let before = context_switches();
        let session = self.alternate(&mut lanes);
        let switches =
            context_switches().zip(before).map(|(after, before)| after.since(before).involuntary);
        if looks_too_good(&lanes) {
            for lane in &mut lanes {
                lane.attempt(Lane::sustain);
            }
        }
        lanes.into_iter().map(|lane| lane.finish(&session, switches)).collect()
    }

    /// Samples in rounds, each in the opposite order of the one before, until every subject is
    /// precise.
    fn alternate(&self, lanes: &mut [Lane<'_>]) -> Alternation {
        let limit = self.0.rules.sampling_max_ns.saturating_mul(lanes.len() as u64);
        let start = self.0.clock.now_ns();
        let (mut round, mut index) = (0, 0);
        let mut span_ns = 0;
        for &look in &self.0.rules.looks {
            while round < look && self.0.clock.now_ns() - start < limit {
                let count = lanes.len();
                for position in 0..count {
                    let turn = if round % 2 == 0 { position } else { count - 1 - position };
                    lanes[turn].attempt(|lane| lane.take_sample(index, start));
                    index += 1;
                }
                round += 1;
                span_ns = self.0.clock.now_ns() - start;
            }
            for lane in lanes.iter_mut() {
                lane.attempt(Lane::verify_last);
            }
            if lanes.iter().all(Lane::is_done) {
                break;
            }
        }
        Alternation { began_ns: start, span_ns, rounds: round as u32 }
    }
}

/// Whether two medians of the session lie so far apart that one of them needs a second method.
fn looks_too_good(lanes: &[Lane<'_>]) -> bool {
    let medians: Vec<f64> = lanes.iter().filter_map(Lane::median_ns).collect();
    let slowest = medians.iter().copied().fold(0.0, f64::max);
    let fastest = medians.iter().copied().fold(f64::INFINITY, f64::min);
    slowest > SUSPECT_RATIO * fastest
}

#[cfg(test)]
mod tests;

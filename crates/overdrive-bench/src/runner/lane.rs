//! One subject's way through a session.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::setting::Setting;
use super::warmup;
use crate::deviation::Deviation;
use crate::failure::Failure;
use crate::measurement::{Agreement, Measurement, Overhead};
use crate::outcome::Outcome;
use crate::series::{Basis, Conditions, Sample, Series, Session, Settling, Stopped, TimedCalls};
use crate::statistics::{Sorted, Summary};
use crate::status::has_lone_slow_sample;
use crate::subject::Subject;

/// Calls shorter than this are preceded by one that is not timed whenever a rival ran in between.
/// Caches then hold this subject's data and not the rival's. In longer calls what a cache can hold
/// no longer matters.
const REWARM_BELOW_NS: f64 = 10e6;
/// Calls in a sample, at most: what is still too short then takes no time that this machine could
/// tell.
const MAX_CALLS_PER_SAMPLE: u64 = 1 << 24;
/// Calls of the second method, at least.
const SUSTAINED_MIN_CALLS: u64 = 5;

/// A session in which subjects alternated, as a whole.
pub(super) struct Alternation {
    pub(super) began_ns: u64,
    /// To the end of the last sample.
    pub(super) span_ns: u64,
    pub(super) rounds: u32,
}

/// A subject and what the session has seen of it.
pub(super) struct Lane<'a> {
    setting: &'a Setting<'a>,
    subject: &'a mut dyn Subject,
    rivals: usize,
    failure: Option<Failure>,
    next_call: u64,
    spent_ns: u64,
    deadline_ns: u64,
    first_call_ns: Option<u64>,
    seeds: u32,
    deviation: Option<Deviation>,
    warmup: Vec<TimedCalls>,
    settling: Settling,
    calls_per_sample: u64,
    samples: Vec<Sample>,
    calls_sampled: u64,
    sustained: Option<TimedCalls>,
}

impl<'a> Lane<'a> {
    pub(super) fn new(
        setting: &'a Setting<'a>,
        subject: &'a mut dyn Subject,
        rivals: usize,
    ) -> Self {
        Self {
            setting,
            subject,
            rivals,
            failure: None,
            next_call: 0,
            spent_ns: 0,
            deadline_ns: 0,
            first_call_ns: None,
            seeds: 0,
            deviation: None,
            warmup: Vec::new(),
            settling: Settling::Fixed,
            calls_per_sample: 1,
            samples: Vec::new(),
            calls_sampled: 0,
            sustained: None,
        }
    }

    /// Runs one step unless the subject has already failed, and keeps its error or its panic as the
    /// outcome.
    pub(super) fn attempt(&mut self, step: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        if self.failure.is_some() {
            return;
        }
        let start = self.setting.clock.now_ns();
        self.deadline_ns = start + self.setting.rules.case_max_ns.saturating_sub(self.spent_ns);
        // A lane whose step panicked is never run again; what it holds is only dropped.
        let result = catch_unwind(AssertUnwindSafe(|| self.guard().and_then(|()| step(self))));
        self.spent_ns += self.setting.clock.now_ns() - start;
        self.failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(payload) => {
                Some(Failure::failed(format!("panicked: {}", panic_message(&*payload))))
            }
        };
    }

    pub(super) fn first_call(&mut self) -> Result<(), Failure> {
        self.first_call_ns = Some(self.span(1)?.host_ns);
        Ok(())
    }

    pub(super) fn verify(&mut self) -> Result<(), Failure> {
        for offset in 0..self.setting.rules.seeds {
            let seed = self.setting.seed.wrapping_add(u64::from(offset));
            if let Some(deviation) = self.subject.verify(seed)? {
                self.accept(deviation, &format!("on seed {seed}"))?;
                self.seeds += 1;
            }
            self.guard()?;
        }
        Ok(())
    }

    /// Checks the output of a call that was timed, so that a subject cannot be right only when
    /// unobserved.
    pub(super) fn verify_last(&mut self) -> Result<(), Failure> {
        match self.subject.verify_last()? {
            Some(deviation) => self.accept(deviation, "in a timed call"),
            None => Ok(()),
        }
    }

    fn accept(&mut self, found: Deviation, place: &str) -> Result<(), Failure> {
        if !found.agrees() {
            return Err(Failure::incorrect(format!(
                "{place} the output differs from the reference by up to {:.2e} ({:.2e} of its \
                 value), {:.1} times the tolerance",
                found.absolute, found.relative, found.share_of_tolerance
            )));
        }
        self.deviation = Some(self.deviation.unwrap_or(Deviation::none()).or_worse(found));
        Ok(())
    }

    /// Chooses how many calls make a sample and warms up by the rule. Cold calls are slow, so the
    /// number is corrected once they are warm.
    pub(super) fn warm_up(&mut self) -> Result<(), Failure> {
        let start = self.setting.clock.now_ns();
        self.size_samples()?;
        let first = self.warmup.len() - 1;
        self.settling = loop {
            let elapsed = self.setting.clock.now_ns() - start;
            if let Some(settling) =
                warmup::verdict(&self.setting.rules, &self.warmup[first..], elapsed)
            {
                break settling;
            }
            let span = self.span(self.calls_per_sample)?;
            self.warmup.push(span);
        };
        if self.warmup.last().is_some_and(|span| span.host_ns < self.shortest_sample_ns()) {
            self.size_samples()?;
        }
        Ok(())
    }

    /// Enlarges the sample until it outlasts the clock's cost and grain.
    fn size_samples(&mut self) -> Result<(), Failure> {
        loop {
            let span = self.span(self.calls_per_sample)?;
            self.warmup.push(span);
            if span.host_ns >= self.shortest_sample_ns() || span.calls == MAX_CALLS_PER_SAMPLE {
                return Ok(());
            }
            self.calls_per_sample = enlarged(span, self.shortest_sample_ns());
        }
    }

    fn shortest_sample_ns(&self) -> u64 {
        self.setting.timer.shortest_sample_ns(self.setting.rules.sample_min_ns)
    }

    /// One sample, at place `index` of the session that began at `began_ns`.
    pub(super) fn take_sample(&mut self, index: u32, began_ns: u64) -> Result<(), Failure> {
        let short = self.warmup.last().is_none_or(|span| span.mean_ns() < REWARM_BELOW_NS);
        let untimed = u64::from(self.rivals > 0 && short);
        self.guard()?;
        let calls = self.next_calls(untimed + self.calls_per_sample)?;
        let timed_from = calls.start + untimed;
        if untimed > 0 {
            self.subject.sample(calls.start..timed_from, self.setting.clock)?;
        }
        let elapsed = || Some(self.setting.clock.now_ns() - began_ns);
        let start_ns = elapsed();
        let reading = self.subject.sample(timed_from..calls.end, self.setting.clock)?;
        let end_ns = elapsed();
        self.calls_sampled = calls.end;
        self.samples.push(Sample {
            process: 0,
            index,
            host_ns: reading.host_ns,
            device_ns: reading.device_ns,
            cycles: reading.cycles,
            start_ns,
            end_ns,
            flags: reading.flags,
        });
        Ok(())
    }

    /// The second method: one long span of calls.
    pub(super) fn sustain(&mut self) -> Result<(), Failure> {
        let per_call = self.summary().map_or(f64::INFINITY, |summary| summary.median_ns);
        let calls = (self.setting.rules.sustained_ns as f64 / per_call).ceil() as u64;
        self.sustained = Some(self.span(calls.max(SUSTAINED_MIN_CALLS))?);
        Ok(())
    }

    /// Whether nothing more is to be learnt here: it failed, or it is precise. A sample that stands
    /// alone at the first look asks for another look, which says whether such samples recur.
    pub(super) fn is_done(&self) -> bool {
        let is_first_look =
            self.setting.rules.looks.first().is_some_and(|&look| self.samples.len() <= look);
        let is_precise = self.stopped() == Stopped::Precise;
        self.failure.is_some()
            || (is_precise && !(is_first_look && has_lone_slow_sample(&self.times_ns())))
    }

    pub(super) fn median_ns(&self) -> Option<f64> {
        self.summary().map(|summary| summary.median_ns)
    }

    pub(super) fn finish(
        self,
        session: &Alternation,
        involuntary_switches: Option<u64>,
    ) -> Outcome {
        if let Some(failure) = self.failure {
            return failure.into();
        }
        let basis = self.basis();
        let conditions = Conditions {
            depth: self.setting.rules.depth,
            timer: self.setting.timer.clone(),
            basis,
            launches_per_call: self.subject.launches_per_call().filter(|_| basis == Basis::Device),
            calls_per_sample: self.calls_per_sample,
            stopped: self.stopped(),
            warmup: self.warmup,
            settling: self.settling,
            involuntary_switches,
            session: Some(Session {
                began_ns: session.began_ns,
                span_ns: session.span_ns,
                subjects: self.rivals as u32 + 1,
                rounds: session.rounds,
                calls: self.calls_sampled,
            }),
        };
        let reference = self.subject.reference().to_owned();
        let agreement =
            self.deviation.map(|worst| Agreement { reference, seeds: self.seeds, worst });
        Series::new(conditions, self.samples)
            .map(|series| Measurement {
                sustained: self.sustained,
                overhead: Overhead { first_call_ns: self.first_call_ns, ..Overhead::default() },
                agreement,
                ..Measurement::timed(series)
            })
            .into()
    }

    fn stopped(&self) -> Stopped {
        let width = self.summary().and_then(|summary| summary.relative_half_width());
        match width {
            Some(width) if width <= self.setting.rules.relative_half_width => Stopped::Precise,
            _ => Stopped::Limit,
        }
    }

    fn basis(&self) -> Basis {
        if self.samples.iter().all(|sample| sample.device_ns.is_some()) {
            Basis::Device
        } else {
            Basis::Host
        }
    }

    fn summary(&self) -> Option<Summary> {
        Sorted::new(&self.times_ns()).map(|sorted| Summary::of(&sorted))
    }

    fn times_ns(&self) -> Vec<f64> {
        let basis = self.basis();
        let span = |sample: &Sample| match basis {
            Basis::Host => sample.host_ns,
            Basis::Device => {
                sample.device_ns.expect("every sample has a device time on this basis")
            }
        };
        self.samples
            .iter()
            .map(|sample| span(sample) as f64 / self.calls_per_sample as f64)
            .collect()
    }

    /// Makes `calls` calls back to back.
    fn span(&mut self, calls: u64) -> Result<TimedCalls, Failure> {
        self.guard()?;
        let range = self.next_calls(calls)?;
        let reading = self.subject.sample(range, self.setting.clock)?;
        self.guard()?;
        Ok(TimedCalls { calls, host_ns: reading.host_ns })
    }

    fn next_calls(&mut self, calls: u64) -> Result<std::ops::Range<u64>, Failure> {
        let range = self.next_call..self.next_call + calls;
        self.next_call = range.end;
        self.subject.prepare(range.clone())?;
        Ok(range)
    }

    /// Refuses to go on after a stop or beyond the limit of a case.
    fn guard(&self) -> Result<(), Failure> {
        if self.setting.stop.is_requested() {
            return Err(Failure::skipped("interrupted before it was complete"));
        }
        if self.setting.clock.now_ns() > self.deadline_ns {
            let limit = self.setting.rules.case_max_ns as f64 * 1e-9;
            return Err(Failure::timeout(format!(
                "it ran past its limit of {limit:.0} s with {} samples taken",
                self.samples.len()
            )));
        }
        Ok(())
    }
}

/// How many calls would make `span` last `shortest_ns`, with a margin. It is at most ten times as
/// many as `span` held, since a single short reading is a poor guide.
fn enlarged(span: TimedCalls, shortest_ns: u64) -> u64 {
    let needed = 1.2 * shortest_ns as f64 / (span.host_ns.max(1) as f64 / span.calls as f64);
    (needed.ceil() as u64).clamp(span.calls + 1, span.calls * 10).min(MAX_CALLS_PER_SAMPLE)
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

//! The runner against invented time.

use super::*;
use crate::deviation::Deviation;
use crate::deviation::Tolerance;
use crate::failure::{Failure, FailureKind};
use crate::measurement::Measurement;
use crate::series::{Basis, Series, Settling, Stopped};
use crate::status::StatusKind;
use crate::subject::Reading;
use crate::testing::{Synthetic, SyntheticClock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MS: u64 = 1_000_000;

fn measured(outcome: Outcome) -> Measurement {
    match outcome {
        Outcome::Ok(measurement) => *measurement,
        Outcome::Failure(failure) => panic!("{failure}"),
    }
}

fn latency(measurement: &Measurement) -> &Series {
    measurement.latency.as_ref().unwrap()
}

fn kinds(measurement: &Measurement) -> Vec<StatusKind> {
    measurement.statuses.iter().map(|status| status.kind).collect()
}

/// A little noise, the same in every run.
fn jitter(call: u64) -> u64 {
    call.wrapping_mul(2_654_435_761) % 1000
}

#[test]
fn a_steady_subject_is_precise_at_the_first_look() {
    let clock = SyntheticClock::default();
    let mut subject =
        Synthetic::new(&clock, |call| if call == 0 { 300 * MS } else { MS + jitter(call) });
    let found = measured(Runner::new(&clock, Rules::full(), 7).measure(&mut subject));
    let series = latency(&found);
    assert_eq!(found.overhead.first_call_ns, Some(300 * MS));
    assert_eq!((series.samples.len(), series.conditions.stopped), (20, Stopped::Precise));
    assert_eq!(
        (series.conditions.warmup.len(), series.conditions.settling),
        (10, Settling::Settled)
    );
    assert_eq!(series.conditions.calls_per_sample, 1);
    assert!((series.summary.median_ns / 1e6 - 1.0).abs() < 0.001);
    assert_eq!(kinds(&found), []);
    assert_eq!(found.agreement.unwrap().seeds, 5);
}

#[test]
fn each_call_gets_inputs_of_its_own() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |_| 30_000);
    measured(Runner::new(&clock, Rules::full(), 0).measure(&mut subject));
    assert_eq!(subject.prepared[0], 0..1);
    assert!(
        subject.prepared.windows(2).all(|pair| pair[0].end == pair[1].start),
        "{:?}",
        subject.prepared
    );
    assert_eq!(subject.prepared.last().unwrap().end, subject.made);
}

#[test]
fn short_calls_are_batched_until_a_sample_is_long_enough() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |_| 300);
    let found = measured(Runner::new(&clock, Rules::full(), 0).measure(&mut subject));
    let series = latency(&found);
    assert!(series.conditions.calls_per_sample * 300 >= 100_000);
    assert!(series.samples.iter().all(|sample| sample.host_ns >= 100_000));
    assert!((series.summary.median_ns - 300.0).abs() < 1e-9);
}

/// Batches sized on cold calls would be too short once warm.
#[test]
fn the_batch_is_sized_on_warm_calls() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |call| if call < 6 { 200_000 } else { 1_000 });
    let found = measured(Runner::new(&clock, Rules::full(), 0).measure(&mut subject));
    assert!(latency(&found).samples.iter().all(|sample| sample.host_ns >= 100_000));
}

#[test]
fn noise_is_looked_at_up_to_the_limit_and_called_imprecise() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |call| MS + 300 * jitter(call));
    let found = measured(Runner::new(&clock, Rules::full(), 0).measure(&mut subject));
    assert_eq!(latency(&found).samples.len(), 160);
    assert_eq!(kinds(&found), [StatusKind::Noisy, StatusKind::Imprecise]);
}

#[test]
fn sampling_ends_at_its_limit_of_time() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |call| 900 * MS + 300_000 * jitter(call));
    let found = measured(Runner::new(&clock, Rules::full(), 0).measure(&mut subject));
    assert!((8..=12).contains(&latency(&found).samples.len()));
    assert!(kinds(&found).contains(&StatusKind::Imprecise));
}

#[test]
fn a_subject_that_never_settles_is_unsettled() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |call| 50 * MS - call.min(400) * 100_000);
    let found = measured(Runner::new(&clock, Rules::full(), 0).measure(&mut subject));
    assert!(kinds(&found).contains(&StatusKind::Unsettled));
}

#[test]
fn a_screening_is_five_and_twenty() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |call| MS + 300 * jitter(call));
    let found = measured(Runner::new(&clock, Rules::quick(), 0).measure(&mut subject));
    let series = latency(&found);
    assert_eq!((series.conditions.warmup.len(), series.samples.len()), (5, 20));
    assert_eq!(subject.made, 1 + 5 + 20);
}

#[test]
fn a_user_may_set_both_counts() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |call| MS + 300 * jitter(call));
    let found =
        measured(Runner::new(&clock, Rules::full().with_trials(3, 33), 0).measure(&mut subject));
    assert_eq!((latency(&found).conditions.warmup.len(), latency(&found).samples.len()), (3, 33));
}

#[test]
fn rivals_alternate_there_and_back() {
    let clock = SyntheticClock::default();
    let (mut a, mut b) = (Synthetic::new(&clock, |_| MS), Synthetic::new(&clock, |_| 2 * MS));
    let runner = Runner::new(&clock, Rules::full(), 0);
    let mut outcomes = runner.compare(&mut [&mut a, &mut b]).into_iter();
    let indices = |outcome: Option<Outcome>| {
        let found = measured(outcome.unwrap());
        latency(&found).samples.iter().map(|sample| sample.index).take(4).collect::<Vec<_>>()
    };
    assert_eq!(indices(outcomes.next()), [0, 3, 4, 7]);
    assert_eq!(indices(outcomes.next()), [1, 2, 5, 6]);
}

/// A machine that slows down by a third over the session must not look like a difference between
/// twins.
#[test]
fn drift_falls_on_rivals_alike() {
    let clock = SyntheticClock::default();
    let drifting = |clock: &SyntheticClock| {
        let clock = clock.clone();
        move |call| MS + clock.now_ns() / 1000 + 20 * jitter(call)
    };
    let (mut a, mut b) =
        (Synthetic::new(&clock, drifting(&clock)), Synthetic::new(&clock, drifting(&clock)));
    let runner = Runner::new(&clock, Rules::full(), 0);
    let medians: Vec<f64> = runner
        .compare(&mut [&mut a, &mut b])
        .into_iter()
        .map(|outcome| latency(&measured(outcome)).summary.median_ns)
        .collect();
    // In the order A B A B the second would be 0.2 % slower.
    assert!((medians[0] / medians[1] - 1.0).abs() < 0.0005, "{medians:?}");
}

/// The medians of two rivals on one cache: a call right after the other's takes half as long again.
fn medians_on_one_cache(warm_ns: u64) -> [f64; 2] {
    let clock = SyntheticClock::default();
    let owner = Arc::new(AtomicU64::new(0));
    let rival = |name: u64| {
        let owner = owner.clone();
        move |_| if owner.swap(name, Ordering::Relaxed) == name { warm_ns } else { warm_ns * 3 / 2 }
    };
    let (mut a, mut b) = (Synthetic::new(&clock, rival(1)), Synthetic::new(&clock, rival(2)));
    let outcomes = Runner::new(&clock, Rules::full(), 0).compare(&mut [&mut a, &mut b]);
    [0, 1].map(|at: usize| latency(outcomes[at].measurement().unwrap()).summary.median_ns)
}

#[test]
fn a_rival_s_leavings_in_the_cache_are_not_timed() {
    assert_eq!(medians_on_one_cache(MS), [1e6, 1e6]);
    // Beyond 10 ms a call outlasts any cache, and an untimed one would double the cost of measuring
    // it.
    assert!(medians_on_one_cache(20 * MS).iter().all(|&median| median > 20e6));
}

#[test]
fn a_ratio_over_ten_calls_for_the_second_method() {
    let clock = SyntheticClock::default();
    let sustained = |slow_ns: u64| {
        let (mut a, mut b) = (Synthetic::new(&clock, |_| slow_ns), Synthetic::new(&clock, |_| MS));
        let outcomes = Runner::new(&clock, Rules::full(), 0).compare(&mut [&mut a, &mut b]);
        outcomes.into_iter().map(|outcome| measured(outcome).sustained).collect::<Vec<_>>()
    };
    assert_eq!(sustained(9 * MS), [None, None]);
    let spans = sustained(20 * MS);
    assert_eq!(spans[0].unwrap().mean_ns(), 20e6);
    assert!(spans.iter().all(|span| span.unwrap().host_ns >= 500 * MS));
}

#[test]
fn wrong_outputs_have_no_time() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |_| MS);
    subject.deviation =
        Some(Deviation { values: 1, absolute: 0.5, relative: 0.5, share_of_tolerance: f64::NAN });
    let outcome = Runner::new(&clock, Rules::full(), 0).measure(&mut subject);
    assert_eq!(outcome.failure().unwrap().kind, FailureKind::Incorrect);
}

/// Right on the seeds, wrong when timed: the way to cheat that the check of timed calls is for.
struct WrongWhenTimed(SyntheticClock);

impl Subject for WrongWhenTimed {
    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        self.0.advance(MS);
        Ok(())
    }

    fn verify(&mut self, _seed: u64) -> Result<Option<Deviation>, Failure> {
        Deviation::between(&[1.0], &[1.0], Tolerance::of_elements(0.0, 0.0)).map(Some)
    }

    fn verify_last(&mut self) -> Result<Option<Deviation>, Failure> {
        Deviation::between(&[f64::NAN], &[1.0], Tolerance::of_elements(0.1, 0.1)).map(Some)
    }
}

#[test]
fn timed_calls_are_checked_too() {
    let clock = SyntheticClock::default();
    let outcome = Runner::new(&clock, Rules::full(), 0).measure(&mut WrongWhenTimed(clock.clone()));
    let failure = outcome.failure().unwrap();
    assert_eq!(failure.kind, FailureKind::Incorrect);
    assert!(failure.reason.contains("in a timed call"), "{failure}");
}

#[test]
fn a_panic_fails_one_subject_and_not_its_rival() {
    let clock = SyntheticClock::default();
    let mut broken =
        Synthetic::new(&clock, |call| if call == 12 { panic!("index out of range") } else { MS });
    let mut sound = Synthetic::new(&clock, |_| MS);
    let outcomes = Runner::new(&clock, Rules::full(), 0).compare(&mut [&mut broken, &mut sound]);
    let failure = outcomes[0].failure().unwrap();
    assert_eq!(
        (failure.kind, failure.reason.as_str()),
        (FailureKind::Failed, "panicked: index out of range")
    );
    assert_eq!(latency(outcomes[1].measurement().unwrap()).samples.len(), 20);
}

#[test]
fn a_case_that_takes_too_long_is_a_timeout() {
    let clock = SyntheticClock::default();
    let mut subject = Synthetic::new(&clock, |_| 70_000 * MS);
    let outcome = Runner::new(&clock, Rules::full(), 0).measure(&mut subject);
    assert_eq!(outcome.failure().unwrap().kind, FailureKind::Timeout);
    assert_eq!(subject.made, 2, "the limit is 120 s, passed by the second call");
}

#[test]
fn a_stop_skips_what_is_incomplete() {
    let clock = SyntheticClock::default();
    let stop = Stop::default();
    let request = stop.clone();
    let mut subject = Synthetic::new(&clock, move |call| {
        if call == 15 {
            request.request(overdrive_process::Signal::Interrupt);
        }
        MS
    });
    let outcome = Runner::new(&clock, Rules::full(), 0).with_stop(stop).measure(&mut subject);
    assert_eq!(outcome.failure().unwrap().kind, FailureKind::Skipped);
    assert_eq!(subject.made, 16, "nothing is called after the stop");
}

/// A device whose own clock runs beside the host's, with its time per call on either.
struct Device {
    clock: SyntheticClock,
    host_ns: u64,
    device_ns: u64,
}

impl Device {
    fn new(clock: &SyntheticClock, host_ns: u64, device_ns: u64) -> Self {
        Self { clock: clock.clone(), host_ns, device_ns }
    }
}

impl Subject for Device {
    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        unreachable!("the device times its calls itself")
    }

    fn verify(&mut self, _seed: u64) -> Result<Option<Deviation>, Failure> {
        Ok(None)
    }

    fn sample(&mut self, calls: Range<u64>, _clock: &dyn Clock) -> Result<Reading, Failure> {
        let count = calls.end - calls.start;
        self.clock.advance(self.host_ns * count);
        Ok(Reading {
            device_ns: Some(self.device_ns * count),
            cycles: Some(2 * self.device_ns * count),
            ..Reading::host(self.host_ns * count)
        })
    }

    fn launches_per_call(&self) -> Option<u64> {
        Some(10)
    }
}

#[test]
fn a_device_that_times_itself_is_reported_on_its_own_clock() {
    let clock = SyntheticClock::default();
    let mut device = Device::new(&clock, 3 * MS, 2 * MS);
    let found = measured(Runner::new(&clock, Rules::full(), 0).measure(&mut device));
    assert_eq!(kinds(&found), []);
    let series = latency(&found);
    assert_eq!((series.conditions.basis, series.summary.median_ns), (Basis::Device, 2e6));
    assert!(series.samples.iter().all(|sample| sample.host_ns == 3 * MS));
    assert!(found.agreement.is_none(), "nobody compared the outputs");
}

/// Work on a side stream: the events on the work stream see a short time, the host waits for all of
/// it.
#[test]
fn a_side_stream_makes_the_clocks_disagree() {
    let clock = SyntheticClock::default();
    let kinds_of = |host_ns, device_ns| {
        let mut device = Device::new(&clock, host_ns, device_ns);
        kinds(&measured(Runner::new(&clock, Rules::full(), 0).measure(&mut device)))
    };
    assert_eq!(kinds_of(10 * MS, MS), [StatusKind::Suspect]);
    assert_eq!(StatusKind::Suspect.exclusion(), crate::status::Exclusion::Ratio);
    // Ten launches explain 250 us at most, waiting included.
    assert_eq!(kinds_of(200_000, 40_000), [StatusKind::LaunchBound]);
    assert_eq!(kinds_of(400_000, 40_000), [StatusKind::Suspect]);
    assert_eq!(kinds_of(400_000, 200_000), []);
}

#[test]
fn a_subject_without_duration_is_a_failure() {
    let clock = SyntheticClock::default();
    let mut subject = Device::new(&clock, 3 * MS, 2 * MS);
    let rules = Rules { sample_min_ns: 0, ..Rules::full() };
    assert!(Runner::new(&clock, rules, 0).measure(&mut subject).measurement().is_some());
    let mut nothing = Synthetic::new(&clock, |_| 0);
    let outcome = Runner::new(&clock, Rules::full(), 0).measure(&mut nothing);
    assert!(outcome.failure().unwrap().reason.contains("took no time"));
}

//! Every gain that may be stated, and every reason against stating one.

use super::*;
use crate::case::Workload;
use crate::rules::Rules;
use crate::runner::Runner;
use crate::series::{Flag, TimedCalls};
use crate::status::StatusKind;
use crate::testing::{Synthetic, SyntheticClock, case, record};

fn spans(ns: u64) -> Vec<u64> {
    (0..20).map(|i| ns + (i * 7919) % (ns / 100)).collect()
}

fn reasons(baseline: &Record, variant: &Record) -> Vec<Reason> {
    Speedup::between(baseline, variant).unwrap_err().reasons
}

fn measurement(record: &mut Record) -> &mut Measurement {
    record.outcome.measurement_mut().unwrap()
}

#[test]
fn a_gain_is_worded() {
    let gain = Speedup::between(
        &record("eager", &spans(1_930_000)),
        &record("compile", &spans(1_000_000)),
    )
    .unwrap();
    let sentence = gain.to_string();
    assert!(sentence.starts_with("1.93"), "{sentence}");
    assert!(sentence.ends_with("], excellent, measured"), "{sentence}");
    assert!(
        gain.interval().contains(1.93) && gain.interval().low > 1.9 && gain.interval().high < 1.96
    );
    assert_eq!(gain.counts(), [20, 20]);
}

#[test]
fn every_size_of_gain_has_its_word() {
    let word = |old: u64, new: u64| {
        Speedup::between(&record("a", &spans(old)), &record("b", &spans(new))).unwrap().verdict()
    };
    assert_eq!(word(1_300_000, 1_000_000), Verdict::Good);
    assert_eq!(word(1_100_000, 1_000_000), Verdict::Measured);
    assert_eq!(word(1_000_000, 1_000_000), Verdict::Undecided);
    assert_eq!(word(1_000_000, 1_300_000), Verdict::Investigate);
}

#[test]
fn a_screening_gives_no_verdict() {
    let screened = |mode, ns| {
        let mut record = record(mode, &spans(ns));
        measurement(&mut record).latency.as_mut().unwrap().conditions.depth = Depth::Screening;
        record
    };
    let (a, b) = (screened("a", 2_000_000), screened("b", 1_000_000));
    assert!(Speedup::between(&a, &b).unwrap().to_string().ends_with("quick look, no verdict"));
    assert_eq!(reasons(&record("a", &spans(2_000_000)), &b), [Reason::DifferentDepths]);
}

/// The older suite's two impossible figures: one slow first call in ten, which a mean turned into
/// "15.2x", and a compilation inside the samples. Both are flagged and neither gives a number.
#[test]
fn one_huge_first_sample_is_flagged_and_decides_nothing() {
    let mut cold = spans(77_000_000);
    cold[0] = 6_920_000_000;
    let slow = record("eager", &cold);
    let kinds = |record: &Record| -> Vec<StatusKind> {
        record.outcome.measurement().unwrap().statuses.iter().map(|status| status.kind).collect()
    };
    assert_eq!(kinds(&slow), [StatusKind::ColdFirstSample]);
    let decided = Speedup::between(&slow, &record("compile", &spans(50_000_000))).unwrap();
    assert!((1.53..1.55).contains(&decided.ratio()), "{decided}");
    assert_eq!(decided.warnings()[0].kind, StatusKind::ColdFirstSample);
    // The rest decides nothing between equals, and then the first sample is a reason against a
    // claim.
    let equal = reasons(&slow, &record("compile", &spans(77_000_000)));
    assert!(matches!(equal[..], [Reason::Blocked { side: Role::Baseline, .. }]), "{equal:?}");
    let equal = reasons(&record("compile", &spans(77_000_000)), &slow);
    assert!(matches!(equal[..], [Reason::Blocked { side: Role::Variant, .. }]), "{equal:?}");
    let mut compiled = spans(77_000_000);
    compiled[7] = 6_920_000_000;
    let blocked = reasons(&record("eager", &compiled), &record("compile", &spans(50_000_000)));
    assert!(matches!(blocked[..], [Reason::Blocked { side: Role::Baseline, .. }]), "{blocked:?}");
}

/// The older suite printed 0.00 ms for a back end that had failed, and made it the fastest.
#[test]
fn a_failed_case_gives_no_ratio_in_either_direction() {
    let ran = record("eager", &spans(1_000_000));
    let mut failed = record("compile", &spans(1_000_000));
    failed.outcome = Failure::failed("no such library").into();
    for (baseline, variant) in [(&ran, &failed), (&failed, &ran)] {
        let refusal = Speedup::between(baseline, variant).unwrap_err();
        assert!(matches!(refusal.reasons[..], [Reason::DidNotRun { .. }]));
        assert!(refusal.to_string().contains("failed: no such library"), "{refusal}");
    }
}

#[test]
fn unproven_and_unlike_records_are_refused() {
    let ran = record("eager", &spans(1_000_000));
    let mut unverified = record("compile", &spans(1_000_000));
    measurement(&mut unverified).agreement = None;
    assert_eq!(reasons(&ran, &unverified), [Reason::NotVerified { side: Role::Variant }]);

    let mut wrong = record("compile", &spans(1_000_000));
    measurement(&mut wrong).agreement.as_mut().unwrap().worst.share_of_tolerance = 1.5;
    assert_eq!(reasons(&ran, &wrong), [Reason::NotVerified { side: Role::Variant }]);

    let mut other = record("compile", &spans(1_000_000));
    other.case.workload = Workload::new("other", []);
    assert!(matches!(reasons(&ran, &other)[..], [Reason::DifferentWorkloads { .. }]));

    let mut untimed = record("compile", &spans(1_000_000));
    measurement(&mut untimed).latency = None;
    assert_eq!(reasons(&untimed, &ran), [Reason::NotTimed { side: Role::Baseline }]);

    assert_eq!(
        reasons(&ran, &record("few", &[1_000_000; 5])),
        [Reason::TooFewSamples { counts: [20, 5] }]
    );

    let mut device = record("compile", &spans(1_000_000));
    measurement(&mut device).latency.as_mut().unwrap().conditions.basis = Basis::Device;
    let samples = &mut measurement(&mut device).latency.as_mut().unwrap().samples;
    samples.iter_mut().for_each(|sample| sample.device_ns = Some(sample.host_ns));
    assert_eq!(reasons(&ran, &device), [Reason::DifferentClocks]);
}

#[test]
fn over_ten_needs_a_second_method_that_agrees() {
    let sustained = |record: &mut Record, host_ns| {
        measurement(record).sustained = Some(TimedCalls { calls: 10, host_ns })
    };
    let (mut slow, mut fast) =
        (record("eager", &spans(20_000_000)), record("compile", &spans(1_000_000)));
    let told = reasons(&slow, &fast);
    assert!(matches!(&told[..], [Reason::Suspect { second, .. }] if second.contains("no second")));
    sustained(&mut slow, 200_000_000);
    sustained(&mut fast, 20_000_000);
    let told = reasons(&slow, &fast);
    assert!(matches!(&told[..], [Reason::Suspect { second, .. }] if second.contains("10.0x")));
    sustained(&mut fast, 10_500_000);
    assert!((Speedup::between(&slow, &fast).unwrap().ratio() - 20.0).abs() < 0.5);
}

/// The gains of many sessions of two subjects on a noisy machine. The second subject is `factor`
/// times as fast. The noise is 1 %, 5 % of calls take eight times as long, and everything is 3 %
/// slower by the end.
fn sessions(count: u64, factor: f64) -> Vec<Result<Speedup, NoClaim>> {
    let session = |seed: u64| {
        let clock = SyntheticClock::default();
        let noisy = |ns: f64, seed: u64| {
            let mut rng = fastrand::Rng::with_seed(seed);
            move |call: u64| {
                let bell: f64 = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
                let spike = if rng.f64() < 0.05 { 8.0 } else { 1.0 };
                (ns * spike * (1.0 + 0.01 * bell + 0.0005 * call as f64)) as u64
            }
        };
        let mut baseline = Synthetic::new(&clock, noisy(1e6, 2 * seed));
        let mut variant = Synthetic::new(&clock, noisy(1e6 / factor, 2 * seed + 1));
        let outcomes =
            Runner::new(&clock, Rules::full(), seed).compare(&mut [&mut baseline, &mut variant]);
        let records: Vec<Record> = outcomes
            .into_iter()
            .zip(["baseline", "variant"])
            .map(|(outcome, mode)| Record {
                case: case(mode),
                baseline: None,
                seed,
                command: String::new(),
                outcome,
            })
            .collect();
        Speedup::between(&records[0], &records[1])
    };
    (0..count).map(session).collect()
}

#[test]
fn twins_are_told_apart_as_rarely_as_the_interval_says() {
    let gains = sessions(200, 1.0);
    let silent = gains.iter().filter(|gain| gain.is_err()).count();
    let different =
        gains.iter().flatten().filter(|gain| gain.verdict() != Verdict::Undecided).count();
    assert!(silent < 30, "{silent} of 200 sessions gave no claim");
    assert!(different <= 16, "{different} of 200 pairs of twins were told apart");
}

#[test]
fn a_tenth_is_found_under_the_same_noise() {
    let gains = sessions(100, 1.10);
    let found = gains.iter().flatten().filter(|gain| gain.verdict() == Verdict::Measured).count();
    let covered = gains.iter().flatten().filter(|gain| gain.interval().contains(1.10)).count();
    let claims = gains.iter().flatten().count();
    assert!(claims > 80 && found == claims, "{found} of {claims}");
    assert!(covered * 100 >= 88 * claims, "{covered} of {claims} intervals hold the true ratio");
}

/// A graph with too few copies leaves the data of each call in the cache for the next.
#[test]
fn a_warm_graph_is_not_held_against_a_cold_one() {
    let cold = record("compile", &spans(1_000_000));
    let mut warm = record("graph", &spans(500_000));
    let found = measurement(&mut warm);
    let mut series = found.latency.clone().unwrap();
    series.samples.iter_mut().skip(1).for_each(|sample| sample.flags.push(Flag::Warm));
    let agreement = found.agreement.clone();
    *found = Measurement { agreement, ..Measurement::timed(series) };
    assert_eq!(reasons(&cold, &warm), [Reason::DifferentCaches { side: Role::Variant }]);
    assert_eq!(reasons(&warm, &cold), [Reason::DifferentCaches { side: Role::Baseline }]);
    assert!(Speedup::between(&warm, &warm).is_ok());
}

/// An engine without a device's clock beside a device that has one: their common clock is the
/// host's.
#[test]
fn clocks_that_differ_meet_on_the_host() {
    let mut device = record("graph", &spans(22_000));
    let series = measurement(&mut device).latency.take().unwrap();
    let on_device = |mut sample: crate::series::Sample| {
        sample.device_ns = Some(16_000);
        sample.flags.push(Flag::HostBackToBack);
        sample
    };
    let taken = series.samples.into_iter().map(on_device).collect();
    let conditions = crate::series::Conditions { basis: Basis::Device, ..series.conditions };
    measurement(&mut device).latency = Some(Series::new(conditions, taken).unwrap());
    let engine = record("compile", &spans(88_000));
    let slower = Speedup::between(&device, &engine).unwrap();
    assert!((slower.ratio() - 0.25).abs() < 0.001, "{slower}");
    assert!(slower.figure().contains("by the host's clock, 22"), "{}", slower.figure());
    assert!((Speedup::between(&engine, &device).unwrap().ratio() - 4.0).abs() < 0.05);
    assert_eq!(Speedup::between(&device, &device).unwrap().host_medians_ns(), None);

    // A time that the host saw scattered is no figure, however steady the device's own times are.
    let series = measurement(&mut device).latency.as_mut().unwrap();
    series.samples.iter_mut().enumerate().for_each(|(i, s)| s.host_ns *= 1 + i as u64 % 4);
    let refused = reasons(&device, &engine);
    assert!(matches!(refused[..], [Reason::Blocked { side: Role::Baseline, .. }]), "{refused:?}");

    // A series with the host's clock alone is not blamed twice.
    let scattered: Vec<u64> = (0..20).map(|i| 50_000 * (1 + i % 4)).collect();
    let refused = reasons(&record("compile", &scattered), &device);
    let of_baseline =
        |reason: &&Reason| matches!(reason, Reason::Blocked { side: Role::Baseline, .. });
    assert_eq!(refused.iter().filter(of_baseline).count(), 1, "{refused:?}");
}

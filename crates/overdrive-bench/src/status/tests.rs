//! Each status on samples made for it.

use super::*;
use crate::series::Conditions;
use crate::testing::{conditions, samples};

fn kinds(spans: &[u64]) -> Vec<StatusKind> {
    gate(&Series::new(conditions(), samples(spans)).unwrap())
        .iter()
        .map(|status| status.kind)
        .collect()
}

/// Spans around 1 ms that look like a quiet machine's.
fn quiet(n: u64) -> Vec<u64> {
    (0..n).map(|i| 1_000_000 + (i * 7919) % 5_000).collect()
}

#[test]
fn a_quiet_series_passes() {
    assert_eq!(kinds(&quiet(20)), []);
}

#[test]
fn one_large_sample_blocks_but_for_the_first_which_the_others_outvote() {
    let mut spans = quiet(20);
    spans[10] = 40_000_000;
    assert_eq!(kinds(&spans), [StatusKind::OneSampleDominates]);
    let mut spans = quiet(40);
    spans[0] = 400_000_000;
    assert_eq!(kinds(&spans), [StatusKind::ColdFirstSample]);
    assert_eq!(StatusKind::ColdFirstSample.exclusion(), Exclusion::Undecided);
    // The others are judged as if the first had not been there.
    spans[10] = 80_000_000;
    assert!(kinds(&spans).contains(&StatusKind::OneSampleDominates));
}

#[test]
fn a_few_slow_samples_are_noise_though_the_middle_is_quiet() {
    let mut spans = quiet(40);
    spans.iter_mut().skip(7).step_by(8).for_each(|span| *span *= 12);
    assert_eq!(kinds(&spans), [StatusKind::Noisy]);
}

#[test]
fn a_sample_that_stands_alone_asks_for_more() {
    let times = |spans: Vec<u64>| spans.into_iter().map(|ns| ns as f64).collect::<Vec<_>>();
    assert!(!has_lone_slow_sample(&times(quiet(20))));
    for position in [0, 13] {
        let mut spans = quiet(20);
        spans[position] = 3_000_000;
        assert!(has_lone_slow_sample(&times(spans.clone())));
        spans[7] = 2_500_000;
        assert!(!has_lone_slow_sample(&times(spans)), "it recurs");
    }
}

#[test]
fn a_small_cold_start_is_told() {
    let mut spans = quiet(20);
    spans[0] = 1_100_000;
    assert_eq!(kinds(&spans), [StatusKind::ColdFirstSample]);
}

#[test]
fn noise_that_comes_back_is_not_a_cold_start() {
    let mut spans = quiet(20);
    spans[0] = 1_100_000;
    spans[3] = 1_100_000;
    assert_eq!(kinds(&spans), [StatusKind::ColdFirstSample], "a warm-up of four calls too many");
    spans[15] = 1_080_000;
    assert_eq!(kinds(&spans), []);
}

#[test]
fn a_tiny_excess_over_tiny_deviations_is_not_a_cold_start() {
    let mut spans: Vec<u64> = (0..20).map(|i| 1_000_000 + i).collect();
    spans[0] = 1_049_000;
    assert_eq!(kinds(&spans), []);
    spans[0] = 1_051_000;
    assert_eq!(kinds(&spans), [StatusKind::ColdFirstSample]);
}

#[test]
fn a_clock_without_grain_does_not_make_the_first_sample_cold() {
    let mut spans = vec![1_000_000; 20];
    spans[0] = 1_000_005;
    assert_eq!(kinds(&spans), []);
}

#[test]
fn spread_warns_and_then_blocks() {
    let uniform =
        |half: u64| (0..20).map(|i| 1_000_000 - half + i * 2 * half / 19).collect::<Vec<_>>();
    assert_eq!(kinds(&uniform(80_000)), []);
    assert_eq!(kinds(&uniform(120_000)), [StatusKind::Noisy]);
    assert_eq!(kinds(&uniform(300_000)), [StatusKind::Scattered]);
}

#[test]
fn over_a_fifth_of_slow_clocks_is_throttled() {
    let throttle = |count: usize| {
        let mut taken = samples(&quiet(20));
        taken[..count].iter_mut().for_each(|sample| sample.flags.push(Flag::Thermal));
        gate(&Series::new(conditions(), taken).unwrap())
    };
    assert_eq!(throttle(4), []);
    assert_eq!(throttle(5)[0].kind, StatusKind::Throttled);
}

#[test]
fn one_warm_sample_takes_the_word_cold_away() {
    let mut taken = samples(&quiet(20));
    taken[19].flags.push(Flag::Warm);
    let found = gate(&Series::new(conditions(), taken).unwrap());
    assert_eq!(found.iter().map(|status| status.kind).collect::<Vec<_>>(), [StatusKind::Warm]);
}

#[test]
fn how_sampling_ended_is_told() {
    let ended =
        Conditions { stopped: Stopped::Limit, settling: Settling::Unsettled, ..conditions() };
    let found = gate(&Series::new(ended, samples(&quiet(20))).unwrap());
    assert_eq!(
        found.iter().map(|s| s.kind).collect::<Vec<_>>(),
        [StatusKind::Imprecise, StatusKind::Unsettled]
    );
    assert!(found.iter().all(|status| status.kind.exclusion() == Exclusion::Nothing));
}

#[test]
fn faster_than_physics_is_invalid() {
    let physics = Physics { flops_per_second: 1e12, bytes_per_second: 1e11 };
    let work = Work { flops: 2_000_000, bytes: 1000, items: None };
    assert!(physics.check(2001.0, &work).is_none());
    assert_eq!(physics.check(1999.0, &work).unwrap().kind, StatusKind::Invalid);
    let copy = Work { flops: 0, bytes: 1_000_000, items: None };
    assert_eq!(physics.check(9_999.0, &copy).unwrap().kind, StatusKind::Invalid);
}

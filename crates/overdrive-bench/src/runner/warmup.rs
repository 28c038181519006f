//! When a subject is warm: the last five spans have no trend and agree with the five before.

use crate::rules::Rules;
use crate::series::{Depth, Settling, TimedCalls};
use crate::statistics::Sorted;

/// Spans in each of the two windows that are compared.
const WINDOW: usize = 5;
/// How far the medians of the two windows may lie apart.
const AGREEMENT: f64 = 0.05;

/// Whether warm-up may end after these spans, made in `elapsed_ns`; `None` to go on.
pub(super) fn verdict(rules: &Rules, spans: &[TimedCalls], elapsed_ns: u64) -> Option<Settling> {
    if spans.len() < rules.warmup_min_calls {
        return (elapsed_ns >= rules.warmup_max_ns).then_some(Settling::Unsettled);
    }
    if rules.depth == Depth::Screening || rules.warmup_min_calls == rules.warmup_max_calls {
        return Some(Settling::Fixed);
    }
    if is_settled(spans) {
        return Some(Settling::Settled);
    }
    (spans.len() >= rules.warmup_max_calls || elapsed_ns >= rules.warmup_max_ns)
        .then_some(Settling::Unsettled)
}

fn is_settled(spans: &[TimedCalls]) -> bool {
    let Some(start) = spans.len().checked_sub(2 * WINDOW) else { return false };
    let times: Vec<f64> = spans[start..].iter().map(TimedCalls::mean_ns).collect();
    let (before, last) = times.split_at(WINDOW);
    let falling = last.windows(2).all(|pair| pair[1] < pair[0]);
    let rising = last.windows(2).all(|pair| pair[1] > pair[0]);
    let median = |times: &[f64]| Sorted::new(times).expect("spans have finite times").median();
    !falling && !rising && (median(last) / median(before) - 1.0).abs() <= AGREEMENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(times: &[u64]) -> Vec<TimedCalls> {
        times.iter().map(|&host_ns| TimedCalls { calls: 1, host_ns }).collect()
    }

    fn full(times: &[u64]) -> Option<Settling> {
        verdict(&Rules::full(), &spans(times), 0)
    }

    #[test]
    fn level_calls_settle_and_trends_do_not() {
        assert_eq!(
            full(&[100, 101, 100, 99, 100, 100, 101, 99, 100]),
            None,
            "nine spans make no two windows"
        );
        assert_eq!(
            full(&[100, 101, 100, 99, 100, 100, 101, 99, 100, 101]),
            Some(Settling::Settled)
        );
        assert_eq!(
            full(&[104, 104, 104, 104, 104, 104, 103, 102, 101, 100]),
            None,
            "still falling"
        );
        assert_eq!(full(&[100, 100, 100, 100, 100, 100, 101, 102, 103, 104]), None, "rising");
        assert_eq!(
            full(&[110, 110, 111, 110, 110, 100, 101, 100, 101, 100]),
            None,
            "ten per cent apart"
        );
    }

    #[test]
    fn limits_end_it_unsettled() {
        let falling: Vec<u64> = (0..50).map(|i| 1000 - 10 * i).collect();
        assert_eq!(full(&falling[..49]), None);
        assert_eq!(full(&falling), Some(Settling::Unsettled));
        assert_eq!(
            verdict(&Rules::full(), &spans(&[9, 8]), 3_000_000_000),
            Some(Settling::Unsettled)
        );
    }

    #[test]
    fn a_screening_makes_five() {
        assert_eq!(verdict(&Rules::quick(), &spans(&[9, 8, 7, 6]), 0), None);
        assert_eq!(verdict(&Rules::quick(), &spans(&[9, 8, 7, 6, 5]), 0), Some(Settling::Fixed));
    }
}

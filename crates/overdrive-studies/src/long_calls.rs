//! Sampling of calls that take from milliseconds to seconds, such as training steps, and who of
//! several fits into a device together.

use crate::Context;
use overdrive_bench::rules::Rules;
use overdrive_bench::runner::Runner;
use std::ops::Range;

/// Samples of a call: enough for an interval of the median, few enough for calls of seconds.
const LOOKS: [usize; 3] = [6, 10, 20];
const WARMUP: usize = 3;
/// Longest sampling of one entrant, and longest work of it in all. A million tokens with gradients
/// take 14 s a call on one GPU, and an interval needs six calls.
const SAMPLING_NS: u64 = 50_000_000_000;
const ENTRANT_NS: u64 = 240_000_000_000;
/// Shortest sample. A device lowers its clocks some ten milliseconds after it has begun to draw too
/// much power. With samples of one call, the device that all entrants share had lower clocks than
/// the others, and they waited for it.
const SAMPLE_NS: u64 = 250_000_000;
/// The same on a host, and where a sample is only to show that all works.
const SHORT_SAMPLE_NS: u64 = 3_000_000;
/// Share of a device's memory that entrants may plan to take together.
const FILLED: f64 = 0.85;

/// A runner by these rules.
pub(crate) fn runner<'a>(context: &Context<'a>) -> Runner<'a> {
    let looks = if context.sampling.is_quick() { LOOKS[..1].to_vec() } else { LOOKS.into() };
    let is_short = context.sampling.is_quick() || !context.device().is_accelerator();
    let rules = Rules {
        warmup_min_calls: WARMUP,
        warmup_max_calls: WARMUP,
        looks,
        sampling_max_ns: SAMPLING_NS,
        case_max_ns: ENTRANT_NS,
        sample_min_ns: if is_short { SHORT_SAMPLE_NS } else { SAMPLE_NS },
        seeds: 1,
        ..context.sampling.rules.clone()
    };
    Runner::new(context.sampling.clock, rules, context.sampling.seed)
        .with_stop(context.sampling.stop.clone())
}

/// Bytes of the device that entrants may plan to take together.
pub(crate) fn room(context: &Context<'_>) -> u64 {
    (FILLED * context.device().backend.description().memory_bytes as f64) as u64
}

/// Neighbours that fit in a device together, as few groups as their order allows.
pub(crate) fn groups(bytes: &[u64], room: u64) -> Vec<Range<usize>> {
    let (mut groups, mut start, mut sum) = (Vec::new(), 0, 0);
    for (at, &own) in bytes.iter().enumerate() {
        if at > start && sum + own > room {
            groups.push(start..at);
            (start, sum) = (at, 0);
        }
        sum += own;
    }
    groups.push(start..bytes.len());
    groups
}

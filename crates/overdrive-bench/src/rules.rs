//! The numbers of the protocol: how long to warm up, how much to sample, when to stop.
//!
//! Sampling stops on precision, never on effect. It looks only at sample counts fixed in advance,
//! because a rule that may look whenever it likes finds what it looks for.

use crate::series::Depth;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// Shortest sample. A machine that is busy with something else takes the CPU away for some
/// milliseconds at a time. Samples of 0.1 ms are so few and short that one such gap outweighs them
/// all. Samples of 1 ms are so long that most contain a gap. At 0.3 ms fewest comparisons were lost
/// (docs/measurement.md has the figures).
const SAMPLE_MIN_NS: u64 = 300_000;

/// The limits that a [`Runner`](crate::runner::Runner) obeys.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Which claims the result allows.
    pub depth: Depth,
    /// Fewest warm-up calls after the first call.
    pub warmup_min_calls: usize,
    /// Most warm-up calls.
    pub warmup_max_calls: usize,
    /// Longest warm-up.
    pub warmup_max_ns: u64,
    /// Sample counts at which the interval is looked at, ascending; the last one ends sampling.
    pub looks: Vec<usize>,
    /// Half-width of the median's interval, as a share of the median, that is narrow enough.
    pub relative_half_width: f64,
    /// Longest sampling of one subject.
    pub sampling_max_ns: u64,
    /// Longest case in all; beyond it the case is a timeout.
    pub case_max_ns: u64,
    /// Shortest sample, unless the clock's cost or grain asks for more.
    pub sample_min_ns: u64,
    /// Duration of the second method, if a ratio needs one.
    pub sustained_ns: u64,
    /// On how many seeds outputs are compared with the reference.
    pub seeds: u32,
}

impl Rules {
    /// The whole protocol.
    pub fn full() -> Self {
        Self {
            depth: Depth::Full,
            warmup_min_calls: 5,
            warmup_max_calls: 50,
            warmup_max_ns: 3 * S,
            looks: vec![20, 40, 80, 160],
            relative_half_width: 0.01,
            sampling_max_ns: 10 * S,
            case_max_ns: 120 * S,
            sample_min_ns: SAMPLE_MIN_NS,
            sustained_ns: 500 * MS,
            seeds: 5,
        }
    }

    /// 5 + 20 calls in one process: screening, no verdict.
    pub fn quick() -> Self {
        Self {
            depth: Depth::Screening,
            warmup_max_calls: 5,
            looks: vec![20],
            sampling_max_ns: 4 * S,
            case_max_ns: 30 * S,
            sustained_ns: 50 * MS,
            seeds: 1,
            ..Self::full()
        }
    }

    /// The protocol with a user's own counts: exactly `warmup` calls and `trials` samples.
    pub fn with_trials(self, warmup: usize, trials: usize) -> Self {
        Self { warmup_min_calls: warmup, warmup_max_calls: warmup, looks: vec![trials], ..self }
    }
}

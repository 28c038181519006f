//! How long a quantized model takes beside the float one.

use overdrive::bench::outcome::Outcome;
use overdrive::ir::{Backend, Graph};
use overdrive::studies::quantization::{BlockTimes, Estimate, Timed};
use std::fmt;

/// The quotient of two medians, with ends that their intervals allow.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Slowdown {
    value: f64,
    pub low: f64,
    pub high: f64,
}

/// The time of a model over that of the float one; `None` where one of them was not measured.
pub(super) fn slowdown(float: Option<Estimate>, quantized: Option<Estimate>) -> Option<Slowdown> {
    let (float, quantized) = (float?, quantized?);
    Some(Slowdown {
        value: quantized.value / float.value,
        low: quantized.low / float.high,
        high: quantized.high / float.low,
    })
}

/// The same of a session that timed the float model first and the quantized one second.
pub(super) fn slowdown_of(timed: &[Timed]) -> Option<Slowdown> {
    let [float, quantized] = timed else { return None };
    slowdown(median(&float.outcome), median(&quantized.outcome))
}

/// Results of a session of both models.
pub(super) enum Found {
    Whole(Vec<Timed>),
    Blocks(Vec<BlockTimes>),
}

/// Share of a device's memory that models may take together while they are timed.
const SHARE: u64 = 3;

/// Whether models can be timed whole: their weights and the packed copies must fit.
pub(in crate::commands) fn fit_together(backend: &dyn Backend, graphs: &[&Graph]) -> bool {
    let [needed, allowed] = room_together(backend, graphs);
    needed <= allowed
}

/// Bytes that models need to be timed whole, and bytes of the device that they may take.
pub(in crate::commands) fn room_together(backend: &dyn Backend, graphs: &[&Graph]) -> [u64; 2] {
    let states = |graph: &Graph| -> u64 {
        graph.states().iter().map(|state| graph.ty(state.value).bytes() as u64).sum()
    };
    let needed = graphs.iter().map(|graph| 2 * states(graph)).sum();
    [needed, backend.description().memory_bytes / SHARE]
}

/// The same of sessions of a block each. Ends add up as if all errors had one sign, which is wider
/// than the interval of the sum.
pub(super) fn slowdown_of_blocks(blocks: &[BlockTimes]) -> Option<Slowdown> {
    slowdown(sum_of_blocks(blocks, 0), sum_of_blocks(blocks, 1))
}

/// Time of all blocks in one of the graphs.
pub(super) fn sum_of_blocks(blocks: &[BlockTimes], graph: usize) -> Option<Estimate> {
    let mut sum = Estimate { value: 0.0, low: 0.0, high: 0.0 };
    for block in blocks {
        let (times, one) = (block.times as f64, median(&block.timed.get(graph)?.outcome)?);
        sum.value += times * one.value;
        sum.low += times * one.low;
        sum.high += times * one.high;
    }
    Some(sum)
}

/// The median with its interval, or where there are too few samples for one, with the extremes.
fn median(outcome: &Outcome) -> Option<Estimate> {
    let summary = &outcome.measurement()?.latency.as_ref()?.summary;
    let ends = summary.median_interval.as_ref().map(|interval| [interval.low_ns, interval.high_ns]);
    let [low, high] = ends.unwrap_or([summary.min_ns, summary.max_ns]);
    Some(Estimate { value: summary.median_ns, low, high })
}

impl Slowdown {
    /// In words, with what it means.
    pub(super) fn against_float(self) -> String {
        match self {
            Self { low, .. } if low > 1.0 => {
                format!("SLOWER than the float model: {self} its time")
            }
            Self { high, .. } if high < 1.0 => {
                format!("faster than the float model: {self} its time")
            }
            _ => format!("as fast as the float model as far as was seen: {self} its time"),
        }
    }
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}x [{:.2}, {:.2}]", self.value, self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive::cpu::CpuBackend;
    use overdrive::ir::{Builder, DType, Init, TensorType};

    #[test]
    fn a_slow_down_is_said_with_its_interval() {
        let float = Some(Estimate::around(100.0, 5.0));
        let of = |value: f64| {
            slowdown(float, Some(Estimate::around(value, 5.0))).unwrap().against_float()
        };
        assert_eq!(of(250.0), "SLOWER than the float model: 2.50x [2.33, 2.68] its time");
        assert!(of(50.0).starts_with("faster"));
        assert!(of(105.0).starts_with("as fast"), "intervals that meet tell nothing apart");
        assert_eq!(slowdown(float, None), None);
    }

    #[test]
    fn models_that_take_a_third_of_the_memory_are_timed_by_block() {
        let graph = |rows: usize| {
            let b = Builder::new("model");
            let ty = TensorType::new(DType::F32, [rows, 1 << 20]);
            b.output("y", b.state("w", ty, Init::ZEROS).sum(&[0]));
            b.finish().unwrap()
        };
        let backend = CpuBackend::new(Some(1)).unwrap();
        let mebibytes = (backend.description().memory_bytes >> 20) as usize;
        // Two models, each with what is packed of it: four times the states, of 4 MiB a row.
        let [small, large] = [graph(1), graph(mebibytes / 40)];
        assert!(fit_together(&backend, &[&small, &small]));
        assert!(!fit_together(&backend, &[&large, &large]));
    }
}

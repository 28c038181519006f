//! Times of a form in a session, absolute and as a share of the float model's.

use crate::machine::TimedForms;
use overdrive_bench::statistics::{Sorted, ratio_of_medians};

/// Seed of the intervals of ratios: a decision repeats bit for bit.
const SEED: u64 = 1;

/// The time of a form over that of the first, with the ends of its 95 % interval. The ends say
/// nothing where there are too few samples for one. Those of blocks add up as if all errors had one
/// sign, which is wider than the interval of the sum.
pub(crate) fn share(session: &TimedForms, at: usize) -> Option<[f64; 3]> {
    if at == 0 {
        return Some([1.0; 3]);
    }
    if let [block] = &session.blocks[..] {
        let [float, form] = [0, at].map(|at| block.samples_ns.get(at));
        let (float, form) = (Sorted::new(float?)?, Sorted::new(form?)?);
        return Some(match ratio_of_medians(&form, &float, SEED) {
            Some(ratio) => [ratio.ratio, ratio.interval.low, ratio.interval.high],
            None => [form.median() / float.median(), 0.0, f64::INFINITY],
        });
    }
    let [float, form] = [sum(session, 0)?, sum(session, at)?];
    Some([form[0] / float[0], form[1] / float[2], form[2] / float[1]])
}

/// The median time of a form.
pub(crate) fn median(session: &TimedForms, at: usize) -> Option<f64> {
    Some(sum(session, at)?[0])
}

/// The sum of the medians of all blocks, with the sums of their ends.
fn sum(session: &TimedForms, at: usize) -> Option<[f64; 3]> {
    let mut sum = [0.0; 3];
    for block in &session.blocks {
        let samples = Sorted::new(block.samples_ns.get(at)?)?;
        let ends = samples.median_interval();
        let [low, high] = ends.map_or([0.0, f64::INFINITY], |ends| [ends.low, ends.high]);
        for (sum, one) in sum.iter_mut().zip([samples.median(), low, high]) {
            *sum += block.times as f64 * one;
        }
    }
    Some(sum)
}

//! Compares two forms in the target: which is better, and whether that is certain.

use crate::asked::Target;
use crate::decision::Tried;
use std::cmp::Ordering;

/// Forms by the target.
pub(crate) struct Ranking<'a> {
    pub(crate) target: Target,
    pub(crate) tried: &'a [Tried],
}

impl Ranking<'_> {
    /// The cost of a form under the target; less is better.
    pub(crate) fn cost(&self, at: usize) -> Option<f64> {
        let tried = &self.tried[at];
        match self.target {
            Target::Latency | Target::Throughput => tried.time.map(|time| time[0]),
            Target::Memory => tried.peak_bytes.map(|bytes| bytes as f64),
            Target::Size => tried.bytes.map(|bytes| bytes as f64),
        }
    }

    /// The better form first, of equal ones the one that loses less; what was not measured comes
    /// last.
    pub(crate) fn order(&self, a: usize, b: usize) -> Ordering {
        let by =
            |at: usize| [self.cost(at), self.tried[at].lost()].map(|x| x.unwrap_or(f64::INFINITY));
        let ([cost, lost], [of_other, lost_by_other]) = (by(a), by(b));
        cost.total_cmp(&of_other).then(lost.total_cmp(&lost_by_other))
    }

    /// Clearly no better than float: slower beyond doubt, or not smaller.
    pub(crate) fn is_no_better(&self, at: usize) -> bool {
        if self.target.is_time() {
            return self.tried[at].time.is_some_and(|time| time[1] >= 1.0);
        }
        match (self.cost(at), self.cost(0)) {
            (Some(cost), Some(float)) => cost >= float,
            _ => false,
        }
    }

    /// Clearly better than float.
    pub(crate) fn is_better(&self, at: usize) -> bool {
        if self.target.is_time() {
            return self.tried[at].time.is_some_and(|time| time[2] < 1.0);
        }
        matches!((self.cost(at), self.cost(0)), (Some(cost), Some(float)) if cost < float)
    }

    pub(crate) fn is_clearly_worse(&self, at: usize, than: usize) -> bool {
        if self.target.is_time() {
            let (one, other) = (self.tried[at].time, self.tried[than].time);
            return matches!((one, other), (Some(one), Some(other)) if one[1] > other[2]);
        }
        matches!((self.cost(at), self.cost(than)), (Some(one), Some(other)) if one > other)
    }
}

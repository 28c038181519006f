//! Caches of codes, which hold the keys and values of decoding. They change no weight, so that each
//! is tried beside the best form and beside the float model.
//!
//! Invariant: one that is not clearly better than the form that it stands beside takes no look at
//! the samples that judge from other forms.

use super::Search;
use crate::asked::Target;
use crate::decision::{Fate, Tried};
use crate::machine::{Halt, Stage};

impl Search<'_, '_> {
    /// Tries each cache. The size of the parameters is the same with every one.
    pub(super) fn cache(&mut self) -> Result<(), Halt> {
        if self.asked.target == Target::Size {
            return Ok(());
        }
        let caches = self.asking.caches();
        let kept = (0..self.tried.len()).filter(|&at| self.tried[at].fate == Fate::Kept);
        let best = kept.min_by(|&a, &b| self.ranking().order(a, b));
        let beside: Vec<usize> = best.into_iter().chain([0]).collect();
        let all = beside.len() * caches.len();
        let pairs = beside.iter().flat_map(|than| caches.iter().map(move |codes| (*than, codes)));
        for (nth, (than, codes)) in pairs.enumerate() {
            self.asking.begins(Stage::Caching, [nth + 1, all]);
            let form = self.tried[than].form.with_cache(codes);
            self.tries(Tried::new(form, "", Fate::NotReached), than)?;
        }
        Ok(())
    }
}

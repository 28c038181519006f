//! What `prepare` steps derive from states, and when it is out of date.
//!
//! Each buffer's stamp changes with every write (`Addressed`), so a prepare step is stale exactly
//! when the stamp of a state that it depends on, directly or through another prepare step, is not
//! the one it last saw.

use super::{Place, Plan};

/// A prepare step, and the states that it depends on.
#[derive(Debug)]
struct Derivation {
    step: usize,
    has_run: bool,
    /// Indices of states, each with its stamp when the step last ran.
    sources: Vec<(usize, u64)>,
}

/// The prepare steps of a plan.
#[derive(Debug)]
pub struct Prepared(Vec<Derivation>);

impl Prepared {
    /// `states` are the names behind the indices.
    pub fn new(plan: &Plan, states: &[&str]) -> Self {
        let mut of_slot: Vec<Vec<usize>> = vec![vec![]; plan.slots.len()];
        for (slot, sources) in plan.slots.iter().zip(&mut of_slot) {
            if let Place::State(name) = &slot.place {
                sources.extend(states.iter().position(|state| state == name));
            }
        }
        let mut derivations = Vec::new();
        for (index, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.prepare) {
            let mut sources: Vec<usize> =
                step.reads.iter().flat_map(|slot| of_slot[slot.0 as usize].clone()).collect();
            sources.sort_unstable();
            sources.dedup();
            for slot in &step.writes {
                of_slot[slot.0 as usize].clone_from(&sources);
            }
            let sources = sources.into_iter().map(|state| (state, 0)).collect();
            derivations.push(Derivation { step: index, has_run: false, sources });
        }
        Self(derivations)
    }

    /// Whether step `step`, a prepare step, must run for states with these stamps; if so, it counts
    /// as run.
    pub fn is_stale(&mut self, step: usize, stamps: &[u64]) -> bool {
        let at = self.0.binary_search_by_key(&step, |derivation| derivation.step);
        let derivation = &mut self.0[at.expect("the step is one of the plan's prepare steps")];
        let mut is_stale = !std::mem::replace(&mut derivation.has_run, true);
        for (state, seen) in &mut derivation.sources {
            is_stale |= *seen != stamps[*state];
            *seen = stamps[*state];
        }
        is_stale
    }
}

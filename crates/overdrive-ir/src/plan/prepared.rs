//! The data that `prepare` steps derive from states: when it is out of date, and who shares it.
//!
//! Each buffer's stamp changes with every write (`Addressed`). A prepare step depends on states
//! directly or through another prepare step. It is stale exactly when one of these states no longer
//! has the stamp that the step last saw. Sessions whose states have equal stamps share what was
//! derived from them.

use super::{Plan, SlotPlace};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A prepare step, and the states that it depends on.
#[derive(Debug)]
struct Derivation {
    step: usize,
    has_run: bool,
    /// Indices of states, each with its stamp when the step last ran.
    sources: Vec<(usize, u64)>,
}

/// The prepare steps of a plan, as one session has run them.
#[derive(Debug)]
pub struct Prepared(Vec<Derivation>);

impl Prepared {
    /// `states` are the names behind the indices.
    pub fn new(plan: &Plan, states: &[&str]) -> Self {
        let mut of_slot: Vec<Vec<usize>> = vec![vec![]; plan.slots.len()];
        for (slot, sources) in plan.slots.iter().zip(&mut of_slot) {
            if let SlotPlace::State(name) = &slot.place {
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

    /// Whether any step must run for states with these stamps.
    pub fn is_stale(&self, stamps: &[u64]) -> bool {
        self.0.iter().any(|derivation| derivation.is_stale(stamps))
    }

    /// Whether step `step`, a prepare step, must run for states with these stamps; if so, it counts
    /// as run.
    pub fn must_run(&mut self, step: usize, stamps: &[u64]) -> bool {
        let at = self.0.binary_search_by_key(&step, |derivation| derivation.step);
        let derivation = &mut self.0[at.expect("the step is one of the plan's prepare steps")];
        let is_stale = derivation.is_stale(stamps);
        derivation.has_seen(stamps);
        is_stale
    }

    /// Makes `memory` what the steps derive from states with these stamps, as far as that needs no
    /// step to run. If another session has derived from the same states, `memory` becomes that
    /// session's. Otherwise it stays, or `anew` replaces it where another session still reads it.
    /// Call [`Deriving::publish`] on the result once the stale steps have run.
    ///
    /// # Errors
    /// Those of `anew`.
    pub fn share<'d, B, E>(
        &mut self,
        derived: &'d Derived<B>,
        memory: &mut Arc<B>,
        stamps: &[u64],
        anew: impl FnOnce() -> Result<B, E>,
    ) -> Result<Option<Deriving<'d, B>>, E> {
        if !self.is_stale(stamps) {
            return Ok(None);
        }
        let mut latest = derived.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = self.0.iter().flat_map(|derivation| &derivation.sources);
        let key: Vec<u64> = sources.map(|&(state, _)| stamps[state]).collect();
        let known = latest.memory.upgrade().filter(|_| latest.key == key);
        if let Some(known) = known {
            *memory = known;
            self.0.iter_mut().for_each(|derivation| derivation.has_seen(stamps));
            return Ok(None);
        }
        if Arc::strong_count(memory) > 1 {
            *memory = Arc::new(anew()?);
            self.0.iter_mut().for_each(|derivation| derivation.has_run = false);
        }
        // Nobody finds what is about to change.
        *latest = Latest { key, memory: Weak::new() };
        Ok(Some(Deriving(latest)))
    }
}

impl Derivation {
    fn is_stale(&self, stamps: &[u64]) -> bool {
        !self.has_run || self.sources.iter().any(|&(state, seen)| seen != stamps[state])
    }

    fn has_seen(&mut self, stamps: &[u64]) {
        self.has_run = true;
        self.sources.iter_mut().for_each(|(state, seen)| *seen = stamps[*state]);
    }
}

/// The data that the prepare steps of an executable last derived, for sessions with the same states
/// to find.
#[derive(Debug)]
pub struct Derived<B>(Mutex<Latest<B>>);

#[derive(Debug)]
struct Latest<B> {
    /// Stamps of the states that it was derived from.
    key: Vec<u64>,
    memory: Weak<B>,
}

impl<B> Default for Derived<B> {
    fn default() -> Self {
        Self(Mutex::new(Latest { key: vec![], memory: Weak::new() }))
    }
}

/// A session is deriving; others that would do the same wait.
#[must_use = "others wait as long as it lives"]
pub struct Deriving<'d, B>(MutexGuard<'d, Latest<B>>);

impl<B> Deriving<'_, B> {
    /// Lets others find what was derived.
    pub fn publish(mut self, memory: &Arc<B>) {
        self.0.memory = Arc::downgrade(memory);
    }
}

//! How far a search is where forms are chosen.

use crate::decision::{Fate, Tried};

/// The place of the form that is judged next, and how many there are. Fewer are judged if formats
/// are beaten.
pub(crate) fn in_choosing(tried: &[Tried]) -> [usize; 2] {
    let modes = || tried[1..].iter().filter(|tried| !tried.format.is_empty());
    let done = modes().filter(|tried| tried.chosen_by.is_some()).count();
    let waits = |tried: &&Tried| tried.fate == Fate::NotReached && tried.time.is_some();
    [done + 1, done + modes().filter(waits).count()]
}

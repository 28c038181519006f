//! How a memory limit changed a plan, in a sentence.

use overdrive::bench::digits;
use overdrive::ir::Plan;
use overdrive::ir::plan::{Note, Space};

/// The memory of the plan, how the limit was met, and the expected cost; `None` if the limit
/// changed nothing.
pub(crate) fn told(plan: &Plan) -> Option<String> {
    let limited = plan.limited?;
    let count = |matches: fn(&Note) -> bool| plan.notes.iter().filter(|note| matches(note)).count();
    let again = count(Note::is_recomputed_for_memory);
    let values = count(|note| matches!(note, Note::Offloaded { scope, .. } if !scope.is_empty()));
    let there = count(|note| matches!(note, Note::RunsThere { .. }));
    let done = [
        (again, "values are computed again"),
        (plan.offloaded.len(), "states wait in other memory between steps"),
        (there, "updates run there beside the others"),
        (values, "values wait there for the backward"),
    ];
    let rows = count(|note| matches!(note, Note::ByRows { .. })) > 0;
    let rows = rows.then(|| "logits are made some rows at a time".to_owned());
    let counted = done.iter().filter(|(count, _)| *count > 0);
    let counted = counted.map(|(count, what)| format!("{count} {what}"));
    let done: Vec<String> = rows.into_iter().chain(counted).collect();
    let done = if done.is_empty() { String::new() } else { done.join(", ") + "; " };
    Some(format!(
        "to fit the limit, {done}a step takes {} instead of {}, and an estimated {:.0} % more time",
        digits::bytes(plan.peak_bytes(Space::MAIN)),
        digits::bytes(limited.free_bytes),
        100.0 * (limited.seconds / limited.free_seconds - 1.0).max(0.0),
    ))
}

//! How a search ends if no form passed.

use crate::Form;
use crate::decision::{Fate, Outcome, Tried};
use crate::gate::Verdict;
use crate::ranking::Ranking;

/// No form passed, or none is better than float.
pub(crate) fn without_pass(ranking: &Ranking<'_>) -> (Outcome, Option<Form>) {
    let tried = ranking.tried;
    let is_undecided = |at: &usize| tried[*at].fate == Fate::Judged(Verdict::Undecided);
    let undecided = (0..tried.len()).filter(is_undecided);
    if let Some(best) = undecided.min_by(|&a, &b| ranking.order(a, b)) {
        return (Outcome::Undecided, Some(tried[best].form.clone()));
    }
    let loses =
        |tried: &&Tried| matches!(tried.fate, Fate::LosesTooMuch | Fate::Judged(Verdict::Fail));
    let nearest = tried.iter().filter(loses);
    let nearest = nearest.min_by(|a, b| lost(a).total_cmp(&lost(b)));
    // If a form of a format was judged, the others of it lose more.
    let is_judged =
        |format: &str| tried.iter().any(|tried| tried.format == format && tried.judged.is_some());
    let is_open = |at: usize| {
        let Tried { fate, format, .. } = &tried[at];
        let open = matches!(fate, Fate::NotReached | Fate::Kept | Fate::Beaten(_));
        open && (format.is_empty() || !is_judged(format)) && !ranking.is_no_better(at)
    };
    if (0..tried.len()).any(is_open) {
        return (Outcome::Undecided, None);
    }
    match nearest {
        Some(nearest) => (Outcome::NoneWithin, Some(nearest.form.clone())),
        None if all_declined(tried) => (Outcome::AllDeclined, None),
        None => (Outcome::KeepFloat, Some(Form::float())),
    }
}

/// The result of an interrupted search: it takes nothing that was not judged.
pub(crate) fn best_so_far(ranking: &Ranking<'_>) -> (Outcome, Option<Form>) {
    let kept = (0..ranking.tried.len()).filter(|&at| ranking.tried[at].fate == Fate::Kept);
    let best = kept.min_by(|&a, &b| ranking.order(a, b));
    (Outcome::Unfinished, best.map(|at| ranking.tried[at].form.clone()))
}

/// The loss that is known of a form; of one of which nothing is known, the largest.
pub(crate) fn lost(tried: &Tried) -> f64 {
    tried.lost().unwrap_or(f64::INFINITY)
}

/// Whether there are forms beside the float model, and none of them can be had.
fn all_declined(tried: &[Tried]) -> bool {
    let declined = |tried: &Tried| matches!(tried.fate, Fate::Declined(_));
    tried.len() > 1 && tried[1..].iter().all(declined)
}

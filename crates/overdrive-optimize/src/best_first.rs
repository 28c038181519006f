//! Everything that was tried, the best first: the rows of a decision matrix.

use crate::Target;
use crate::decision::{Decision, Fate, Tried};
use crate::gate::Verdict;
use crate::ranking::Ranking;

/// All forms, the one to deploy first. Then come those that may be deployed, the float model, and
/// those that may not. Forms of one kind stand in the order of the target.
pub fn best_first(decision: &Decision, target: Target) -> Vec<&Tried> {
    let ranking = Ranking { target, tried: &decision.tried };
    let mut order: Vec<usize> = (0..decision.tried.len()).collect();
    order.sort_by(|&a, &b| {
        let place = |at: usize| place(&decision.tried[at].fate);
        place(a).cmp(&place(b)).then_with(|| ranking.order(a, b))
    });
    order.into_iter().map(|at| &decision.tried[at]).collect()
}

fn place(fate: &Fate) -> usize {
    match fate {
        Fate::Taken => 0,
        Fate::Judged(Verdict::Pass | Verdict::Undecided) | Fate::Kept => 1,
        Fate::Beaten(_) => 2,
        Fate::Brought | Fate::Beside => 3,
        Fate::NoBetterThanFloat | Fate::NoBetterThan(_) => 4,
        Fate::LosesTooMuch | Fate::Judged(Verdict::Fail) => 5,
        Fate::NotReached => 6,
        Fate::Declined(_) => 7,
    }
}

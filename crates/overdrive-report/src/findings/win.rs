//! "The fastest is that": the best of the candidates of each workload, put together by who won.

use std::collections::BTreeMap;

use super::super::judged::JudgedRow;
use super::finding::{Finding, Topic};
use super::grouped::{SHOWN, counted};

/// The best of several on one workload.
pub(super) struct Win<'j, 'r> {
    /// Who.
    pub(super) winner: &'j JudgedRow<'r>,
    /// Among whom; the winner is one of them.
    pub(super) candidates: Vec<&'j JudgedRow<'r>>,
    /// With which figure: `1.01 ms, fastest of 3`.
    pub(super) figure: String,
    /// The larger, the earlier it is named.
    pub(super) weight: f64,
}

/// The first of the smallest by `amount`.
pub(super) fn least<'j, 'r>(
    candidates: &[&'j JudgedRow<'r>],
    amount: impl Fn(&JudgedRow<'r>) -> f64,
) -> &'j JudgedRow<'r> {
    let least = candidates.iter().min_by(|a, b| amount(a).total_cmp(&amount(b)));
    least.expect("there are candidates")
}

/// A sentence for each study and winning configuration.
pub(super) fn sentences(topic: Topic, purpose: &str, wins: Vec<Win<'_, '_>>) -> Vec<Finding> {
    let mut by_winner: BTreeMap<(String, String), Vec<Win<'_, '_>>> = BTreeMap::new();
    for win in wins {
        let case = &win.winner.record.case;
        by_winner.entry((case.study.clone(), win.winner.label.clone())).or_default().push(win);
    }
    let sentence = |((study, configuration), mut wins): ((String, String), Vec<Win<'_, '_>>)| {
        wins.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let shown: Vec<String> = wins
            .iter()
            .take(SHOWN)
            .map(|win| format!("on `{}` {}", win.winner.record.case.workload, win.figure))
            .collect();
        let hidden: usize = wins.iter().skip(SHOWN).map(|win| win.candidates.len()).sum();
        let more = match wins.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!("; and on {} ({hidden} figures)", counted(more, "more workload")),
        };
        let text = format!("{study}: {purpose} `{configuration}`: {}{more}.", shown.join("; "));
        Finding::new(topic, text, wins.iter().flat_map(|win| win.candidates.iter().copied()))
    };
    by_winner.into_iter().map(sentence).collect()
}

//! Findings: the records in words. They recommend back end, mode and precision for each purpose,
//! and say what not to believe.
//!
//! A finding is derived by a rule and names the records that it rests on. Tests hold every rule to
//! one invariant: these records alone give the same sentence, and without any one of them it
//! disappears. Every ratio is a [`Speedup`](overdrive_bench::speedup::Speedup). A recommendation
//! rests on exact counts, or on figures whose intervals decide and whose samples have no warnings.
//! Energy has no interval and is never recommended.

mod doubts;
mod finding;
mod grouped;
mod latency;
mod launch_bound;
mod least_memory;
mod not_compressed;
mod quality;
mod regressed;
mod slower;
mod stopped;
#[cfg(test)]
mod tests;
mod throughput;
mod win;

pub use finding::{Finding, Topic};
pub(super) use grouped::named;
pub(super) use quality::FILE_BYTES;

use super::judged::JudgedResults;
use overdrive_bench::results::Results;

/// Findings that a report shows at once; the others are a drawer away.
const IN_SIGHT: usize = 5;

/// Topics in order of importance to a reader. The cards of a report name the winners, so wrong
/// outputs and doubts about figures come first here.
const ALARM: [Topic; 12] = [
    Topic::Incorrect,
    Topic::Regressed,
    Topic::QualityLost,
    Topic::NotCompressed,
    Topic::Doubt,
    Topic::Stopped,
    Topic::Slower,
    Topic::LaunchBound,
    Topic::Latency,
    Topic::Quality,
    Topic::Memory,
    Topic::Throughput,
];

/// Those that speak against a figure.
pub(super) const AGAINST: &[Topic] = ALARM.split_at(8).0;

/// One kind of finding.
type FindingRule = fn(&JudgedResults<'_>) -> Vec<Finding>;

/// Every rule, in the order of the topics.
const RULES: [FindingRule; 11] = [
    stopped::incorrect,
    latency::rule,
    throughput::rule,
    least_memory::rule,
    quality::rule,
    not_compressed::rule,
    regressed::rule,
    slower::rule,
    launch_bound::rule,
    doubts::rule,
    stopped::rule,
];

/// Everything that the records say.
pub fn findings(results: &Results) -> Vec<Finding> {
    of(&JudgedResults::new(results))
}

/// The same of results whose comparisons are known.
pub(super) fn of(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let origin = if judged.results.imported.is_some() { "imported, " } else { "" };
    let found = RULES.iter().flat_map(|rule| rule(judged));
    found
        .map(|finding| Finding { sentence: format!("{origin}{}", finding.sentence), ..finding })
        .collect()
}

/// The findings to show at once, one of each topic before a second of any, and all others in their
/// order.
pub(super) fn in_sight(findings: &[Finding]) -> (Vec<&Finding>, Vec<&Finding>) {
    let rank = |(at, finding): &(usize, &Finding)| {
        let earlier = findings[..*at].iter().filter(|other| other.topic == finding.topic).count();
        (earlier, ALARM.iter().position(|topic| *topic == finding.topic))
    };
    let mut ranked: Vec<(usize, &Finding)> = findings.iter().enumerate().collect();
    ranked.sort_by_key(rank);
    let mut rest = ranked.split_off(ranked.len().min(IN_SIGHT));
    rest.sort_by_key(|(at, _)| *at);
    let bare = |(_, finding)| finding;
    (ranked.into_iter().map(bare).collect(), rest.into_iter().map(bare).collect())
}

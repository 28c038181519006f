//! Variants that are slower than what they were compared with.

use super::super::judged::{JudgedResults, JudgedRow};
use super::finding::{Finding, Topic};
use super::grouped::{by, listed};

/// Ratios whose interval lies below 1, put together by the two configurations; the slowest first.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let groups = by(judged, |row| {
        let gain = row.speedup().filter(|gain| gain.interval().high < 1.0)?;
        let baseline = judged.find(gain.baseline())?;
        let case = &row.record.case;
        let over = baseline.label.clone();
        Some((case.study.clone(), row.label.clone(), over))
    });
    let sentence =
        |((study, variant, over), mut rows): ((String, String, String), Vec<&JudgedRow<'_>>)| {
            let ratio = |row: &JudgedRow<'_>| row.speedup().map_or(1.0, |gain| gain.ratio());
            rows.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
            let said = |row: &&JudgedRow<'_>| {
                let gain = row.speedup().map(ToString::to_string).unwrap_or_default();
                format!("on `{}` {gain}", row.record.case.workload)
            };
            let items: Vec<String> = rows.iter().map(said).collect();
            let text = format!("{study}: `{variant}` is slower than `{over}`: {}.", listed(&items));
            let baselines =
                rows.iter().filter_map(|row| judged.find(row.record.baseline.as_deref()?));
            Finding::new(Topic::Slower, text, rows.iter().copied().chain(baselines))
        };
    groups.into_iter().map(sentence).collect()
}

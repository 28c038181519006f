//! Compressed models that are not smaller.

use super::super::judged::JudgedResults;
use super::finding::{Finding, Topic};
use super::quality::{FILE_BYTES, quantity};

/// Every file that is as large as the one of its baseline, or larger.
pub(super) fn rule(judged: &JudgedResults<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for row in &judged.rows {
        let baseline = row.record.baseline.as_deref().and_then(|id| judged.find(id));
        let Some((baseline, bytes)) = baseline.zip(quantity(row, FILE_BYTES)) else { continue };
        let Some(original) = quantity(baseline, FILE_BYTES).filter(|&original| bytes >= original)
        else {
            continue;
        };
        let case = &row.record.case;
        let sentence = format!(
            "{}: `{}` is not compressed on `{}`: {bytes} B against {original} B of `{}`.",
            case.study, row.label, case.workload, baseline.label
        );
        found.push(Finding::new(Topic::NotCompressed, sentence, [row, baseline]));
    }
    found
}

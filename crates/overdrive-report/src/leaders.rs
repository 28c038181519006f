//! Who may be recommended: figures whose samples are believed, and differences that an interval
//! decides.

use super::judged::{JudgedResults, JudgedRow};
use overdrive_bench::integrity::physics;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::runner::SUSPECT_RATIO;
use overdrive_bench::series::Series;
use overdrive_bench::speedup::{NoClaim, Reason, Speedup};

/// The first of several, and who cannot be told from it.
pub(super) struct Lead<'j, 'r> {
    pub(super) winner: &'j JudgedRow<'r>,
    /// Those whose difference to the winner no interval decides.
    pub(super) alike: Vec<&'j JudgedRow<'r>>,
}

/// The latency of a row that may be recommended: outputs agree, nothing speaks against the samples,
/// and the machine can be so fast.
pub(super) fn believed<'r>(
    judged: &JudgedResults<'r>,
    row: &JudgedRow<'r>,
) -> Option<(&'r Measurement, &'r Series)> {
    let measurement = row.measurement()?;
    let agrees = measurement.agreement.as_ref().is_some_and(|agreement| agreement.holds());
    let series = measurement.latency.as_ref()?;
    let is_possible =
        physics::exceeded(&judged.results.environment, &row.record.case, measurement).is_none();
    (agrees && is_possible && measurement.blocks().next().is_none())
        .then_some((measurement, series))
}

/// The soonest among believed rows of one workload and clock, where it beats at least one of the
/// others.
pub(super) fn fastest<'j, 'r>(candidates: &[&'j JudgedRow<'r>]) -> Option<Lead<'j, 'r>> {
    let winner = *candidates.iter().min_by(|a, b| median_ns(a).total_cmp(&median_ns(b)))?;
    if row_is_suspect(winner) {
        return None;
    }
    let mut alike = Vec::new();
    for other in candidates.iter().filter(|row| row.id != winner.id) {
        match Speedup::between(other.record, winner.record) {
            Ok(gain) if gain.interval().low > 1.0 => {}
            Err(refused) if is_suspect(&refused) => return None,
            _ => alike.push(*other),
        }
    }
    (alike.len() + 1 < candidates.len()).then_some(Lead { winner, alike })
}

/// The row with the highest throughput, if its interval is above that of at least one of the
/// others.
pub(super) fn busiest<'j, 'r>(candidates: &[&'j JudgedRow<'r>]) -> Option<Lead<'j, 'r>> {
    let winner = *candidates.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    let too_good = |other: &&&JudgedRow<'r>| {
        let is_far = median_ns(other) > SUSPECT_RATIO * median_ns(winner);
        is_far
            && Speedup::between(other.record, winner.record)
                .is_err_and(|refused| is_suspect(&refused))
    };
    if row_is_suspect(winner) || candidates.iter().any(|other| too_good(&other)) {
        return None;
    }
    let interval = |row: &JudgedRow<'_>| row.measurement()?.throughput()?.interval;
    let (low, _) = interval(winner)?;
    let is_beaten = |other: &JudgedRow<'_>| interval(other).is_some_and(|(_, high)| high < low);
    let others = candidates.iter().copied().filter(|row| row.id != winner.id);
    let alike: Vec<_> = others.filter(|other| !is_beaten(other)).collect();
    (alike.len() + 1 < candidates.len()).then_some(Lead { winner, alike })
}

impl Lead<'_, '_> {
    /// `, not told apart from ...`, or nothing.
    pub(super) fn doubt(&self) -> String {
        let names: Vec<String> = self.alike.iter().map(|row| format!("`{}`", row.label)).collect();
        match names.as_slice() {
            [] => String::new(),
            [.., _] if names.len() > 3 => format!(", not told apart from {} others", names.len()),
            some => format!(", not told apart from {}", some.join(", ")),
        }
    }
}

/// Whether the comparison that was asked for was refused because it looked too good.
fn row_is_suspect(row: &JudgedRow<'_>) -> bool {
    row.gain.as_ref().is_some_and(|gain| gain.as_ref().is_err_and(is_suspect))
}

fn is_suspect(refused: &NoClaim) -> bool {
    refused.reasons.iter().any(|reason| matches!(reason, Reason::Suspect { .. }))
}

fn median_ns(row: &JudgedRow<'_>) -> f64 {
    let latency = row.measurement().and_then(|measurement| measurement.latency.as_ref());
    latency.map_or(f64::INFINITY, |series| series.summary.median_ns)
}

fn rate(row: &JudgedRow<'_>) -> f64 {
    row.measurement().and_then(Measurement::throughput).map_or(0.0, |rate| rate.per_second)
}

//! The facts that the subjects of one session have in common, and those that all sessions of a run
//! have.

use std::collections::BTreeMap;

use super::inconsistency::Inconsistency;
use super::timing::Turns;
use crate::record::Record;
use crate::results::Results;
use crate::series::Series;

/// Checks sessions of version 1: a record and its baseline alternated in the same rounds.
fn check_pairs(timed: &[(&Record, &Series)]) -> Result<(), Inconsistency> {
    let by_id: BTreeMap<String, &Series> =
        timed.iter().map(|(record, series)| (record.case.id(), *series)).collect();
    let rounds = |series: &Series| {
        (Turns::of(&series.samples).map(|turns| turns.subjects), series.samples.len())
    };
    for (record, series) in timed {
        let Some(baseline) = record.baseline.as_ref().and_then(|id| by_id.get(id)) else {
            continue;
        };
        let is_known = |series: &Series| series.conditions.session.is_some();
        if !is_known(series) && !is_known(baseline) && rounds(series) != rounds(baseline) {
            let why = "it was not sampled in the same rounds as the case that it is compared with"
                .to_owned();
            return Err(Inconsistency::Contradiction { case: record.case.id(), why });
        }
    }
    Ok(())
}

/// Sessions have one clock, and within one every subject has a place of its own in the same rounds,
/// so that every index occurs once.
pub(super) fn check(results: &Results) -> Result<(), Inconsistency> {
    let timed = results.records.iter().filter_map(|record| {
        let series = record.outcome.measurement()?.latency.as_ref()?;
        Some((record, series))
    });
    let timed: Vec<(&Record, &Series)> = timed.collect();
    check_pairs(&timed)?;
    let clock = |series: &Series| series.conditions.timer.clock.clone();
    let mut sessions: BTreeMap<u64, Vec<&(&Record, &Series)>> = BTreeMap::new();
    for entry in &timed {
        let (record, series) = entry;
        if clock(series) != clock(timed[0].1) {
            let why = format!(
                "it was timed by {}, the first record by {}",
                clock(series),
                clock(timed[0].1)
            );
            return Err(Inconsistency::Contradiction { case: record.case.id(), why });
        }
        if let Some(session) = &series.conditions.session {
            sessions.entry(session.began_ns).or_default().push(entry);
        }
    }
    for entries in sessions.values() {
        let mut last: u64 = 0;
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for (at, (record, series)) in entries.iter().enumerate() {
            let differs = |why: &str| Inconsistency::Contradiction {
                case: record.case.id(),
                why: why.to_owned(),
            };
            let session = |series: &Series| {
                let session = series.conditions.session.as_ref();
                session.map(|session| (session.span_ns, session.subjects, session.rounds))
            };
            if session(series) != session(entries[0].1) {
                return Err(differs("it tells of its session what the others in it do not"));
            }
            let place = |series: &Series| Turns::of(&series.samples).map(|turns| turns.place);
            let is_taken = entries[..at].iter().any(|(_, other)| place(other) == place(series));
            if is_taken && place(series).is_some() {
                return Err(differs("another subject of its session has the same samples' places"));
            }
            spans.extend(
                series.samples.iter().filter_map(|sample| sample.start_ns.zip(sample.end_ns)),
            );
        }
        spans.sort_unstable();
        for (start, end) in spans {
            if start < last {
                let (case, why) =
                    (entries[0].0.case.id(), "samples of its session overlap".to_owned());
                return Err(Inconsistency::Contradiction { case, why });
            }
            last = end;
        }
    }
    Ok(())
}

//! The search over the user's machine, with how many samples judge and what they can show.
//!
//! Invariant: decision.json is written after every answer, so that no measurement is lost.

use super::advice::CanJudge;
use super::evidence::{Evidence, NAME};
use super::machine::OwnMachine;
use crate::failure::Failure;
use crate::terminal::note;
use overdrive::files::Place;
use overdrive::optimize::{Asking, Decision, Record, search, sized};
use std::rc::Rc;

/// Searches; keeps the record after every answer. So many samples judge at least and at most.
pub(super) fn searched(
    machine: &mut OwnMachine<'_>,
    evidence: &mut Evidence,
    place: &Place,
    range: [u64; 2],
) -> Result<Decision, Failure> {
    let (asked, record) = (evidence.asked, std::mem::take(&mut evidence.record));
    let (underway, judged) = (machine.underway, Rc::clone(&machine.judged));
    let size = |evidence: &mut Evidence, record: &Record| {
        let number = sized(record, &asked, evidence.judged, range);
        judged.set(number);
        evidence.judged = Some(number);
    };
    size(evidence, &record);
    let (mut failed, mut is_told) = (None, false);
    let (decision, record) = {
        let mut keep = |record: &Record| {
            evidence.record.clone_from(record);
            size(evidence, record);
            if !is_told && let Some(text) = (CanJudge { evidence, range }).after_pilot(record) {
                is_told = true;
                underway.aside(|| note!("note: {text}"));
            }
            let kept = evidence
                .to_json()
                .and_then(|text| place.put(NAME, text.as_bytes()).map_err(Failure::harness));
            failed = failed.take().or(kept.err());
        };
        let mut asking = Asking::of(machine, record, &mut keep);
        let decision = search(&mut asking, &asked);
        let record = asking.record().clone();
        (decision, record)
    };
    evidence.record = record;
    failed.map_or(Ok(decision), Err)
}

//! How many samples judge, by what the forms that are to be judged need.
//!
//! Invariant: the number is a function of the record and the request. Scores of samples that judge
//! are never looked at for it, so that no verdict is sought by judging on more and more samples.

use crate::Form;
use crate::asked::Asked;
use crate::gate::FEWEST;
use crate::machine::{Care, Part};
use crate::paired::flips;
use crate::record::Record;
use overdrive_studies::quantization::Metric;

/// Judging samples for each one that would be enough, if those that choose show all there is.
const MARGIN: u64 = 2;

/// How many samples judge, of which there are so many at least and at most.
///
/// Forms of the last session that decides are sized up by their scores where forms are chosen. If
/// there is none yet, every form that has such scores counts. If no number would decide on one of
/// them, all samples judge. Once the float model has been judged, the number stays `before`.
pub fn sized(record: &Record, asked: &Asked, before: Option<u64>, [least, most]: [u64; 2]) -> u64 {
    let float = Form::float().name;
    if let (Some(before), Some(_)) = (before, record.scores_of(&float, Part::Judging)) {
        return before;
    }
    let (gate, float) = (asked.gate(), record.scores_of(&float, Part::Choosing));
    let is_of_answers = match &float {
        Some(float) => flips(asked.metric, float, float).is_some(),
        None => asked.metric == Metric::Top1,
    };
    let fewest = if is_of_answers { gate.fewest_answers() } else { Some(FEWEST as u64) };
    let mut needed = fewest.unwrap_or(most);
    if let Some(float) = float {
        for found in forms(record).filter_map(|form| record.scores_of(form, Part::Choosing)) {
            let enough = gate.samples_to_decide(asked.metric, &float, &found);
            needed = needed.max(enough.unwrap_or(most));
        }
    }
    needed.saturating_mul(MARGIN).clamp(least.min(most), most)
}

/// Names of the forms that are to be judged.
fn forms(record: &Record) -> impl Iterator<Item = &String> {
    let decides = |care: Care| care == Care::Deciding;
    let session = record.sessions.iter().rfind(|session| decides(session.care));
    let is_meant = move |name: &str| match session {
        Some(session) => session.forms.iter().any(|form| form == name),
        None => true,
    };
    let float = Form::float().name;
    record.scores.keys().filter(move |name| **name != float && is_meant(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kept;
    use crate::asked::{Effort, Target};
    use crate::machine::TimedForms;
    use std::collections::BTreeMap;

    const ASKED: Asked = Asked {
        target: Target::Size,
        decode: None,
        metric: Metric::Top1,
        limit: 0.5,
        error: 0.001,
        effort: Effort::Quick,
    };

    /// The float model is always right; others are wrong once in so many answers.
    fn record(forms: &[(&str, usize)]) -> Record {
        let mut record = Record::default();
        for (name, every) in [("float", usize::MAX)].iter().chain(forms) {
            let scores = (1..=1_000).map(|i| if i % every == 0 { 0.0 } else { 100.0 }).collect();
            let scores = BTreeMap::from([(Part::Choosing, Kept(scores))]);
            record.scores.insert((*name).to_owned(), scores);
        }
        record
    }

    #[test]
    fn a_limit_alone_asks_for_twice_what_passes_without_a_change() {
        let fewest = ASKED.gate().fewest_answers().unwrap();
        assert!((2_200..2_400).contains(&fewest), "{fewest}");
        assert_eq!(sized(&Record::default(), &ASKED, None, [100, 100_000]), 2 * fewest);
        assert_eq!(sized(&Record::default(), &ASKED, None, [100, 1_000]), 1_000);
        assert_eq!(sized(&Record::default(), &ASKED, None, [9_000, 100_000]), 9_000);
        let never = Asked { limit: 0.0, ..ASKED };
        assert_eq!(sized(&Record::default(), &never, None, [100, 7_000]), 7_000);
    }

    #[test]
    fn forms_that_are_to_be_judged_ask_for_what_decides() {
        let of = |forms: &[(&str, usize)]| sized(&record(forms), &ASKED, None, [1, 1_000_000]);
        let [few, many] = [1_000, 250].map(|every| of(&[("a", every)]));
        assert!(few < many && many < 1_000_000, "{few} {many}");
        // A loss at the limit is told from it by no number.
        assert_eq!(of(&[("a", 200)]), 1_000_000);
        // A form that is not in the session that decides is not judged.
        let mut timed = record(&[("a", 1_000), ("b", 200)]);
        let forms = ["float", "a", "another engine"].map(str::to_owned).to_vec();
        let (blocks, peak_bytes) = (Vec::new(), Vec::new());
        timed.sessions.push(TimedForms { forms, care: Care::Deciding, blocks, peak_bytes });
        assert_eq!(sized(&timed, &ASKED, None, [1, 1_000_000]), few);
    }

    #[test]
    fn what_judged_once_judges_again() {
        let mut known = record(&[("a", 250)]);
        assert_ne!(sized(&known, &ASKED, Some(1_234), [1, 1_000_000]), 1_234);
        let judged = known.scores.get_mut("float").unwrap();
        judged.insert(Part::Judging, Kept(vec![100.0; 1_234]));
        assert_eq!(sized(&known, &ASKED, Some(1_234), [1, 1_000_000]), 1_234);
    }
}

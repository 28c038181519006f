//! Two files of results side by side. Of one machine, each case gets its ratio in the words of any speed-up; of
//! two machines the figures are shown and never judged.
//!
//! Two files are two sessions: whatever the machine did between them is in every ratio, which therefore is no
//! verdict on the programs. That is what [`gate`](crate::gate) is for.

use serde::Serialize;

use crate::digits;
use crate::hardware::Hardware;
use crate::record::Record;
use crate::report::{Align, Table, cell, terminal_table};
use crate::results::Results;
use crate::speedup::{NoClaim, Speedup};

/// Two results, case by case.
#[derive(Debug)]
pub struct Comparison<'r> {
    /// In what the machines differ; empty if, by all that is recorded, they are one.
    pub differences: Vec<String>,
    /// What to know of the two before believing a ratio.
    pub notes: Vec<String>,
    /// Every case of either, in the order of the first and then of the second.
    pub rows: Vec<Row<'r>>,
}

/// One case.
#[derive(Debug)]
pub struct Row<'r> {
    /// Its id.
    pub case: String,
    /// Its records in both.
    pub sides: [Option<&'r Record>; 2],
    /// How much faster the second is, on one machine and where both have it.
    pub gain: Option<Result<Speedup, NoClaim>>,
}

/// Compares `second` with `first`.
pub fn compare<'r>(first: &'r Results, second: &'r Results) -> Comparison<'r> {
    let hardware = [first, second].map(|results| Hardware::of(&results.environment));
    let differences = hardware[0].differences(&hardware[1]);
    let mut cases: Vec<String> = first.records.iter().map(|record| record.case.id()).collect();
    let more =
        second.records.iter().map(|record| record.case.id()).filter(|case| first.record(case).is_none());
    cases.extend(more);
    let row = |case: String| {
        let sides = [first.record(&case), second.record(&case)];
        let gain = match sides {
            [Some(old), Some(new)] if differences.is_empty() => Some(Speedup::between(old, new)),
            _ => None,
        };
        Row { case, sides, gain }
    };
    let mut notes = Vec::new();
    if hardware[0].toolchain != hardware[1].toolchain {
        notes.push(format!("built differently: {} and {}", hardware[0].toolchain, hardware[1].toolchain));
    }
    let loads = [first, second].map(|results| results.environment.load_average);
    if let [Some(old), Some(new)] = loads
        && (old.max(new) > 0.5)
    {
        notes.push(format!("load was {old:.2} and {new:.2} when the runs began"));
    }
    Comparison { rows: cases.into_iter().map(row).collect(), notes, differences }
}

/// A comparison as JSON.
#[derive(Debug, Serialize)]
struct Line<'c> {
    case: &'c str,
    median_ns: [Option<f64>; 2],
    speedup: Option<&'c Speedup>,
    no_claim: Option<String>,
}

impl Comparison<'_> {
    /// Whether any case is in both.
    pub fn has_common_cases(&self) -> bool {
        self.rows.iter().any(|row| row.sides.iter().all(Option::is_some))
    }

    /// What kind of comparison it is, said above the figures.
    pub fn headline(&self) -> String {
        if self.differences.is_empty() {
            return "One machine, two sessions: ratios are measured, and what the machine did between the sessions is in \
                    them. `overdrive regress` decides."
                .to_owned();
        }
        format!("Different machines, shown and not judged: {}", self.differences.join("; "))
    }

    /// For a terminal, in lines of at most `width` characters where the cells can be wrapped so far.
    pub fn terminal(&self, width: u16) -> String {
        let mut text = format!("{}\n\n{}\n", self.headline(), terminal_table(&self.table(), width));
        for (case, reason) in self.refusals() {
            text += &format!("  {case}: no claim: {reason}\n");
        }
        for note in &self.notes {
            text += &format!("Beware: {note}\n");
        }
        text
    }

    /// As JSON, for scripts.
    pub fn json(&self) -> serde_json::Value {
        let refused: Vec<(&str, String)> = self.refusals().collect();
        let line = |row: &Row<'_>| {
            let no_claim =
                refused.iter().find(|(case, _)| *case == row.case).map(|(_, reason)| reason.clone());
            let speedup = row.gain.as_ref().and_then(|gain| gain.as_ref().ok());
            let line = Line {
                case: &row.case,
                median_ns: row.sides.map(|side| median_ns(side?)),
                speedup,
                no_claim,
            };
            serde_json::to_value(line).expect("a line is plain data")
        };
        serde_json::json!({
            "differences": self.differences,
            "notes": self.notes,
            "cases": self.rows.iter().map(line).collect::<Vec<_>>(),
        })
    }

    fn refusals(&self) -> impl Iterator<Item = (&str, String)> {
        self.rows.iter().filter_map(|row| {
            let refused = row.gain.as_ref()?.as_ref().err()?;
            // A case without a figure says why in its cell.
            row.sides.iter().flatten().all(|record| record.outcome.measurement().is_some()).then(|| {
                let reasons: Vec<String> = refused.reasons.iter().map(ToString::to_string).collect();
                (row.case.as_str(), reasons.join("; "))
            })
        })
    }

    fn table(&self) -> Table {
        let titles =
            [("Case", Align::Left), ("A", Align::Right), ("B", Align::Right), ("A over B", Align::Left)];
        let mut table = Table::new(&titles);
        for row in &self.rows {
            let gain = match &row.gain {
                Some(Ok(gain)) => Some(gain.to_string()),
                Some(Err(_)) => Some("no claim".to_owned()),
                None => None,
            };
            let [first, second] = row.sides.map(figure);
            table.push(vec![row.case.clone(), first, second, cell(gain)]);
        }
        table.without_unknown_columns()
    }
}

fn median_ns(record: &Record) -> Option<f64> {
    Some(record.outcome.measurement()?.latency.as_ref()?.summary.median_ns)
}

/// A side's time with its interval, or why it has none.
fn figure(record: Option<&Record>) -> String {
    let Some(record) = record else { return "not there".to_owned() };
    match (record.outcome.failure(), record.outcome.measurement().and_then(|m| m.latency.as_ref())) {
        (Some(failure), _) => failure.kind.to_string(),
        (None, Some(series)) => digits::time_of(&series.summary),
        (None, None) => "not timed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Failure;
    use crate::testing::{record, results};

    fn spans(ns: u64) -> Vec<u64> {
        (0..20).map(|i| ns + (i * 7919) % (ns / 100)).collect()
    }

    fn pair() -> [Results; 2] {
        let mut first = results();
        first.records = vec![
            record("eager", &spans(2_000_000)),
            record("jit", &spans(1_000_000)),
            record("old", &spans(1000)),
        ];
        let mut second = results();
        second.records = vec![
            record("eager", &spans(1_000_000)),
            record("jit", &spans(1_000_000)),
            record("new", &spans(1000)),
        ];
        second.records[1].outcome = Failure::failed("no such library").into();
        [first, second]
    }

    #[test]
    fn one_machine_gives_ratios_in_words() {
        let [first, second] = pair();
        let text = compare(&first, &second).terminal(160);
        assert!(text.contains("2.00") && text.contains("excellent, measured"), "{text}");
        assert!(text.contains("`overdrive regress` decides") && text.contains("not there"), "{text}");
        assert!(text.contains("failed") && text.contains("no claim"), "{text}");
        assert_eq!(compare(&first, &second).json()["cases"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn two_machines_are_shown_and_not_judged() {
        let [first, mut second] = pair();
        second.environment.cpu.model = "Another CPU".into();
        let text = compare(&first, &second).terminal(160);
        assert!(text.contains("processor: Some CPU and Another CPU"), "{text}");
        for word in ["excellent", "throughput", "A over B", "claim"] {
            assert!(!text.contains(word), "`{word}` judges: {text}");
        }
        assert!(text.contains("2.011 ms"), "{text}");
    }
}

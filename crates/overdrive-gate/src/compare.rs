//! Results side by side: of one machine, whether one side is faster; of two machines, figures that
//! are never judged.
//!
//! The interval of a session is about that session only: identical programs differ from session to
//! session by more than it shows. So one session a side gives no verdict. With several, the
//! interval is over sessions, and the ratio may get a verdict. To find out whether a program became
//! slower, use [the gate](crate).

use serde::Serialize;

use overdrive_bench::digits;
use overdrive_bench::hardware::Hardware;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::quality::lost::lost;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::speedup::{NoClaim, Speedup, Verdict};
use overdrive_bench::statistics::{CONFIDENCE, Interval, Sorted, student_quantile};
use overdrive_bench::table::{Align, Table, cell, indented, terminal_table};

/// Fewest sessions a side whose scatter gives an interval.
pub const FEWEST_SESSIONS: usize = 3;

/// The sessions of two sides, case by case.
#[derive(Debug)]
pub struct Comparison<'r> {
    /// In what the machines differ; empty if, by all that is recorded, they are one.
    pub differences: Vec<String>,
    /// Caveats on the sessions.
    pub notes: Vec<String>,
    /// The source of each session that another program measured.
    pub imported: Vec<String>,
    /// Every case of either, in the order of the first and then of the second.
    pub rows: Vec<ComparedCase<'r>>,
    /// Sessions of each side.
    sessions: [usize; 2],
}

/// One case.
#[derive(Debug)]
pub struct ComparedCase<'r> {
    /// Its id.
    pub case: String,
    /// Its records in the sessions of both sides.
    pub sides: [Vec<&'r Record>; 2],
    /// How much faster the second is, on one machine and where both have it.
    pub gain: Option<Result<Gain, NoClaim>>,
    /// Quality that the second lost, in words; machines need not be the same for that.
    pub lost: Vec<String>,
}

/// A ratio of times, over 1 where the second side is faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// Median time of the first over that of the second; of several sessions, of their geometric
    /// means.
    pub ratio: f64,
    /// Its interval over sessions; absent where a side has fewer than [`FEWEST_SESSIONS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
    /// Sessions of both sides that have the case.
    pub sessions: [usize; 2],
    /// Whether a session is a screening, which gives no verdict.
    pub is_screening: bool,
}

impl Gain {
    /// The gain over all sessions of both sides.
    ///
    /// # Errors
    /// Why any pair of sessions cannot be compared.
    fn between([first, second]: &[Vec<&Record>; 2]) -> Result<Self, NoClaim> {
        let (old, new) = (first[0], second[0]);
        let to_first = |record: &&Record| Speedup::between(record, new);
        let from_first = |record: &&Record| Speedup::between(old, record);
        let olds = first.iter().map(to_first).collect::<Result<Vec<_>, _>>()?;
        let news = second.iter().map(from_first).collect::<Result<Vec<_>, _>>()?;
        // Every session's time in the logarithm, less that of the second side's first.
        let shared = olds[0].ratio().ln();
        let logs = [
            olds.iter().map(|gain| gain.ratio().ln()).collect::<Vec<f64>>(),
            news.iter().map(|gain| shared - gain.ratio().ln()).collect(),
        ];
        let [(old, old_error), (new, new_error)] =
            logs.each_ref().map(|logs| mean_with_error(logs));
        let sessions = logs.each_ref().map(Vec::len);
        let fewest = sessions[0].min(sessions[1]);
        let interval = (fewest >= FEWEST_SESSIONS).then(|| {
            // Welch's t with the fewest degrees of freedom that it may have.
            let half =
                student_quantile((1.0 + CONFIDENCE) / 2.0, fewest - 1) * old_error.hypot(new_error);
            [(old - new - half).exp(), (old - new + half).exp()]
        });
        let is_screening = olds.iter().chain(&news).any(Speedup::is_screening);
        Ok(Self { ratio: (old - new).exp(), interval, sessions, is_screening })
    }

    /// The ratio with its verdict, if one is allowed.
    fn sentence(&self) -> String {
        let Some([low, high]) = self.interval else {
            let of =
                if self.sessions == [1, 1] { "this session".to_owned() } else { self.counts() };
            return format!("{:.2}x, {of}: no verdict", self.ratio);
        };
        let digits = digits::decimals(Some((high - low) / 2.0));
        let word = if self.is_screening {
            Verdict::Screening
        } else {
            Verdict::of(self.ratio, Interval { low, high, confidence: CONFIDENCE })
        };
        format!(
            "{:.digits$}x [{low:.digits$}, {high:.digits$}] over {}, {word}",
            self.ratio,
            self.counts()
        )
    }

    fn counts(&self) -> String {
        format!("{} and {} sessions", self.sessions[0], self.sessions[1])
    }
}

/// Mean and its standard error; the error of a single value is unknown and taken as 0.
fn mean_with_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

/// Compares the sessions `second` with the sessions `first`; each side has at least one.
pub fn compare<'r>(first: &'r [Results], second: &'r [Results]) -> Comparison<'r> {
    let machine = |results: &Results| Hardware::of(&results.environment);
    let reference = first.first().map(machine);
    let others = || first.iter().chain(second).map(machine);
    let mut differences = Vec::new();
    if let Some(reference) = &reference {
        for found in others().flat_map(|other| reference.differences(&other)) {
            if !differences.contains(&found) {
                differences.push(found);
            }
        }
    }
    let mut cases: Vec<String> = Vec::new();
    for id in first
        .iter()
        .chain(second)
        .flat_map(|results| &results.records)
        .map(|record| record.case.id())
    {
        if !cases.contains(&id) {
            cases.push(id);
        }
    }
    let row = |case: String| {
        let of =
            |side: &'r [Results]| side.iter().filter_map(|results| results.record(&case)).collect();
        let sides: [Vec<&Record>; 2] = [of(first), of(second)];
        let has_both = sides.iter().all(|side| !side.is_empty());
        let gain = (has_both && differences.is_empty()).then(|| Gain::between(&sides));
        let lost = match sides.each_ref().map(|side| side.first()) {
            [Some(before), Some(now)] => lost(before, now),
            _ => Vec::new(),
        };
        ComparedCase { case, sides, gain, lost }
    };
    let rows = cases.into_iter().map(row).collect();
    let mut notes = Vec::new();
    if let Some(reference) = reference
        && let Some(other) = others().find(|other| other.toolchain != reference.toolchain)
    {
        notes.push(format!("built differently: {} and {}", reference.toolchain, other.toolchain));
    }
    let loads: Vec<f64> =
        first.iter().chain(second).filter_map(|results| results.environment.load_average).collect();
    if loads.iter().any(|load| *load > 0.5) {
        let said: Vec<String> = loads.iter().map(|load| format!("{load:.2}")).collect();
        notes.push(format!("load was {} when the runs began", said.join(", ")));
    }
    let imported =
        first.iter().chain(second).filter_map(|results| results.imported.clone()).collect();
    Comparison { rows, notes, imported, differences, sessions: [first.len(), second.len()] }
}

/// A comparison as JSON.
#[derive(Debug, Serialize)]
struct ComparisonJson<'c> {
    case: &'c str,
    /// Medians of each session, for the first side and the second.
    median_ns: [Vec<f64>; 2],
    gain: Option<&'c Gain>,
    no_claim: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    lost: &'c [String],
}

impl Comparison<'_> {
    /// Whether any case is on both sides.
    pub fn has_common_cases(&self) -> bool {
        self.rows.iter().any(|row| row.sides.iter().all(|side| !side.is_empty()))
    }

    /// The kind of comparison, as a line above the figures.
    pub fn headline(&self) -> String {
        if !self.imported.is_empty() {
            return format!(
                "Imported, times are shown and not judged: {}",
                self.imported.join("; ")
            );
        }
        if !self.differences.is_empty() {
            return format!(
                "Different machines, shown and not judged: {}",
                self.differences.join("; ")
            );
        }
        if self.sessions.iter().all(|count| *count >= FEWEST_SESSIONS) {
            return "One machine, several sessions a side: intervals are over sessions.".to_owned();
        }
        format!(
            "One machine. The interval of a session speaks for this session only, so there is no \
             verdict: give at least \
             {FEWEST_SESSIONS} sessions a side, as in `overdrive compare a1,a2,a3 b1,b2,b3`, or \
             ask `overdrive regress`."
        )
    }

    /// For a terminal, in lines of at most `width` characters where words are no longer.
    pub fn terminal(&self, width: u16) -> String {
        let wrapped =
            |text: &str, indent: &str| indented(text, width.into(), indent).join("\n") + "\n";
        let mut text = wrapped(&self.headline(), "");
        text += &format!("\n{}\n", terminal_table(&self.table(), width));
        for row in &self.rows {
            for lost in &row.lost {
                text += &wrapped(&format!("{}: {lost}", row.case), "  ");
            }
        }
        for (case, reason) in self.refusals() {
            text += &wrapped(&format!("{case}: no claim: {reason}"), "  ");
        }
        for note in &self.notes {
            text += &wrapped(&format!("Warning: {note}"), "");
        }
        text
    }

    /// As JSON, for scripts.
    pub fn json(&self) -> serde_json::Value {
        let refused: Vec<(&str, String)> = self.refusals().collect();
        let line = |row: &ComparedCase<'_>| {
            let no_claim = refused
                .iter()
                .find(|(case, _)| *case == row.case)
                .map(|(_, reason)| reason.clone());
            let gain = row.gain.as_ref().and_then(|gain| gain.as_ref().ok());
            let median_ns = row.sides.each_ref().map(|side| medians(side));
            let line =
                ComparisonJson { case: &row.case, median_ns, gain, no_claim, lost: &row.lost };
            serde_json::to_value(line).expect("a line is plain data")
        };
        serde_json::json!({
            "differences": self.differences,
            "notes": self.notes,
            "imported": self.imported,
            "cases": self.rows.iter().map(line).collect::<Vec<_>>(),
        })
    }

    fn refusals(&self) -> impl Iterator<Item = (&str, String)> {
        self.rows.iter().filter_map(|row| {
            let refused = row.gain.as_ref()?.as_ref().err()?;
            // A case without a figure says why in its cell.
            let ran = |record: &&Record| record.outcome.measurement().is_some();
            row.sides.iter().flatten().all(ran).then(|| {
                let reasons: Vec<String> =
                    refused.reasons.iter().map(ToString::to_string).collect();
                (row.case.as_str(), reasons.join("; "))
            })
        })
    }

    fn table(&self) -> Table {
        let titles = [
            ("Case", Align::Left),
            ("A", Align::Right),
            ("B", Align::Right),
            ("A over B", Align::Left),
        ];
        let mut table = Table::new(&titles);
        for row in &self.rows {
            let gain = match &row.gain {
                Some(Ok(gain)) => Some(gain.sentence()),
                Some(Err(_)) => Some("no claim".to_owned()),
                None => None,
            };
            let [first, second] = row.sides.each_ref().map(|side| figure(side));
            table.push(vec![row.case.clone(), first, second, cell(gain)]);
        }
        table.without_unknown_columns()
    }
}

fn medians(records: &[&Record]) -> Vec<f64> {
    let median =
        |record: &&Record| Some(record.outcome.measurement()?.latency.as_ref()?.summary.median_ns);
    records.iter().filter_map(median).collect()
}

/// A side's time with its interval, or why it has none; of several sessions, their median and
/// range.
fn figure(records: &[&Record]) -> String {
    match records {
        [] => "not there".to_owned(),
        [record] => {
            match (
                record.outcome.failure(),
                record.outcome.measurement().and_then(Measurement::printed_time),
            ) {
                (Some(failure), _) => failure.kind.to_string(),
                (None, time) => time.unwrap_or("not timed".to_owned()),
            }
        }
        several => match Sorted::new(&medians(several)) {
            Some(all) => {
                let [median, low, high] =
                    [all.median(), all.min(), all.max()].map(|ns| digits::time(ns, None));
                format!("{median} ({low} to {high} in {})", all.count())
            }
            None => "not timed".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests;

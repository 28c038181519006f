//! The rows of a workload, and how one stands beside the others: in time, quality and size.

use crate::findings::FILE_BYTES;
use crate::judged::{JudgedResults, JudgedRow};
use crate::leaders::Lead;
use crate::quality;
use crate::witness::{Witness, witness};
use overdrive_bench::digits;
use overdrive_bench::quality::{Difference, FAR, metrics};
use overdrive_bench::speedup::Speedup;

/// One part in so many of a size is no loss to speak of: names and scales.
const NOTHING: u64 = 100;

/// The rows of a workload, to ask questions of.
pub(super) struct Question<'j, 'r> {
    pub(super) judged: &'j JudgedResults<'r>,
    pub(super) rows: Vec<&'j JudgedRow<'r>>,
    /// Those whose times may be recommended, and who of them is first: worked out once, for it
    /// takes a bootstrap for each.
    pub(super) timed: Vec<&'j JudgedRow<'r>>,
    pub(super) lead: Option<Lead<'j, 'r>>,
}

impl Question<'_, '_> {
    /// `cosine 0.9994`, `54.4 MiB`, `63 ms`: further properties of a row, besides the one that it
    /// won by.
    pub(super) fn has(&self, row: &JudgedRow<'_>) -> Vec<String> {
        let quality = metrics().find_map(|metric| {
            let reading = metric.read(row.measurement()?)?;
            Some(format!("{} {}", metric.word, metric.short(&reading)))
        });
        let size = size(self).and_then(|size| size.of(row)).map(digits::bytes);
        quality.into_iter().chain(size).chain(self.times(row)).collect()
    }

    /// `63 ms`, of a row that is not the fastest.
    fn times(&self, row: &JudgedRow<'_>) -> Option<String> {
        self.lead.as_ref().filter(|lead| lead.winner.id != row.id)?;
        Some(median(row)).filter(|time| !time.is_empty())
    }

    /// The time that `row` takes more than the fastest, where an interval shows it.
    pub(super) fn slower(&self, row: &JudgedRow<'_>) -> Option<String> {
        let lead = self.lead.as_ref()?;
        let fastest = lead.winner;
        if fastest.id == row.id || lead.alike.iter().any(|other| other.id == row.id) {
            return None;
        }
        let name = fastest.label.clone();
        match Speedup::between(row.record, fastest.record) {
            Ok(gain) if gain.interval().low > 1.0 => {
                Some(format!("time: {} that of `{name}`", gain.figure()))
            }
            Ok(_) => None,
            Err(_) => Some(format!("time: unknown, no claim against `{name}`")),
        }
    }

    /// The quality that `row` lost against the model it was made from, or against the best.
    pub(super) fn worse(&self, row: &JudgedRow<'_>) -> Option<String> {
        metrics().find_map(|metric| {
            let mine = metric.read(row.measurement()?)?;
            let baseline = row.record.baseline.as_deref().and_then(|id| self.judged.find(id));
            let others = self.rows.iter().copied().filter(|other| other.id != row.id);
            // How sure it is that `other` is better.
            let lost = |other: &JudgedRow<'_>| match quality::difference(metric, row, other)? {
                Difference::Worse => Some(""),
                Difference::FarWorse => Some(FAR),
                Difference::Better | Difference::Unknown => None,
            };
            let title = metric.title;
            // Likeness to the original is itself what is lost.
            if metric.is_likeness {
                return baseline.map(|_| format!("{title}: {}", metric.figure(&mine)));
            }
            // The best of those that are better says most.
            let best = others
                .filter(|other| lost(other).is_some())
                .min_by(|a, b| quality::rank(metric, a).total_cmp(&quality::rank(metric, b)));
            let fell = |before: &JudgedRow<'_>| {
                let doubt = lost(before)?;
                Some(format!("{title} {}{doubt}", quality::course(metric, row, before)?))
            };
            let beside = |other: &JudgedRow<'_>| {
                let doubt = lost(other)?;
                let name = other.label.clone();
                let theirs = metric.read(other.measurement()?)?;
                let [mine, theirs] = [&mine, &theirs].map(|reading| metric.figure(reading));
                Some(format!("{title}: {mine}, `{name}` has {theirs}{doubt}"))
            };
            baseline.and_then(fell).or_else(|| beside(best?))
        })
    }

    /// The bytes that `row` takes more than the smallest.
    pub(super) fn larger(&self, row: &JudgedRow<'_>) -> Option<String> {
        let size = size(self)?;
        let smallest = size.least(self)?;
        let (mine, least) = (size.of(row)?, size.of(smallest)?);
        let more = mine.checked_sub(least).filter(|more| *more > least / NOTHING)?;
        let more = digits::bytes(more);
        Some(format!("{}: {more} more than `{}`", size.name, smallest.label))
    }
}

/// How room is counted.
pub(super) struct SizeMeasure {
    /// `bytes on disk`, or `device memory of a call`.
    pub(super) name: String,
    witness: Option<Witness>,
}

impl SizeMeasure {
    pub(super) fn of(&self, row: &JudgedRow<'_>) -> Option<u64> {
        let measurement = row.measurement()?;
        match self.witness {
            Some(witness) => (witness.bytes)(measurement.memory.as_ref()?),
            None => measurement.quantities.get(FILE_BYTES).map(|bytes| *bytes as u64),
        }
    }

    /// The first row that takes least.
    pub(super) fn least<'j, 'r>(&self, question: &Question<'j, 'r>) -> Option<&'j JudgedRow<'r>> {
        let sized = right(question).into_iter().filter_map(|row| Some((self.of(row)?, row)));
        sized.min_by_key(|(bytes, _)| *bytes).map(|(_, row)| row)
    }
}

/// The rows whose outputs agree, or whose quality stands beside their size.
pub(super) fn right<'j, 'r>(question: &Question<'j, 'r>) -> Vec<&'j JudgedRow<'r>> {
    let is_right = |row: &&&JudgedRow<'r>| {
        row.measurement().is_some_and(|measurement| {
            let agrees = measurement.agreement.as_ref().is_some_and(|agreement| agreement.holds());
            agrees || metrics().any(|metric| metric.read(measurement).is_some())
        })
    };
    question.rows.iter().filter(is_right).copied().collect()
}

/// Bytes on disk where any row has them, else the memory that all of them have.
pub(super) fn size(question: &Question<'_, '_>) -> Option<SizeMeasure> {
    let rows = right(question);
    let on_disk = SizeMeasure { name: "bytes on disk".to_owned(), witness: None };
    if rows.iter().any(|row| on_disk.of(row).is_some()) {
        return Some(on_disk);
    }
    let witness = witness(&rows)?;
    Some(SizeMeasure { name: format!("{} of a call", witness.name), witness: Some(witness) })
}

/// The time without its interval.
pub(super) fn median(row: &JudgedRow<'_>) -> String {
    time(row).split(" [").next().unwrap_or_default().to_owned()
}

/// The time with its interval; nothing where it has none.
pub(super) fn time(row: &JudgedRow<'_>) -> String {
    let series = row.measurement().and_then(|measurement| measurement.latency.as_ref());
    series.map_or(String::new(), |series| digits::time_of(&series.summary))
}

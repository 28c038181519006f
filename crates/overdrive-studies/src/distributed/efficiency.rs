//! How the times of a case relate: efficiency over the fewest ranks of the same side, exposed
//! communication, bandwidth.

use super::joint::Joint;
use overdrive_bench::case::Case;
use overdrive_bench::record::Record;
use overdrive_bench::statistics::{Sorted, ratio_of_medians};
use serde_json::Value;

/// Quantity with the number of ranks, which the chart of scaling reads.
pub(super) const RANKS: &str = "ranks";

/// A number of ranks of one side.
pub(super) struct Entry {
    pub(super) case: Case,
    pub(super) ranks: usize,
    /// The part of PyTorch's program with its sizes; none for ours.
    pub(super) part: Option<(&'static str, Value)>,
}

impl Entry {
    /// Whether both are ours, or the same part of PyTorch's program.
    fn is_beside(&self, other: &Entry) -> bool {
        let name = |entry: &Entry| entry.part.as_ref().map(|part| part.0);
        name(self) == name(other)
    }
}

/// Adds these quantities to the records of the entries, which are in the same order.
pub(super) fn relate(joint: &dyn Joint, entries: &[Entry], records: &mut [Record]) {
    let times: Vec<Option<Sorted>> = records.iter().map(times).collect();
    for (at, entry) in entries.iter().enumerate() {
        let (Some(own), seed) = (&times[at], records[at].seed) else { continue };
        let measurement = records[at].outcome.measurement_mut().expect("it has times");
        let quantities = &mut measurement.quantities;
        quantities.insert(RANKS.to_owned(), entry.ranks as f64);
        if let Some(bytes) = joint.wire_bytes(entry.ranks) {
            quantities.insert("wire_bytes".to_owned(), bytes as f64);
            let rate = bytes as f64 / (own.median() * 1e-9);
            quantities.insert("bus_bytes_per_second".to_owned(), rate);
        }
        let base = entries.iter().position(|other| other.is_beside(entry));
        let base = base.filter(|base| *base != at && joint.has_one());
        let Some((base, fewest)) = base.and_then(|base| Some((base, times[base].as_ref()?))) else {
            continue;
        };
        let items = |ranks| joint.items(ranks).map_or(1.0, |items| items.per_call as f64);
        let [few, many] = [entries[base].ranks, entry.ranks];
        // The ideal time, as a share of the time of the fewest.
        let share = items(many) / items(few) * few as f64 / many as f64;
        quantities.insert("exposed_ns".to_owned(), own.median() - share * fewest.median());
        let Some(found) = ratio_of_medians(fewest, own, seed) else { continue };
        let ends =
            [("", found.ratio), (".low", found.interval.low), (".high", found.interval.high)];
        for (end, ratio) in ends {
            quantities.insert(format!("efficiency_percent{end}"), 100.0 * share * ratio);
        }
    }
}

fn times(record: &Record) -> Option<Sorted> {
    Some(record.outcome.measurement()?.latency.as_ref()?.sorted_ns())
}

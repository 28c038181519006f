//! Results with what follows from them, worked out once. A table, a chart or the first line of the
//! page, whichever asks again, gets the same answer without a second bootstrap.

use std::collections::BTreeMap;

use super::anchor::anchor;
use overdrive_bench::case::Common;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Results, Variant};
use overdrive_bench::speedup::{NoClaim, Speedup};

/// Results and the comparisons that they ask for.
pub(super) struct JudgedResults<'r> {
    pub(super) results: &'r Results,
    /// In the order of the records.
    pub(super) rows: Vec<JudgedRow<'r>>,
    by_id: BTreeMap<String, usize>,
    /// Properties that no label shows, since all share them.
    pub(super) common: Common,
}

/// A record with its comparison, if it was to be compared.
#[derive(Clone)]
pub(super) struct JudgedRow<'r> {
    pub(super) record: &'r Record,
    pub(super) id: String,
    pub(super) anchor: String,
    /// Its configuration as readers see it.
    pub(super) label: String,
    /// The record to compare it with.
    pub(super) baseline: Option<&'r Record>,
    /// The label of that.
    pub(super) over: Option<String>,
    pub(super) gain: Option<Result<Speedup, NoClaim>>,
    /// Whether another record is to be compared with it.
    pub(super) is_baseline: bool,
}

impl<'r> JudgedRow<'r> {
    pub(super) fn measurement(&self) -> Option<&'r Measurement> {
        self.record.outcome.measurement()
    }

    /// The gain, where one is claimed.
    pub(super) fn speedup(&self) -> Option<&Speedup> {
        self.gain.as_ref()?.as_ref().ok()
    }
}

impl<'r> JudgedResults<'r> {
    /// Compares every record with its baseline.
    pub(super) fn new(results: &'r Results) -> Self {
        let ids: Vec<String> = results.records.iter().map(|record| record.case.id()).collect();
        let by_id: BTreeMap<String, usize> = ids.iter().cloned().zip(0..).collect();
        let common = Common::of(results.records.iter().map(|record| &record.case.configuration));
        let label = |record: &Record| record.case.configuration.label(&common);
        let mut rows: Vec<JudgedRow<'r>> = results
            .records
            .iter()
            .zip(ids)
            .map(|(record, id)| {
                let at = record.baseline.as_ref().and_then(|id| by_id.get(id));
                let baseline = at.map(|&at| &results.records[at]);
                JudgedRow {
                    record,
                    anchor: anchor(&id),
                    id,
                    label: label(record),
                    baseline,
                    over: baseline.map(label),
                    gain: baseline.map(|baseline| Speedup::between(baseline, record)),
                    is_baseline: false,
                }
            })
            .collect();
        for record in &results.records {
            if let Some(&at) = record.baseline.as_ref().and_then(|id| by_id.get(id)) {
                rows[at].is_baseline = true;
            }
        }
        Self { results, rows, by_id, common }
    }

    /// The record with this id.
    pub(super) fn find(&self, id: &str) -> Option<&JudgedRow<'r>> {
        self.by_id.get(id).map(|&at| &self.rows[at])
    }

    /// The description of a row's variant, if the run recorded it.
    pub(super) fn variant(&self, row: &JudgedRow<'_>) -> Option<&'r Variant> {
        let name = row.record.case.configuration.variant.as_ref()?;
        self.results.variants.iter().find(|variant| variant.name == *name)
    }

    /// The study's records by workload, baselines first.
    pub(super) fn study(&self, study: &str) -> Vec<&JudgedRow<'r>> {
        let mut rows: Vec<&JudgedRow<'r>> =
            self.rows.iter().filter(|row| row.record.case.study == study).collect();
        rows.sort_by(|a, b| {
            let (x, y) = (&a.record.case, &b.record.case);
            let key = |row: &JudgedRow<'_>| row.baseline.is_some();
            x.workload
                .cmp(&y.workload)
                .then_with(|| key(a).cmp(&key(b)))
                .then_with(|| x.configuration.cmp(&y.configuration))
        });
        rows
    }
}

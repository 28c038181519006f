//! Products by other libraries, called directly, in one session with ours.

use super::case::NAME;
use crate::tolerance::tolerance;
use crate::{Context, Entry, Workload, measure};
use overdrive_bench::case::{Case, Configuration};
use overdrive_bench::deviation::Tolerance;
use overdrive_bench::record::Record;
use overdrive_bench::subject::{Function, Subject};
use std::cell::RefCell;

/// Measures `entries` and every peer that uses as many threads; peers' records come after those of
/// the entries. None at all where no entry was asked for.
pub(super) fn measure_with_peers(
    context: &Context<'_>,
    workload: &Workload,
    entries: &[Entry<'_>],
    shape: [usize; 3],
) -> Vec<Record> {
    let threads = entries[0].device.threads;
    let own: Vec<Case> = entries.iter().map(|entry| entry.case(NAME)).collect();
    if !context.journal.wants(&own) {
        return vec![];
    }
    let oracle = workload.oracle(context);
    // A reference that fails is met again, and told, by the entries' own session.
    let limit =
        tolerance(overdrive_ir::DType::F32, &workload.graph, (&oracle, context.sampling.seed))
            .unwrap_or(Tolerance::ulps(overdrive_ir::DType::F32, 1.0));
    let tensors = workload.inputs(context.sampling.seed);
    let [a, b] = [0, 1].map(|i| tensors[i].to_f32());
    let peers: Vec<_> =
        context.parties.matmul_peers.iter().filter(|p| p.threads == threads).collect();
    let outputs: Vec<RefCell<Vec<f32>>> =
        peers.iter().map(|_| RefCell::new(vec![f32::NAN; shape[0] * shape[1]])).collect();
    let mut functions: Vec<(Case, Box<dyn Subject + '_>)> = peers
        .iter()
        .zip(&outputs)
        .map(|(peer, output)| {
            let configuration = Configuration {
                backend: peer.name.to_owned(),
                device: entries[0].device.backend.description().device.clone(),
                mode: "direct".to_owned(),
                dtype: "f32".to_owned(),
                threads,
                variant: None,
            };
            let case =
                Case { study: NAME.to_owned(), workload: workload.key.clone(), configuration };
            let (a, b, oracle) = (&a, &b, &oracle);
            let call = move |_| (peer.run)(a, b, &mut output.borrow_mut(), shape);
            let verify = move |seed| {
                let inputs = oracle.inputs(seed);
                let mut c = vec![f32::NAN; shape[0] * shape[1]];
                (peer.run)(&inputs[0].to_f32(), &inputs[1].to_f32(), &mut c, shape);
                let found: Vec<f64> = c.iter().map(|&x| f64::from(x)).collect();
                oracle.compare_values(seed, &[found], limit).map(Some)
            };
            (case, Box::new(Function::new(call, verify)) as Box<dyn Subject + '_>)
        })
        .collect();
    let mut extra: Vec<(Case, &mut dyn Subject)> = functions
        .iter_mut()
        .map(|(case, subject)| (case.clone(), subject.as_mut() as &mut dyn Subject))
        .collect();
    measure(context, NAME, entries, &mut extra)
}

/// Position of the fastest record from `first` on.
pub(super) fn fastest(records: &[Record], first: usize) -> Option<usize> {
    let median =
        |i: usize| Some(records[i].outcome.measurement()?.latency.as_ref()?.summary.median_ns);
    let timed = (first..records.len()).filter_map(|i| Some((median(i)?, i)));
    timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, i)| i)
}

//! Other frameworks on the same work, each in a process of its own that we drive.
//!
//! The process answers one JSON line for each that it is sent (`peers/overdrive_peer.py` says
//! which). We draw inputs and parameters and write them as safetensors, or the graph as ONNX for
//! whoever reads that. The process makes a workload ready and reads the clocks. So a peer is one
//! more [`Subject`](overdrive_bench::subject::Subject): it alternates with ours in one session,
//! under the same rules of sampling. Its outputs are held against the same f64 reference.

mod folder;
mod frameworks;
mod process;
mod ranks;
mod timed;

pub use process::Peer;

use crate::tolerance::tolerance;
use crate::{Context, Workload};
use overdrive_bench::case::{Case, Configuration};
use overdrive_bench::failure::{Failure, FailureKind};
use overdrive_bench::oracle::Oracle;
use overdrive_bench::record::Record;
use overdrive_ir::DType;
use process::KnownWorkload;
pub(crate) use ranks::{RankPeer, RankPeers};
pub(crate) use timed::{Given, HeldTo, Timed, Way};

/// An entry of a peer in a session: the case and, if the peer could prepare it, the subject.
pub(crate) type Entrant<'a> = (Case, Result<Timed<'a>, Failure>);

/// Every way in which a peer can run `workload` in `dtype`. A mode that it cannot run is left out
/// where nobody would expect it (graphs of a processor). If somebody would, the mode is a failure
/// with its reason.
pub(crate) fn entrants<'a>(
    context: &'a Context<'_>,
    (study, workload): (&str, &'a Workload),
    dtype: DType,
    oracle: &'a Oracle<'a>,
) -> Vec<Entrant<'a>> {
    // Before anything is written for it: a large workload that nobody takes part in costs nothing.
    let knows = |peer| Peer::knows(peer, workload).map(|known| (peer, known));
    let taking_part: Vec<(&Peer, KnownWorkload)> =
        context.parties.peers.iter().filter_map(knows).collect();
    if taking_part.is_empty() {
        return vec![];
    }
    let limit = tolerance(dtype, &workload.graph, (oracle, context.sampling.seed));
    let mut entrants = Vec::new();
    for (peer, known) in taking_part {
        let given = Given::new(peer, workload, &|seed| oracle.inputs(seed), context.sampling.seed);
        let modes = context.parties.peer_modes.iter().map(|&mode| (mode, None));
        let variants = known.variants.iter().map(|variant| ("eager", Some(variant.as_str())));
        for (mode, variant) in modes.chain(variants) {
            let way = Way { mode, variant, dtype, layers: &[] };
            let opened = match (&given, &limit) {
                (Ok(given), Ok(limit)) => {
                    let held_to = HeldTo::Oracle(oracle, *limit);
                    context
                        .sampling
                        .at_own_expense(peer.name(), || Timed::open(peer, held_to, given, way))
                }
                (Err(failure), _) | (_, Err(failure)) => Err(failure.clone()),
            };
            let is_unsupported =
                matches!(&opened, Err(failure) if failure.kind == FailureKind::Unsupported);
            if is_unsupported && !peer.has_mode(mode) {
                continue;
            }
            let configuration = Configuration {
                backend: peer.name().to_owned(),
                device: peer.device().to_owned(),
                mode: mode.to_owned(),
                dtype: dtype.name().to_owned(),
                threads: peer.threads(),
                variant: variant.or(known.by.as_deref()).map(str::to_owned),
            };
            let case =
                Case { study: study.to_owned(), workload: workload.key.clone(), configuration };
            entrants.push((case, opened));
        }
    }
    entrants
}

/// Records of the peers of these cases from an interrupted run.
pub(crate) fn taken_earlier(context: &Context<'_>, cases: &[Case]) -> Vec<Record> {
    let beside = |record: &&Record| {
        let same =
            |case: &Case| case.study == record.case.study && case.workload == record.case.workload;
        let is_theirs = |peer: &Peer| record.case.configuration.backend == peer.name();
        context.parties.peers.iter().any(is_theirs) && cases.iter().any(same)
    };
    context.journal.earlier.iter().filter(beside).cloned().collect()
}

//! Quantized models of other frameworks beside ours: the same weights, the same layers, the same
//! inputs, timed in the same session, and compared with the same float outputs.

use super::latency::Timed;
use super::{Agreement, agreement};
use crate::Workload;
use crate::peers::{self, Given, HeldTo, Peer, Way};
use overdrive_bench::outcome::{Failure, Outcome};
use overdrive_bench::subject::Subject;
use overdrive_ir::{DType, Tensor};

/// What rivals are asked to do.
pub struct Question<'a, 'q> {
    /// The float model, bound.
    pub workload: &'q Workload,
    /// The layers that ours quantized.
    pub layers: &'q [String],
    /// Inputs of timed calls by seed.
    pub draw: &'a dyn Fn(u64) -> Vec<Tensor>,
    /// Of the first of them.
    pub seed: u64,
    /// Batches on which outputs are compared, and what the float model gave.
    pub compared: (&'q [Vec<Tensor>], &'q [Vec<Tensor>]),
}

/// A model that another framework quantized, or why there is none.
pub struct Rival<'a> {
    /// Framework, its mode, how it runs and the number format of activations.
    pub name: String,
    /// How near its outputs are to those of our float model.
    pub agreement: Option<Agreement>,
    ready: Result<peers::Timed<'a>, Failure>,
}

/// Every mode of every framework on this question. What a framework lacks is a rival that says so.
pub fn rivals<'a>(peers: &'a [Peer], question: &Question<'a, '_>) -> Vec<Rival<'a>> {
    peers.iter().flat_map(|peer| modes(peer, question)).collect()
}

fn modes<'a>(peer: &'a Peer, question: &Question<'a, '_>) -> Vec<Rival<'a>> {
    let Some(known) = peer.knows(question.workload) else {
        let reason = "expected a published architecture as it was published, a folder in Hugging \
                      Face's format; \
                      it knows no other";
        let (name, ready) = (peer.name().to_owned(), Err(Failure::unsupported(reason)));
        return vec![Rival { name, agreement: None, ready }];
    };
    let dtype = if peer.device() == "cpu" { DType::F32 } else { DType::BF16 };
    let mode = if peer.has_mode("compile") { "compile" } else { "eager" };
    let given = Given::new(peer, question.workload, question.draw, question.seed);
    let rival = |variant: &String| {
        let way = Way { mode, variant: Some(variant), dtype, layers: question.layers };
        let opened = given
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|given| peers::Timed::open(peer, HeldTo::Itself(question.draw), given, way));
        let compared = opened.and_then(|opened| Ok((compare(&opened, question)?, opened)));
        let (agreement, ready) = match compared {
            Ok((agreement, opened)) => (Some(agreement), Ok(opened)),
            Err(failure) => (None, Err(failure)),
        };
        Rival {
            name: format!("{} {variant} {mode} {}", peer.name(), dtype.name()),
            agreement,
            ready,
        }
    };
    known.variants.iter().map(rival).collect()
}

fn compare(opened: &peers::Timed<'_>, question: &Question<'_, '_>) -> Result<Agreement, Failure> {
    let (batches, float) = question.compared;
    let found = batches.iter().map(|inputs| opened.run(inputs)).collect::<Result<Vec<_>, _>>()?;
    Ok(agreement(float, &found))
}

impl<'a> Rival<'a> {
    /// Bytes of its parameters.
    pub fn weight_bytes(&self) -> Option<u64> {
        self.ready.as_ref().ok().and_then(|ready| ready.weight_bytes)
    }

    /// What is timed, if it could be made ready.
    pub(super) fn subject(&mut self) -> Option<&mut dyn Subject> {
        self.ready.as_mut().ok().map(|ready| ready as &mut dyn Subject)
    }

    /// What the session saw of it, which is asked for only where it took part.
    pub(super) fn timed(&self, seen: impl FnOnce() -> Outcome) -> Timed {
        match &self.ready {
            Ok(ready) => Timed { outcome: seen(), resident_bytes: ready.weight_bytes.unwrap_or(0) },
            Err(failure) => Timed { outcome: Outcome::Failure(failure.clone()), resident_bytes: 0 },
        }
    }
}

//! PyTorch on several devices: one program whose processes have a device each, asked like any
//! other peer. It is started by the first case that it takes part in.

use super::process::Peer;
use crate::Context;
use overdrive_bench::clock::Clock;
use overdrive_bench::deviation::{Deviation, Tolerance};
use overdrive_bench::failure::Failure;
use overdrive_bench::subject::{Reading, Subject};
use overdrive_process::{Stop, python};
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::ops::Range;

/// The framework that has such a program.
const NAME: &str = "pytorch";

/// Processes of PyTorch beside ranks of ours, if it takes part in the run.
pub(crate) struct RankPeers<'a> {
    beside: Option<&'a Peer>,
    /// `cpu` or `cuda`.
    device: &'static str,
    ranks: u32,
    stop: Stop,
    started: OnceCell<Result<Peer, Failure>>,
}

impl<'a> RankPeers<'a> {
    /// For cases of up to so many ranks.
    pub(crate) fn of(context: &Context<'a>, ranks: usize) -> Self {
        let device = if context.device().is_accelerator() { "cuda" } else { "cpu" };
        let beside = context.parties.peers.iter().find(|peer| peer.name() == NAME);
        let (ranks, stop) = (ranks as u32, context.sampling.stop.clone());
        Self { beside, device, ranks, stop, started: OnceCell::new() }
    }

    /// PyTorch on one device, if it takes part.
    pub(crate) fn beside(&self) -> Option<&'a Peer> {
        self.beside
    }

    /// Makes a part ready on so many ranks.
    ///
    /// # Errors
    /// Why the program did not start, or cannot do this.
    pub(crate) fn open(
        &self,
        part: &str,
        ranks: usize,
        sizes: &Value,
    ) -> Result<RankPeer<'_>, Failure> {
        let start = || {
            let interpreter = python::interpreter();
            Peer::of_ranks(NAME, &interpreter, (self.device, self.ranks), &self.stop)
        };
        let peer = self.started.get_or_init(start).as_ref().map_err(Clone::clone)?;
        let request = json!({ "do": "open", "part": part, "ranks": ranks, "sizes": sizes });
        Ok(RankPeer { opened: peer.ask(&request)?, peer })
    }
}

/// An open part.
pub(crate) struct RankPeer<'a> {
    peer: &'a Peer,
    opened: Opened,
}

/// The program's answer: numbers of its first call beside those that they should be.
#[derive(Deserialize)]
struct Opened {
    id: u64,
    #[serde(default)]
    found: Vec<f64>,
    #[serde(default)]
    expected: Vec<f64>,
    #[serde(default)]
    rtol: f64,
    peak_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Span {
    host_ns: u64,
}

#[derive(Deserialize)]
struct Done {}

impl RankPeer<'_> {
    /// The mode that the program runs a part in.
    pub(crate) fn mode(part: &str) -> &'static str {
        match part {
            "ddp" | "fsdp2" | "tensor parallel" | "async tensor parallel" => "compile",
            _ if part.starts_with("step") => "compile",
            _ => "eager",
        }
    }

    /// The most bytes of the device that its first call held, where it can tell.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        self.opened.peak_bytes
    }

    fn span(&self, calls: u64) -> Result<u64, Failure> {
        let request = json!({ "do": "sample", "id": self.opened.id, "calls": calls });
        let Span { host_ns } = self.peer.ask(&request)?;
        Ok(host_ns)
    }
}

impl Subject for RankPeer<'_> {
    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        self.span(1).map(drop)
    }

    fn sample(&mut self, calls: Range<u64>, _clock: &dyn Clock) -> Result<Reading, Failure> {
        Ok(Reading::host(self.span(calls.end - calls.start)?))
    }

    fn verify(&mut self, _seed: u64) -> Result<Option<Deviation>, Failure> {
        let Opened { found, expected, rtol, .. } = &self.opened;
        if expected.is_empty() {
            return Ok(None);
        }
        Deviation::between(found, expected, Tolerance::of_elements(*rtol, *rtol)).map(Some)
    }

    fn reference(&self) -> &str {
        "its own result on one rank"
    }
}

impl Drop for RankPeer<'_> {
    fn drop(&mut self) {
        // A process that is gone has nothing left to close.
        drop(self.peer.ask::<Done>(&json!({ "do": "close", "id": self.opened.id })));
    }
}

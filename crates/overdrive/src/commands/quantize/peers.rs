//! Other libraries that quantize the same model: torchao, bitsandbytes.

use crate::cli::Quantize;
use crate::devices::Opened;
use crate::failure::Failure;
use crate::progress;
use crate::terminal::note;
use overdrive::ir::Tensor;
use overdrive::passes::Quantized;
use overdrive::studies::quantization::{Question, Rival, rivals};
use overdrive::studies::{Peer, Template, Workload};
use overdrive_process::{Stop, python};
use std::collections::BTreeMap;

/// Starts those that were asked for on the device of ours.
pub(super) fn start(
    arguments: &Quantize,
    device: &Opened,
    stop: &Stop,
) -> Result<Vec<Peer>, Failure> {
    let interpreter = python::interpreter();
    let place = (device.backend.name(), device.threads);
    let start = |name: &String| Peer::quantizing(name, &interpreter, place, stop);
    let started =
        arguments.peers.iter().map(|name| start(name).map_err(|e| Failure::bad_input(e.reason)));
    started.collect()
}

/// The task for them: the layers that ours quantized, and the outputs that ours are compared with.
pub(super) struct Asked<'a> {
    pub(super) mode: &'a str,
    pub(super) template: &'a Template,
    pub(super) made: &'a Quantized,
    pub(super) seed: u64,
    pub(super) compared: (&'a [Vec<Tensor>], &'a [Vec<Tensor>]),
}

impl Asked<'_> {
    /// The float model.
    pub(super) fn workload(&self) -> Result<Workload, Failure> {
        self.template.bind(&BTreeMap::new()).map_err(Failure::harness)
    }

    /// Their models.
    pub(super) fn of<'p>(
        &self,
        peers: &'p [Peer],
        workload: &Workload,
        draw: &'p dyn Fn(u64) -> Vec<Tensor>,
    ) -> Vec<Rival<'p>> {
        for peer in peers {
            note!("note: {} quantizes and compiles the model in each of its modes", peer.version());
        }
        let layers: Vec<String> = self.made.layers.iter().map(|layer| layer.name.clone()).collect();
        let (mode, seed, compared) = (self.mode, self.seed, self.compared);
        let question = Question { mode, workload, layers: &layers, draw, seed, compared };
        progress::over("models of peers", |see| rivals(peers, &question, see))
    }
}

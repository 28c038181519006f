//! A workload made ready in a peer's process, as something to be timed.

use super::process::{Peer, text};
use crate::Workload;
use overdrive_bench::clock::Clock;
use overdrive_bench::deviation::Deviation;
use overdrive_bench::deviation::Tolerance;
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Overhead;
use overdrive_bench::oracle::Oracle;
use overdrive_bench::subject::{Reading, Subject};
use overdrive_formats::onnx::{self, Dialect};
use overdrive_formats::{Tensors, safetensors};
use overdrive_ir::{DType, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tempfile::TempDir;

/// Different inputs that the calls rotate through, as for our own executables.
const INPUT_SETS: u64 = 2;

/// How a workload runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) mode: &'a str,
    pub(crate) variant: Option<&'a str>,
    pub(crate) dtype: DType,
    /// Layers that the variant quantizes, if it quantizes any.
    pub(crate) layers: &'a [String],
}

/// The reference of the outputs.
pub(crate) enum HeldTo<'a> {
    /// The reference, within a tolerance.
    Oracle(&'a Oracle<'a>, Tolerance),
    /// Another call of its own on the inputs of a seed. The call need not equal the float model;
    /// how near it is to that is judged elsewhere.
    Itself(&'a dyn Fn(u64) -> Vec<Tensor>),
}

/// Tolerance against another call of the same graph: the order of sums may differ between two
/// calls.
const OWN: f64 = 1e-2;

/// An open workload.
pub(crate) struct Timed<'a> {
    peer: &'a Peer,
    id: u64,
    held_to: HeldTo<'a>,
    /// Seeds of the input sets, and the file of each.
    seeds: Vec<u64>,
    sets: Vec<PathBuf>,
    /// Theirs. It is removed after the last use of the workload.
    _folder: Rc<TempDir>,
    current: usize,
    names: Vec<String>,
    /// Whether times of its device are left out, beside others that only the host times.
    by_host_clock: bool,
    /// Costs that were paid once.
    pub(crate) overhead: Overhead,
    /// Bytes of its parameters, where it says so.
    pub(crate) weight_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Opened {
    id: u64,
    load_ns: Option<u64>,
    compile_ns: u64,
    first_call_ns: u64,
    weight_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Spans {
    host_ns: u64,
    device_ns: Option<u64>,
}

/// An answer that holds nothing.
#[derive(Deserialize)]
struct Done {}

impl<'a> Timed<'a> {
    /// Makes a workload ready.
    ///
    /// # Errors
    /// The peer's error.
    pub(crate) fn open(
        peer: &'a Peer,
        held_to: HeldTo<'a>,
        given: &Given,
        way: Way<'_>,
    ) -> Result<Self, Failure> {
        let sets: Vec<Value> = given.sets.iter().map(|file| text(file)).collect();
        let mut request = json!({
            "do": "open", "workload": given.workload, "mode": way.mode, "dtype": way.dtype.name(),
            "variant": way.variant,
            "config": given.config, "inputs": given.names, "sets": sets, "layers": way.layers,
        });
        request[given.kind] = text(&given.weights);
        let opened: Opened = peer.ask(&request)?;
        let overhead = Overhead {
            load_ns: opened.load_ns,
            compile_ns: Some(opened.compile_ns),
            first_call_ns: Some(opened.first_call_ns),
            ..Overhead::default()
        };
        let (seeds, sets, names) = (given.seeds.clone(), given.sets.clone(), given.names.clone());
        let weight_bytes = opened.weight_bytes;
        Ok(Self {
            peer,
            id: opened.id,
            held_to,
            seeds,
            sets,
            _folder: Rc::clone(&given.folder),
            current: 0,
            names,
            by_host_clock: false,
            overhead,
            weight_bytes,
        })
    }

    /// The same timed by the host's clock alone.
    pub(crate) fn by_host_clock(mut self) -> Self {
        self.by_host_clock = true;
        self
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, what: &str, more: Value) -> Result<T, Failure> {
        let mut request =
            Map::from_iter([("do".to_owned(), json!(what)), ("id".to_owned(), json!(self.id))]);
        if let Value::Object(more) = more {
            request.extend(more);
        }
        self.peer.ask(&Value::Object(request))
    }

    /// Outputs of a call with these inputs, all rows.
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        let file = self.peer.file("given");
        save(&file, self.names.iter().cloned().zip(inputs.iter().cloned()))?;
        self.outputs("run", json!({ "inputs": text(&file), "rows": Value::Null }))
    }

    /// Has `what` write its outputs.
    fn outputs(&self, what: &str, mut more: Value) -> Result<Vec<Tensor>, Failure> {
        let file = self.peer.file("outputs");
        more["outputs"] = text(&file);
        let Done {} = self.ask(what, more)?;
        let damaged = |e: overdrive_formats::FormatError| Failure::failed(e.to_string());
        Ok(safetensors::read(&file).map_err(damaged)?.into_values().collect())
    }
}

/// Weights and inputs of a workload, written once for all the ways in which it runs. Workloads of
/// one session may differ in their inputs, so each has a folder of its own.
pub(crate) struct Given {
    folder: Rc<TempDir>,
    workload: String,
    /// That of a published architecture.
    config: Option<Value>,
    names: Vec<String>,
    /// `parameters` by name, or the `model` with its weights.
    kind: &'static str,
    weights: PathBuf,
    sets: Vec<PathBuf>,
    seeds: Vec<u64>,
}

impl Given {
    /// Those of `seed` and of the next.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn new(
        peer: &Peer,
        workload: &Workload,
        draw: &dyn Fn(u64) -> Vec<Tensor>,
        seed: u64,
    ) -> Result<Self, Failure> {
        let graph = &workload.graph;
        let names: Vec<String> = graph.inputs().iter().map(|port| port.name.clone()).collect();
        let folder = Rc::new(peer.subfolder()?);
        let (kind, weights) = if peer.reads_onnx() {
            let file = folder.path().join("model.onnx");
            onnx::write(&file, graph, Dialect::Standard)
                .map_err(|e| Failure::unsupported(e.to_string()))?;
            ("model", file)
        } else {
            let state = |s: &overdrive_ir::StateDecl| {
                (s.name.clone(), s.init.tensor(&s.name, graph.ty(s.value)))
            };
            let file = folder.path().join("parameters");
            save(&file, graph.states().iter().map(state))?;
            ("parameters", file)
        };
        let seeds: Vec<u64> = (0..INPUT_SETS).map(|set| seed.wrapping_add(set)).collect();
        let inputs = |set: usize| names.iter().cloned().zip(draw(seeds[set]));
        let sets: Vec<PathBuf> =
            (0..seeds.len()).map(|set| folder.path().join(format!("inputs{set}"))).collect();
        for (set, file) in sets.iter().enumerate() {
            save(file, inputs(set))?;
        }
        let (name, config) = (workload.key.name.clone(), workload.config.clone());
        Ok(Self { folder, workload: name, config, names, kind, weights, sets, seeds })
    }
}

/// Tensors in a file that the peer can read.
fn save(file: &Path, tensors: impl Iterator<Item = (String, Tensor)>) -> Result<(), Failure> {
    let tensors: Tensors = tensors.collect();
    safetensors::write(file, &tensors).map_err(|e| Failure::failed(e.to_string()))
}

impl Subject for Timed<'_> {
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        self.current = (calls.start % INPUT_SETS) as usize;
        let Done {} = self.ask("select", json!({ "set": self.current }))?;
        Ok(())
    }

    fn call(&mut self, _: u64) -> Result<(), Failure> {
        let Done {} = self.ask("call", Value::Null)?;
        Ok(())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        let (oracle, tolerance) = match &self.held_to {
            HeldTo::Oracle(oracle, tolerance) => (oracle, *tolerance),
            HeldTo::Itself(draw) => {
                return between(&self.run(&draw(seed))?, &self.run(&draw(seed))?).map(Some);
            }
        };
        let file = match self.seeds.iter().position(|&known| known == seed) {
            Some(set) => self.sets[set].clone(),
            None => {
                let file = self.peer.file("verified");
                save(&file, self.names.iter().cloned().zip(oracle.inputs(seed)))?;
                file
            }
        };
        let found = self.outputs("run", json!({ "inputs": text(&file), "rows": oracle.rows() }))?;
        oracle.compare_part(seed, &found, tolerance).map(Some)
    }

    fn reference(&self) -> &str {
        match &self.held_to {
            HeldTo::Oracle(oracle, _) => oracle.name(),
            HeldTo::Itself(_) => "another call of its own",
        }
    }

    fn verify_last(&mut self) -> Result<Option<Deviation>, Failure> {
        let HeldTo::Oracle(oracle, tolerance) = &self.held_to else { return Ok(None) };
        let found = self.outputs("last", json!({ "rows": oracle.rows() }))?;
        oracle.compare_part(self.seeds[self.current], &found, *tolerance).map(Some)
    }

    fn sample(&mut self, calls: Range<u64>, _: &dyn Clock) -> Result<Reading, Failure> {
        let spans: Spans = self.ask("sample", json!({ "calls": calls.end - calls.start }))?;
        let device_ns = spans.device_ns.filter(|_| !self.by_host_clock);
        Ok(Reading { device_ns, ..Reading::host(spans.host_ns) })
    }
}

/// How far two answers to one question lie from each other.
fn between(a: &[Tensor], b: &[Tensor]) -> Result<Deviation, Failure> {
    let tolerance = Tolerance::of_elements(OWN, OWN);
    let mut worst = Deviation::none();
    for (a, b) in a.iter().zip(b) {
        worst = worst.or_worse(Deviation::between(&a.to_f64(), &b.to_f64(), tolerance)?);
    }
    Ok(worst)
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        // A process that is gone has nothing left to close.
        drop(self.ask::<Done>("close", Value::Null));
    }
}

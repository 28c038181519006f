//! decision.json: the request, the model and the data, all measurements, and the decision. With it
//! the decision can be repeated, and an interrupted search continues.

use super::bounds::Bounds;
use super::sample_parts::SampleParts;
use crate::cli::MetricName;
use crate::commands::quantize::{
    Asked as AskedSamples, Head, Judging, More, Samples, Subject, samples,
};
use crate::failure::Failure;
use overdrive::bench::environment::Revision;
use overdrive::files::{self, Digest};
use overdrive::ir::{Backend, Graph};
use overdrive::optimize::{Asked, Decision, Record};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The file.
pub(super) const NAME: &str = "decision.json";
/// Its format; another one is not read. Format 1 had one digest of all samples.
const FORMAT: u32 = 2;

/// The file's content.
#[derive(Serialize, Deserialize)]
pub(super) struct Evidence {
    format: u32,
    /// The program that measured.
    pub(super) revision: Revision,
    /// As it was typed.
    pub(super) command: String,
    /// The request.
    pub(super) asked: Asked,
    /// The model, data and machine.
    pub(super) about: About,
    /// The bounds of the float model; absent where the device's rates could not be had.
    #[serde(default)]
    pub(super) bounds: Option<Bounds>,
    /// Samples that judge; fixed once the float model was judged.
    pub(super) judged: Option<u64>,
    /// All that was measured.
    pub(super) record: Record,
    /// The decision; `null` before the end.
    pub(super) decision: Value,
    /// Digest of all files of the model that was written.
    pub(super) artefact: Option<String>,
}

/// The subject of a record. Two searches of one have one record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct About {
    /// As the user named it.
    pub(super) model: String,
    /// Digest of its weights.
    weights: String,
    /// `--data`.
    pub(super) data: Option<String>,
    /// The samples that calibrate, choose and judge.
    pub(super) samples: SampleParts,
    /// The source of the samples.
    pub(super) source: String,
    /// How the user has more samples judge, if more would be looked at.
    pub(super) more: Option<More>,
    /// `--shape`, the batch of a target among them.
    pub(super) shapes: Vec<(String, usize)>,
    /// `--batches`.
    pub(super) batches: u32,
    /// `--head`.
    pub(super) head: bool,
    /// `--seed`.
    pub(super) seed: u64,
    /// The device that was measured, in words.
    pub(super) device: String,
    /// The instruction set or architecture that its kernels are for; records of before lack it.
    #[serde(default)]
    pub(super) instructions: Option<String>,
    /// Its host threads.
    pub(super) threads: u32,
}

/// The device that is measured.
pub(super) struct Hardware {
    /// In words.
    pub(super) device: String,
    /// The instruction set or architecture that kernels are for.
    pub(super) instructions: Option<String>,
    /// Host threads.
    pub(super) threads: u32,
}

/// How the user named the model and the samples.
pub(super) struct Named<'a> {
    pub(super) model: &'a str,
    pub(super) data: Option<&'a str>,
    pub(super) shapes: &'a [(String, usize)],
    pub(super) batches: u32,
    pub(super) head: bool,
    pub(super) seed: u64,
}

impl Named<'_> {
    /// The model.
    pub(super) fn subject(&self) -> Result<Subject, Failure> {
        let head = if self.head { Head::Quantized } else { Head::Float };
        Subject::load(self.model, self.shapes, head)
    }

    /// The samples that calibrate, choose and judge it.
    pub(super) fn samples<'a>(
        &self,
        metric: Option<MetricName>,
        (backend, subject): (&'a dyn Backend, &'a Subject),
    ) -> Result<Samples<'a>, Failure> {
        let Self { data, batches, seed, .. } = *self;
        let asked = AskedSamples { data, metric, batches, seed, judging: Judging::All };
        samples(asked, (backend, &subject.template), subject.published())
    }
}

impl About {
    pub(super) fn of(
        named: &Named<'_>,
        (subject, samples): (&Subject, &Samples<'_>),
        hardware: Hardware,
    ) -> Result<Self, Failure> {
        Ok(Self {
            model: named.model.to_owned(),
            weights: weights(&subject.template.graph),
            data: named.data.map(str::to_owned),
            samples: SampleParts::of(samples)?,
            source: samples.source.to_owned(),
            more: samples.more,
            shapes: named.shapes.to_vec(),
            batches: named.batches,
            head: named.head,
            seed: named.seed,
            device: hardware.device,
            instructions: hardware.instructions,
            threads: hardware.threads,
        })
    }

    /// The machine, for people.
    pub(super) fn machine(&self) -> String {
        let threads = match self.threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        let parts = [Some(&self.device), self.instructions.as_ref(), Some(&threads)];
        parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// How the user named the model and the samples then.
    pub(super) fn named(&self) -> Named<'_> {
        Named {
            model: &self.model,
            data: self.data.as_deref(),
            shapes: &self.shapes,
            batches: self.batches,
            head: self.head,
            seed: self.seed,
        }
    }

    /// Errs unless a record of `self` is of `other` too; `timed` where times count.
    pub(super) fn check(&self, other: &Self, timed: bool) -> Result<(), String> {
        let differs = |what: &str, then: &dyn std::fmt::Debug, now: &dyn std::fmt::Debug| {
            Err(format!("it is of {what} {then:?}, here {now:?}"))
        };
        if self.weights != other.weights {
            return differs("a model with weights of digest", &self.weights, &other.weights);
        }
        self.samples.check(&other.samples)?;
        if (&self.shapes, self.seed, self.head) != (&other.shapes, other.seed, other.head) {
            let of = |about: &Self| (about.shapes.clone(), about.seed, about.head);
            return differs("shapes, seed and head", &of(self), &of(other));
        }
        if timed && (&self.device, self.threads) != (&other.device, other.threads) {
            let of = |about: &Self| (about.device.clone(), about.threads);
            return differs("device and threads", &of(self), &of(other));
        }
        if timed && self.instructions.is_some() && self.instructions != other.instructions {
            return differs("instructions", &self.instructions, &other.instructions);
        }
        Ok(())
    }
}

impl Evidence {
    pub(super) fn begin(command: String, asked: Asked, about: About) -> Self {
        let (format, revision) = (FORMAT, Revision::current());
        let (record, decision, artefact) = (Record::default(), Value::Null, None);
        Self {
            format,
            revision,
            command,
            asked,
            about,
            bounds: None,
            judged: None,
            record,
            decision,
            artefact,
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let path = if path.is_dir() { &path.join(NAME) } else { path };
        let wrong = |found: String| {
            let path = path.display();
            Failure::bad_input(format!("{path}: expected a decision of `optimize`, found {found}"))
        };
        let text = files::read_text(path, files::RESULTS).map_err(Failure::bad_input)?;
        let found: Value =
            serde_json::from_str(&text).map_err(|error| wrong(format!("no JSON: {error}")))?;
        match found.get("format").and_then(Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                return Err(wrong(format!(
                    "format {format}, where this version reads {FORMAT}: search again without \
                     --resume, or use the version that wrote it"
                )));
            }
            None => return Err(wrong("a file without a format".to_owned())),
        }
        serde_json::from_value(found).map_err(|error| wrong(error.to_string()))
    }

    pub(super) fn decided(&mut self, decision: &Decision) -> Result<(), Failure> {
        self.decision = serde_json::to_value(decision).map_err(Failure::harness)?;
        Ok(())
    }

    pub(super) fn to_json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::harness)
    }
}

/// Digest of every state's initial value, by name.
fn weights(graph: &Graph) -> String {
    let mut digest = Digest::default();
    for state in graph.states() {
        digest.add(state.name.as_bytes());
        digest.add(state.init.tensor(&state.name, graph.ty(state.value)).bytes());
    }
    digest.finish()
}

/// Digest of all files of a folder, by name.
pub(super) fn folder(folder: &Path) -> Result<String, Failure> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(Failure::harness)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(Failure::harness)?;
    names.sort();
    let mut digest = Digest::default();
    for path in names.iter().filter(|path| path.is_file()) {
        digest.add(path.file_name().unwrap_or_default().as_encoded_bytes());
        digest.add(&files::read(path, files::UNBOUNDED).map_err(Failure::harness)?);
    }
    Ok(digest.finish())
}

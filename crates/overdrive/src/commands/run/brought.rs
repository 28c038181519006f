//! `run --model`: the studies of a model that the user brought.
//!
//! A study needs of it what `bench`, `quantize` and `generate` make of the same words. A figure of
//! `run` is therefore one of theirs. Invariant: a study that cannot run on the model is a note with
//! the reason, never a silent gap.

use crate::cli::Run;
use crate::commands::quantize::{Asked, Judging, Samples, Subject, samples};
use crate::failure::{Failure, unknown};
use crate::model::Model;
use crate::terminal::note;
use crate::text;
use overdrive::bench::results::{Note, Results};
use overdrive::passes::QuantizationMode;
use overdrive::studies::pretrained::{Coding, ModelTask, Pretrained};
use overdrive::studies::quantization::{Brought as Quantizable, brought, to_the_end};
use overdrive::studies::{Context, Workload, compilation, decoding};
use overdrive_foreign::OriginalFile;
use serde_json::json;

/// The studies that a model of the user's can have.
pub(super) const STUDIES: [&str; 3] = ["compilation", "quantization", "decoding"];
/// Share of the time that each has with `--quick`, in seconds.
pub(super) const QUICK_SECONDS: u64 = 60;
/// Batches that calibrate; of inputs without labels as many judge.
const BATCHES: u32 = 4;
/// Modes that need no data, in which a decoder is timed too. The first is the mode of 8 bits in
/// which whole sequences are fastest. The second has codes of 4 bits as GPTQ makes them too, whose
/// time is the same.
const DECODED: [&str; 2] = ["int8-dynamic", "int4-rtn"];
/// The text that a decoder continues, as many tokens of it as the model's own length has room for.
const PROMPT: &str = "The quick brown fox jumps over the lazy dog, and";

/// The model with the workload that stands for it.
pub(super) struct Brought {
    subject: Subject,
    workload: Workload,
}

impl Brought {
    /// The model of `--model` at the sizes of `--shape`.
    pub(super) fn load(name: &str, arguments: &Run) -> Result<Self, Failure> {
        let subject = Subject::load_any(name, &arguments.shapes)?;
        let sizes = match &subject.model {
            Model::Onnx(_) => subject.sizes.clone(),
            Model::Template(_) | Model::Pretrained(_) => arguments.shapes.iter().cloned().collect(),
        };
        let workload = subject.model.bind(&sizes)?;
        Ok(Self { subject, workload })
    }

    /// The file that engines which read such files are given.
    pub(super) fn original(&self) -> Option<OriginalFile> {
        let path = self.subject.model.file()?.to_owned();
        Some(OriginalFile {
            path,
            sizes: self.subject.sizes.clone(),
            graph: self.workload.graph.clone(),
        })
    }

    /// The studies of these names, or all that there are for it.
    pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static str>, Failure> {
        if names.is_empty() {
            return Ok(STUDIES.to_vec());
        }
        let find = |name: &String| {
            let found = STUDIES.into_iter().find(|study| study == name);
            found.ok_or_else(|| Failure::bad_input(unknown("study of a model", name, &STUDIES)))
        };
        names.iter().map(find).collect()
    }

    /// Runs one of them.
    pub(super) fn study(
        &self,
        study: &str,
        arguments: &Run,
        (context, results): (&Context<'_>, &mut Results),
    ) {
        let outcome = match study {
            "compilation" => {
                compilation(context, results, std::slice::from_ref(&self.workload));
                Ok(())
            }
            "quantization" => self.quantization(arguments, (context, results)),
            _ => self.decoding((context, results)),
        };
        if let Err(failure) = outcome {
            let text = format!("{}: {}", self.workload.key.name, failure.message);
            note!("note: {study} was left out: {}", failure.message);
            results.notes.push(Note { study: study.to_owned(), text });
        }
    }

    /// Every mode that fits, judged as `quantize` judges.
    fn quantization(
        &self,
        arguments: &Run,
        (context, results): (&Context<'_>, &mut Results),
    ) -> Result<(), Failure> {
        if let Some(coding) = self.subject.published().and_then(|model| model.coding.as_ref()) {
            return Err(Failure::bad_input(format!(
                "its layers have codes already ({}), and are not quantized again",
                coding.mode
            )));
        }
        let backend = context.device().backend;
        let (subject, data) = (&self.subject, arguments.data.as_deref());
        let (seed, judging) = (context.sampling.seed, Judging::Few);
        let asked = Asked { data, metric: None, batches: BATCHES, seed, judging };
        let given: Samples<'_> = samples(asked, (backend, &subject.template), subject.published())?;
        let source = format!("{}: judged on {}", self.workload.key.name, given.source);
        results.notes.push(Note { study: "quantization".to_owned(), text: source });
        let make = |mode: &overdrive::passes::QuantizationMode| {
            let quantization = subject.quantization(mode.quantization());
            let how = (mode.preparation, &quantization);
            subject.apply(backend, how, &given.seen, &to_the_end)
        };
        let quantizable = Quantizable {
            workload: &self.workload,
            judge: &given.judge,
            compared: &given.compared,
            draw: &*given.draw,
            make: &make,
        };
        brought(context, results, &quantizable).map_err(|failure| Failure::harness(failure.reason))
    }

    /// The next token, with a cache of keys and values, of a model that gives one.
    fn decoding(&self, (context, results): (&Context<'_>, &mut Results)) -> Result<(), Failure> {
        let model = self
            .subject
            .published()
            .filter(|model| model.architecture.task() == ModelTask::Decoder);
        let Some(model) = model else {
            return Err(Failure::bad_input("it gives no next token, which decoding times"));
        };
        let prompt = text::encode(text::tokenizer(&self.subject.model)?, PROMPT)?;
        // A folder that has codes is decoded as it is.
        let modes = if model.coding.is_some() { &[][..] } else { &DECODED };
        let coded = |mode: &str| self.coded(model, QuantizationMode::find(mode)?, context);
        let decoded = decoding::Decoded { workload: &self.workload, model, modes, coded: &coded };
        decoding::study(context, results, decoded, &prompt)
            .map_err(|failure| Failure::harness(failure.reason))
    }

    /// The model in a mode that needs no data, where it takes it.
    fn coded(
        &self,
        model: &Pretrained,
        mode: &QuantizationMode,
        context: &Context<'_>,
    ) -> Option<Pretrained> {
        let quantization = self.subject.quantization(mode.quantization());
        let how = (mode.preparation, &quantization);
        let made = self.subject.apply(context.device().backend, how, &[], &to_the_end).ok()?;
        Some(model.with_codes(&made.graph, Coding::of(mode.name, &made, json!(null))))
    }
}

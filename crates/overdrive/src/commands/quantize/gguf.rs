//! `quantize -o NAME.gguf`: a file for llama.cpp, in f16, q8_0 or a K format.
//!
//! Such a file has blocks of its own, which are made of the float weights. It is written first and
//! read back, and the model that was read is judged. It takes its place if it is within
//! `--max-loss`. Nothing is timed: Overdrive decodes the blocks as it reads them.

use super::chosen::{compared, harness};
use super::judged::{Asked, Samples};
use super::loss::beyond;
use super::published::{self, Head};
use super::samples::samples;
use super::tables;
use crate::cli::Quantize;
use crate::devices;
use crate::failure::Failure;
use crate::model::{self, Model};
use crate::progress;
use crate::terminal::{say, tell};
use overdrive::bench::digits;
use overdrive::bench::exit::Exit;
use overdrive::files::{FileError, Place, PlaceRequest};
use overdrive::formats::gguf::GgufType;
use overdrive::ir::{Backend, Graph, Tensor};
use overdrive::passes::bind;
use overdrive::studies::Template;
use overdrive::studies::pretrained::Pretrained;
use overdrive::studies::quantization::agreement;
use std::num::NonZero;
use std::path::Path;

/// Whether the user wants one file of this kind.
pub(super) fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// Why a file did not take its place.
enum Left {
    Failed(Failure),
    /// More was lost than is allowed.
    Beyond(Exit),
}

impl From<Failure> for Left {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<FileError> for Left {
    fn from(error: FileError) -> Self {
        Self::Failed(error.into())
    }
}

pub(super) fn quantize(arguments: &Quantize, path: &Path) -> Result<Exit, Failure> {
    let ty = asked_type(arguments)?;
    let data = arguments.data.as_deref().map(Path::new);
    let inputs: Vec<&Path> = [Path::new(&arguments.model)].into_iter().chain(data).collect();
    let place =
        PlaceRequest { path, option: "-o", existing: arguments.replacing.into(), inputs: &inputs };
    let place = Place::file(place).map_err(Failure::bad_input)?;
    let (model, template) = float(arguments)?;
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let samples = samples(Asked::of(arguments), (backend, &template), Some(&*model))?;
    let threads =
        NonZero::new(devices::threads(&arguments.machine)).unwrap_or(NonZero::<usize>::MIN);
    let filled = place.fill(|staged| -> Result<(), Left> {
        let notes = model.write_gguf(staged, ty, threads).map_err(Failure::bad_input)?;
        let again = model.read_gguf(staged).map_err(Failure::harness)?;
        notes.iter().try_for_each(|note| tell!("note: {note}"))?;
        let judge = FileJudge { arguments, backend, template: &template, samples: &samples };
        judge.tell(&again)?.map_or(Ok(()), |exit| Err(Left::Beyond(exit)))?;
        let bytes = std::fs::metadata(staged).map_err(Failure::harness)?.len();
        Ok(tell!("\n{}", said(path, &model, bytes))?)
    });
    match filled {
        Ok(()) => {
            let place = path.display();
            say!("`{place}` is a model: bench, eval, generate, profile and export take it")?;
            Ok(Exit::Fine)
        }
        Err(Left::Beyond(exit)) => Ok(exit),
        Err(Left::Failed(failure)) => Err(failure),
    }
}

/// The type that `--mode` names, where no option asks for something else.
fn asked_type(arguments: &Quantize) -> Result<GgufType, Failure> {
    let known = GgufType::ALL.map(GgufType::name).join(", ");
    for (is_given, option) in [
        (arguments.search, "--search"),
        (arguments.export.is_some(), "--export"),
        (arguments.group.is_some(), "--group"),
        (arguments.head, "--head"),
        (arguments.steps.is_some(), "--steps"),
        (!arguments.peers.is_empty(), "--peers"),
    ] {
        if is_given {
            return Err(Failure::bad_input(format!(
                "{option}: expected a folder, -o DIR, found a .gguf file, whose blocks are those \
                 of --mode {known}; leave out {option}"
            )));
        }
    }
    let found = arguments.modes.join(",");
    GgufType::find(&found).ok_or_else(|| {
        Failure::bad_input(format!(
            "--mode {found}: expected one of {known}, which a .gguf file holds; write a folder for \
             any other mode: -o DIR"
        ))
    })
}

/// The float model, at the sizes that the user gives.
fn float(arguments: &Quantize) -> Result<(Box<Pretrained>, Template), Failure> {
    let name = &arguments.model;
    let model = match model::load(name)? {
        Model::Pretrained(model) => published::open((name, Head::Float), *model)?,
        Model::Template(_) | Model::Onnx(_) => {
            return Err(Failure::bad_input(format!(
                "`{name}`: expected a model in Hugging Face's format or a .gguf file, which a \
                 .gguf file describes, found another one; write a folder: -o DIR"
            )));
        }
    };
    model.check_gguf().map_err(Failure::bad_input)?;
    let mut template = model.template().map_err(Failure::harness)?;
    template.dimensions.extend(arguments.shapes.iter().cloned());
    template.graph_of(&template.dimensions).map_err(Failure::bad_input)?;
    Ok((model, template))
}

/// What judges the file that was written.
struct FileJudge<'a> {
    arguments: &'a Quantize,
    backend: &'a dyn Backend,
    template: &'a Template,
    samples: &'a Samples<'a>,
}

impl FileJudge<'_> {
    /// Tells what was lost. Gives the exit where that is more than is allowed.
    fn tell(&self, written: &Pretrained) -> Result<Option<Exit>, Failure> {
        let Self { arguments, backend, template, samples } = *self;
        let judge = &samples.judge;
        let quantized = written.template().map_err(Failure::harness)?.graph;
        let scores = |name: &str, graph: &Graph| {
            let scores = progress::over(&format!("judging the {name} model"), |done| {
                judge.scores_told(graph, done)
            });
            scores.map(|scores| [scores]).map_err(harness)
        };
        let outputs = |name: &str, graph: &Graph| -> Result<Vec<Vec<Tensor>>, Failure> {
            let graph = bind(graph, &template.dimensions).map_err(Failure::harness)?;
            compared(backend, (name, &graph), &samples.compared)
        };
        let (given, found) = (scores("float", &template.graph)?, scores("quantized", &quantized)?);
        let (float, written) =
            (outputs("float", &template.graph)?, outputs("quantized", &quantized)?);
        let judged = tables::Judged { given: &given, trained_as_long: None, quantized: &found };
        tell!("{}", tables::quality(judge.metric, &judged, samples.source))?;
        tell!("\n{}", tables::likeness(&agreement(&float, &written)))?;
        beyond(arguments, judge.metric, &judged.lost(judge.metric))
    }
}

/// The bytes of the file beside those of the weights that it was made of.
fn said(path: &Path, model: &Pretrained, bytes: u64) -> String {
    let weights = model.weights.values().map(|weight| weight.ty());
    let (before, count) = weights.fold((0, 0), |(bytes, count), ty| {
        (bytes + ty.bytes() as u64, count + ty.elements() as u64)
    });
    format!(
        "`{}` takes {}, {:.2} bits a weight; the weights that it was made of take {}",
        path.display(),
        digits::bytes(bytes),
        8.0 * bytes as f64 / count.max(1) as f64,
        digits::bytes(before)
    )
}

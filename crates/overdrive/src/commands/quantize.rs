//! `overdrive quantize`: a smaller model, with what it costs and gains.
//!
//! The files that were written are judged. The folder is read back, and its outputs must be those
//! of the graph in memory bit for bit before a figure is printed. The outputs of an ONNX file must
//! be the same but for rounding. A file of GGUF is judged as it is read back.

mod apart;
mod asked_layout;
mod chosen;
mod file;
mod gguf;
mod in_mode;
mod judged;
mod layout;
mod loss;
mod mixed;
mod peers;
mod published;
mod samples;
mod sized;
mod subject;
mod tables;
mod text;
mod times;
mod written;

use crate::asked_attention::{Changed, note_left_behind};
use crate::cli::Quantize;
use crate::devices;
use crate::failure::Failure;
use crate::model;
use crate::progress;
use crate::terminal::{note, say, tell};
pub(super) use chosen::{Chosen, compared};
use chosen::{harness, rules};
pub(super) use file::check_near;
pub(super) use in_mode::{in_mode, recipe};
pub(super) use judged::{Asked, Judging, More, Samples};
pub(super) use layout::Layout;
use loss::beyond;
use overdrive::bench::clock::SystemClock;
use overdrive::bench::exit::Exit;
use overdrive::files::{Place, PlaceRequest};
use overdrive::formats::gguf::GgufType;
use overdrive::formats::{ModelFolder, huggingface};
use overdrive::ir::{Backend, Granularity, Graph, Tensor};
use overdrive::passes::{MODES, Quantization, QuantizationMode, bind};
use overdrive::studies::pretrained::ModelTask;
use overdrive::studies::quantization::{
    Conditions, Footprint, Rival, agreement, latency, latency_of_blocks, same_class, to_the_end,
};
use overdrive::studies::{Peer, Progress};
use overdrive_process::Stop;
pub(super) use published::Head;
pub(super) use samples::samples;
use std::path::Path;
pub(super) use subject::Subject;
pub(super) use times::room_together;
use times::{Found, Slowdown};
pub(super) use written::Written;

pub(crate) fn quantize(arguments: &Quantize, stop: &Stop) -> Result<Exit, Failure> {
    let out = arguments.out.as_deref().filter(|_| !arguments.sensitivity);
    if out.is_some() {
        note_left_behind(&arguments.model, Changed::Rounded);
    }
    if let Some(path) = out.filter(|path| gguf::is_file(path)) {
        return gguf::quantize(arguments, path);
    }
    let modes = modes(arguments)?;
    let place = out.map(|path| place_of(arguments, path)).transpose()?;
    let head = if arguments.head { Head::Quantized } else { Head::Float };
    let subject = Subject::load(&arguments.model, &arguments.shapes, head)?;
    let layout = asked_layout::asked(arguments, &modes, &subject)?;
    let template = &subject.template;
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let samples = samples(Asked::of(arguments), (backend, template), subject.published())?;
    let peers = peers::start(arguments, &opened, stop)?;
    let chosen = if arguments.search || arguments.sensitivity {
        match mixed::choose((arguments, stop), &subject, &samples, &modes)? {
            mixed::Choice::Chosen(chosen) => *chosen,
            mixed::Choice::Scanned => return Ok(Exit::Fine),
            mixed::Choice::NoneWithin => return Ok(Exit::WrongOutputs),
            mixed::Choice::TooSlow => return Ok(Exit::Regression),
        }
    } else {
        let mode = modes[0];
        let quantization = with_group(mode.quantization(), arguments.group);
        let quantization = subject.quantization(quantization);
        let recipe = recipe(&subject, (arguments.steps, arguments.machine.seed));
        in_mode((backend, &subject), &samples, (mode, quantization), &recipe, &to_the_end)?
    };
    let chosen = match layout {
        Some(layout) => layout.held(&subject, chosen)?,
        None => chosen,
    };
    let place = place.expect("clap asks for it where something is written");
    finish((arguments, place, stop), (backend, &subject), &samples, &chosen, &peers)
}

/// Claims the folder of the model, or its file.
fn place_of(arguments: &Quantize, path: &Path) -> Result<Place, Failure> {
    let data = arguments.data.as_deref().map(Path::new);
    let inputs: Vec<&Path> = [Path::new(&arguments.model)].into_iter().chain(data).collect();
    let request =
        PlaceRequest { path, option: "-o", existing: arguments.replacing.into(), inputs: &inputs };
    if file::is_file(path) {
        return Place::file(request).map_err(Failure::bad_input);
    }
    let contents = match model::is_published(&arguments.model) {
        true => huggingface::CONTENTS,
        false => ModelFolder::CONTENTS,
    };
    Place::folder(request, contents).map_err(Failure::bad_input)
}

/// Judges, writes and times what was chosen.
fn finish(
    (arguments, place, stop): (&Quantize, Place, &Stop),
    (backend, subject): (&dyn Backend, &Subject),
    samples: &Samples<'_>,
    chosen: &Chosen,
    peers: &[Peer],
) -> Result<Exit, Failure> {
    let (made, template) = (&chosen.made, &subject.template);
    remark(arguments, chosen)?;
    let graph = bind(&made.graph, &template.dimensions).map_err(Failure::harness)?;
    let float_graph = bind(&template.graph, &template.dimensions).map_err(Failure::harness)?;
    let float = compared(backend, ("float", &float_graph), &samples.compared)?;
    let found = compared(backend, ("quantized", &graph), &samples.compared)?;
    let judge = &samples.judge;
    let scores = |name: &str, graph: &Graph| {
        let scores = progress::over(&format!("judging the {name} model"), |done| {
            judge.scores_told(graph, done)
        });
        scores.map(|scores| [scores]).map_err(harness)
    };
    let given = scores("float", &template.graph)?;
    let trained = |graph: &Graph| scores("further trained", graph);
    let trained_as_long = chosen.trained_as_long.as_ref().map(trained).transpose()?;
    let quantized = scores("quantized", &made.graph)?;
    let judged = tables::Judged {
        given: &given,
        trained_as_long: trained_as_long.as_ref().map(|scores| &scores[..]),
        quantized: &quantized,
    };
    let lost = judged.lost(judge.metric);
    tell!("{}", tables::quality(judge.metric, &judged, samples.source))?;
    for (model, outputs) in [("float", &float), ("quantized", &found)] {
        if let Some(count) = not_finite(outputs) {
            let source = samples.source;
            note!("warning: {count} outputs of the {model} model on {source} are NaN or infinite");
        }
    }
    if let Some(exit) = beyond(arguments, judge.metric, &lost)? {
        return Ok(exit);
    }
    let _whole = stop.heed();
    let output = place.path().to_owned();
    let outputs = [&float[..], &found[..]];
    let layout = arguments.export.map(Layout::from);
    let written = Written { backend, subject, samples, chosen, outputs, layout };
    let written = match file::is_file(&output) {
        true => (place.fill(|path| written.file(&output, path))?, "the file"),
        false => (place.fill(|path| written.folder(path))?, "files of the folder"),
    };
    tell!("\n{}", tables::bytes(&template.graph, &Footprint::of(made), written))?;
    tell!("\n{}", tables::likeness(&agreement(&float, &found)))?;
    if subject.published().is_some_and(text::gives_a_class) {
        let [same, rows] = same_class(&float, &found);
        tell!("the class is that of the float model in {same} of {rows} rows")?;
    }
    let clock = SystemClock::new();
    let conditions =
        Conditions { clock: &clock, rules: rules(arguments), seed: arguments.machine.seed, stop };
    let asked = peers::Asked {
        mode: &chosen.name,
        template,
        made,
        seed: arguments.machine.seed,
        compared: (&samples.compared, &float),
    };
    let workload = asked.workload()?;
    let mut rivals = asked.of(peers, &workload, &*samples.draw);
    let spinner = progress::Spinner::over(1);
    Progress::study(&spinner, "timing both models in alternation");
    let graphs = [&float_graph, &graph];
    // Peers have whole models only.
    let by_block = rivals.is_empty() && !times::fit_together(backend, &graphs);
    let timed = match by_block {
        true => latency_of_blocks(backend, &graphs, &*samples.draw, &conditions).map(Found::Blocks),
        false => {
            latency(backend, &graphs, &mut rivals, &*samples.draw, conditions).map(Found::Whole)
        }
    };
    spinner.finish();
    if stop.is_requested() {
        let place = output.display();
        return Err(Failure::interrupted(format!(
            "the model is whole in `{place}`, and was not timed"
        )));
    }
    let slowdown = tell_times(&timed.map_err(Failure::harness)?, &rivals)?;
    if let Some(found) = slowdown {
        tell!("{}", found.against_float())?;
    }
    let generates =
        subject.published().is_some_and(|model| model.architecture.task() == ModelTask::Decoder);
    let commands = if generates && !file::is_file(&output) {
        "bench, eval, generate, profile and export"
    } else {
        "bench, eval, profile and export"
    };
    say!("`{}` is a model: {commands} take it", output.display())?;
    Ok(Exit::Fine)
}

/// Tells which layers stay as they are or are rounded more simply; errs where none has codes.
fn remark(arguments: &Quantize, chosen: &Chosen) -> Result<(), Failure> {
    let made = &chosen.made;
    for skipped in &made.skipped {
        tell!("note: `{}` stays as it is: {}", skipped.layer, skipped.reason)?;
    }
    for simplified in &made.simplified {
        tell!("note: `{}`: {}", simplified.layer, simplified.reason)?;
    }
    if made.layers.is_empty() {
        let (model, mode) = (&arguments.model, &chosen.name);
        let text = format!("no layer of `{model}` can take mode `{mode}`; nothing was written");
        return Err(Failure::bad_input(text));
    }
    Ok(())
}

/// Prints the times. Returns the slowdown, if an interval shows one or excludes it.
fn tell_times(timed: &Found, rivals: &[Rival<'_>]) -> Result<Option<Slowdown>, Failure> {
    Ok(match timed {
        Found::Blocks(blocks) => {
            tell!("\n{}", tables::blocks(blocks))?;
            times::slowdown_of_blocks(blocks)
        }
        Found::Whole(timed) => {
            tell!("\n{}", tables::times(timed))?;
            if !rivals.is_empty() {
                tell!("\n{}", tables::rivals(rivals, timed))?;
            }
            for (rival, seen) in rivals.iter().zip(&timed[2..]) {
                if let Some(failure) = seen.outcome.failure() {
                    say!("note: {}: {}", rival.name, failure.reason)?;
                }
            }
            times::slowdown_of(&timed[..2])
        }
    })
}

/// The modes that were asked for: one, or for a search those that layers may take.
fn modes(arguments: &Quantize) -> Result<Vec<&'static QuantizationMode>, Failure> {
    let find = |name: &String| {
        QuantizationMode::find(name).ok_or_else(|| {
            let known: Vec<&str> = MODES.iter().map(|mode| mode.name).collect();
            let hint = match GgufType::find(name) {
                Some(_) => "; a .gguf file has this one: -o NAME.gguf",
                None => "",
            };
            let known = known.join(", ");
            Failure::bad_input(format!("unknown mode `{name}`: expected one of {known}{hint}"))
        })
    };
    let found = arguments.modes.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    if !arguments.search && !arguments.sensitivity && found.len() != 1 {
        let text = format!("expected one --mode, found {}; --search mixes several", found.len());
        return Err(Failure::bad_input(text));
    }
    if found.is_empty() {
        mixed::MODES.iter().map(|name| find(&(*name).to_owned())).collect()
    } else {
        Ok(found)
    }
}

/// The quantization with groups of another size, where it has groups.
fn with_group(mut quantization: Quantization, group: Option<u32>) -> Quantization {
    if let (Some(size), Granularity::Group(_)) = (group, quantization.scheme.weights.block) {
        quantization.scheme.weights.block = Granularity::Group(size as usize);
    }
    quantization
}

/// How many outputs are NaN or infinite, if any.
fn not_finite(outputs: &[Vec<Tensor>]) -> Option<usize> {
    let floats = outputs.iter().flatten().filter(|tensor| tensor.ty().dtype.is_float());
    let count =
        floats.map(|tensor| tensor.to_f64().iter().filter(|x| !x.is_finite()).count()).sum();
    (count > 0).then_some(count)
}

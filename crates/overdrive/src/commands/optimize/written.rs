//! The folder of a decision: its places, and the model that is written into it.

use super::evidence::{self, Hardware, NAME};
use super::exported::Exports;
use super::machine::OwnMachine;
use crate::cli::{Isa, Optimize};
use crate::commands::quantize::{Written, compared};
use crate::devices::Opened;
use crate::failure::Failure;
use crate::model;
use crate::terminal::note;
use overdrive::bench::environment::Environment;
use overdrive::files::{self, Contents, Existing, Place, PlaceRequest};
use overdrive::formats::{ModelFolder, huggingface};
use overdrive::optimize::Form;
use overdrive::passes::bind;
use std::path::{Path, PathBuf};

/// The page, to open and for pull requests.
pub(super) const PAGES: [&str; 2] = ["report.html", "report.md"];
/// The model that was taken.
pub(super) const MODEL: &str = "model";
/// Bytes that the evidence takes, if not more.
const ROOM: u64 = 1 << 19;

/// The files next to the model.
const EVIDENCE: Contents = Contents {
    name: "a decision",
    writes: |name| name == NAME || PAGES.contains(&name),
    is_ours: |folder| folder.join(NAME).is_file(),
};

/// Writes the weights of the form to their places; what was read back gave the outputs that were
/// judged. Weights in float stay where they are. Gives the reasons for other formats that were not
/// written.
pub(super) fn fill(
    (model, exports): (Place, Exports),
    (machine, form): (&mut OwnMachine<'_>, &Form),
) -> Result<Vec<String>, Failure> {
    if form.of_weights().is_float() {
        if model.path().is_dir() {
            note!(
                "note: `{}` is of an earlier decision, and not the model to deploy",
                model.path().display()
            );
        }
        return Ok(exports.none_of_float());
    }
    let (backend, subject, samples) = (machine.backend, machine.subject, machine.samples);
    machine.underway.leaves();
    machine.tell("writing", &form.said());
    let float = compared(backend, ("float", &machine.float), &samples.compared)?;
    let chosen = machine.made(form).map_err(|halt| Failure::harness(format!("{halt:?}")))?;
    let graph = bind(&chosen.made.graph, &subject.template.dimensions);
    let graph = graph.map_err(Failure::harness)?;
    let found = compared(backend, ("taken", &graph), &samples.compared)?;
    let outputs = [&float[..], &found[..]];
    let written = Written { backend, subject, samples, chosen, outputs, layout: None };
    model.fill(|path| written.folder(path))?;
    exports.fill(&written, form)
}

/// Digest of the folder of the model that was written of this form, if one was.
pub(super) fn digest(form: &Form, out: &Path) -> Result<Option<String>, Failure> {
    match form.of_weights().is_float() {
        true => Ok(None),
        false => evidence::folder(&out.join(MODEL)).map(Some),
    }
}

/// Errs where a format was asked for and not written.
pub(super) fn check_all(unwritten: &[String]) -> Result<(), Failure> {
    match unwritten {
        [] => Ok(()),
        reasons => Err(Failure::harness(reasons.join("; "))),
    }
}

/// Places of the model and of the evidence.
///
/// Fields are dropped in this order. The folder of the evidence has the locks of the others in it.
/// So it comes last: else it is not empty when it is given up, and stays.
pub(super) struct Places {
    pub(super) model: Place,
    pub(super) exports: Exports,
    pub(super) evidence: Place,
}

impl Places {
    pub(super) fn claim(arguments: &Optimize, (name, out): (&str, &Path)) -> Result<Self, Failure> {
        let existing = match arguments.resume {
            true => Existing::Replace,
            false => arguments.replacing.into(),
        };
        let data = arguments.data.as_deref().map(Path::new);
        let inputs: Vec<&Path> = [Path::new(name)].into_iter().chain(data).collect();
        let request = |path| PlaceRequest { path, option: "-o", existing, inputs: &inputs };
        files::check_room(out, &[ROOM])?;
        let evidence = Place::files(request(out), EVIDENCE).map_err(Failure::bad_input)?;
        let contents = match model::is_published(name) {
            true => huggingface::CONTENTS,
            false => ModelFolder::CONTENTS,
        };
        let model: PathBuf = out.join(MODEL);
        let model = Place::folder(request(&model), contents).map_err(Failure::bad_input)?;
        let exports = Exports::claim(arguments, out, (existing, &inputs))?;
        Ok(Self { model, exports, evidence })
    }
}

/// The device that is measured.
pub(super) fn described(opened: &Opened, isa: Isa) -> Hardware {
    let name = opened.backend.name();
    let (model, instructions) = match &opened.described {
        Some(device) => (device.name.clone(), device.properties.get("architecture").cloned()),
        None => (Environment::probe().cpu.model, Some(isa.set().name().to_owned())),
    };
    Hardware { device: format!("{name} ({model})"), instructions, threads: opened.threads }
}

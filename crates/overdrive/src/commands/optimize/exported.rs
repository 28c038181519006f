//! `optimize --export`: the model that was taken, in formats of other programs beside our folder.
//!
//! Each is read again, and gives the outputs that were judged, before it takes its place. Formats
//! that round scales anew must be as near to these as a file of ONNX.

use crate::cli::{FormatName, Optimize};
use crate::commands::export::served;
use crate::commands::quantize::{Chosen, Layout, Subject, Written, check_near, compared};
use crate::failure::Failure;
use crate::model::Model;
use crate::terminal::say;
use overdrive::files::{Existing, Place, PlaceRequest};
use overdrive::formats::onnx::{self, Dialect};
use overdrive::formats::{huggingface, triton};
use overdrive::optimize::Form;
use overdrive::passes::{MODES, QuantizationMode, bind};
use std::collections::BTreeMap;
use std::path::Path;

/// A format.
#[derive(Copy, Clone, PartialEq)]
enum Format {
    Onnx,
    Triton,
    Layout(Layout),
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Onnx => Self::Onnx,
            FormatName::Triton => Self::Triton,
            FormatName::Gptq | FormatName::Awq | FormatName::Modelopt => {
                Self::Layout(name.layout().expect("the others have none"))
            }
        }
    }
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Triton => "triton",
            Self::Layout(layout) => layout.name(),
        }
    }

    /// Name of its file or folder.
    fn place(self) -> &'static str {
        if self == Self::Onnx { "model.onnx" } else { self.name() }
    }

    /// Whether it holds the codes of every one of these modes.
    fn holds(self, modes: &[&QuantizationMode]) -> bool {
        match self {
            Self::Onnx | Self::Triton => true,
            Self::Layout(layout) => modes.iter().all(|mode| layout.holds(mode)),
        }
    }
}

/// The formats that were asked for, with their places.
pub(super) struct Exports(Vec<(Format, Place)>);

impl Exports {
    /// Claims the places in the folder of the decision.
    pub(super) fn claim(
        arguments: &Optimize,
        out: &Path,
        (existing, inputs): (Existing, &[&Path]),
    ) -> Result<Self, Failure> {
        let claim = |name: &FormatName| {
            let format = Format::from(*name);
            let path = out.join(format.place());
            let request = PlaceRequest { path: &path, option: "-o", existing, inputs };
            let place = match format {
                Format::Onnx => Place::file(request),
                Format::Triton => Place::folder(request, triton::CONTENTS),
                Format::Layout(_) => Place::folder(request, huggingface::CONTENTS),
            };
            Ok((format, place.map_err(Failure::bad_input)?))
        };
        Ok(Self(arguments.export.iter().map(claim).collect::<Result<_, Failure>>()?))
    }

    /// Errs where a format cannot hold the model, whatever form is found.
    pub(super) fn check(&self, subject: &Subject) -> Result<(), Failure> {
        let template = &subject.template;
        self.0.iter().try_for_each(|(format, place)| match format {
            Format::Layout(layout) => layout.check(subject),
            Format::Onnx | Format::Triton => {
                let graph = bind(&template.graph, &template.dimensions);
                let graph = graph.map_err(Failure::bad_input)?;
                let made = onnx::made(place.path(), &graph, Dialect::Microsoft);
                made.map(drop).map_err(Failure::bad_input)
            }
        })
    }

    /// The reasons for writing none of a form whose weights are those that were brought.
    pub(super) fn none_of_float(self) -> Vec<String> {
        let said = |(format, _): &(Format, Place)| {
            format!(
                "--export {}: the weights stay in float: `overdrive export` writes the model that \
                 was brought",
                format.name()
            )
        };
        self.0.iter().map(said).collect()
    }

    /// Writes every format. Gives the reasons for those that were not written.
    pub(super) fn fill(self, written: &Written<'_>, form: &Form) -> Result<Vec<String>, Failure> {
        let mut reasons = Vec::new();
        for (format, place) in self.0 {
            let shown = place.path().display().to_string();
            let filled = check_form(format, form).and_then(|()| match format {
                Format::Onnx => {
                    let shown = place.path().to_owned();
                    place.fill(|path| written.file(&shown, path).map(drop))
                }
                Format::Triton => place.fill(|folder| repository(written, folder)),
                Format::Layout(layout) => place.fill(|folder| coded(written, layout, folder)),
            });
            match filled {
                Ok(()) => say!("the same model for others: `{shown}`")?,
                Err(failure) => reasons.push(failure.message),
            }
        }
        Ok(reasons)
    }
}

/// Errs unless the format holds the codes of this form; names the formats that do.
fn check_form(format: Format, form: &Form) -> Result<(), Failure> {
    let weights = form.of_weights();
    let names: Vec<&String> = match form.layers.is_empty() {
        true => vec![&weights.name],
        false => form.layers.values().collect(),
    };
    let modes: Vec<&QuantizationMode> = names
        .iter()
        .map(|name| QuantizationMode::find(name).expect("forms are of modes"))
        .collect();
    if format.holds(&modes) {
        return Ok(());
    }
    let known = MODES.iter().filter(|mode| format.holds(&[mode])).map(|mode| mode.name);
    let others =
        FormatName::ALL.map(Format::from).into_iter().filter(|format| format.holds(&modes));
    Err(Failure::bad_input(format!(
        "--export {}: expected a form of {}, whose codes it holds, found `{}`; --export {} takes \
         it",
        format.name(),
        known.collect::<Vec<_>>().join(", "),
        form.said(),
        others.map(Format::name).collect::<Vec<_>>().join(" or ")
    )))
}

/// A folder of another layout. Its scales may be others than were judged, and give near outputs.
fn coded(written: &Written<'_>, layout: Layout, folder: &Path) -> Result<(), Failure> {
    let Written { backend, subject, samples, chosen, outputs, .. } = *written;
    let held: Chosen = layout.held(subject, chosen.clone())?;
    let graph = bind(&held.made.graph, &subject.template.dimensions).map_err(Failure::harness)?;
    let found = compared(backend, (layout.name(), &graph), &samples.compared)?;
    check_near(&format!("--export {}", layout.name()), &found, outputs[1])?;
    let outputs = [outputs[0], &found[..]];
    Written { chosen: &held, outputs, layout: Some(layout), ..*written }.folder(folder).map(drop)
}

/// A repository for Triton, of the file that was written and read again.
fn repository(written: &Written<'_>, folder: &Path) -> Result<(), Failure> {
    let subject = written.subject;
    // Beside the folder, which takes its place without it.
    let file = folder.with_file_name("model.onnx");
    written.file(Path::new("model.onnx"), &file)?;
    let model = onnx::Model::open(&file).map_err(Failure::harness)?;
    let model = Model::Onnx(Box::new(model));
    let known = |name: &str| {
        subject.sizes.get(name).or_else(|| subject.template.dimensions.get(name)).copied()
    };
    let names = model.dimensions()?.into_iter();
    let sizes: BTreeMap<String, usize> =
        names.filter_map(|(name, _)| Some((name.clone(), known(&name)?))).collect();
    let served = served((&model, Dialect::Microsoft), &sizes, &model.bind(&sizes)?)?;
    triton::write(folder, &served).map_err(Failure::harness)
}

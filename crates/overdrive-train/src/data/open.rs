//! From the name of a data set, or a file, to its parts in the form that a model takes.

use super::{Parts, Reading, Samples, Targets, Tokens, books, csv_file, digits, idx, npz_file};
use crate::TrainError;
use crate::standardize::{is_standardized, standardized};
use overdrive_formats::TableColumns;
use overdrive_formats::huggingface::Tokenizer;
use overdrive_ir::{DType, Graph, Tensor};
use overdrive_passes::{Indices, bind};
use std::path::Path;
use std::sync::Arc;

/// A data set before it is split.
#[derive(Clone, Debug)]
pub enum Dataset {
    /// Features with a class or a quantity each.
    Samples(Arc<Samples>),
    /// A text.
    Text(Arc<Tokens>),
}

/// Prefix of built-in names, for use when a file has the same name.
const BUILT_IN: &str = "builtin:";

/// `digits`, `text` (the two novels), or a file by its ending: `.csv`, `.npz`, IDX
/// (`*-images-idx3-ubyte`, also `.gz`); any other file is a token file or a text.
///
/// # Errors
/// When the file cannot be read or is not what its ending says.
pub fn open(name: &str) -> Result<Dataset, TrainError> {
    open_as(name, &Reading::default())
}

/// The same, a table by its columns.
///
/// # Errors
/// Those of `open`, and a column that differs from the request.
pub fn open_as(name: &str, reading: &Reading) -> Result<Dataset, TrainError> {
    let path = Path::new(name);
    let plain = name.strip_prefix(BUILT_IN);
    match plain.unwrap_or(name) {
        "digits" | "text" if plain.is_none() && path.exists() => {
            let expected = format!(
                "`./{name}` for the file or `{BUILT_IN}{name}` for the data that come with \
                 Overdrive"
            );
            let found = format!("`{name}`, which is both");
            return Err(TrainError::invalid("data", expected, found, "name one of them"));
        }
        "digits" => return Ok(Dataset::Samples(digits())),
        "text" => return Ok(Dataset::Text(books())),
        _ => {}
    }
    if !path.exists() {
        let expected = "`digits`, `text` or a file";
        return Err(TrainError::invalid(
            "data",
            expected,
            format!("`{name}`"),
            "name a file that exists",
        ));
    }
    let _about = overdrive_files::about(path);
    let file = overdrive_files::open(path)?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let samples = match extension {
        "csv" => {
            drop(file);
            csv_file::decode(
                name,
                &overdrive_files::read(path, overdrive_files::UNBOUNDED)?,
                reading,
            )?
        }
        "npz" => npz_file::read(path)?,
        _ if name.contains("-ubyte") => idx::read(path)?,
        _ => return Ok(Dataset::Text(Arc::new(Tokens::of_file(path)?))),
    };
    Ok(Dataset::Samples(Arc::new(samples)))
}

impl Dataset {
    /// A text in the tokens of a `tokenizer.json`, for a model of ids below `vocabulary`. A token
    /// file is given as it is.
    ///
    /// # Errors
    /// When this is no text, or a token file of another tokenizer; when the file is no tokenizer or
    /// knows other ids.
    pub fn encoded(self, tokenizer: &Path, vocabulary: usize) -> Result<Self, TrainError> {
        let Self::Text(tokens) = self else {
            let (expected, remedy) = ("text beside a tokenizer", "leave the tokenizer out");
            return Err(TrainError::invalid("data", expected, "labelled samples", remedy));
        };
        Ok(Self::Text(tokens.encoded(&Tokenizer::read(tokenizer, vocabulary)?)?))
    }

    /// The meaning of the columns, for a table.
    pub fn columns(&self) -> Option<&TableColumns> {
        match self {
            Self::Samples(samples) => samples.columns(),
            Self::Text(_) => None,
        }
    }

    /// The model with its input standardised, each feature by its mean and deviation over the
    /// training part of a table. A quantity that the model gives is standardised likewise. The
    /// model thus takes and gives numbers as they are in the file.
    ///
    /// # Errors
    /// Those of [`Self::parts`].
    pub fn standardizing(&self, model: &Graph, fold: usize) -> Result<Graph, TrainError> {
        match self {
            Self::Samples(samples) if samples.columns().is_some() => {
                let raw = Self::Samples(Arc::new(samples.unscaled()));
                standardized(model, raw.parts(model, fold)?.train.as_ref())
            }
            _ => Ok(model.clone()),
        }
    }

    /// The three parts of a text in windows of `context` tokens, for a model that has no labels for
    /// them.
    ///
    /// # Errors
    /// When this is no text, or too short a one.
    pub fn windows(&self, context: usize) -> Result<Parts, TrainError> {
        match self {
            Self::Text(tokens) => Parts::of_text(tokens, context),
            Self::Samples(_) => {
                let remedy = "name a file of UTF-8 text, or `text`";
                Err(TrainError::invalid("data", "text", "labelled samples", remedy))
            }
        }
    }

    /// The three parts, samples shaped like input `x` of `model` (`[batch, ...]`, which may be
    /// unbound); `fold` is of samples only.
    ///
    /// # Errors
    /// When the model takes something else, has fewer classes or a smaller vocabulary, or the data
    /// set is too small.
    pub fn parts(&self, model: &Graph, fold: usize) -> Result<Parts, TrainError> {
        let port = |ports: &[overdrive_ir::Port], name: &str| {
            let found = ports
                .iter()
                .find(|port| port.name == name)
                .map(|port| model.ty(port.value).clone());
            found.ok_or_else(|| {
                let expected = format!("`{name}`, as every model that can be trained has");
                TrainError::invalid(
                    model.name(),
                    expected,
                    "none",
                    "name its input `x` and its output `y`",
                )
            })
        };
        let (x, y) = (port(model.inputs(), "x")?, port(model.outputs(), "y")?);
        let size = |dim: &overdrive_ir::Dim| dim.size().unwrap_or(1);
        let shape: Vec<usize> = x.shape.0.iter().skip(1).map(size).collect();
        let classes = y.shape.0.last().map_or(0, size);
        if let (Self::Samples(samples), true) = (self, classes != 1)
            && let Targets::Quantities(_) = samples.targets()
        {
            let (place, found) = (model.name(), format!("{classes} outputs"));
            let remedy = "leave MODEL out for one of this size, or learn classes: --target classes";
            return Err(TrainError::invalid(place, "one output, for a quantity", found, remedy));
        }
        let found = match self {
            Self::Samples(samples) => samples.classes(),
            Self::Text(tokens) => tokens.vocabulary(),
        };
        if found > classes {
            let remedy = "choose a model with a larger head";
            return Err(TrainError::invalid(
                "data",
                format!("at most {classes} classes"),
                found,
                remedy,
            ));
        }
        match self {
            Self::Samples(samples) if x.dtype.is_float() && is_standardized(model) => {
                Parts::of_samples(&Arc::new(samples.unscaled()), &shape, fold)
            }
            Self::Samples(samples) if x.dtype.is_float() => {
                Parts::of_samples(samples, &shape, fold)
            }
            Self::Text(tokens) if x.dtype == DType::I32 && shape.len() == 1 => {
                largest_is_known(model, found)?;
                Parts::of_text(tokens, shape[0])
            }
            Self::Samples(_) => {
                let expected = format!("text, since `{}` takes tokens", model.name());
                Err(TrainError::invalid(
                    "data",
                    expected,
                    "labelled samples",
                    "train a model of this input",
                ))
            }
            Self::Text(_) => {
                let expected = format!("labelled samples, since `{}` takes {x}", model.name());
                Err(TrainError::invalid(
                    "data",
                    expected,
                    "text",
                    "train a model that takes tokens",
                ))
            }
        }
    }
}

/// Errs where the model looks up fewer tokens than a text of this vocabulary may hold.
fn largest_is_known(model: &Graph, vocabulary: usize) -> Result<(), TrainError> {
    let model = match model.is_bound() {
        true => model.clone(),
        false => bind(model, &[("batch".to_owned(), 1)].into())?,
    };
    let largest = |port: &overdrive_ir::Port| {
        let ty = model.ty(port.value);
        let (shape, count) = (ty.shape.clone(), ty.elements());
        match ty.dtype.is_float() {
            true => Tensor::from_f64(ty.dtype, shape, &vec![0.0; count]),
            false => Tensor::from_ints(ty.dtype, shape, &vec![vocabulary as i128 - 1; count]),
        }
    };
    let inputs: Vec<Tensor> = model.inputs().iter().map(largest).collect();
    let Some(indices) = Indices::of(&model) else { return Ok(()) };
    indices.check(&inputs).map_err(|e| {
        let expected = "a text whose tokens the model knows";
        TrainError::invalid("data", expected, e, "choose a model with a larger table of tokens")
    })
}

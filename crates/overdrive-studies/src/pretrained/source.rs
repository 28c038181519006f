//! The source of a model: a folder in Hugging Face's format, or a GGUF file, alone or in a folder
//! without a config.json.

use overdrive_formats::gguf::{self, Gguf};
use overdrive_formats::huggingface::{self, Config, FolderWeights, Tokenizer};
use overdrive_formats::{Cuts, FormatError, parts};
use std::path::{Path, PathBuf};

/// Extension of files of GGUF.
const GGUF: &str = "gguf";

/// A place whose config was read.
#[derive(Debug)]
pub(super) struct PretrainedSource {
    pub(super) config: Config,
    /// The folder, unless the file is given by itself.
    pub(super) folder: Option<PathBuf>,
    file: Option<Box<Gguf>>,
}

/// The GGUF file at a place, if there is one.
fn file_at(place: &Path) -> Option<PathBuf> {
    let is_one = |path: &Path| path.extension().is_some_and(|extension| extension == GGUF);
    if !place.is_dir() {
        return is_one(place).then(|| place.to_owned());
    }
    if place.join("config.json").exists() {
        return None;
    }
    let entries = std::fs::read_dir(place).ok()?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_one(path)).collect();
    files.sort();
    // With several files none is the model. The error about the missing config.json lists them.
    if files.len() == 1 { files.pop() } else { None }
}

/// Whether a place means to be a model, whatever else is wrong with it.
pub(super) fn is_at(place: &Path) -> bool {
    file_at(place).is_some() || huggingface::is_at(place)
}

impl PretrainedSource {
    /// A config without files beside it.
    pub(super) fn of_config(config: Config) -> Self {
        Self { config, folder: None, file: None }
    }

    pub(super) fn read(place: &Path) -> Result<Self, FormatError> {
        let Some(path) = file_at(place) else {
            let config = Config::read(&place.join("config.json"))?;
            return Ok(Self { config, folder: Some(place.to_owned()), file: None });
        };
        let file = gguf::read(&path)?;
        let folder = place.is_dir().then(|| place.to_owned());
        Ok(Self { config: file.config.clone(), folder, file: Some(Box::new(file)) })
    }

    /// Its weights, with what a user should know of them; with `cuts`, these parts alone.
    pub(super) fn weights(
        &mut self,
        cuts: Option<&Cuts<'_>>,
    ) -> Result<(FolderWeights, Vec<String>), FormatError> {
        match (&mut self.file, &self.folder) {
            (Some(file), _) => {
                let mut weights = std::mem::take(&mut file.weights);
                if let Some(cuts) = cuts {
                    weights.tensors = parts(weights.tensors, cuts, &mut weights.digest);
                }
                Ok((weights, std::mem::take(&mut file.notes)))
            }
            (None, Some(folder)) => Ok((huggingface::read_weights(folder, cuts)?, vec![])),
            (None, None) => unreachable!("without a file of GGUF there is a folder"),
        }
    }

    /// Its tokenizer, from a file next to the weights or from the GGUF file.
    pub(super) fn tokenizer(
        &mut self,
        vocabulary: usize,
    ) -> Result<Option<Tokenizer>, FormatError> {
        let beside = self.folder.as_ref().map(|folder| folder.join("tokenizer.json"));
        match beside.filter(|path| path.exists()) {
            Some(path) => Tokenizer::read(&path, vocabulary).map(Some),
            None => Ok(self.file.as_mut().and_then(|file| file.tokenizer.take())),
        }
    }

    /// Tokens that end a text.
    pub(super) fn ends(&self) -> Result<Vec<u32>, FormatError> {
        let path = self.folder.as_ref().map(|folder| folder.join("generation_config.json"));
        let generation = path.filter(|path| path.exists()).map(|path| Config::read(&path));
        let chosen = match generation {
            Some(config) => config?.ids("eos_token_id")?,
            None => vec![],
        };
        if chosen.is_empty() { self.config.ids("eos_token_id") } else { Ok(chosen) }
    }
}

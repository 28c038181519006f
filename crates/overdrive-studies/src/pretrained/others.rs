//! Folders whose codes another program laid out: GPTQ, AWQ and NVIDIA's Model Optimizer. Their
//! tensors say which layers have codes, and of what format.

use overdrive_formats::huggingface::Config;
use overdrive_formats::int4::{self, Int4Config, Int4Form};
use overdrive_formats::modelopt::{self, ModelOptConfig};
use overdrive_formats::{FormatError, Tensors};
use overdrive_ir::{BlockFormat, DType, Granularity};
use std::collections::BTreeMap;
use std::path::Path;

/// The layout of a folder.
#[derive(Copy, Clone, Debug)]
pub(super) enum OtherLayout {
    /// That of GPTQ or AWQ.
    Int4(Int4Config),
    /// That of Model Optimizer.
    ModelOpt(ModelOptConfig),
}

impl OtherLayout {
    /// That of a folder, if its config says so.
    pub(super) fn read(
        config: &Config,
        folder: Option<&Path>,
    ) -> Result<Option<Self>, FormatError> {
        Ok(match Int4Config::read(config)? {
            Some(found) => Some(Self::Int4(found)),
            None => ModelOptConfig::read(config, folder)?.map(Self::ModelOpt),
        })
    }

    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Int4(config) => config.format.name(),
            Self::ModelOpt(_) => ModelOptConfig::NAME,
        }
    }

    /// Puts the states of every layer with codes in the place of its tensors. Gives their formats
    /// by the layer's name in the file.
    pub(super) fn restored(
        self,
        path: &Path,
        file: &mut Tensors,
        notes: &mut Vec<String>,
    ) -> Result<BTreeMap<String, BlockFormat>, FormatError> {
        match self {
            Self::Int4(config) => {
                let forms = int4::restored(path, &config, file)?;
                Ok(forms.into_iter().map(|(name, form)| (name, format_of(form))).collect())
            }
            Self::ModelOpt(config) => {
                let found = modelopt::restored(path, file)?;
                if config.activations_too || found.left_out > 0 {
                    notes.push(format!(
                        "activations and the cache stay in float, as on GPUs without NVFP4; {} \
                         scales of theirs are left out",
                        found.left_out
                    ));
                }
                Ok(found.layers.into_iter().map(|name| (name, BlockFormat::NVFP4)).collect())
            }
        }
    }
}

fn format_of(form: Int4Form) -> BlockFormat {
    let symmetric = BlockFormat::plain(DType::I4, Granularity::Group(form.group));
    if form.symmetric { symmetric } else { symmetric.asymmetric() }
}

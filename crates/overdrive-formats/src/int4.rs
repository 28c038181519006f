//! Folders of GPTQ and AWQ: layers of four-bit codes with a scale and a zero point per group.
//!
//! A graph has the states `layer.weight` i4 `[N, K]`, `layer.weight_scale` f32 `[N, G]` and, of
//! asymmetric codes, `layer.weight_zero_point` i4 `[N, G]`. A file has them transposed, in words of
//! eight codes, with scales in f16; `gptq` and `awq` say how. A number is
//! `(code - zero) * scale` in both. Codes and zero points are unsigned in a file: ours plus 8.
//! Invariant: what is read is bit for bit what was written. Source: `quantization_config` and the
//! layers of AutoGPTQ, GPTQModel and AutoAWQ, as `transformers` and vLLM read them.

mod awq;
mod gptq;
mod layer;
mod words;

use crate::{FormatError, Tensors};
use layer::{CODES, Int4Layer};
pub use layer::{Int4Form, f16_scales};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
pub use words::{Int4Config, Int4Format, Int4Head};

/// The tensors of a file whose `layers` have codes; every other state is as it is.
///
/// # Errors
/// When a layer does not divide into words of eight codes, or a scale is not one of f16. Errors
/// call the file `path`.
pub fn stored(
    path: &Path,
    format: Int4Format,
    layers: &BTreeSet<String>,
    mut states: Tensors,
) -> Result<Tensors, FormatError> {
    let mut file = Tensors::new();
    for name in layers {
        let layer = Int4Layer::of_states(path, name, &mut states)?;
        match format {
            Int4Format::Gptq => gptq::stored((path, name), &layer, &mut file)?,
            Int4Format::Awq => awq::stored(name, &layer, &mut file),
        }
    }
    file.extend(states);
    Ok(file)
}

/// Puts the states of every layer with codes in the place of its tensors. Gives their forms by the
/// layer's name in the file.
///
/// # Errors
/// When the tensors of a layer do not fit each other, or have an order of columns that no state
/// has.
pub fn restored(
    path: &Path,
    config: &Int4Config,
    file: &mut Tensors,
) -> Result<BTreeMap<String, Int4Form>, FormatError> {
    let is_coded = |name: &String| name.strip_suffix(CODES).map(str::to_owned);
    let layers: Vec<String> = file.keys().filter_map(is_coded).collect();
    let mut forms = BTreeMap::new();
    for name in layers {
        let layer = match config.format {
            Int4Format::Gptq => gptq::restored((path, &name), config, file)?,
            Int4Format::Awq => awq::restored((path, &name), file)?,
        };
        forms.insert(name.clone(), layer.form());
        layer.into_states(&name, file);
    }
    Ok(forms)
}

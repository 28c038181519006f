//! Writes a model with four-bit codes as a folder of GPTQ or AWQ, which more programs read than
//! compressed-tensors.
//!
//! Both formats hold all layers but the output layer in one form, with scales in f16. Invariant: a
//! folder that they cannot hold is refused before anything is written.

use super::architecture::Architecture;
use super::{Coding, Pretrained, PretrainedError};
use overdrive_formats::int4::{self, Int4Format, Int4Head};
use overdrive_formats::{FormatError, Tensors};
use overdrive_ir::{Granularity, Graph};
use overdrive_passes::{Layer, layers};
use std::collections::BTreeSet;
use std::path::Path;

/// The file that errors about the folder point to.
const CONFIG: &str = "config.json";

/// Sizes of groups that the kernels of vLLM take.
const USUAL_GROUPS: [usize; 3] = [32, 64, 128];

impl Pretrained {
    /// Errs unless readers of GPTQ and AWQ know the layers of this architecture.
    ///
    /// # Errors
    /// When it is none of Llama's kin, or has experts.
    pub fn check_int4(&self, format: Int4Format) -> Result<(), FormatError> {
        match &self.architecture {
            Architecture::Llama(llama, _) if llama.experts.is_none() => Ok(()),
            _ => {
                let expected = format!(
                    "Llama or one of its kin without experts, whose layers {} holds",
                    format.name()
                );
                let config = self.described.to_json();
                Err(refused("model_type", &expected, &config["model_type"].to_string()))
            }
        }
    }

    /// The size of the groups of all layers of `coding`.
    ///
    /// # Errors
    /// When groups differ, a layer has no codes, or the output layer has codes that no reader
    /// expects.
    pub fn int4_group(
        &self,
        coding: &Coding,
        format: Int4Format,
    ) -> Result<usize, PretrainedError> {
        let (all, _) = layers(&self.architecture.whole()?)?;
        let head = self.architecture.facts().head;
        let is_head = |name: &str| head == Some(name);
        let lacks = |name: &&str| !is_head(name) && !coding.layers.contains_key(*name);
        let name = format.name();
        if let Some(layer) = all.iter().map(|layer| layer.name.as_str()).find(lacks) {
            let expected = format!("codes in every layer but the output layer, as {name} has them");
            return Err(refused(layer, &expected, "float weights").into());
        }
        if format == Int4Format::Awq && coding.layers.keys().any(|name| is_head(name)) {
            let expected = "an output layer in float, as readers of awq have it";
            return Err(refused("lm_head", expected, "codes").into());
        }
        let several = |found: &BTreeSet<usize>| {
            let sizes: Vec<String> = found.iter().map(usize::to_string).collect();
            let expected = format!("groups of one size, which {name} has for all layers");
            refused("group_size", &expected, &format!("groups of {}", sizes.join(", ")))
        };
        // A layer of fewer inputs than a group has one group, of as many.
        let group = |layer: &Layer| match coding.layers.get(&layer.name)?.weights.block {
            Granularity::Group(size) => Some(size.min(layer.shape[1])),
            _ => None,
        };
        let groups: BTreeSet<usize> = all.iter().filter_map(group).collect();
        match groups.iter().copied().collect::<Vec<_>>()[..] {
            [group] => Ok(group),
            _ => Err(several(&groups).into()),
        }
    }

    /// Writes `graph`, which `quantize` made of the graph of this model, to `folder`. Returns notes
    /// for the user on which programs can read it.
    ///
    /// # Errors
    /// As [`Self::write_quantized`], and when the format has no place for these codes.
    pub fn write_int4(
        &self,
        folder: &Path,
        graph: &Graph,
        (coding, format): (&Coding, Int4Format),
    ) -> Result<Vec<String>, PretrainedError> {
        let group = self.int4_group(coding, format)?;
        let named = |(name, tensor)| (self.name_in_file(name), tensor);
        let states: Tensors = self.states_of(graph).into_iter().map(named).collect();
        let layer = |name: &String| {
            let weight = self.name_in_file(format!("{name}.weight"));
            weight.strip_suffix(".weight").unwrap_or(name).to_owned()
        };
        let layers: BTreeSet<String> = coding.layers.keys().map(layer).collect();
        let mut tensors = int4::stored(Path::new(CONFIG), format, &layers, states)?;
        tensors.extend(self.left_out.clone());
        let head = self.architecture.facts().head;
        let head = match head.is_some_and(|head| coding.layers.contains_key(head)) {
            true => Int4Head::Coded,
            false => Int4Head::Float,
        };
        let mut config = self.described.to_json();
        config["quantization_config"] = format.quantization_config(group, head);
        let mut coding = coding.clone();
        coding.layers.values_mut().for_each(|s| s.weights.block = Granularity::Group(group));
        self.describe(&coding, &mut config);
        self.write_as(folder, &config, &tensors)?;
        let note = format!(
            "groups of {group}: vLLM takes groups of 32, 64 or 128, Overdrive reads the folder"
        );
        Ok(if USUAL_GROUPS.contains(&group) { vec![] } else { vec![note] })
    }
}

/// The error about what both formats cannot hold.
fn refused(place: &str, expected: &str, found: &str) -> FormatError {
    FormatError::Invalid {
        path: CONFIG.into(),
        place: place.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        remedy: "leave out --export, or give another --group".to_owned(),
    }
}

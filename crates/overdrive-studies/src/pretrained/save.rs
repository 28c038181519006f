//! Writes a model with other weights as a folder in Hugging Face's format. It is the original
//! folder, with codes or trained weights in place of its weights.
//!
//! Its config.json is the original's. For codes it also has `quantization_config`, which
//! `transformers` and vLLM read, and `overdrive`, which we read. Tokenizer, generation settings and
//! every other file that holds no weights are copied. Unchanged tensors are copied from the
//! original files. The caller provides the destination. Invariant: tensors that are part of no
//! graph (another task's head) are kept.

use super::coding::FIELD;
use super::modules::of_modules;
use super::{Coding, Pretrained, PretrainedError};
use overdrive_formats::compressed_tensors::TRANSFORMS;
use overdrive_formats::{Tensors, huggingface};
use overdrive_ir::{DType, Graph, Init, StateDecl, Tensor};
use serde_json::{Value, json};
use std::path::Path;

impl Pretrained {
    /// Writes `graph`, which `quantize` made of the graph of this model, with its coding to
    /// `folder`. Returns notes for the user on which programs can read it.
    ///
    /// # Errors
    /// When a file of the original cannot be read, or the system refuses.
    pub fn write_quantized(
        &self,
        folder: &Path,
        graph: &Graph,
        coding: &Coding,
    ) -> Result<Vec<String>, PretrainedError> {
        let float = self.architecture.whole()?;
        let (file, words) = coding.stored(&float, graph, self.states_of(graph))?;
        let mut tensors: Tensors =
            file.into_iter().map(|(name, tensor)| (self.name_in_file(name), tensor)).collect();
        tensors.extend(self.left_out.clone());
        let mut config = self.described.to_json();
        let mut notes = Vec::new();
        let quantized = match words {
            Some(words) => {
                if words["dequantize"] == true {
                    notes.push(
                        "`transformers` reads the layers dense, for its Conv1D has no quantized \
                         form; vLLM does not read them"
                            .to_owned(),
                    );
                }
                notes.extend(of_experts(&words, &coding.mode));
                notes.extend(of_rotations(&words));
                of_modules(&self.architecture.facts(), words)
            }
            None if coding.coded().next().is_none() => {
                // No codes: a plain checkpoint, which needs no words of compressed-tensors.
                Value::Null
            }
            None => {
                notes.push(format!(
                    "compressed-tensors has no words for mode `{}`: `transformers` and vLLM \
                     refuse the folder, Overdrive reads it",
                    coding.mode
                ));
                json!({ "quant_method": "overdrive", "format": coding.mode })
            }
        };
        if !quantized.is_null() {
            config["quantization_config"] = quantized;
        }
        if let Some(half) = coding.half() {
            in_half(&mut config, half);
        }
        self.describe(coding, &mut config);
        self.write_as(folder, &config, &tensors)?;
        Ok(notes)
    }

    /// The states of a graph with codes, other weights in the types that they had.
    pub(super) fn states_of(&self, graph: &Graph) -> Tensors {
        let tensor = |state: &StateDecl| match (&state.init, self.weights.get(&state.name)) {
            (Init::Widened(tensor), _) => tensor.clone(),
            (init, Some(before)) => {
                as_narrow(init.tensor(&state.name, graph.ty(state.value)), before)
            }
            (init, None) => init.tensor(&state.name, graph.ty(state.value)),
        };
        graph.states().iter().map(|state| (state.name.clone(), tensor(state))).collect()
    }

    /// Adds our own words about codes to a config.json.
    pub(super) fn describe(&self, coding: &Coding, config: &mut Value) {
        let facts = self.architecture.facts();
        if facts.head.is_some() {
            config["tie_word_embeddings"] = facts.tied.into();
        }
        config[FIELD] = serde_json::to_value(coding).expect("a coding is plain data");
    }

    /// Writes the model as it is, under the names and in the types of the files that it was read
    /// from.
    ///
    /// # Errors
    /// When a file of the original cannot be read, or the system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), PretrainedError> {
        let named =
            |(name, tensor): (&String, &Tensor)| (self.name_in_file(name.clone()), tensor.clone());
        let mut tensors: Tensors = self.weights.iter().map(named).collect();
        tensors.extend(self.left_out.clone());
        self.write_as(folder, &self.described.to_json(), &tensors)
    }

    pub(super) fn write_as(
        &self,
        folder: &Path,
        config: &Value,
        tensors: &Tensors,
    ) -> Result<(), PretrainedError> {
        huggingface::write(folder, self.folder.as_deref(), config, tensors)?;
        let path = folder.join("tokenizer.json");
        if let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| !path.exists()) {
            tokenizer.write(&path)?;
        }
        Ok(())
    }

    /// The name of a tensor in the files, by that of the state which it holds or helps to.
    pub(super) fn name_in_file(&self, name: String) -> String {
        if let Some(other) = self.renamed.get(&name) {
            return other.clone();
        }
        // Tensors that accompany a weight have its name as a prefix.
        let of_weight = name.match_indices(".weight").map(|(at, part)| at + part.len()).last();
        let stem = of_weight.map(|end| name[..end].to_owned()).or_else(|| {
            let layer = [".input_scale", ".input_zero_point"]
                .iter()
                .find_map(|part| name.strip_suffix(part));
            layer.map(|layer| format!("{layer}.weight"))
        });
        match stem.and_then(|stem| Some((self.renamed.get(&stem)?, stem))) {
            Some((other, stem)) if name.starts_with(&stem) => {
                format!("{other}{}", &name[stem.len()..])
            }
            Some((other, stem)) => {
                let [layer, own] =
                    [other.as_str(), &stem].map(|n| n.strip_suffix(".weight").unwrap_or(n));
                format!("{layer}{}", &name[own.len()..])
            }
            None => name,
        }
    }
}

/// Says the format of weights without codes, in the word that config.json has for it.
fn in_half(config: &mut Value, half: DType) {
    let name = if half == DType::BF16 { "bfloat16" } else { "float16" };
    let word = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    config[word] = name.into();
}

/// Who cannot read rotated inputs. `transformers` 5.24 passes `transform_config` over in silence.
fn of_rotations(words: &Value) -> Option<String> {
    words.get(TRANSFORMS)?;
    Some(
        "`transformers` 5 leaves out the rotation of inputs and computes wrong outputs, vLLM and \
         Overdrive read it"
            .to_owned(),
    )
}

/// Who cannot read the experts of a mixture in these formats.
///
/// `transformers` 5 stacks experts as it loads them, and for that decodes them by one format for
/// all. This is e4m3 without blocks, or packed codes with one level of scales. The code is
/// `CompressedTensorsDequantize` of 5.24. vLLM takes one format for all too, and in int8 no static
/// codes of activations.
fn of_experts(words: &Value, mode: &str) -> Option<String> {
    let are_experts = |names: &Value| {
        let mut names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| name.contains(".experts."))
    };
    let groups = words["config_groups"].as_object()?.values();
    let coded: Vec<&Value> = groups.filter(|group| are_experts(&group["targets"])).collect();
    let group = coded.first()?;
    if coded.len() > 1 || are_experts(&words["ignore"]) {
        return Some(
            "experts have several formats: `transformers` 5 and vLLM take one for all, Overdrive \
             reads the folder"
                .to_owned(),
        );
    }
    let is_static = group["input_activations"]["dynamic"] == false;
    let who = match group["format"].as_str()? {
        "int-quantized" if is_static => {
            "`transformers` 5 and vLLM refuse it, and Overdrive alone reads it"
        }
        "int-quantized" | "mxfp8-quantized" => {
            "`transformers` 5 refuses it, vLLM and Overdrive read it"
        }
        "nvfp4-pack-quantized" => {
            "`transformers` 5 leaves out a scale and computes wrong outputs, vLLM and Overdrive \
             read it"
        }
        _ => return None,
    };
    Some(format!(
        "the experts are in `{mode}`: {who}; all three read experts in `int8-weights`, `int4-gptq` \
         and `fp8`"
    ))
}

/// The tensor in the narrower type of the one that it took the place of, where that keeps every
/// number. Codes in a float format are narrower than any weight, and stay what they are.
fn as_narrow(tensor: Tensor, before: &Tensor) -> Tensor {
    let (from, to) = (tensor.ty().dtype, before.ty().dtype);
    if to.bits() >= from.bits() || !from.is_float() || tensor.ty().shape != before.ty().shape {
        return tensor;
    }
    let narrow = tensor.convert(to);
    if narrow.convert(from) == tensor { narrow } else { tensor }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_who_refuses_the_experts() {
        let group = |format: &str, layer: &str, activations: Value| {
            let targets = [layer];
            json!({ "format": format, "targets": targets, "input_activations": activations })
        };
        let words = |groups: &[Value], ignore: &[&str]| {
            let named = groups.iter().enumerate();
            let named = named.map(|(at, group)| (format!("group_{at}"), group.clone()));
            json!({ "config_groups": Value::Object(named.collect()), "ignore": ignore })
        };
        let (expert, router) = ("layers.0.mlp.experts.0.up_proj", "layers.0.mlp.gate");
        let by_rows = json!({ "dynamic": true });
        for (format, activations, said) in [
            ("int-quantized", &by_rows, Some("refuses it, vLLM and Overdrive")),
            ("int-quantized", &json!({ "dynamic": false }), Some("and vLLM refuse it")),
            ("mxfp8-quantized", &by_rows, Some("refuses it, vLLM and Overdrive")),
            ("nvfp4-pack-quantized", &Value::Null, Some("wrong outputs")),
            ("pack-quantized", &Value::Null, None),
            ("mxfp4-pack-quantized", &Value::Null, None),
            ("float-quantized", &by_rows, None),
        ] {
            let one = group(format, expert, activations.clone());
            let note = of_experts(&words(std::slice::from_ref(&one), &[router]), "some mode");
            assert_eq!(note.is_some(), said.is_some(), "{format}: {note:?}");
            assert!(note.unwrap_or_default().contains(said.unwrap_or_default()), "{format}");
            let several = "experts have several formats";
            let other = group("pack-quantized", "layers.1.mlp.experts.0.up_proj", Value::Null);
            let note = of_experts(&words(&[one.clone(), other], &[]), "some mode");
            assert!(note.is_some_and(|note| note.starts_with(several)), "{format}");
            let note = of_experts(&words(&[one], &[expert]), "some mode");
            assert!(note.is_some_and(|note| note.starts_with(several)), "{format}");
            let dense = group(format, "layers.0.mlp.up_proj", activations.clone());
            assert_eq!(of_experts(&words(&[dense], &[]), "some mode"), None, "{format}");
        }
    }
}

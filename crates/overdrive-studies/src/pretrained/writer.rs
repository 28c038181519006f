//! A model with other weights as a folder in Hugging Face's format: what the original has, with
//! codes or trained weights in place of its own.
//!
//! Its config.json is the original's; of codes with `quantization_config`, which `transformers` and
//! vLLM read, and `overdrive`, which we read. Tokenizer, generation settings and every other file
//! that holds no weights are copied. Tensors that did not change are written from where they were
//! read. Whoever calls fills a place with it. Invariant: what was part of no graph (another task's
//! head) is in it as it was.

use super::coding::FIELD;
use super::{Coding, Pretrained, PretrainedError};
use overdrive_formats::Tensors;
use overdrive_formats::huggingface;
use overdrive_ir::{Graph, Init, Tensor};
use serde_json::{Value, json};
use std::path::Path;

impl Pretrained {
    /// Writes `graph`, which `quantize` made of the graph of this model, with its coding to
    /// `folder`; gives what a user should know of who can read it.
    ///
    /// # Errors
    /// When a file of the original cannot be read, or the system refuses.
    pub fn write_quantized(
        &self,
        folder: &Path,
        graph: &Graph,
        coding: &Coding,
    ) -> Result<Vec<String>, PretrainedError> {
        let mut states = Tensors::new();
        for state in graph.states() {
            let tensor = match (&state.init, self.weights.get(&state.name)) {
                (Init::Widened(tensor), _) => tensor.clone(),
                (init, Some(before)) => {
                    as_narrow(init.tensor(&state.name, graph.ty(state.value)), before)
                }
                (init, None) => init.tensor(&state.name, graph.ty(state.value)),
            };
            states.insert(state.name.clone(), tensor);
        }
        let float = self.architecture.whole()?;
        let (file, words) = coding.stored(&float, graph, states)?;
        let mut tensors: Tensors =
            file.into_iter().map(|(name, tensor)| (self.name_in_file(name), tensor)).collect();
        tensors.extend(self.left_out.clone());
        let mut config = self.described.to_json();
        let mut notes = Vec::new();
        config["quantization_config"] = match words {
            Some(words) => {
                if words["dequantize"] == true {
                    notes.push(
                        "`transformers` reads the layers dense, for its Conv1D has no quantized \
                         form; vLLM does not read them"
                            .to_owned(),
                    );
                }
                self.of_modules(words)
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
        let facts = self.architecture.facts();
        if facts.head.is_some() {
            config["tie_word_embeddings"] = facts.tied.into();
        }
        config[FIELD] = serde_json::to_value(coding).expect("a coding is plain data");
        self.write_as(folder, &config, &tensors)?;
        Ok(notes)
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

    fn write_as(
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
    fn name_in_file(&self, name: String) -> String {
        if let Some(other) = self.renamed.get(&name) {
            return other.clone();
        }
        // What stands beside a weight has its name in front.
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

    /// The words of compressed-tensors about the modules of `transformers`: classes where all
    /// layers are alike, else patterns, since modules have a prefix more or less by the class that
    /// is loaded.
    fn of_modules(&self, mut words: Value) -> Value {
        let facts = self.architecture.facts();
        let pattern = |bare: String| json!(format!("re:(.*\\.)?{}$", bare.replace('.', "\\.")));
        let patterns = |names: &Value| -> Vec<Value> {
            let names = names.as_array().map(Vec::as_slice).unwrap_or_default();
            let modules =
                names.iter().filter_map(Value::as_str).flat_map(|name| facts.modules(name));
            modules.map(pattern).collect()
        };
        let turned = words["dequantize"] == true;
        let Some(groups) = words["config_groups"].as_object_mut() else { return words };
        let alike = groups.len() == 1 && !turned;
        for group in groups.values_mut() {
            group["targets"] =
                if alike { json!(["Linear"]) } else { patterns(&group["targets"]).into() };
        }
        // A head that shares the embedding is a module of its own all the same.
        let mut ignore: Vec<Value> =
            facts.head.filter(|_| facts.tied).map(|head| json!(head)).into_iter().collect();
        let is_table = |name: &Value| {
            facts
                .tokens
                .and_then(|table| table.strip_suffix(".weight"))
                .is_some_and(|table| name == table)
        };
        let names = words["ignore"].as_array().map(Vec::as_slice).unwrap_or_default();
        let left: Value = names.iter().filter(|name| !is_table(name)).cloned().collect();
        match (facts.newer_names.is_empty(), left) {
            (true, Value::Array(names)) => ignore.extend(names),
            (_, names) => ignore.extend(patterns(&names)),
        }
        let escaped = |head: &&str| head.trim_end_matches('.').replace('.', "\\.");
        ignore
            .extend(facts.other_heads.iter().map(|head| json!(format!("re:{}.*", escaped(head)))));
        words["ignore"] = ignore.into();
        words
    }
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

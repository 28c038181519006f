//! Writes a model with NVFP4 codes as a folder of NVIDIA's Model Optimizer, which TensorRT-LLM,
//! vLLM and SGLang read.
//!
//! Engines join queries, keys and values, and both inputs of a gate. Such layers have one scale of
//! the tensor. Invariant: a folder that the format cannot hold is refused before anything is
//! written.

use super::architecture::Architecture;
use super::{Coding, Pretrained, PretrainedError};
use overdrive_formats::modelopt::{self, Words};
use overdrive_formats::{FormatError, Tensors};
use overdrive_ir::{BlockFormat, Graph, Init, Tensor};
use overdrive_passes::layers;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Ends of the names of layers that engines join.
const JOINED: [&[&str]; 2] = [
    &[".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj"],
    &[".mlp.gate_proj", ".mlp.up_proj"],
];
const SCALE: &str = ".weight_scale";
const TENSOR_SCALE: &str = ".weight_tensor_scale";

impl Pretrained {
    /// Errs unless readers of Model Optimizer's folders know the layers of this architecture.
    ///
    /// # Errors
    /// When it is none of Llama's kin, or has experts.
    pub fn check_modelopt(&self) -> Result<(), FormatError> {
        match &self.architecture {
            Architecture::Llama(llama, _) if llama.experts.is_none() => Ok(()),
            _ => {
                let config = self.described.to_json();
                let expected =
                    "Llama or one of its kin without experts, whose layers modelopt holds";
                Err(refused("model_type", expected, &config["model_type"].to_string()))
            }
        }
    }

    /// The graph with one scale of the tensor for layers that engines join, of which either all
    /// have codes or none has.
    ///
    /// # Errors
    /// When a layer has codes of another format, or only some of the joined layers have codes.
    pub fn joined_scales(&self, graph: Graph, coding: &Coding) -> Result<Graph, PretrainedError> {
        let other = |scheme: &overdrive_passes::Scheme| {
            scheme.weights != BlockFormat::NVFP4 || scheme.rotation.is_some()
        };
        if let Some((layer, _)) = coding.layers.iter().find(|(_, scheme)| other(scheme)) {
            let found = "another format, or rotated inputs";
            return Err(refused(layer, "codes of nvfp4 in blocks of 16", found).into());
        }
        let (all, _) = layers(&self.architecture.whole()?)?;
        let mut sets: BTreeMap<(&str, usize), Vec<&str>> = BTreeMap::new();
        for layer in &all {
            let ends = JOINED.iter().enumerate().find_map(|(at, ends)| {
                let of = |end: &&str| layer.name.strip_suffix(*end);
                Some((ends.iter().find_map(of)?, at))
            });
            if let Some(set) = ends {
                sets.entry(set).or_default().push(&layer.name);
            }
        }
        let value = |name: &str| -> Tensor {
            let state = graph.states().iter().find(|state| state.name == name);
            let state = state.expect("a layer with codes has scales");
            state.init.tensor(name, graph.ty(state.value))
        };
        let mut scales: BTreeMap<String, Tensor> = BTreeMap::new();
        for layers in sets.values() {
            let coded = |layer: &&&str| coding.layers.contains_key(**layer);
            let with: Vec<&&str> = layers.iter().filter(coded).collect();
            if let (Some(_), Some(without)) =
                (with.first(), layers.iter().find(|layer| !coded(layer)))
            {
                let expected = "codes, as the layers have that engines join it with";
                return Err(refused(without, expected, "float weights").into());
            }
            let names =
                with.iter().map(|layer| [SCALE, TENSOR_SCALE].map(|part| format!("{layer}{part}")));
            let names: Vec<[String; 2]> = names.collect();
            let mut parts: Vec<[Tensor; 2]> =
                names.iter().map(|names| [value(&names[0]), value(&names[1])]).collect();
            let mut both: Vec<(&mut Tensor, &mut Tensor)> =
                parts.iter_mut().map(|[blocks, whole]| (blocks, whole)).collect();
            modelopt::joined(&mut both);
            scales.extend(names.into_iter().flatten().zip(parts.into_iter().flatten()));
        }
        let begin: BTreeMap<String, Init> =
            graph.states().iter().map(|state| (state.name.clone(), state.init.clone())).collect();
        Ok(graph.with_initial_values(|name, _| match scales.get(name) {
            Some(scale) => Init::Value(scale.clone()),
            None => begin[name].clone(),
        }))
    }

    /// Writes `graph`, which [`Self::joined_scales`] gave, to `folder`.
    ///
    /// # Errors
    /// As [`Self::write_quantized`].
    pub fn write_modelopt(
        &self,
        folder: &Path,
        graph: &Graph,
        coding: &Coding,
    ) -> Result<(), PretrainedError> {
        let named = |(name, tensor)| (self.name_in_file(name), tensor);
        let states: Tensors = self.states_of(graph).into_iter().map(named).collect();
        let module = |name: &str| {
            let weight = self.name_in_file(format!("{name}.weight"));
            weight.strip_suffix(".weight").unwrap_or(name).to_owned()
        };
        let coded: BTreeSet<String> = coding.layers.keys().map(|name| module(name)).collect();
        let mut tensors = modelopt::stored(&coded, states);
        tensors.extend(self.left_out.clone());
        let (all, _) = layers(&self.architecture.whole()?)?;
        let head = self.architecture.facts().head;
        // A head that shares the embedding is a module of its own all the same.
        let names = all.iter().map(|layer| layer.name.as_str()).chain(head);
        let float: BTreeSet<String> =
            names.filter(|name| !coding.layers.contains_key(*name)).map(module).collect();
        let Words { config: words, file } =
            modelopt::words(&float.into_iter().collect::<Vec<String>>());
        let mut config = self.described.to_json();
        config["quantization_config"] = words;
        self.describe(coding, &mut config);
        self.write_as(folder, &config, &tensors)?;
        let (path, text) = (folder.join(Words::FILE), format!("{file:#}\n"));
        std::fs::write(&path, text)
            .map_err(|source| FormatError::Io { path, action: "write", source }.into())
    }
}

/// The error about what the format cannot hold.
fn refused(place: &str, expected: &str, found: &str) -> FormatError {
    FormatError::Invalid {
        path: "config.json".into(),
        place: place.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        remedy: "leave out --export, which writes every mode".to_owned(),
    }
}

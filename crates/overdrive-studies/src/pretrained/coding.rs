//! The layers of a folder that have codes or 16 bits instead of weights in f32, by its config.json,
//! and the codes themselves.
//!
//! `quantization_config` says it in the words of compressed-tensors, which the ecosystem reads;
//! `overdrive` says it in ours, of every format. A layer that the folder holds as `[in, out]`
//! (GPT-2's) has its codes in that order too. Folders of other layouts need no words of ours: their
//! tensors say it all. Invariant: both say the same, or the folder is refused.

use super::error::PretrainedError;
use super::facts::Facts;
use super::modules::of_modules;
use overdrive_formats::compressed_tensors::{
    self, FieldDifference, TRANSFORMS, Words, field_difference,
};
use overdrive_formats::huggingface::Config;
use overdrive_formats::{FormatError, Tensors};
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, DType, Graph, GraphError, StateDecl, Tensor, TensorType};
use overdrive_passes::{KAxis, Quantized, Scheme, layers};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The field of config.json.
pub(super) const FIELD: &str = "overdrive";
/// The field of other programs.
const QUANTIZATION: &str = "quantization_config";

/// The layers with codes, and the weights whose products are in 16 bits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Coding {
    /// The mode that made them.
    pub mode: String,
    /// Their formats by name.
    pub layers: BTreeMap<String, Scheme>,
    /// How the coding was made, for readers of the file.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub recipe: Value,
}

impl Coding {
    /// That of a model that was quantized in this mode.
    pub fn of(mode: &str, made: &Quantized, recipe: Value) -> Self {
        let layers = made.layers.iter();
        let layers = layers.filter_map(|layer| Some((layer.name.clone(), layer.scheme?)));
        Self { mode: mode.to_owned(), layers: layers.collect(), recipe }
    }

    /// Names of the layers that have codes. Others have weights in 16 bits, as a plain checkpoint
    /// does.
    pub(super) fn coded(&self) -> impl Iterator<Item = &String> {
        self.layers.iter().filter(|(_, scheme)| scheme.half().is_none()).map(|(name, _)| name)
    }

    /// The 16-bit format of the most weights without codes, if any has one.
    pub(super) fn half(&self) -> Option<DType> {
        let mut counts: BTreeMap<DType, usize> = BTreeMap::new();
        self.layers
            .values()
            .filter_map(Scheme::half)
            .for_each(|half| *counts.entry(half).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(half, _)| half)
    }

    /// The coding in config.json, if it has one.
    pub(super) fn read(config: &Config) -> Result<Option<Self>, FormatError> {
        let json = config.to_json();
        let of_others = json.get(QUANTIZATION).filter(|found| !found.is_null());
        let Some(own) = json.get(FIELD) else {
            let Some(found) = of_others else { return Ok(None) };
            let method = found.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
            let expected =
                "weights in f32, f16 or bf16, or a folder that `overdrive quantize` wrote";
            let error = config.wrong(QUANTIZATION, expected, &format!("quantized by `{method}`"));
            return Err(error.remedy("take the folder that it was quantized from"));
        };
        let coding: Self = serde_json::from_value(own.clone()).map_err(|error| {
            config.wrong(FIELD, "what `overdrive quantize` writes", &error.to_string())
        })?;
        Ok(Some(coding))
    }

    /// The coding of a folder in the layout of `method`, whose layers of these names have these
    /// formats.
    pub(super) fn of_others(
        config: &Config,
        method: &str,
        formats: &BTreeMap<String, BlockFormat>,
    ) -> Result<Self, FormatError> {
        let scheme = |weights: &BlockFormat| Scheme::new(*weights, Activations::Float);
        let layers = formats.iter().map(|(name, format)| (name.clone(), scheme(format))).collect();
        let found = Self { mode: method.to_owned(), layers, recipe: Value::Null };
        if config.has(FIELD)
            && let Some(own) = Self::read(config)?
        {
            let forms = |coding: &Self| -> BTreeMap<String, BlockFormat> {
                let layers = coding.coded();
                layers.map(|name| (name.clone(), coding.layers[name].weights)).collect()
            };
            if forms(&own) != forms(&found) {
                let expected = format!("the layers whose tensors have codes of {method}");
                return Err(config.wrong(FIELD, &expected, "others"));
            }
            return Ok(own);
        }
        Ok(found)
    }

    /// The layers that the folder holds as `[in, out]`, of those that have codes; `float` is the
    /// graph of the architecture.
    pub(super) fn input_major(&self, float: &Graph) -> Result<BTreeSet<String>, GraphError> {
        let (found, _) = layers(float)?;
        let turned = found.into_iter().filter(|layer| layer.held.order == KAxis::InputMajor);
        let coded: BTreeSet<&String> = self.coded().collect();
        Ok(turned.map(|layer| layer.name).filter(|name| coded.contains(name)).collect())
    }

    /// The states of `graph`, which has the codes declared, from the tensors of the file at `path`.
    pub(super) fn restored(
        &self,
        path: &Path,
        float: &Graph,
        graph: &Graph,
        file: Tensors,
    ) -> Result<Tensors, PretrainedError> {
        let layout = self.layout(float)?;
        let in_file = |state: &StateDecl| {
            let ty = graph.ty(state.value);
            filed(&layout, &state.name, ty).unwrap_or_else(|| ty.clone())
        };
        let declared: Vec<(&str, TensorType)> =
            graph.states().iter().map(|state| (state.name.as_str(), in_file(state))).collect();
        let declared = declared.iter().map(|(name, ty)| (*name, ty));
        let mut states = compressed_tensors::restored(path, declared, file)?;
        for state in graph.states() {
            let ty = graph.ty(state.value);
            if let (Some(tensor), Some(found)) =
                (states.get_mut(&state.name), filed(&layout, &state.name, ty))
                && *tensor.ty() == found
            {
                *tensor = unfiled(tensor, ty);
            }
        }
        Ok(states)
    }

    /// The tensors that the file holds for the states of `graph`, and its words for the ecosystem,
    /// if there are any.
    pub(super) fn stored(
        &self,
        float: &Graph,
        graph: &Graph,
        states: Tensors,
    ) -> Result<(Tensors, Option<Value>), GraphError> {
        let layout = self.layout(float)?;
        let file = states.into_iter().map(|(name, tensor)| {
            let tensor = match filed(&layout, &name, tensor.ty()) {
                Some(ty) => unfiled(&tensor, &ty),
                None => tensor,
            };
            (name, tensor)
        });
        let words = layout.words(graph);
        Ok((compressed_tensors::stored(file.collect(), words.as_ref()), words))
    }

    /// Errs unless the words of config.json about rotations are those of `graph`, which has the
    /// codes declared.
    pub(super) fn check_transforms(
        &self,
        config: &Config,
        (facts, float, graph): (&Facts, &Graph, &Graph),
    ) -> Result<(), PretrainedError> {
        let config_json = config.to_json();
        let found = &config_json[QUANTIZATION][TRANSFORMS];
        let words = self.layout(float)?.words(graph).map(|words| of_modules(facts, words));
        let expected = words.map_or(Value::Null, |mut words| words[TRANSFORMS].take());
        let Some(FieldDifference { field, expected, found }) = field_difference(&expected, found)
        else {
            return Ok(());
        };
        let field = format!("{QUANTIZATION}.{TRANSFORMS}{field}");
        let error = config.wrong(&field, &format!("{expected}, as `{FIELD}` says"), &found);
        Err(error
            .remedy("quantize the model again, or take the config.json that was written")
            .into())
    }

    fn layout(&self, float: &Graph) -> Result<CheckpointLayout, GraphError> {
        let (found, _) = layers(float)?;
        let single = found.into_iter().filter(|layer| layer.shape[0] == 1).map(|layer| layer.name);
        Ok(CheckpointLayout { turned: self.input_major(float)?, single: single.collect() })
    }
}

/// Layers whose states have other types in the file.
struct CheckpointLayout {
    /// Those that the file holds as `[in, out]`.
    turned: BTreeSet<String>,
    /// Those with one output.
    single: BTreeSet<String>,
}

impl CheckpointLayout {
    /// The words about a graph for the ecosystem, if there are any.
    fn words(&self, graph: &Graph) -> Option<Value> {
        let words = Words { input_major: &self.turned, packs_bytes: true };
        compressed_tensors::quantization_config(graph, &words)
    }
}

/// The type under which the file holds a state in another layout than ours. The matrices of a
/// turned layer have their axes in the other order, square ones too. A scale of a whole layer is
/// one element. The one scale of a layer with one output is a row's, as our words about it say.
fn filed(layout: &CheckpointLayout, name: &str, ty: &TensorType) -> Option<TensorType> {
    let part = PARTS.iter().find_map(|part| name.strip_suffix(part));
    let of_all = |layer: &str| !layout.single.contains(layer);
    match ty.sizes()[..] {
        [1, 1] if name.strip_suffix(SCALE).is_some_and(of_all) => Some(ty.with_shape([1usize])),
        [rows, columns] if part.is_some_and(|layer| layout.turned.contains(layer)) => {
            Some(ty.with_shape([columns, rows]))
        }
        _ => None,
    }
}

/// A state of a layer that is its scales.
const SCALE: &str = ".weight_scale";

/// States of a layer that are matrices.
const PARTS: [&str; 3] = [".weight", ".weight_scale", ".weight_zero_point"];

/// The same numbers under the type of the other side.
fn unfiled(tensor: &Tensor, ty: &TensorType) -> Tensor {
    let sizes = tensor.ty().sizes();
    let ([rows, columns], 2) = (sizes[..].try_into().unwrap_or([1, 1]), ty.rank()) else {
        let bytes = tensor.bytes().to_vec();
        return Tensor::from_bytes(ty.clone(), bytes).expect("a scale of all is one element");
    };
    if tensor.ty().dtype.bits() == 8 {
        let bytes = tensor.bytes();
        let turned = (0..rows * columns).map(|i| bytes[i % rows * columns + i / rows]);
        return Tensor::from_bytes(ty.clone(), turned.collect::<Vec<u8>>())
            .expect("a byte an element");
    }
    let numbers = tensor.to_f64();
    let turned: Vec<f64> =
        (0..rows * columns).map(|i| numbers[i % rows * columns + i / rows]).collect();
    Tensor::from_f64(ty.dtype, ty.shape.clone(), &turned)
}

//! A model as a folder: `config.json` (what it is), `graph.txt` (IR text), `model.safetensors` (its states).
//!
//! This is what training and quantization leave and what every command takes as a model. The states of the graph that
//! is read begin as the file says, so that nobody who runs the graph needs to know where its weights came from.
//! Invariant: a folder appears whole, by rename, or not at all; what was written is read back bit for bit.

use crate::safetensors::can_hold;
use crate::{Differences, FormatError, ParametersError, Tensors, file, safetensors};
use overdrive_ir::{DType, Graph, Init, Tensor, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Version of the layout. Raised whenever older programs could misread it.
const FOLDER_VERSION: u32 = 1;

const CONFIG: &str = "config.json";
const GRAPH: &str = "graph.txt";
const STATES: &str = "model.safetensors";

/// A model with what a command must know to run it.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelFolder {
    /// What it is.
    pub config: ModelConfig,
    /// The graph, whose states begin as the weights.
    pub graph: Graph,
}

/// What a graph does not say about a model.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Its name in reports.
    pub name: String,
    /// Size of each named dimension unless the user says otherwise.
    pub dimensions: BTreeMap<String, usize>,
    /// What integer inputs index: ids are below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// How it came about (data, precision, quantization), by whoever wrote it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub recipe: BTreeMap<String, serde_json::Value>,
}

/// The file `config.json`.
#[derive(Serialize, Deserialize)]
struct ConfigFile {
    overdrive_model: u32,
    #[serde(flatten)]
    config: ModelConfig,
}

impl ModelFolder {
    /// Whether a folder means to be one of these, whatever else is wrong with it.
    pub fn is_at(folder: &Path) -> bool {
        let Ok(text) = fs::read_to_string(folder.join(CONFIG)) else { return false };
        text.contains("\"overdrive_model\"")
    }

    /// Reads a folder.
    ///
    /// # Errors
    /// When a file is missing, damaged or of another version, or when the states are not those of the graph.
    pub fn read(folder: &Path) -> Result<Self, ParametersError> {
        let config = read_config(&folder.join(CONFIG))?;
        let path = folder.join(GRAPH);
        let text = fs::read_to_string(&path).map_err(FormatError::io(&path, "read"))?;
        let graph: Graph = text
            .parse()
            .map_err(|error| FormatError::damaged(&path, "graph", "the text of a graph", error))?;
        let path = folder.join(STATES);
        let mut states = safetensors::read(&path)?;
        for state in graph.states() {
            if let Some(stored) = states.get_mut(&state.name) {
                *stored = unpacked(stored, graph.ty(state.value));
            }
        }
        let differences = Differences::between(&graph, &states);
        if !differences.is_empty() {
            return Err(ParametersError::Different { path, differences });
        }
        let graph = graph.with_initial_values(|name, _| Init::Value(states[name].clone()));
        Ok(Self { config, graph })
    }

    /// Writes a folder in place of `folder`, which may be absent, empty or an older model; every state is written as
    /// it begins.
    ///
    /// # Errors
    /// When `folder` holds something else, when a state has no fixed size, or when the system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), FormatError> {
        let states = states(&self.graph, folder)?;
        let config = ConfigFile { overdrive_model: FOLDER_VERSION, config: self.config.clone() };
        let config = serde_json::to_string_pretty(&config).expect("a config is plain data") + "\n";
        let graph = self.graph.clone().with_initial_values(|_, _| Init::ZEROS).to_string();
        file::replace_folder(folder, Self::is_at, |unfinished| {
            for (name, text) in [(CONFIG, &config), (GRAPH, &graph)] {
                let path = unfinished.join(name);
                fs::write(&path, text).map_err(FormatError::io(&path, "write"))?;
            }
            safetensors::write(&unfinished.join(STATES), &states)
        })
    }
}

/// Bytes of the file of states that a folder of this graph has.
///
/// # Errors
/// When a state has no fixed size.
pub fn states_file_bytes(graph: &Graph) -> Result<u64, FormatError> {
    let path = Path::new(STATES);
    Ok(safetensors::encode(path, &states(graph, path)?)?.len() as u64)
}

/// Every state as it begins and as the file holds it; `place` is what errors call it.
fn states(graph: &Graph, place: &Path) -> Result<Tensors, FormatError> {
    let mut states = Tensors::new();
    for state in graph.states() {
        let ty = graph.ty(state.value);
        if ty.shape.0.iter().any(|dim| dim.size().is_none()) {
            let error = FormatError::damaged(place, &state.name, "a state of fixed size", ty);
            return Err(error.remedy("bind its dimensions first"));
        }
        states.insert(state.name.clone(), packed(state.init.tensor(&state.name, ty)));
    }
    Ok(states)
}

fn read_config(path: &Path) -> Result<ModelConfig, FormatError> {
    let text = fs::read_to_string(path).map_err(FormatError::io(path, "read"))?;
    let file: ConfigFile = serde_json::from_str(&text)
        .map_err(|error| FormatError::damaged(path, "config", "the config of a model folder", error))?;
    if file.overdrive_model != FOLDER_VERSION {
        let error = FormatError::damaged(path, "overdrive_model", FOLDER_VERSION, file.overdrive_model);
        return Err(error.remedy("write the model again with this version of Overdrive"));
    }
    Ok(file.config)
}

/// What safetensors has no type for is stored as its packed bytes.
fn packed(tensor: Tensor) -> Tensor {
    if can_hold(tensor.ty().dtype) {
        return tensor;
    }
    let bytes = tensor.bytes().to_vec();
    let ty = TensorType::new(DType::U8, [bytes.len()]);
    Tensor::from_bytes(ty, bytes).expect("a byte an element")
}

/// The state of type `ty` that was stored as its packed bytes; any other tensor as it is.
fn unpacked(stored: &Tensor, ty: &TensorType) -> Tensor {
    let is_packed = !can_hold(ty.dtype)
        && ty.is_addressable()
        && *stored.ty() == TensorType::new(DType::U8, [ty.bytes()]);
    if !is_packed {
        return stored.clone();
    }
    Tensor::from_bytes(ty.clone(), stored.bytes().to_vec()).expect("the length was compared")
}

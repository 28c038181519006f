//! A model as a folder: `config.json` (what it is), `graph.txt` (IR text), `model.safetensors` (its
//! states).
//!
//! Quantized states are named and packed as compressed-tensors does, and `quantization_config` says
//! in its words what they are. Training and quantization write such folders, and every command
//! takes one as a model. The states of the graph begin as the file says. Nobody who runs the graph
//! therefore needs to know where its weights came from. Invariant: a folder that was written to a
//! [`Place`](overdrive_files::Place) of [`ModelFolder::CONTENTS`] is read back bit for bit, or its
//! damage is told.

use crate::compressed_tensors::{Words, declared};
use crate::{Differences, FormatError, ParametersError, Tensors, compressed_tensors, safetensors};
use overdrive_files::{Contents, SETTINGS, TEXT, UNBOUNDED, is_folder_of, read_text, snapshot};
use overdrive_ir::{Graph, Init};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Version of the layout. Raised whenever older programs could misread it.
const FOLDER_VERSION: u32 = 1;

/// Files that such a folder may have: its own, and the model as one file for other engines. Older
/// versions, without manifests, also left their results there.
const KNOWN: [&str; 5] = [CONFIG, GRAPH, STATES, "model.onnx", "results.json"];

const CONFIG: &str = "config.json";
const GRAPH: &str = "graph.txt";
const STATES: &str = "model.safetensors";

/// A model with what a command must know to run it.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelFolder {
    /// A description of it.
    pub config: ModelConfig,
    /// The graph, whose states begin as the weights.
    pub graph: Graph,
}

/// Facts about a model that its graph does not tell.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Its name in reports.
    pub name: String,
    /// Size of each named dimension unless the user says otherwise.
    pub dimensions: BTreeMap<String, usize>,
    /// Number of ids that integer inputs index; all ids are below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// The meaning of the columns, if it learnt from a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<TableColumns>,
    /// How it came about (data, precision, quantization), by whoever wrote it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub recipe: BTreeMap<String, serde_json::Value>,
}

/// The meaning of a table's columns to a model that learnt from it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TableColumns {
    /// Names of the features in their order; empty where the table has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Name of the column of labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Names of the classes in their order; empty where labels are numbers from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Whether labels are quantities instead of classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_quantity: bool,
}

/// The file `config.json`.
#[derive(Serialize, Deserialize)]
struct ConfigFile {
    overdrive_model: u32,
    #[serde(flatten)]
    config: ModelConfig,
    /// Description of the graph's quantized layers, for other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quantization_config: Option<serde_json::Value>,
}

impl ModelFolder {
    /// The manifest of such a folder, and how to recognise folders without one.
    pub const CONTENTS: Contents = Contents {
        name: "a model",
        writes: |name| KNOWN.contains(&name),
        is_ours: |folder| folder.join(GRAPH).is_file() && read_config(&folder.join(CONFIG)).is_ok(),
    };

    /// Whether a folder means to be one of these, whatever else is wrong with it.
    pub fn is_at(folder: &Path) -> bool {
        let claims = |text: String| match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(config) => config.get("overdrive_model").is_some(),
            Err(_) => text.contains("\"overdrive_model\""),
        };
        is_folder_of(Self::CONTENTS.name, folder)
            || read_text(&folder.join(CONFIG), SETTINGS).is_ok_and(claims)
    }

    /// Reads a folder.
    ///
    /// # Errors
    /// When a file is missing, damaged or of another version, or when the states are not those of
    /// the graph.
    pub fn read(folder: &Path) -> Result<Self, ParametersError> {
        let _about = overdrive_files::about(folder);
        let files = [(CONFIG, SETTINGS), (GRAPH, TEXT), (STATES, UNBOUNDED)];
        let [config, graph, states] = snapshot(folder, &files)
            .map_err(FormatError::from)?
            .try_into()
            .expect("as many files as were asked for");
        let ConfigFile { config, quantization_config, .. } = parsed(&folder.join(CONFIG), &config)?;
        let path = folder.join(GRAPH);
        let graph: Graph = std::str::from_utf8(&graph)
            .map_err(|error| FormatError::damaged(&path, "graph", "UTF-8 text", error))?
            .parse()
            .map_err(|error| FormatError::damaged(&path, "graph", "the text of a graph", error))?;
        let described = compressed_tensors::quantization_config(&graph, &Words::OWN);
        if let Some(found) = quantization_config.filter(|found| described.as_ref() != Some(found)) {
            let expected = described
                .map_or("none, as the graph has no such layers".to_owned(), |d| d.to_string());
            let error =
                FormatError::damaged(&folder.join(CONFIG), "quantization_config", expected, found);
            return Err(error
                .remedy("config and graph are of different models: write the model again")
                .into());
        }
        let path = folder.join(STATES);
        let states = compressed_tensors::restored(
            &path,
            declared(&graph),
            safetensors::decode(&path, states)?,
        )?;
        let differences = Differences::between(&graph, &states);
        if !differences.is_empty() {
            return Err(ParametersError::Different { path, differences });
        }
        let graph = graph.with_initial_values(|name, _| Init::Value(states[name].clone()));
        Ok(Self { config, graph })
    }

    /// Makes the folder and writes its files, every state as it begins. Whoever replaces a model
    /// fills a [`Place`](overdrive_files::Place) with it.
    ///
    /// # Errors
    /// When a state has no fixed size, or when the system refuses.
    pub fn write(&self, folder: &Path) -> Result<(), FormatError> {
        let states = states(&self.graph, folder)?;
        let config = ConfigFile {
            overdrive_model: FOLDER_VERSION,
            config: self.config.clone(),
            quantization_config: compressed_tensors::quantization_config(&self.graph, &Words::OWN),
        };
        let config = serde_json::to_string_pretty(&config).expect("a config is plain data") + "\n";
        let graph = self.graph.clone().with_initial_values(|_, _| Init::ZEROS).to_string();
        fs::create_dir_all(folder).map_err(FormatError::io(folder, "create"))?;
        for (name, text) in [(CONFIG, &config), (GRAPH, &graph)] {
            let path = folder.join(name);
            fs::write(&path, text).map_err(FormatError::io(&path, "write"))?;
        }
        let described = compressed_tensors::described(&states);
        let path = folder.join(STATES);
        safetensors::write_described(&path, &compressed_tensors::stored(states, None), described)
    }
}

/// Bytes of the file of states that a folder of this graph has.
///
/// # Errors
/// When a state has no fixed size.
pub fn states_file_bytes(graph: &Graph) -> Result<u64, FormatError> {
    let path = Path::new(STATES);
    let states = states(graph, path)?;
    let described = compressed_tensors::described(&states);
    Ok(safetensors::encode_described(path, &compressed_tensors::stored(states, None), described)?
        .len() as u64)
}

/// Every state as it begins; `place` is what errors call it.
fn states(graph: &Graph, place: &Path) -> Result<Tensors, FormatError> {
    let mut states = Tensors::new();
    for state in graph.states() {
        let ty = graph.ty(state.value);
        if ty.shape.0.iter().any(|dim| dim.size().is_none()) {
            let error = FormatError::damaged(place, &state.name, "a state of fixed size", ty);
            return Err(error.remedy("bind its dimensions first"));
        }
        states.insert(state.name.clone(), state.init.tensor(&state.name, ty));
    }
    Ok(states)
}

fn read_config(path: &Path) -> Result<ConfigFile, FormatError> {
    parsed(path, read_text(path, SETTINGS)?.as_bytes())
}

fn parsed(path: &Path, text: &[u8]) -> Result<ConfigFile, FormatError> {
    let file: ConfigFile = serde_json::from_slice(text).map_err(|error| {
        FormatError::damaged(path, "config", "the config of a model folder", error)
    })?;
    if file.overdrive_model != FOLDER_VERSION {
        let error =
            FormatError::damaged(path, "overdrive_model", FOLDER_VERSION, file.overdrive_model);
        return Err(error.remedy("write the model again with this version of Overdrive"));
    }
    Ok(file)
}

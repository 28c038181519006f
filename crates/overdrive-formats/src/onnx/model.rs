//! `Model`: an ONNX file, opened; and its graph for a binding of dimensions.

use super::fold::Folding;
use super::item::{Item, ItemValue, Sources};
use super::lacking::{Functions, lacking};
use super::proto::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use super::tensor::ExternalData;
use super::types::{given_names, tensor_type};
use super::walk::{Env, Frame, Walk, domain};
use crate::{FormatError, Tensors, file};
use bytes::Bytes;
use overdrive_ir::{Builder, Dim, Graph, TensorType, Value as GraphValue};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Newest opset of the default domain whose ops are known here.
const NEWEST_OPSET: i64 = 28;

/// Values of more elements than this are refused: their bytes could not be counted up.
const MOST_ELEMENTS: usize = 1 << 40;

/// An ONNX file.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    proto: ModelProto,
}

/// Sizes and values that a graph is bound to before it is read.
#[derive(Debug, Default, Clone)]
pub struct Binding {
    /// Sizes of named dimensions.
    pub sizes: BTreeMap<String, usize>,
    /// Inputs that are constants from here on: those whose values decide shapes.
    pub values: Tensors,
    /// The values that are computed while the model is read.
    pub folding: Folding,
}

impl Model {
    /// Opens a file; its weights share the bytes.
    ///
    /// # Errors
    /// When the file cannot be read or is no ONNX model.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let _about = overdrive_files::about(path);
        Self::decode(path, file::bytes(path)?)
    }

    /// A model from the bytes of a file; Errors name it by `path`, and external data is in the
    /// folder of `path`.
    ///
    /// # Errors
    /// When the bytes are no ONNX model.
    pub fn decode(path: &Path, bytes: Bytes) -> Result<Self, FormatError> {
        let proto = ModelProto::decode(bytes).map_err(|e| {
            FormatError::damaged(path, "protobuf", "an ONNX model", last_of(&e.to_string()))
        })?;
        let model = Self { path: path.to_owned(), proto };
        let opset = model.opsets().get("").copied();
        if model.proto.graph.is_none() {
            return Err(FormatError::damaged(path, "graph", "a graph", "none"));
        }
        match opset {
            Some(1..=NEWEST_OPSET) | None => Ok(model),
            Some(found) => {
                let expected = format!("opset 1 to {NEWEST_OPSET} of the default domain");
                let error = FormatError::damaged(path, "opset_import", expected, found);
                Err(error.remedy("convert the model with onnx.version_converter"))
            }
        }
    }

    /// Copies the file to another place, and the files beside it that hold its tensors.
    ///
    /// # Errors
    /// When such a file is absent or not in the model's folder, or the system refuses.
    pub fn copy(&self, to: &Path) -> Result<(), FormatError> {
        let copied = |from: &Path, to: &Path| {
            let folder = to.parent().unwrap_or(Path::new(""));
            std::fs::create_dir_all(folder).map_err(FormatError::io(folder, "create"))?;
            std::fs::copy(from, to).map(drop).map_err(FormatError::io(to, "write"))
        };
        copied(&self.path, to)?;
        let storage = ExternalData::beside(&self.path);
        for location in self.locations() {
            let from = storage.located(location, "external data")?;
            copied(&from, &to.with_file_name("").join(location))?;
        }
        Ok(())
    }

    /// The files beside it that hold its tensors.
    fn locations(&self) -> BTreeSet<&str> {
        let mut graphs: Vec<&GraphProto> = self.proto.graph.iter().collect();
        let of_functions = self.proto.functions.iter().flat_map(|function| &function.node);
        let mut nodes: Vec<&NodeProto> = of_functions.collect();
        let mut tensors: Vec<&TensorProto> = Vec::new();
        while let Some(graph) = graphs.pop() {
            tensors.extend(&graph.initializer);
            nodes.extend(&graph.node);
            for attribute in nodes.drain(..).flat_map(|node| &node.attribute) {
                tensors.extend(attribute.t.iter().chain(&attribute.tensors));
                graphs.extend(attribute.g.iter().chain(&attribute.graphs));
            }
        }
        let entries = tensors.into_iter().flat_map(|tensor| &tensor.external_data);
        entries.filter(|entry| entry.key() == "location").map(|entry| entry.value()).collect()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name: that of the graph, or of the file.
    pub fn name(&self) -> String {
        let graph = self.proto.graph.as_ref().map(|g| g.name()).filter(|name| !name.is_empty());
        let stem = || self.path.file_stem().map_or("model".into(), |s| s.to_string_lossy());
        graph.map_or_else(|| stem().into_owned(), str::to_owned)
    }

    /// Inputs by name, in calling order; their dimensions may be names.
    ///
    /// # Errors
    /// When an input is no tensor of a type known here.
    pub fn inputs(&self) -> Result<Vec<(String, TensorType)>, FormatError> {
        self.ports().map(|info| Ok((info.name().to_owned(), self.type_of(info)?))).collect()
    }

    /// Names of dimensions that a binding must give sizes to.
    ///
    /// # Errors
    /// As `inputs`.
    pub fn dimensions(&self) -> Result<BTreeSet<String>, FormatError> {
        let mut names = BTreeSet::new();
        for (_, ty) in self.inputs()? {
            names.extend(ty.shape.0.iter().filter(|d| d.size().is_none()).map(Dim::to_string));
        }
        Ok(names)
    }

    /// Named dimensions without a size, with the axes of inputs that have them.
    fn unbound(&self, binding: &Binding) -> Result<BTreeMap<String, Vec<String>>, FormatError> {
        let mut unbound: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (input, ty) in self.inputs()? {
            for (axis, dim) in ty.shape.0.iter().enumerate() {
                let name = dim.to_string();
                if dim.size().is_none() && !binding.sizes.contains_key(&name) {
                    unbound.entry(name).or_default().push(format!("axis {axis} of `{input}`"));
                }
            }
        }
        Ok(unbound)
    }

    /// The graph for these sizes and values.
    ///
    /// # Errors
    /// With every op that is lacking; with the dimensions that have no size; `Undecided` with the
    /// inputs whose values would have to be bound; else with the node that is wrong.
    pub fn graph(&self, binding: &Binding) -> Result<Graph, FormatError> {
        let _about = overdrive_files::about(&self.path);
        let missing = lacking(self.top(), &self.functions());
        if !missing.is_empty() {
            return Err(FormatError::Lacking { path: self.path.clone(), ops: missing });
        }
        let unbound = self.unbound(binding)?;
        if !unbound.is_empty() {
            // Exporters invent names such as `s77`. Only the positions of a name tell a batch from
            // a length.
            let places: Vec<String> = unbound
                .iter()
                .map(|(name, places)| format!("{name} ({})", places.join(", ")))
                .collect();
            let found = places.join("; ");
            let error = FormatError::damaged(
                &self.path,
                "inputs",
                "a size for every named dimension",
                found,
            );
            let example: Vec<String> =
                unbound.keys().map(|name| format!("--shape {name}=1")).collect();
            return Err(error.remedy(&format!("give sizes, as in {}", example.join(" "))));
        }
        let known = self.dimensions()?;
        if let Some(name) = binding.sizes.keys().find(|name| !known.contains(*name)) {
            let names = match known.is_empty() {
                true => "no size, since the file has all of them".to_owned(),
                false => format!("sizes of {}", known.into_iter().collect::<Vec<_>>().join(", ")),
            };
            let error =
                FormatError::damaged(&self.path, "inputs", names, format!("one of `{name}`"));
            return Err(error.remedy("leave it out, or name a dimension of the inputs"));
        }
        let b = Builder::new(&self.name());
        let outcome = self.build(&b, binding);
        let graph = match b.finish() {
            Ok(graph) => outcome.map(|()| graph)?,
            Err(e) => {
                let place = format!("node `{}` ({})", e.scope, e.op);
                return Err(
                    FormatError::damaged(&self.path, &place, e.expected, e.found).remedy(&e.remedy)
                );
            }
        };
        self.check_sizes(&graph)?;
        Ok(graph)
    }

    fn build(&self, b: &Builder, binding: &Binding) -> Result<(), FormatError> {
        let storage = ExternalData::beside(&self.path);
        let walk = Walk::new(b, &self.path, &storage, (self.functions(), binding.folding));
        let opsets = self.opsets();
        let mut env = Env::default();
        for info in self.ports() {
            let (name, ty) = (info.name(), self.type_of(info)?);
            let dims = ty.shape.0.iter().map(|dim| match dim {
                Dim::Size(n) => *n,
                Dim::Named(name) => binding.sizes[&**name],
            });
            let ty = ty.with_shape(dims.collect::<Vec<usize>>());
            let item = match binding.values.get(name) {
                Some(value) if *value.ty() == ty => Item::known(value.clone()),
                Some(value) => {
                    let place = format!("value of input `{name}`");
                    let error = FormatError::damaged(&self.path, &place, ty, value.ty());
                    return Err(error.remedy("give a tensor of the input's type"));
                }
                None => {
                    let sources: Sources = Rc::new(BTreeSet::from([name.to_owned()]));
                    Item { value: ItemValue::Computed(b.input(name, ty)), sources }
                }
            };
            env.insert(name, item);
        }
        let graph = self.top();
        if graph.output.is_empty() {
            let place = format!("graph `{}`", graph.name());
            let error = FormatError::damaged(&self.path, &place, "at least one output", "none");
            return Err(
                error.remedy("export the model with the values that it computes as outputs")
            );
        }
        let outputs = walk.body(graph, &Frame::of_model(&opsets), env)?;
        for (info, item) in graph.output.iter().zip(outputs) {
            b.output(info.name(), item.value.expr(b));
        }
        Ok(())
    }

    fn top(&self) -> &GraphProto {
        self.proto.graph.as_ref().expect("checked when the file was opened")
    }

    fn functions(&self) -> Functions<'_> {
        self.proto.functions.iter().map(|f| ((domain(f.domain()), f.name()), f)).collect()
    }

    /// Inputs that are no initializers.
    fn ports(&self) -> impl Iterator<Item = &ValueInfoProto> {
        let graph = self.proto.graph.as_ref();
        let initialised: BTreeSet<&str> =
            graph.into_iter().flat_map(|g| &g.initializer).map(|tensor| tensor.name()).collect();
        graph
            .into_iter()
            .flat_map(|g| &g.input)
            .filter(move |info| !initialised.contains(info.name()))
    }

    fn type_of(&self, info: &ValueInfoProto) -> Result<TensorType, FormatError> {
        // No name is in use that the file itself has: each unknown dimension is unlike every other.
        let taken: BTreeSet<&str> = self.ports().flat_map(given_names).collect();
        let unknown = |axis: usize| {
            let mut name = format!("{}_{axis}", info.name());
            while taken.contains(name.as_str()) {
                name.push('_');
            }
            Dim::from(name.as_str())
        };
        tensor_type(info, unknown).map_err(|found| {
            let place = format!("input `{}`", info.name());
            let error =
                FormatError::damaged(&self.path, &place, "a tensor of a type known here", found);
            error.remedy(
                "export the model with tensors only, each with a shape whose dimensions \
                         may be names",
            )
        })
    }

    fn opsets(&self) -> HashMap<&str, i64> {
        self.proto
            .opset_import
            .iter()
            .map(|import| (domain(import.domain()), import.version()))
            .collect()
    }

    fn check_sizes(&self, graph: &Graph) -> Result<(), FormatError> {
        let huge = |v: &GraphValue| {
            let ty = graph.ty(*v);
            !ty.is_addressable() || ty.elements() > MOST_ELEMENTS
        };
        match graph.values().find(huge) {
            None => Ok(()),
            Some(v) => {
                let scope = graph
                    .producer(v)
                    .map_or("input".to_owned(), |node| format!("node `{}`", node.scope));
                let expected = format!("values of at most {MOST_ELEMENTS} elements");
                let error = FormatError::damaged(&self.path, &scope, expected, graph.ty(v));
                Err(error.remedy(
                    "bind smaller sizes with --shape, or export the model for sizes that a \
                     machine can hold",
                ))
            }
        }
    }
}

/// The end of a decoder's message, which names every message around the place: in a file nested too
/// deep, hundreds.
fn last_of(message: &str) -> String {
    const MOST: usize = 160;
    let skipped = message.char_indices().rev().nth(MOST - 1).map_or(0, |(at, _)| at);
    if skipped == 0 { message.to_owned() } else { format!("... {}", &message[skipped..]) }
}

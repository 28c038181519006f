//! A graph as an ONNX file of opset 23, for other engines; of opset 26 where bits are read as
//! another type. A dialect says whether it may have an op of another domain.
//!
//! Composites become the standard op where opset 23 has it, else a local function whose body is
//! their expansion. Every attribute is written, since readers differ in their defaults. States are
//! initializers. Invariant: the file says the same as the graph, or there is an error that lists
//! all that ONNX cannot say.

mod composite;
mod contraction;
mod convert;
mod dialect;
mod indexing;
mod microscaling;
mod n_bits;
mod packing;
mod pad;
mod prim;
mod quantized;
mod signature;
mod widened;
mod writer;

use super::onnx_file::{OnnxFile, WeightPlace};
use super::proto::{
    FunctionProto, GraphProto, ModelProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use super::types::theirs;
use crate::{FormatError, file};
pub use dialect::Dialect;
use overdrive_ir::ops::BlockScale;
use overdrive_ir::{Graph, Node, Origin, Port, StateDecl, TensorType, Value};
pub(super) use packing::{Packings, packings};
use std::collections::HashMap;
use std::path::Path;
use writer::{MICROSOFT, proto_of};
pub(super) use writer::{Unsaid, Writer, int};

/// Opset that is written.
const OPSET: i64 = 23;
/// IR version that belongs to it.
const IR_VERSION: i64 = 11;
/// The first opset with BitCast. Newer opsets run in fewer engines, so it is written only where it
/// is needed.
const BITCAST_OPSET: i64 = 26;
/// IR version that belongs to it.
const BITCAST_IR_VERSION: i64 = 13;
/// Domain of the local functions.
const DOMAIN: &str = "overdrive";

/// Writes a bound graph; the file appears whole or not at all.
///
/// # Errors
/// When a dimension has no size, when a state is updated, when ONNX lacks an op or element type, or
/// when the system refuses.
pub fn write(path: &Path, graph: &Graph, dialect: Dialect) -> Result<(), FormatError> {
    let model = made(path, graph, dialect)?;
    file::replace(path, |unfinished| model.write(unfinished, WeightPlace::Within).map(drop))
}

/// The bytes of the file; `path` is what errors call it.
///
/// # Errors
/// As `write`, and for weights of more than 2 GiB.
pub fn encode(path: &Path, graph: &Graph, dialect: Dialect) -> Result<Vec<u8>, FormatError> {
    made(path, graph, dialect)?.to_bytes()
}

/// The file, to be written; `path` is what errors call it.
///
/// # Errors
/// As `write`.
pub fn made(path: &Path, graph: &Graph, dialect: Dialect) -> Result<OnnxFile, FormatError> {
    Ok(OnnxFile::new(path, model_of(path, graph, (ExportForm::Whole, dialect))?))
}

/// How much of a file is made.
#[derive(Copy, Clone, PartialEq)]
pub(super) enum ExportForm {
    /// All of it.
    Whole,
    /// One without weights and without local functions, whose bodies stand where they are called:
    /// to be compared with the same model at other sizes.
    Bare,
}

/// The messages of the file.
pub(super) fn model_of(
    path: &Path,
    graph: &Graph,
    (form, dialect): (ExportForm, Dialect),
) -> Result<ModelProto, FormatError> {
    let refused = |place: &str, expected: &str, found: String| {
        FormatError::damaged(path, place, expected, found)
    };
    if !graph.is_bound() {
        return Err(refused("graph", "a size for every dimension", graph.name().to_owned())
            .remedy("bind it first"));
    }
    if let Some(state) = graph.states().iter().find(|s| s.update.is_some()) {
        let error = refused(
            "graph",
            "states that stay as they are",
            format!("`{}` is updated", state.name),
        );
        return Err(error.remedy("export the forward graph"));
    }
    let mut functions = Functions { form, dialect, written: vec![], names: HashMap::new() };
    let mut writer = Writer::default();
    writer.packed = packings(graph, dialect);
    let mut names = HashMap::new();
    let ports = graph.inputs().iter().map(|port| (port.value, &port.name));
    for (value, name) in ports.chain(graph.states().iter().map(|s| (s.value, &s.name))) {
        writer.reserve(name);
        names.insert(value, name.clone());
    }
    graph.outputs().iter().for_each(|port| writer.reserve(&port.name));
    let mut unsaid = Vec::new();
    for state in graph.states() {
        let dtype = graph.ty(state.value).dtype;
        if let (Some(_), Ok(numbers)) =
            (microscaling::steps(dtype), microscaling::numbers(&mut writer, &state.name, dtype))
        {
            writer.steps.insert(numbers.clone(), (state.name.clone(), dtype));
            names.insert(state.value, numbers);
        }
    }
    let replaced = |port: &&Port| {
        matches!(graph.origin(port.value), Origin::Node(..) | Origin::State(_))
            && microscaling::is_replaced(graph.ty(port.value).dtype)
    };
    for port in graph.outputs().iter().filter(replaced) {
        let why = "values of this type are of another one in the file";
        unsaid
            .push((format!("output `{}` of {}", port.name, graph.ty(port.value)), why.to_owned()));
    }
    walk(graph, &mut writer, &mut names, &mut functions, &mut unsaid);
    let mut proto = GraphProto { name: Some(graph.name().to_owned()), ..GraphProto::default() };
    for state in graph.states().iter().filter(|_| form == ExportForm::Whole) {
        match initializer(graph, state, &writer.packed) {
            Ok(tensor) => proto.initializer.push(tensor),
            Err(reason) => unsaid.push((format!("state of {}", graph.ty(state.value)), reason.0)),
        }
    }
    if !unsaid.is_empty() {
        let list: Vec<String> =
            unsaid.into_iter().map(|(what, why)| format!("{what}: {why}")).collect();
        let error = refused("graph", "what ONNX can say", list.join("; "));
        return Err(
            error.remedy("export before this was added to the graph, or convert these values")
        );
    }
    for port in graph.outputs() {
        let from = names[&port.value].clone();
        writer.rename(&from, &port.name);
    }
    let info = |name: &str, value: Value| value_info(name, graph.ty(value));
    proto.input = graph.inputs().iter().map(|port| info(&port.name, port.value)).collect();
    proto.output = graph.outputs().iter().map(|port| info(&port.name, port.value)).collect();
    proto.node = writer.used();
    let bodies = functions.written.iter().map(|function| &function.node).chain([&proto.node]);
    let casts_bits = bodies.flatten().any(|node| node.op_type() == "BitCast");
    let (version, ir_version) =
        if casts_bits { (BITCAST_OPSET, BITCAST_IR_VERSION) } else { (OPSET, IR_VERSION) };
    let mut opset_import = vec![opset("", version)];
    if !functions.written.is_empty() {
        opset_import.push(opset(DOMAIN, 1));
    }
    if proto.node.iter().any(|node| node.domain() == MICROSOFT) {
        opset_import.push(opset(MICROSOFT, 1));
    }
    for function in &mut functions.written {
        function.opset_import = opset_import.clone();
    }
    let model = ModelProto {
        ir_version: Some(ir_version),
        opset_import,
        producer_name: Some("overdrive".to_owned()),
        producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        graph: Some(proto),
        functions: functions.written,
        ..ModelProto::default()
    };
    Ok(model)
}

/// A state as the file holds it.
pub(super) fn initializer(
    graph: &Graph,
    state: &StateDecl,
    packed: &Packings,
) -> Result<TensorProto, Unsaid> {
    let tensor = state.init.tensor(&state.name, graph.ty(state.value));
    let held = match packed.get(&state.name) {
        Some(packing) => n_bits::packed(&tensor, *packing),
        None => microscaling::expressible(tensor),
    };
    proto_of(&state.name, &held)
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

fn value_info(name: &str, ty: &TensorType) -> ValueInfoProto {
    let size = |n: usize| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(n as i64)),
        ..Default::default()
    };
    let tensor = type_proto::Tensor {
        elem_type: theirs(ty.dtype).map(|code| code as i32),
        shape: Some(TensorShapeProto { dim: ty.sizes().into_iter().map(size).collect() }),
    };
    let value = Some(type_proto::Value::TensorType(tensor));
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto { value, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

/// Local functions, by what they compute.
struct Functions {
    form: ExportForm,
    dialect: Dialect,
    written: Vec<FunctionProto>,
    names: HashMap<String, String>,
}

/// Writes the nodes of a graph. Everything that ONNX cannot express is collected, so that the user
/// sees all of it.
fn walk(
    graph: &Graph,
    w: &mut Writer,
    names: &mut HashMap<Value, String>,
    functions: &mut Functions,
    unsaid: &mut Vec<(String, String)>,
) {
    for node in graph.nodes() {
        w.enter(&node.scope);
        let operands: Vec<String> = node.operands.iter().map(|v| names[v].clone()).collect();
        let results = match node_of(graph, node, w, &operands, functions) {
            Ok(results) => results,
            Err(Unsaid(reason)) => {
                unsaid.push((format!("`{}` at `{}`", node.op.name(), node.scope), reason));
                node.results.iter().map(|_| String::new()).collect()
            }
        };
        names.extend(node.results.iter().copied().zip(results));
    }
}

fn node_of(
    graph: &Graph,
    node: &Node,
    w: &mut Writer,
    operands: &[String],
    functions: &mut Functions,
) -> Result<Vec<String>, Unsaid> {
    let types = signature::Signature {
        operands: graph.types(&node.operands),
        results: graph.types(&node.results),
    };
    for ty in &types.results {
        theirs(ty.dtype).ok_or_else(|| Unsaid(format!("no element type for {}", ty.dtype)))?;
    }
    if let Some(prim) = node.op.prim() {
        return prim::write(prim, w, operands, &types);
    }
    if let Some(op) = node.op.composite::<BlockScale>()
        && let Some(scale) = microscaling::block_scale(op, w, &operands[0], &types)
    {
        return scale.map(|scale| vec![scale]);
    }
    if let Some(product) = n_bits::write(w, operands, &types) {
        return product.map(|product| vec![product]);
    }
    if functions.dialect == Dialect::Microsoft
        && let Some(wide) = widened::widened(node, &types)
    {
        return in_place(&wide, w, operands, functions);
    }
    let used = |index: usize| graph.use_counts()[node.results[index].0 as usize] > 0;
    if let Some(results) = composite::write(node, w, operands, (&types, &used)) {
        return Ok(results);
    }
    // A form that is given up has written something, and that stays out of the file.
    let written = w.nodes.len();
    if let Some(result) = quantized::write(&node.op, w, operands, &types) {
        return Ok(vec![result]);
    }
    w.nodes.truncate(written);
    let expansion = node.op.expansion(&types.operands, &node.regions);
    // ONNX Runtime calls no local function with values of 4 bits, and ONNX none with a region: both
    // are written in place.
    let no_function =
        !node.regions.is_empty() || types.operands.iter().any(|ty| ty.dtype.bits() < 8);
    if no_function || functions.form == ExportForm::Bare {
        return in_place(&expansion, w, operands, functions);
    }
    let mut problems = Vec::new();
    let key = format!("{:?} {:?}", node.op, types.operands);
    if !functions.names.contains_key(&key) {
        let name = format!("{}_{}", node.op.name(), functions.names.len());
        let mut body = Writer::default();
        let port = |kind: &str, i: usize| format!("{kind}{i}");
        let mut names: HashMap<Value, String> = HashMap::new();
        for (i, input) in expansion.inputs().iter().enumerate() {
            names.insert(input.value, port("x", i));
        }
        walk(&expansion, &mut body, &mut names, functions, &mut problems);
        if let Some((what, why)) = problems.pop() {
            return Err(Unsaid(format!("{what}: {why}")));
        }
        for (i, output) in expansion.outputs().iter().enumerate() {
            let from = names[&output.value].clone();
            body.rename(&from, &port("y", i));
        }
        functions.written.push(FunctionProto {
            name: Some(name.clone()),
            domain: Some(DOMAIN.to_owned()),
            input: (0..operands.len()).map(|i| port("x", i)).collect(),
            output: (0..expansion.outputs().len()).map(|i| port("y", i)).collect(),
            node: body.nodes,
            ..FunctionProto::default()
        });
        functions.names.insert(key.clone(), name);
    }
    let name = functions.names[&key].clone();
    Ok(w.call(DOMAIN, &name, operands, node.results.len()))
}

/// Writes the nodes of a graph with these inputs among the others; gives its outputs.
fn in_place(
    graph: &Graph,
    w: &mut Writer,
    inputs: &[String],
    functions: &mut Functions,
) -> Result<Vec<String>, Unsaid> {
    let ports = graph.inputs().iter().map(|port| port.value);
    let mut names: HashMap<Value, String> = ports.zip(inputs.iter().cloned()).collect();
    let mut problems = Vec::new();
    walk(graph, w, &mut names, functions, &mut problems);
    match problems.pop() {
        Some((what, why)) => Err(Unsaid(format!("{what}: {why}"))),
        None => Ok(graph.outputs().iter().map(|port| names[&port.value].clone()).collect()),
    }
}

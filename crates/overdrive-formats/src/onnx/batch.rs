//! A file for any number of rows, out of two that were written for given numbers.
//!
//! A bound graph has its batch in shapes all over. Written for two sizes, the same model gives two files that differ in just
//! those places; each such number is affine in the batch, so that it can be computed from the shape of the input when the
//! model runs. Invariant: what differs in any other way, or inside a function, is an error that says where.

use super::export::model_of;
use super::proto::attribute_proto::AttributeType;
use super::proto::tensor_proto::DataType;
use super::proto::tensor_shape_proto::dimension::Value as Extent;
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, type_proto,
};
use crate::FormatError;
use bytes::Bytes;
use overdrive_ir::Graph;
use prost::Message;
use std::path::Path;

/// The name of the dimension.
const BATCH: &str = "batch";
/// The value that holds it.
const ROWS: &str = "overdrive_batch";

/// The bytes of a file whose first dimension is free, from the graphs for two different numbers of rows; `path` is what
/// errors call it.
///
/// # Errors
/// As `encode`; when an input or an output has another dimension than its first that depends on the batch, or none; with the
/// first node that depends on it in a way that no shape arithmetic can say.
pub fn encode_batched(path: &Path, graphs: [&Graph; 2]) -> Result<Vec<u8>, FormatError> {
    let [small, large] = graphs;
    let rows = [rows(path, small)?, rows(path, large)?];
    let (first, second) = (model_of(path, small)?, model_of(path, large)?);
    let merge = Merge { path, rows };
    Ok(merge.models(first, second)?.encode_to_vec())
}

/// The number of rows of the first input.
fn rows(path: &Path, graph: &Graph) -> Result<i64, FormatError> {
    let sizes = graph.inputs().first().map(|port| graph.ty(port.value).sizes()).unwrap_or_default();
    let found =
        || FormatError::damaged(path, "inputs", "a first input with a dimension for the batch", "none");
    sizes.first().map(|&rows| rows as i64).ok_or_else(found)
}

struct Merge<'a> {
    path: &'a Path,
    rows: [i64; 2],
}

impl Merge<'_> {
    fn refused(&self, place: &str, found: &str) -> FormatError {
        let expected = "a model whose rows do not depend on their number";
        let error = FormatError::damaged(self.path, place, expected, found);
        error.remedy("export it for a fixed batch")
    }

    fn models(&self, mut first: ModelProto, second: ModelProto) -> Result<ModelProto, FormatError> {
        if first.functions != second.functions {
            return Err(self.refused("functions", "a local function that is written for a batch"));
        }
        let (Some(mut graph), Some(other)) = (first.graph.take(), second.graph) else {
            unreachable!("both were written with a graph")
        };
        if graph.initializer != other.initializer {
            return Err(self.refused("weights", "weights that depend on the batch"));
        }
        self.ports(&mut graph.input, &other.input)?;
        self.ports(&mut graph.output, &other.output)?;
        self.nodes(&mut graph, other.node)?;
        first.graph = Some(graph);
        Ok(first)
    }

    /// Names the first dimension of each input or output.
    fn ports(&self, ours: &mut [ValueInfoProto], others: &[ValueInfoProto]) -> Result<(), FormatError> {
        for (port, other) in ours.iter_mut().zip(others) {
            let place = format!("`{}`", port.name());
            let differing: Vec<usize> = (0..extents(other).len())
                .filter(|&axis| extents(port).get(axis) != extents(other).get(axis))
                .collect();
            if differing != [0] {
                let found =
                    format!("dimensions {differing:?} that depend on it, where the first alone should");
                return Err(self.refused(&place, &found));
            }
            let Some(type_proto::Value::TensorType(tensor)) =
                port.r#type.as_mut().and_then(|ty| ty.value.as_mut())
            else {
                unreachable!("our files have tensors only")
            };
            let shape = tensor.shape.as_mut().expect("our files have shapes");
            shape.dim[0].value = Some(Extent::DimParam(BATCH.to_owned()));
        }
        Ok(())
    }

    /// Has constants that differ computed from the number of rows.
    fn nodes(&self, graph: &mut GraphProto, others: Vec<NodeProto>) -> Result<(), FormatError> {
        let rows_of = graph.input[0].name().to_owned();
        let mut nodes = vec![shape_of(&rows_of)];
        if graph.node.len() != others.len() {
            return Err(self.refused("nodes", "another number of nodes for another batch"));
        }
        for (node, other) in std::mem::take(&mut graph.node).into_iter().zip(others) {
            if node == other {
                nodes.push(node);
                continue;
            }
            let place = format!("node `{}`", node.name());
            let same_but_value = NodeProto { attribute: other.attribute.clone(), ..node.clone() } == other;
            let values = (integers(&node), integers(&other));
            let (true, (Some(ours), Some(theirs))) = (same_but_value, values) else {
                return Err(self.refused(&place, &format!("an `{}` that depends on it", node.op_type())));
            };
            nodes.extend(
                self.computed(&node, &ours, &theirs).ok_or_else(|| {
                    self.refused(&place, "numbers that are no multiple of it plus a constant")
                })?,
            );
        }
        graph.node = nodes;
        Ok(())
    }

    /// `constant + factor * rows`, under the name of the constant.
    fn computed(&self, node: &NodeProto, ours: &[i64], theirs: &[i64]) -> Option<Vec<NodeProto>> {
        let [a, b] = self.rows;
        let mut factors = Vec::new();
        for (x, y) in ours.iter().zip(theirs) {
            let rise = y.checked_sub(*x)?;
            let by = b.checked_sub(a).filter(|by| *by != 0 && rise % by == 0)?;
            factors.push(rise / by);
        }
        let constants: Vec<i64> = ours.iter().zip(&factors).map(|(x, factor)| x - factor * a).collect();
        let name = node.output[0].clone();
        let [factor, constant, product] =
            ["factor", "constant", "product"].map(|part| format!("{name}_{part}"));
        let scalar = node.attribute.iter().any(|a| a.t.as_ref().is_some_and(|t| t.dims.is_empty()));
        let mut nodes = vec![
            list(&factor, &factors),
            list(&constant, &constants),
            call("Mul", &[&factor, ROWS], &product),
        ];
        if scalar {
            // One number without a dimension: the sum of its list of one.
            let sum = format!("{name}_sum");
            let axis = format!("{name}_axis");
            nodes.extend([
                call("Add", &[&product, &constant], &sum),
                list(&axis, &[0]),
                call("Squeeze", &[&sum, &axis], &name),
            ]);
        } else {
            nodes.push(call("Add", &[&product, &constant], &name));
        }
        Some(nodes)
    }
}

fn extents(port: &ValueInfoProto) -> Vec<Option<&Extent>> {
    let tensor = match port.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => tensor,
        _ => return vec![],
    };
    tensor.shape.iter().flat_map(|shape| &shape.dim).map(|dim| dim.value.as_ref()).collect()
}

/// The integers of a constant of i64.
fn integers(node: &NodeProto) -> Option<Vec<i64>> {
    let tensor = node.attribute.first().filter(|_| node.op_type() == "Constant")?.t.as_ref()?;
    let bytes = tensor.raw_data.as_ref().filter(|_| tensor.data_type() == DataType::Int64 as i32)?;
    Some(bytes.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().expect("chunks of eight"))).collect())
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        name: Some(output.to_owned()),
        op_type: Some(op.to_owned()),
        domain: Some(String::new()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute,
        ..NodeProto::default()
    }
}

fn call(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    node(op, inputs, output, vec![])
}

/// `[rows]` of an input.
fn shape_of(input: &str) -> NodeProto {
    let int = |name: &str, value: i64| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(value),
        ..AttributeProto::default()
    };
    node("Shape", &[input], ROWS, vec![int("start", 0), int("end", 1)])
}

/// A list of i64.
fn list(name: &str, values: &[i64]) -> NodeProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensor = TensorProto {
        data_type: Some(DataType::Int64 as i32),
        dims: vec![values.len() as i64],
        raw_data: Some(Bytes::from(bytes)),
        ..TensorProto::default()
    };
    let value = AttributeProto {
        name: Some("value".to_owned()),
        r#type: Some(AttributeType::Tensor as i32),
        t: Some(tensor),
        ..AttributeProto::default()
    };
    node("Constant", &[], name, vec![value])
}

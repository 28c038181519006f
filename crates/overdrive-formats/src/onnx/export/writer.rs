//! `Writer`: appends ONNX nodes, every value under a fresh name.

use super::packing::Packings;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, NodeProto, TensorProto};
use crate::onnx::types::theirs;
use bytes::Bytes;
use overdrive_ir::{DType, Shape, Tensor};
use std::collections::{HashMap, HashSet};

/// Domain of the ops that ONNX Runtime adds.
pub(super) const MICROSOFT: &str = "com.microsoft";

/// Why ONNX cannot say something.
#[derive(Debug)]
pub(in crate::onnx) struct Unsaid(pub(in crate::onnx) String);

#[derive(Default)]
pub(in crate::onnx) struct Writer {
    pub(in crate::onnx) nodes: Vec<NodeProto>,
    /// By the name of the numbers of a parameter, the name and type of its codes, which are
    /// integers in the file.
    pub(in crate::onnx) steps: HashMap<String, (String, DType)>,
    /// The states that the file holds packed.
    pub(in crate::onnx) packed: Packings,
    /// Constants that several nodes read, by what they are.
    shared: HashMap<String, String>,
    taken: HashSet<String>,
    values: usize,
    scope: String,
}

impl Writer {
    /// Keeps a name from being given to a value.
    pub(in crate::onnx) fn reserve(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// Scope of the nodes that follow.
    pub(in crate::onnx) fn enter(&mut self, scope: &str) {
        self.scope = scope.to_owned();
    }

    /// The nodes, without those that made numbers of codes which are read as codes.
    pub(in crate::onnx) fn used(mut self) -> Vec<NodeProto> {
        for numbers in self.steps.into_keys() {
            if self.nodes.iter().any(|node| node.input.contains(&numbers)) {
                continue;
            }
            // The product, and before it the constant and the cast that are its operands alone.
            let at = self.nodes.iter().position(|node| node.output.contains(&numbers));
            let product = at.map(|at| self.nodes.remove(at));
            let parts = product.map(|product| product.input).unwrap_or_default();
            self.nodes.retain(|node| !node.output.iter().any(|name| parts.contains(name)));
        }
        self.nodes
    }

    fn fresh(&mut self) -> String {
        loop {
            self.values += 1;
            let name = format!("v{}", self.values);
            if !self.taken.contains(&name) {
                return name;
            }
        }
    }

    fn push(
        &mut self,
        domain: &str,
        op: &str,
        (inputs, outputs): (Vec<String>, Vec<String>),
        attributes: Vec<AttributeProto>,
    ) {
        let slash = if self.scope.is_empty() { "" } else { "/" };
        self.nodes.push(NodeProto {
            name: Some(format!("{}{slash}{op}_{}", self.scope, self.nodes.len())),
            op_type: Some(op.to_owned()),
            domain: Some(domain.to_owned()),
            input: inputs,
            output: outputs,
            attribute: attributes,
            ..NodeProto::default()
        });
    }

    /// A node of the default domain with `results` results.
    pub(in crate::onnx) fn many(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
        results: usize,
    ) -> Vec<String> {
        let outputs: Vec<String> = (0..results).map(|_| self.fresh()).collect();
        let inputs = inputs.iter().map(|&s| s.to_owned()).collect();
        self.push("", op, (inputs, outputs.clone()), attributes);
        outputs
    }

    /// A node of the default domain with one result.
    pub(in crate::onnx) fn one(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        self.many(op, inputs, attributes, 1).remove(0)
    }

    /// A node of com.microsoft with one result.
    pub(in crate::onnx) fn one_of_microsoft(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        let output = self.fresh();
        let inputs = inputs.iter().map(|&s| s.to_owned()).collect();
        self.push(MICROSOFT, op, (inputs, vec![output.clone()]), attributes);
        output
    }

    /// A call of a local function.
    pub(in crate::onnx) fn call(
        &mut self,
        domain: &str,
        name: &str,
        inputs: &[String],
        results: usize,
    ) -> Vec<String> {
        let outputs: Vec<String> = (0..results).map(|_| self.fresh()).collect();
        self.push(domain, name, (inputs.to_vec(), outputs.clone()), vec![]);
        outputs
    }

    /// Gives a value another name.
    pub(in crate::onnx) fn rename(&mut self, from: &str, to: &str) {
        self.push("", "Identity", (vec![from.to_owned()], vec![to.to_owned()]), vec![]);
    }

    /// A constant.
    pub(in crate::onnx) fn tensor(&mut self, tensor: &Tensor) -> Result<String, Unsaid> {
        let value = AttributeProto {
            t: Some(proto_of("", tensor)?),
            ..attribute("value", AttributeType::Tensor)
        };
        Ok(self.one("Constant", &[], vec![value]))
    }

    /// A constant that is written once, whoever reads it; `what` tells it from others.
    pub(in crate::onnx) fn shared(
        &mut self,
        what: &str,
        tensor: &Tensor,
    ) -> Result<String, Unsaid> {
        if let Some(name) = self.shared.get(what) {
            return Ok(name.clone());
        }
        let name = self.tensor(tensor)?;
        self.shared.insert(what.to_owned(), name.clone());
        Ok(name)
    }

    /// A list of i64.
    pub(in crate::onnx) fn ints(&mut self, values: &[i64]) -> String {
        let wide: Vec<i128> = values.iter().map(|&x| x.into()).collect();
        self.tensor(&Tensor::from_ints(DType::I64, [wide.len()], &wide)).expect("ONNX has i64")
    }

    /// A list of extents.
    pub(in crate::onnx) fn sizes(&mut self, values: &[usize]) -> String {
        self.ints(&values.iter().map(|&n| n as i64).collect::<Vec<i64>>())
    }

    /// One number.
    pub(in crate::onnx) fn number(&mut self, dtype: DType, value: f64) -> Result<String, Unsaid> {
        self.tensor(&Tensor::from_f64(dtype, Shape::default(), &[value]))
    }

    /// One integer.
    pub(in crate::onnx) fn integer(&mut self, dtype: DType, value: i128) -> Result<String, Unsaid> {
        self.tensor(&Tensor::from_ints(dtype, Shape::default(), &[value]))
    }

    /// The same elements under another shape.
    pub(in crate::onnx) fn reshape(&mut self, x: &str, shape: &[usize]) -> String {
        let shape = self.sizes(shape);
        self.one("Reshape", &[x, &shape], vec![int("allowzero", 1)])
    }

    /// Permuted dimensions.
    pub(in crate::onnx) fn transpose(&mut self, x: &str, perm: &[usize]) -> String {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return x.to_owned();
        }
        self.one("Transpose", &[x], vec![extents("perm", perm)])
    }

    /// Another element type.
    pub(in crate::onnx) fn cast(&mut self, x: &str, to: DType) -> Result<String, Unsaid> {
        let code = theirs(to).ok_or_else(|| Unsaid(format!("no element type for {to}")))?;
        Ok(self.one("Cast", &[x], vec![int("to", code as i64)]))
    }
}

/// The tensor as an initializer or an attribute.
pub(in crate::onnx) fn proto_of(name: &str, tensor: &Tensor) -> Result<TensorProto, Unsaid> {
    let dtype = tensor.ty().dtype;
    let code = theirs(dtype).ok_or_else(|| Unsaid(format!("no element type for {dtype}")))?;
    Ok(TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(code as i32),
        dims: tensor.ty().sizes().into_iter().map(|n| n as i64).collect(),
        raw_data: Some(Bytes::from_owner(TensorOwner(tensor.clone()))),
        ..TensorProto::default()
    })
}

/// A tensor as the owner of its bytes.
struct TensorOwner(Tensor);

impl AsRef<[u8]> for TensorOwner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

pub(in crate::onnx) fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(kind as i32),
        ..AttributeProto::default()
    }
}

pub(in crate::onnx) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

pub(in crate::onnx) fn float(name: &str, value: f64) -> AttributeProto {
    AttributeProto { f: Some(value as f32), ..attribute(name, AttributeType::Float) }
}

pub(in crate::onnx) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        s: Some(Bytes::copy_from_slice(value.as_bytes())),
        ..attribute(name, AttributeType::String)
    }
}

pub(in crate::onnx) fn list(name: &str, values: Vec<i64>) -> AttributeProto {
    AttributeProto { ints: values, ..attribute(name, AttributeType::Ints) }
}

pub(in crate::onnx) fn extents(name: &str, values: &[usize]) -> AttributeProto {
    list(name, values.iter().map(|&n| n as i64).collect())
}

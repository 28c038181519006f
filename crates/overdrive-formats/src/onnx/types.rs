//! Element types and value types of ONNX as ours.

use super::proto::tensor_proto::DataType;
use super::proto::tensor_shape_proto::Dimension;
use super::proto::tensor_shape_proto::dimension::Value as Extent;
use super::proto::{TypeProto, ValueInfoProto, type_proto};
use overdrive_ir::{DType, Dim, Shape, TensorType};

/// Element types that both sides have.
pub(super) const DTYPES: [(DType, DataType); 18] = [
    (DType::F64, DataType::Double),
    (DType::F32, DataType::Float),
    (DType::F16, DataType::Float16),
    (DType::BF16, DataType::Bfloat16),
    (DType::F8E4M3, DataType::Float8e4m3fn),
    (DType::F8E5M2, DataType::Float8e5m2),
    (DType::E8M0, DataType::Float8e8m0),
    (DType::F4E2M1, DataType::Float4e2m1),
    (DType::I64, DataType::Int64),
    (DType::I32, DataType::Int32),
    (DType::I16, DataType::Int16),
    (DType::I8, DataType::Int8),
    (DType::I4, DataType::Int4),
    (DType::U64, DataType::Uint64),
    (DType::U32, DataType::Uint32),
    (DType::U16, DataType::Uint16),
    (DType::U8, DataType::Uint8),
    (DType::Bool, DataType::Bool),
];

/// Our type of this code; else what to call the code.
pub(super) fn ours(code: i32) -> Result<DType, String> {
    let known = DTYPES.iter().find(|(_, theirs)| *theirs as i32 == code).map(|(dtype, _)| *dtype);
    known.ok_or_else(|| match DataType::try_from(code) {
        Ok(theirs) => format!("elements of type {}", theirs.as_str_name()),
        Err(_) => format!("element type number {code}"),
    })
}

/// ONNX's type of ours, if it has one.
pub(super) fn theirs(dtype: DType) -> Option<DataType> {
    DTYPES.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs)
}

/// The number by which ONNX, and engines that follow it, know an element type; none where ONNX
/// lacks it.
pub fn element_code(dtype: DType) -> Option<i32> {
    theirs(dtype).map(|code| code as i32)
}

/// The tensor type of a graph input or output; for other types the error is a name for them. A
/// dimension without size or name in the file gets its name from `unknown`.
pub(super) fn tensor_type(
    info: &ValueInfoProto,
    unknown: impl Fn(usize) -> Dim,
) -> Result<TensorType, String> {
    match info.r#type.as_ref().and_then(|t: &TypeProto| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => {
            let dtype = ours(tensor.elem_type())?;
            let shape =
                tensor.shape.as_ref().ok_or("a tensor without a shape, so of unknown rank")?;
            let dims = shape.dim.iter().enumerate();
            Ok(TensorType::new(
                dtype,
                Shape(
                    dims.map(|(axis, dim)| known(dim).unwrap_or_else(|| unknown(axis))).collect(),
                ),
            ))
        }
        Some(type_proto::Value::SequenceType(_)) => Err("a sequence".to_owned()),
        Some(type_proto::Value::OptionalType(_)) => Err("an optional".to_owned()),
        Some(type_proto::Value::MapType(_)) => Err("a map".to_owned()),
        Some(_) => Err("a value that is no dense tensor".to_owned()),
        None => Err("a value without a type".to_owned()),
    }
}

/// Names of dimensions that the file gives.
pub(super) fn given_names(info: &ValueInfoProto) -> impl Iterator<Item = &str> {
    let tensor = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => Some(tensor),
        _ => None,
    };
    let dims =
        tensor.and_then(|tensor| tensor.shape.as_ref()).into_iter().flat_map(|shape| &shape.dim);
    dims.filter_map(|dim| match &dim.value {
        Some(Extent::DimParam(name)) if names_something(name) => Some(name.as_str()),
        _ => None,
    })
}

/// A size or a name that tells a dimension from others. 0 is a size: an input may be empty.
fn known(dim: &Dimension) -> Option<Dim> {
    match dim.value.as_ref()? {
        // Paddle writes -1 for what it does not know.
        Extent::DimValue(size) => usize::try_from(*size).ok().map(Dim::Size),
        Extent::DimParam(name) => names_something(name).then(|| Dim::from(name.as_str())),
    }
}

/// Whether a name is one: exporters write `?`, `*`, `-1`, `None` or nothing for every dimension
/// that they do not know.
fn names_something(name: &str) -> bool {
    let name = name.trim();
    let is_word = name.chars().any(char::is_alphanumeric) && name.parse::<i64>().is_err();
    let nothing = ["none", "null", "unk", "unknown"];
    is_word && !nothing.iter().any(|word| name.eq_ignore_ascii_case(word))
}

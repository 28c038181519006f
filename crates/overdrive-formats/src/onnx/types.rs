//! Element types and value types of ONNX as ours.

use super::proto::tensor_proto::DataType;
use super::proto::{TypeProto, ValueInfoProto, tensor_shape_proto, type_proto};
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

/// The number by which ONNX, and engines that follow it, know an element type; none where ONNX lacks it.
pub fn element_code(dtype: DType) -> Option<i32> {
    theirs(dtype).map(|code| code as i32)
}

/// The tensor type of a graph input or output; else what to call what it is. A dimension without size or name gets
/// the name `<value>_<axis>`.
pub(super) fn tensor_type(info: &ValueInfoProto) -> Result<TensorType, String> {
    match info.r#type.as_ref().and_then(|t: &TypeProto| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => {
            let dtype = ours(tensor.elem_type())?;
            let shape = tensor.shape.as_ref().ok_or("a tensor of unknown rank")?;
            let dims = shape.dim.iter().enumerate().map(|(axis, dim)| match &dim.value {
                Some(tensor_shape_proto::dimension::Value::DimValue(n)) => {
                    usize::try_from(*n).map(Dim::Size).map_err(|_| format!("a dimension of {n}"))
                }
                Some(tensor_shape_proto::dimension::Value::DimParam(name)) if !name.is_empty() => {
                    Ok(Dim::from(name.as_str()))
                }
                _ => Ok(Dim::from(format!("{}_{axis}", info.name()).as_str())),
            });
            Ok(TensorType::new(dtype, Shape(dims.collect::<Result<Vec<Dim>, String>>()?)))
        }
        Some(type_proto::Value::SequenceType(_)) => Err("a sequence".to_owned()),
        Some(type_proto::Value::OptionalType(_)) => Err("an optional".to_owned()),
        Some(type_proto::Value::MapType(_)) => Err("a map".to_owned()),
        Some(_) => Err("a value that is no dense tensor".to_owned()),
        None => Err("a value without a type".to_owned()),
    }
}

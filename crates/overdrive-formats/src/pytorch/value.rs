//! The parts of the pickle of a state dict, and the names that it may mention.

use overdrive_ir::DType;

/// Index of a value.
pub(super) type Id = usize;

/// A value that a pickle builds.
#[derive(Clone, Debug)]
pub(super) enum PickleValue {
    None,
    Bool(bool),
    Number(i64),
    /// Numbers that no part of a state dict needs: floats, integers of more than 8 bytes.
    Other,
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Name(Name),
    Storage(Storage),
    View(View),
}

/// Names that a state dict may mention.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) enum Name {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(DType),
}

/// A list of numbers that tensors look at.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Storage {
    pub(super) key: String,
    pub(super) dtype: DType,
    /// Number of elements.
    pub(super) count: usize,
}

/// A tensor: which elements of a storage, in which order.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) storage: Storage,
    /// Offset of the first element.
    pub(super) offset: usize,
    pub(super) sizes: Vec<usize>,
    /// In elements.
    pub(super) strides: Vec<usize>,
}

/// Names with their modules. `_rebuild_tensor` is the older version, with the same first arguments.
pub(super) const NAMES: [(&str, &str, Name); 14] = [
    ("collections", "OrderedDict", Name::OrderedDict),
    ("torch._utils", "_rebuild_tensor", Name::RebuildTensor),
    ("torch._utils", "_rebuild_tensor_v2", Name::RebuildTensor),
    ("torch._utils", "_rebuild_parameter", Name::RebuildParameter),
    ("torch", "DoubleStorage", Name::Storage(DType::F64)),
    ("torch", "FloatStorage", Name::Storage(DType::F32)),
    ("torch", "HalfStorage", Name::Storage(DType::F16)),
    ("torch", "BFloat16Storage", Name::Storage(DType::BF16)),
    ("torch", "LongStorage", Name::Storage(DType::I64)),
    ("torch", "IntStorage", Name::Storage(DType::I32)),
    ("torch", "ShortStorage", Name::Storage(DType::I16)),
    ("torch", "CharStorage", Name::Storage(DType::I8)),
    ("torch", "ByteStorage", Name::Storage(DType::U8)),
    ("torch", "BoolStorage", Name::Storage(DType::Bool)),
];

//! Element types and folds as the sources spell them.

use overdrive_ir::{DType, Decline, Reducer, TensorType};

use crate::launch::Refusal;

/// Representative element types for compilation without a GPU, each with a fold.
pub(super) const REPRESENTATIVES: [(&str, &str); 7] = [
    ("f64", "Sum"),
    ("f32", "Sum"),
    ("f16", "Sum"),
    ("bf16", "Sum"),
    ("i64", "Sum"),
    ("u8", "Sum"),
    ("bool", "Or"),
];

/// The name in the sources of a type that kernels combine and compare.
///
/// # Errors
/// `Unsupported` for types without arithmetic.
pub(super) fn combined(dtype: DType) -> Result<&'static str, Refusal> {
    let narrow = dtype.is_float() && !dtype.is_arithmetic_float();
    if narrow || !dtype.bits().is_multiple_of(8) {
        return Err(Refusal::Unsupported(format!(
            "{dtype} has no arithmetic on this device; convert it first"
        )));
    }
    Ok(dtype.name())
}

/// Bytes of an element that kernels move.
///
/// # Errors
/// `Unsupported` for types of less than a byte.
pub(super) fn bytes(dtype: DType) -> Result<usize, Refusal> {
    if dtype.bits().is_multiple_of(8) {
        return Ok(dtype.bits() / 8);
    }
    let reason = format!("elements of {dtype} are less than a byte; convert it first");
    Err(Refusal::Unsupported(reason))
}

/// Why a kernel that moves elements does not take operands of these types.
pub(super) fn moves(types: &[TensorType]) -> Option<Decline> {
    types.iter().find_map(|ty| bytes(ty.dtype).err()).map(Decline::from)
}

/// The same of one that combines or compares elements of the first.
pub(super) fn combines(types: &[TensorType]) -> Option<Decline> {
    let without = types.first().and_then(|ty| combined(ty.dtype).err());
    without.map(Decline::from).or_else(|| moves(types))
}

/// The struct in `loop.cuh` that combines two values.
pub(super) fn fold(reducer: Reducer) -> &'static str {
    match reducer {
        Reducer::Sum => "Sum",
        Reducer::Prod => "Prod",
        Reducer::Max => "Max",
        Reducer::Min => "Min",
        Reducer::And => "And",
        Reducer::Or => "Or",
    }
}

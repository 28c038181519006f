//! Element types and folds as the sources spell them.

use overdrive_ir::{DType, Reducer};

use crate::launch::Refusal;

/// The name in `scalar.cuh` of a type that kernels combine and compare.
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
    Ok(if dtype == DType::Bool { "boolean" } else { dtype.name() })
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

/// The struct in `scalar.cuh` that combines two values.
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

/// The value of the accumulation type that changes nothing.
pub(super) fn identity(reducer: Reducer, dtype: DType) -> String {
    let value = reducer.identity();
    match dtype {
        DType::F64 => format!("__longlong_as_double({:#x}ll)", value.to_bits()),
        _ if dtype.is_float() => format!("__int_as_float({:#x})", (value as f32).to_bits()),
        DType::Bool => format!("{value}"),
        // All bits: -1 of a signed type, the largest of an unsigned one.
        _ if reducer == Reducer::And => format!("({})~0ull", dtype.name()),
        _ => {
            let (low, high) = dtype.int_range().expect("neither a float nor bool");
            let value =
                if value.is_finite() { value as i128 } else { value.clamp(low as f64, high as f64) as i128 };
            format!("({}){:#x}ull", dtype.name(), value.clamp(low, high) as u64)
        }
    }
}

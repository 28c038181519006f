//! Types and constants in MLIR's syntax.

use overdrive_ir::{DType, Tensor, TensorType};

/// Why XLA cannot say something.
#[derive(Debug)]
pub(super) struct Unsaid(pub(super) String);

/// Constants up to this many elements are lists of numbers; above, one string of hexadecimal bytes.
const LISTED: usize = 16;

/// The name of an element type; all of them have one, and XLA runs all but those that `check`
/// refuses.
pub(super) const fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F8E4M3 => "f8E4M3FN",
        DType::F8E5M2 => "f8E5M2",
        DType::E8M0 => "f8E8M0FNU",
        DType::F6E2M3 => "f6E2M3FN",
        DType::F6E3M2 => "f6E3M2FN",
        DType::F4E2M1 => "f4E2M1FN",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::I4 => "i4",
        DType::U64 => "ui64",
        DType::U32 => "ui32",
        DType::U16 => "ui16",
        DType::U8 => "ui8",
        DType::Bool => "i1",
    }
}

/// Errs for a type that StableHLO names and XLA has no values of.
pub(super) fn check(ty: &TensorType) -> Result<(), Unsaid> {
    match ty.dtype.bits() {
        6 => Err(Unsaid(format!("XLA has no values of {}", ty.dtype))),
        _ => Ok(()),
    }
}

/// `tensor<2x3xf32>`.
pub(super) fn tensor_type(ty: &TensorType) -> String {
    let sizes: String = ty.sizes().iter().map(|n| format!("{n}x")).collect();
    format!("tensor<{sizes}{}>", element(ty.dtype))
}

/// `array<i64: 1, 2>`.
pub(super) fn array<T: ToString>(values: &[T]) -> String {
    if values.is_empty() {
        "array<i64>".to_owned()
    } else {
        format!("array<i64: {}>", list(values))
    }
}

/// `1, 2`.
pub(super) fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// `dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>`.
pub(super) fn pairs(values: &[[i64; 2]]) -> String {
    let rows: Vec<String> = values.iter().map(|pair| format!("[{}]", list(pair))).collect();
    let rows = if rows.is_empty() { String::new() } else { format!("[{}]", rows.join(", ")) };
    format!("dense<{rows}> : tensor<{}x2xi64>", values.len())
}

/// The value of a `stablehlo.constant`.
pub(super) fn dense(tensor: &Tensor) -> String {
    let ty = tensor.ty();
    let body = if ty.elements() > LISTED && ty.dtype.bits() >= 8 && ty.dtype != DType::Bool {
        let hex: String = tensor.bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        format!("\"0x{hex}\"")
    } else {
        nested(&numbers(tensor), &ty.sizes())
    };
    format!("dense<{body}> : {}", tensor_type(ty))
}

/// Every element of `ty` the same number, that of a tensor of one element.
pub(super) fn splat(one: &Tensor, ty: &TensorType) -> String {
    let body = if ty.elements() == 0 { String::new() } else { numbers(one).remove(0) };
    format!("dense<{body}> : {}", tensor_type(ty))
}

fn nested(numbers: &[String], sizes: &[usize]) -> String {
    match sizes {
        _ if numbers.is_empty() => String::new(),
        [] => numbers[0].clone(),
        [_, rest @ ..] => {
            let rows = numbers.chunks(rest.iter().product::<usize>().max(1));
            let rows: Vec<String> = rows.map(|row| nested(row, rest)).collect();
            format!("[{}]", rows.join(", "))
        }
    }
}

fn numbers(tensor: &Tensor) -> Vec<String> {
    let dtype = tensor.ty().dtype;
    if dtype == DType::Bool {
        return tensor.to_ints().into_iter().map(|x| (x != 0).to_string()).collect();
    }
    if !dtype.is_float() {
        return tensor.to_ints().iter().map(i128::to_string).collect();
    }
    let bytes = dtype.bits().div_ceil(8);
    let number = |(i, value): (usize, f64)| match value {
        v if v.is_finite() => decimal(v),
        // Only formats of whole bytes have infinities and NaNs; MLIR takes their bits.
        _ => {
            let bits = tensor.bytes()[i * bytes..][..bytes].iter().rev();
            format!("0x{}", bits.map(|byte| format!("{byte:02X}")).collect::<String>())
        }
    };
    tensor.to_f64().into_iter().enumerate().map(number).collect()
}

/// The shortest decimal that reads back the same; MLIR wants a point in it.
fn decimal(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_lists_or_bytes() {
        let dense = |dtype, sizes: Vec<usize>, values: &[f64]| {
            dense(&Tensor::from_f64(dtype, sizes, values))
        };
        assert_eq!(
            dense(DType::F32, vec![2, 1], &[1.0, -1e-9]),
            "dense<[[1.0], [-9.999999717180685e-10]]> : tensor<2x1xf32>"
        );
        assert_eq!(dense(DType::F64, vec![], &[1e30]), "dense<1.0e30> : tensor<f64>");
        assert_eq!(
            dense(DType::BF16, vec![1], &[f64::NEG_INFINITY]),
            "dense<[0xFF80]> : tensor<1xbf16>"
        );
        assert_eq!(dense(DType::Bool, vec![2], &[1.0, 0.0]), "dense<[true, false]> : tensor<2xi1>");
        assert_eq!(dense(DType::U8, vec![0, 3], &[]), "dense<> : tensor<0x3xui8>");
        assert_eq!(
            dense(DType::U8, vec![17], &[255.0; 17]),
            format!("dense<\"0x{}\"> : tensor<17xui8>", "FF".repeat(17))
        );
        assert_eq!(dense(DType::I4, vec![17], &[-8.0; 17]).matches("-8").count(), 17);
    }
}

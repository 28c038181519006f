//! `Tensor`: host bytes with their type. Immutable and cheap to clone.
//!
//! Invariant: `bytes().len() == ty().bytes()`; elements are bit-packed as `DType` says.

use crate::{DType, Overflow, Shape, TensorType};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt::Write as _;

/// A constant or an input on the host.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    ty: TensorType,
    /// Shared, perhaps with a whole mapped file.
    bytes: Bytes,
}

/// A byte buffer does not fit the type it was given for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{ty} needs {expected} bytes, found {found}")]
pub struct WrongLength {
    /// The requested type.
    pub ty: TensorType,
    /// Bytes that the type needs.
    pub expected: usize,
    /// Bytes that were given.
    pub found: usize,
}

impl Tensor {
    /// Wraps packed little-endian bytes, a vector without a copy. Errs when their count does not
    /// fit `ty` (which must be bound).
    pub fn from_bytes(ty: TensorType, bytes: impl Into<Vec<u8>>) -> Result<Self, WrongLength> {
        Self::sharing(ty, Bytes::from(bytes.into()))
    }

    /// The same without a copy: the tensor keeps the bytes' owner, a mapped file say, alive.
    pub fn sharing(ty: TensorType, bytes: Bytes) -> Result<Self, WrongLength> {
        let expected = ty.bytes();
        if bytes.len() != expected {
            return Err(WrongLength { ty, expected, found: bytes.len() });
        }
        Ok(Self { ty, bytes })
    }

    /// These entries of the first axis, each a whole number of bytes.
    pub fn rows(&self, picked: &[usize]) -> Self {
        let mut shape = self.ty.sizes();
        let bytes = self.bytes.len() / shape[0];
        let rows: Vec<u8> =
            picked.iter().flat_map(|&row| &self.bytes[row * bytes..][..bytes]).copied().collect();
        shape[0] = picked.len();
        Self::from_bytes(self.ty.with_shape(shape), rows).expect("rows are whole bytes")
    }

    /// Builds a tensor by rounding `values` to `dtype`. Panics when the count does not fit the
    /// shape.
    pub fn from_f64(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Self {
        let ty = TensorType::new(dtype, shape);
        assert_eq!(ty.elements(), values.len(), "{ty} and the number of values must agree");
        // Models hold millions of these two types; the others take the general path.
        let bytes = match dtype {
            DType::F64 => packed(values.iter().map(|x| x.to_le_bytes())),
            DType::F32 => packed(values.iter().map(|&x| (x as f32).to_le_bytes())),
            _ => {
                let mut bytes = vec![0u8; ty.bytes()];
                for (i, &x) in values.iter().enumerate() {
                    write_bits(&mut bytes, i, dtype.bits(), code_of(dtype, x));
                }
                bytes
            }
        };
        Self { ty, bytes: bytes.into() }
    }

    /// Builds an integer (or bool) tensor exactly; values wrap modulo 2^bits.
    pub fn from_ints(dtype: DType, shape: impl Into<Shape>, values: &[i128]) -> Self {
        let ty = TensorType::new(dtype, shape);
        assert!(!dtype.is_float(), "from_ints builds integer tensors, not {dtype}");
        assert_eq!(ty.elements(), values.len(), "{ty} and the number of values must agree");
        let mut bytes = vec![0u8; ty.bytes()];
        for (i, &x) in values.iter().enumerate() {
            write_bits(&mut bytes, i, dtype.bits(), x as u64);
        }
        Self { ty, bytes: bytes.into() }
    }

    /// An f32 tensor.
    pub fn from_f32(shape: impl Into<Shape>, values: &[f32]) -> Self {
        let bytes = packed(values.iter().map(|x| x.to_le_bytes()));
        Self::from_bytes(TensorType::new(DType::F32, shape), bytes)
            .expect("the values must fill the shape")
    }

    /// A tensor of one number.
    pub fn scalar(dtype: DType, value: f64) -> Self {
        Self::from_f64(dtype, Shape::default(), &[value])
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Every element as f64 (exact up to 2^53 for integers).
    pub fn to_f64(&self) -> Vec<f64> {
        let dtype = self.ty.dtype;
        if dtype == DType::F32 {
            return self.to_f32().into_iter().map(f64::from).collect();
        }
        (0..self.ty.elements())
            .map(|i| value_of(dtype, read_bits(&self.bytes, i, dtype.bits())))
            .collect()
    }

    /// Every element of an integer or bool tensor, exactly.
    pub fn to_ints(&self) -> Vec<i128> {
        let dtype = self.ty.dtype;
        assert!(!dtype.is_float(), "to_ints reads integer tensors, not {dtype}");
        (0..self.ty.elements())
            .map(|i| int_of(dtype, read_bits(&self.bytes, i, dtype.bits())))
            .collect()
    }

    /// Every element as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.ty.dtype {
            DType::F32 => self
                .bytes
                .chunks_exact(4)
                .map(|c| f32::from_le_bytes(c.try_into().expect("chunks of four bytes")))
                .collect(),
            _ => self.to_f64().into_iter().map(|x| x as f32).collect(),
        }
    }

    /// The same elements rounded to another type.
    pub fn convert(&self, dtype: DType) -> Self {
        if dtype == DType::F32 && self.ty.dtype.is_float() {
            // Weights of a model, without an intermediate copy of twice the size.
            let bits = self.ty.dtype.bits();
            let value = |i| value_of(self.ty.dtype, read_bits(&self.bytes, i, bits)) as f32;
            let bytes = match self.ty.dtype {
                DType::BF16 => packed(self.bytes.chunks_exact(2).map(|two| [0, 0, two[0], two[1]])),
                _ => packed((0..self.ty.elements()).map(|i| value(i).to_le_bytes())),
            };
            let ty = self.ty.with_dtype(dtype);
            return Self::from_bytes(ty, bytes).expect("an f32 for each element");
        }
        Self::from_f64(dtype, self.ty.shape.clone(), &self.to_f64())
    }
}

fn packed<const N: usize>(elements: impl ExactSizeIterator<Item = [u8; N]>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() * N);
    elements.for_each(|element| bytes.extend_from_slice(&element));
    bytes
}

fn int_of(dtype: DType, code: u64) -> i128 {
    let (lo, _) = dtype.int_range().expect("integer types have a range");
    let shift = 64 - dtype.bits();
    if lo < 0 { (((code << shift) as i64) >> shift) as i128 } else { code as i128 }
}

fn value_of(dtype: DType, code: u64) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(code),
        DType::F32 => f32::from_bits(code as u32) as f64,
        _ => match dtype.float_format() {
            Some(format) => format.decode(code as u32),
            None => int_of(dtype, code) as f64,
        },
    }
}

fn code_of(dtype: DType, x: f64) -> u64 {
    match dtype {
        DType::F64 => x.to_bits(),
        DType::F32 => (x as f32).to_bits() as u64,
        _ => match dtype.float_format() {
            Some(format) => format.encode(x, Overflow::Ieee) as u64,
            None => dtype.round(x, Overflow::Saturate) as i128 as u64,
        },
    }
}

fn read_bits(bytes: &[u8], index: usize, bits: usize) -> u64 {
    let start = index * bits;
    let (first, shift) = (start / 8, start % 8);
    let mut word = 0u128;
    for (k, &byte) in bytes[first..].iter().take((shift + bits).div_ceil(8)).enumerate() {
        word |= (byte as u128) << (8 * k);
    }
    ((word >> shift) & ((1u128 << bits) - 1)) as u64
}

fn write_bits(bytes: &mut [u8], index: usize, bits: usize, code: u64) {
    let start = index * bits;
    let (first, shift) = (start / 8, start % 8);
    let word = ((code as u128) & ((1u128 << bits) - 1)) << shift;
    for (k, byte) in bytes[first..].iter_mut().take((shift + bits).div_ceil(8)).enumerate() {
        *byte |= (word >> (8 * k)) as u8;
    }
}

/// Text up to this many elements is decimal; above it, hexadecimal bytes.
const DECIMAL_LIMIT: usize = 64;

impl Tensor {
    /// `f32[2]: 0.5 1`, or `f32[2]: 0x…` for long tensors and NaN; exact either way.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}:", self.ty);
        let exact = self.ty.dtype.is_float();
        let values = if self.ty.elements() <= DECIMAL_LIMIT { Some(self.to_f64()) } else { None };
        match values {
            Some(values) if exact && values.iter().all(|v| !v.is_nan()) => {
                values.iter().for_each(|v| write!(text, " {v:?}").expect("writing to a string"));
            }
            Some(_) if !exact => {
                self.to_ints()
                    .iter()
                    .for_each(|v| write!(text, " {v}").expect("writing to a string"));
            }
            _ => {
                text.push_str(" 0x");
                self.bytes
                    .iter()
                    .for_each(|b| write!(text, "{b:02x}").expect("writing to a string"));
            }
        }
        text
    }

    /// Reads what `to_text` wrote.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let (ty, values) = text.split_once(':').ok_or("expected `dtype[dims]: values`")?;
        let (dtype, dims) = ty
            .trim()
            .split_once('[')
            .ok_or_else(|| format!("expected `dtype[dims]`, found `{ty}`"))?;
        let dtype: DType = dtype.parse().map_err(|e| format!("{e}"))?;
        let dims =
            dims.strip_suffix(']').ok_or_else(|| format!("`{ty}` lacks its closing bracket"))?;
        let sizes = dims
            .split(',')
            .map(str::trim)
            .filter(|d| !d.is_empty())
            .map(|d| d.parse::<usize>().map_err(|_| format!("`{d}` is not a size")))
            .collect::<Result<Vec<_>, _>>()?;
        let bits = sizes
            .iter()
            .try_fold(dtype.bits(), |n, &s| n.checked_mul(s))
            .ok_or("the shape overflows")?;
        let count = bits / dtype.bits();
        let wrong = |found: usize| format!("{ty} holds {count} elements, found {found}");
        let values = values.trim();
        if let Some(hex) = values.strip_prefix("0x") {
            let ty = TensorType::new(dtype, sizes);
            let digit = |c: u8| {
                (c as char).to_digit(16).ok_or_else(|| "expected hexadecimal digits".to_owned())
            };
            let bytes = hex
                .as_bytes()
                .chunks(2)
                .map(|c| Ok((digit(c[0])? * 16 + digit(*c.get(1).unwrap_or(&b'x'))?) as u8))
                .collect::<Result<Vec<u8>, String>>()?;
            return Tensor::from_bytes(ty, bytes).map_err(|e| e.to_string());
        }
        let words: Vec<&str> = values.split_whitespace().collect();
        if words.len() != count {
            return Err(wrong(words.len()));
        }
        let bad = |w: &str| format!("`{w}` is not a number");
        if dtype.is_float() {
            let values = words
                .iter()
                .map(|w| w.parse().map_err(|_| bad(w)))
                .collect::<Result<Vec<f64>, _>>()?;
            Ok(Tensor::from_f64(dtype, sizes, &values))
        } else {
            let values = words
                .iter()
                .map(|w| w.parse().map_err(|_| bad(w)))
                .collect::<Result<Vec<i128>, _>>()?;
            Ok(Tensor::from_ints(dtype, sizes, &values))
        }
    }
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Tensor::from_text(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_elements_read_back_in_every_type() {
        for dtype in DType::ALL {
            let values =
                [1.0, 0.0, 1.0, 1.0, 0.0].map(|v: f64| if dtype == DType::E8M0 { 2.0 } else { v });
            let tensor = Tensor::from_f64(dtype, [5usize], &values);
            assert_eq!(tensor.bytes().len(), (5 * dtype.bits()).div_ceil(8));
            assert_eq!(tensor.to_f64(), values, "{dtype}");
            assert_eq!(Tensor::from_text(&tensor.to_text()), Ok(tensor));
        }
        let codes: Vec<i128> = (-8..8).collect();
        assert_eq!(Tensor::from_ints(DType::I4, [16usize], &codes).to_ints(), codes);
    }

    #[test]
    fn damaged_text_is_refused_with_the_reason() {
        for (text, reason) in [
            ("f32[2] 1 2", "dtype[dims]: values"),
            ("f33[2]: 1 2", "unknown dtype"),
            ("f32[2]: 1", "holds 2 elements, found 1"),
            ("f32[2]: 1 x", "`x` is not a number"),
            ("u8[1]: 0xg0", "hexadecimal"),
            ("u8[1]: 0x0", "hexadecimal"),
            ("f32[99999999999,99999999999]: 1", "overflows"),
        ] {
            let error = Tensor::from_text(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}

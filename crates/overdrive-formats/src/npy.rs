//! npy: one array: magic, version, a header that is a Python dictionary, the elements.
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
//!
//! NumPy has no bfloat16 of its own: `ml_dtypes` writes it as two-byte void (`V2`), and so do we.

use crate::tensors::tensor;
use crate::{FormatError, error::DAMAGED};
use overdrive_ir::{DType, Tensor, TensorType, row_major};
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Longest header that is read, in bytes: a shape of 32 dimensions is far shorter.
const MAX_HEADER: u32 = 64 << 10;

/// Type codes without byte order.
const DTYPES: [(DType, &str); 13] = [
    (DType::F64, "f8"),
    (DType::F32, "f4"),
    (DType::F16, "f2"),
    (DType::BF16, "V2"),
    (DType::I64, "i8"),
    (DType::I32, "i4"),
    (DType::I16, "i2"),
    (DType::I8, "i1"),
    (DType::U64, "u8"),
    (DType::U32, "u4"),
    (DType::U16, "u2"),
    (DType::U8, "u1"),
    (DType::Bool, "b1"),
];

/// The content of the header.
#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Reads one array from its bytes as they come; `path` and `name` are what errors call it.
pub fn decode(path: &Path, name: &str, reader: &mut dyn Read) -> Result<Tensor, FormatError> {
    let damaged =
        |expected: String, found: String| FormatError::damaged(path, name, expected, found);
    let mut exactly = |count: u64| {
        let mut bytes = vec![];
        let read = reader.take(count).read_to_end(&mut bytes);
        read.map_err(|e| damaged(format!("{count} bytes"), e.to_string()))?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(damaged(format!("{count} bytes"), format!("{} bytes", bytes.len()))),
        }
    };
    let start = exactly(8)?;
    if !start.starts_with(MAGIC) {
        return Err(damaged("an npy array".into(), "another format".into()));
    }
    let length = match start[6] {
        1 => u32::from(u16::from_le_bytes(exactly(2)?.try_into().expect("two bytes were read"))),
        2 | 3 => u32::from_le_bytes(exactly(4)?.try_into().expect("four bytes were read")),
        version => return Err(damaged("npy version 1 to 3".into(), format!("version {version}"))),
    };
    if length > MAX_HEADER {
        return Err(damaged(
            format!("a header of at most {MAX_HEADER} bytes"),
            format!("{length} bytes"),
        ));
    }
    let text = exactly(u64::from(length))?;
    let text = String::from_utf8_lossy(&text);
    let dictionary = "{'descr': ..., 'fortran_order': ..., 'shape': (...)}";
    let header =
        parse(&text).ok_or_else(|| damaged(dictionary.into(), format!("`{}`", text.trim_end())))?;
    let (order, code) = header.descr.split_at_checked(1).unwrap_or_default();
    let dtype =
        DTYPES.iter().find(|(_, known)| *known == code).map(|(dtype, _)| *dtype).ok_or_else(
            || {
                let known: Vec<&str> = DTYPES.iter().map(|(_, code)| *code).collect();
                damaged(
                    format!("an element type of {}", known.join(", ")),
                    format!("`{}`", header.descr),
                )
                .remedy("convert the array with `astype` before saving it")
            },
        )?;
    let ty = TensorType::new(dtype, header.shape.clone());
    if !ty.is_addressable() {
        return Err(damaged("a shape that can be addressed".into(), ty.to_string()));
    }
    let mut elements = exactly(ty.bytes() as u64)?;
    let width = dtype.bits() / 8;
    if order == ">" && width > 1 {
        elements.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    if header.fortran_order {
        elements = to_row_major(&elements, &header.shape, width);
    }
    tensor(path, name, ty, elements)
}

/// Writes one array; NumPy's alignment of 64 bytes is kept, so that arrays can be mapped.
pub fn encode(path: &Path, name: &str, tensor: &Tensor) -> Result<Vec<u8>, FormatError> {
    let ty = tensor.ty();
    let (_, code) = DTYPES.iter().find(|(dtype, _)| *dtype == ty.dtype).ok_or_else(|| {
        let error =
            FormatError::damaged(path, name, "an element type that NumPy has", ty.to_string());
        error.remedy("convert this tensor, or write safetensors")
    })?;
    let order = if ty.dtype.bits() == 8 || ty.dtype == DType::BF16 { '|' } else { '<' };
    let dims: String = ty.sizes().iter().map(|n| format!("{n}, ")).collect();
    let mut header =
        format!("{{'descr': '{order}{code}', 'fortran_order': False, 'shape': ({dims}), }}");
    let prefix = MAGIC.len() + 4;
    let padded = (prefix + header.len() + 1).next_multiple_of(64) - prefix;
    header.extend(std::iter::repeat_n(' ', padded - header.len() - 1));
    header.push('\n');
    let length = u16::try_from(header.len()).map_err(|_| {
        FormatError::damaged(path, name, "a shape of few dimensions", ty.to_string())
            .remedy(DAMAGED)
    })?;
    Ok([MAGIC, &[1u8, 0][..], &length.to_le_bytes(), header.as_bytes(), tensor.bytes()].concat())
}

/// Elements in row-major order from those of a column-major array.
fn to_row_major(bytes: &[u8], shape: &[usize], width: usize) -> Vec<u8> {
    let reversed: Vec<usize> = shape.iter().rev().copied().collect();
    let mut steps = row_major(&reversed);
    steps.reverse();
    let strides = row_major(shape);
    let count = bytes.len() / width;
    let mut elements = Vec::with_capacity(bytes.len());
    for position in 0..count {
        let from: usize =
            (0..shape.len()).map(|d| position / strides[d] % shape[d] * steps[d]).sum();
        elements.extend_from_slice(&bytes[from * width..][..width]);
    }
    elements
}

/// The header's dictionary; `None` where it is anything else.
fn parse(text: &str) -> Option<Header> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let value = |key: &str| {
        let (_, rest) = inner.split_once(&format!("'{key}'"))?;
        rest.trim_start().strip_prefix(':').map(str::trim_start)
    };
    let (descr, _) = value("descr")?.strip_prefix('\'')?.split_once('\'')?;
    let order = value("fortran_order")?;
    let (dims, _) = value("shape")?.strip_prefix('(')?.split_once(')')?;
    let dims = dims.split(',').map(str::trim).filter(|d| !d.is_empty());
    Some(Header {
        descr: descr.to_owned(),
        fortran_order: match order {
            order if order.starts_with("True") => true,
            order if order.starts_with("False") => false,
            _ => return None,
        },
        shape: dims.map(|d| d.parse().ok()).collect::<Option<_>>()?,
    })
}

//! Writes a file: the header, then tensor after tensor, rows by rows.
//!
//! Invariant: only some rows of one tensor are held beside the weights, whatever the file's size.
//! Source: docs/gguf.md of <https://github.com/ggml-org/ggml>, version 3.

use super::encoded::TensorEncoder;
use super::layout::HeaderValue;
use crate::FormatError;
use half::f16;
use overdrive_ir::{Tensor, TensorType};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::num::NonZero;
use std::path::Path;

/// Bytes that tensors are aligned to.
const ALIGNMENT: usize = 32;

/// Elements that are encoded at once, more where a row has more.
const AT_ONCE: usize = 1 << 20;

/// A tensor of a file.
pub(super) struct WrittenTensor<'w> {
    /// Its name in the file.
    pub(super) name: String,
    pub(super) encoder: &'static TensorEncoder,
    pub(super) tensor: &'w Tensor,
    /// The row of `tensor` that stands in a row of the file.
    pub(super) row_of: Box<dyn Fn(usize) -> usize + 'w>,
}

/// Writes a file of these keys and tensors, whose blocks so many threads make.
pub(super) fn write(
    path: &Path,
    keys: &[(String, HeaderValue)],
    tensors: &[WrittenTensor<'_>],
    threads: NonZero<usize>,
) -> Result<(), FormatError> {
    for tensor in tensors {
        check(path, tensor)?;
    }
    let fill = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let header = header(keys, tensors);
        file.write_all(&header)?;
        for tensor in tensors {
            body(tensor, &mut file, threads)?;
        }
        file.flush()
    };
    fill().map_err(FormatError::io(path, "write"))
}

/// Errs where a number is larger than f16 has any: blocks have their scales in it.
fn check(path: &Path, written: &WrittenTensor<'_>) -> Result<(), FormatError> {
    let most = f16::MAX.to_f32();
    for (rows, numbers) in pieces(written) {
        if let Some(at) = numbers.iter().position(|x| x.is_nan() || x.abs() > most) {
            let row = rows.start + at * rows.len() / numbers.len();
            let expected = format!("numbers of at most {most}, which GGUF holds");
            let found = format!("{} in row {row}", numbers[at]);
            return Err(FormatError::damaged(path, &written.name, expected, found)
                .remedy("scale the weights, or take another format"));
        }
    }
    Ok(())
}

fn header(keys: &[(String, HeaderValue)], tensors: &[WrittenTensor<'_>]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        text(key, &mut bytes);
        put(value, &mut bytes);
    }
    let mut offset = 0u64;
    for written in tensors {
        text(&written.name, &mut bytes);
        let sizes = written.tensor.ty().sizes();
        bytes.extend((sizes.len() as u32).to_le_bytes());
        // Innermost first.
        sizes.iter().rev().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
        bytes.extend(written.encoder.code.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset += length(written).next_multiple_of(ALIGNMENT) as u64;
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes
}

fn length(written: &WrittenTensor<'_>) -> usize {
    written.encoder.bytes_of(written.tensor.ty().elements())
}

fn body(
    written: &WrittenTensor<'_>,
    file: &mut impl Write,
    threads: NonZero<usize>,
) -> io::Result<()> {
    let encoder = written.encoder;
    for (_, numbers) in pieces(written) {
        let blocks = numbers.len() / encoder.elements;
        let share = blocks.div_ceil(threads.get()).max(1) * encoder.elements;
        let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> = numbers
                .chunks(share)
                .map(|numbers| scope.spawn(move || encoder.encoded(numbers)))
                .collect();
            threads.into_iter().map(|part| part.join().expect("no encoder panics")).collect()
        });
        parts.iter().try_for_each(|part| file.write_all(part))?;
    }
    let length = length(written);
    file.write_all(&vec![0; length.next_multiple_of(ALIGNMENT) - length])
}

/// The numbers of some rows after others, in the order of the file.
fn pieces<'w>(
    written: &'w WrittenTensor<'_>,
) -> impl Iterator<Item = (std::ops::Range<usize>, Vec<f32>)> + 'w {
    let ty = written.tensor.ty();
    let count = ty.sizes().first().copied().unwrap_or(1);
    let row = ty.elements() / count.max(1);
    let width = written.tensor.bytes().len() / count.max(1);
    let at_once = (AT_ONCE / row.max(1)).max(1);
    (0..count).step_by(at_once).map(move |start| {
        let rows = start..count.min(start + at_once);
        let bytes: Vec<u8> = rows
            .clone()
            .flat_map(|at| &written.tensor.bytes()[(written.row_of)(at) * width..][..width])
            .copied()
            .collect();
        let ty = TensorType::new(ty.dtype, [rows.len() * row]);
        (rows, Tensor::from_bytes(ty, bytes).expect("rows are whole bytes").to_f32())
    })
}

fn text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A value behind the number of its type. Integers are u32 and lists of them i32, floats f32, as
/// llama.cpp's converter writes every key that is written here.
fn put(value: &HeaderValue, bytes: &mut Vec<u8>) {
    let list = |kind: u32, count: usize| {
        [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &(count as u64).to_le_bytes()].concat()
    };
    match value {
        HeaderValue::Integer(n) => {
            bytes.extend(4u32.to_le_bytes());
            bytes.extend((*n as u32).to_le_bytes());
        }
        HeaderValue::Float(x) => {
            bytes.extend(6u32.to_le_bytes());
            bytes.extend((*x as f32).to_le_bytes());
        }
        HeaderValue::Bool(flag) => {
            bytes.extend(7u32.to_le_bytes());
            bytes.push((*flag).into());
        }
        HeaderValue::Text(value) => {
            bytes.extend(8u32.to_le_bytes());
            text(value, bytes);
        }
        HeaderValue::Integers(all) => {
            bytes.extend(list(5, all.len()));
            all.iter().for_each(|n| bytes.extend((*n as i32).to_le_bytes()));
        }
        HeaderValue::Floats(all) => {
            bytes.extend(list(6, all.len()));
            all.iter().for_each(|x| bytes.extend((*x as f32).to_le_bytes()));
        }
        HeaderValue::Bools(all) => {
            bytes.extend(list(7, all.len()));
            bytes.extend(all.iter().map(|flag| u8::from(*flag)));
        }
        HeaderValue::Texts(all) => {
            bytes.extend(list(8, all.len()));
            all.iter().for_each(|value| text(value, bytes));
        }
    }
}

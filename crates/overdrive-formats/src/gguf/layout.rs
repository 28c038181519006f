//! The layout of a file: a header with keys and values, a list of tensors, and their bytes.
//!
//! Every length is compared with the bytes that are left before anything is made of it. Tensors may
//! not overlap. The size of the decoded tensors is thus bounded by a multiple of the file's size.

use super::ggml_types::GgmlType;
use crate::FormatError;
use crate::little_endian::little_endian;
use bytes::Bytes;
use overdrive_ir::{DType, TensorType};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Most dimensions of a tensor.
const MAX_RANK: usize = 4;

/// Bytes that tensors are aligned to where no key says it.
const ALIGNMENT: u64 = 32;

/// A value of the header.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum HeaderValue {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

/// A tensor's place.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub(super) kind: &'static GgmlType,
    /// Outermost first.
    pub(super) sizes: Vec<usize>,
    pub(super) bytes: Bytes,
}

/// A file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    values: BTreeMap<String, HeaderValue>,
    pub(super) tensors: BTreeMap<String, StoredTensor>,
    /// Keys that were read.
    asked: RefCell<BTreeSet<String>>,
}

impl File {
    /// Reads the bytes of a file; `path` is what errors call it.
    pub(super) fn parse(path: &Path, bytes: &Bytes) -> Result<Self, FormatError> {
        let mut reader = Reader { path, bytes, at: 0 };
        if reader.take(4)? != b"GGUF" {
            return Err(reader.wrong("GGUF at the beginning", "other bytes"));
        }
        let version = reader.number(4)?;
        if !(2..=3).contains(&version) {
            let found = format!("version {version}");
            return Err(reader.wrong("version 2 or 3, the lowest byte first", found));
        }
        let (tensors, keys) = (reader.number(8)?, reader.number(8)?);
        let mut values = BTreeMap::new();
        for _ in 0..keys {
            let key = reader.text()?;
            let kind = reader.number(4)?;
            let value = reader.value(kind)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(reader.wrong("every key once", format!("`{key}` again")));
            }
        }
        let mut listed = Vec::new();
        for _ in 0..tensors {
            listed.push(reader.tensor()?);
        }
        let alignment = match values.get("general.alignment") {
            None => ALIGNMENT,
            Some(HeaderValue::Integer(n)) if (1..=1 << 20).contains(n) => *n as u64,
            Some(_) => return Err(reader.wrong("an alignment", "something else")),
        };
        let start = (reader.at as u64).next_multiple_of(alignment);
        let tensors = placed(&reader, start, listed)?;
        let asked = RefCell::new(BTreeSet::from(["general.alignment".to_owned()]));
        Ok(Self { path: path.to_owned(), values, tensors, asked })
    }

    /// The value of a key.
    pub(super) fn find(&self, key: &str) -> Option<&HeaderValue> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.values.get(key)
    }

    /// Keys about the computation that nobody read.
    pub(super) fn unasked(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        let is_idle = |key: &str| {
            ["general.", "tokenizer.", "quantize.", "split."].iter().any(|p| key.starts_with(p))
        };
        let unasked = self.values.keys().filter(|key| !is_idle(key) && !asked.contains(*key));
        unasked.cloned().collect()
    }

    /// An error about a key or a tensor.
    pub(super) fn wrong(
        &self,
        place: &str,
        expected: impl Display,
        found: impl Display,
    ) -> FormatError {
        FormatError::damaged(&self.path, place, expected, found)
            .remedy("the file is damaged, or of a model that is not known here")
    }
}

/// A tensor as the header lists it.
struct Listed {
    name: String,
    sizes: Vec<usize>,
    kind: &'static GgmlType,
    offset: u64,
}

/// The tensors with their bytes, which start at `start` of the file.
fn placed(
    reader: &Reader<'_>,
    start: u64,
    mut listed: Vec<Listed>,
) -> Result<BTreeMap<String, StoredTensor>, FormatError> {
    listed.sort_by_key(|tensor| tensor.offset);
    let (mut tensors, mut end_before) = (BTreeMap::new(), 0);
    for Listed { name, sizes, kind, offset } in listed {
        let wrong = |expected: String, found: String| {
            Err(FormatError::damaged(reader.path, &name, expected, found))
        };
        let count = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let is_addressable = TensorType::new(DType::F32, sizes.clone()).is_addressable();
        let count = count.filter(|_| is_addressable);
        let row = sizes.last().copied().unwrap_or(1);
        let Some(count) = count.filter(|_| row.is_multiple_of(kind.elements)) else {
            let expected = format!("rows of whole blocks of {} elements", kind.elements);
            return wrong(expected, format!("{sizes:?}"));
        };
        let length = (count / kind.elements).checked_mul(kind.bytes);
        let range = length.and_then(|length| {
            let from = usize::try_from(start.checked_add(offset)?).ok()?;
            Some(from..from.checked_add(length)?)
        });
        let Some(range) = range.filter(|range| range.end <= reader.bytes.len()) else {
            let expected = format!("{sizes:?} of {} from byte {offset} on", kind.name);
            return wrong(expected, format!("a file of {} bytes", reader.bytes.len()));
        };
        if offset < end_before {
            return wrong("bytes of its own".to_owned(), "another tensor's".to_owned());
        }
        end_before = offset + (range.end - range.start) as u64;
        let bytes = reader.bytes.slice(range);
        if tensors.insert(name.clone(), StoredTensor { kind, sizes, bytes }).is_some() {
            return wrong("one tensor".to_owned(), "a second of this name".to_owned());
        }
    }
    Ok(tensors)
}

struct Reader<'a> {
    path: &'a Path,
    bytes: &'a Bytes,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, expected: impl Display, found: impl Display) -> FormatError {
        FormatError::damaged(self.path, &format!("header at byte {}", self.at), expected, found)
    }

    fn take(&mut self, count: usize) -> Result<&[u8], FormatError> {
        let left = self.bytes.len() - self.at;
        if count > left {
            return Err(self.wrong(format!("{count} bytes more"), left));
        }
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    fn number(&mut self, bytes: usize) -> Result<u64, FormatError> {
        Ok(little_endian(self.take(bytes)?))
    }

    fn text(&mut self) -> Result<String, FormatError> {
        let length = usize::try_from(self.number(8)?).unwrap_or(usize::MAX);
        let bytes = self.take(length)?.to_vec();
        String::from_utf8(bytes).map_err(|error| self.wrong("text in UTF-8", error))
    }

    /// A number of this type: the integer, or the float.
    fn scalar(&mut self, kind: u64) -> Result<Option<HeaderValue>, FormatError> {
        let signed = |bits: u64, width: u32| (bits << (64 - width)) as i64 >> (64 - width);
        Ok(Some(match kind {
            0 => HeaderValue::Integer(self.number(1)?.into()),
            1 => HeaderValue::Integer(signed(self.number(1)?, 8).into()),
            2 => HeaderValue::Integer(self.number(2)?.into()),
            3 => HeaderValue::Integer(signed(self.number(2)?, 16).into()),
            4 => HeaderValue::Integer(self.number(4)?.into()),
            5 => HeaderValue::Integer(signed(self.number(4)?, 32).into()),
            6 => HeaderValue::Float(f32::from_bits(self.number(4)? as u32).into()),
            7 => HeaderValue::Bool(self.number(1)? != 0),
            10 => HeaderValue::Integer(self.number(8)?.into()),
            11 => HeaderValue::Integer((self.number(8)? as i64).into()),
            12 => HeaderValue::Float(f64::from_bits(self.number(8)?)),
            _ => return Ok(None),
        }))
    }

    fn value(&mut self, kind: u64) -> Result<HeaderValue, FormatError> {
        const TEXT: u64 = 8;
        const LIST: u64 = 9;
        if let Some(value) = self.scalar(kind)? {
            return Ok(value);
        }
        if kind == TEXT {
            return Ok(HeaderValue::Text(self.text()?));
        }
        if kind != LIST {
            return Err(self.wrong("a type from 0 to 12", kind));
        }
        let (kind, count) = (self.number(4)?, self.number(8)?);
        if kind == TEXT {
            return Ok(HeaderValue::Texts(
                (0..count).map(|_| self.text()).collect::<Result<_, _>>()?,
            ));
        }
        let (mut integers, mut floats, mut bools) = (vec![], vec![], vec![]);
        for _ in 0..count {
            match self.scalar(kind)? {
                Some(HeaderValue::Integer(n)) => integers.push(n as i64),
                Some(HeaderValue::Float(x)) => floats.push(x),
                Some(HeaderValue::Bool(b)) => bools.push(b),
                _ => return Err(self.wrong("a list of numbers or texts", format!("type {kind}"))),
            }
        }
        Ok(match (integers.is_empty(), floats.is_empty()) {
            (_, false) => HeaderValue::Floats(floats),
            (false, _) => HeaderValue::Integers(integers),
            _ if bools.is_empty() => HeaderValue::Integers(vec![]),
            _ => HeaderValue::Bools(bools),
        })
    }

    fn tensor(&mut self) -> Result<Listed, FormatError> {
        let name = self.text()?;
        let rank = self.number(4)? as usize;
        if rank > MAX_RANK {
            return Err(self.wrong(format!("at most {MAX_RANK} dimensions of `{name}`"), rank));
        }
        let mut sizes = Vec::with_capacity(rank);
        for _ in 0..rank {
            sizes.push(usize::try_from(self.number(8)?).unwrap_or(usize::MAX));
        }
        // Innermost first in the file.
        sizes.reverse();
        let code = self.number(4)?;
        let Some(kind) = GgmlType::of(code) else {
            let known = GgmlType::names();
            let error = self.wrong(format!("`{name}` as one of {known}"), format!("type {code}"));
            return Err(error.remedy("convert the file to one of these types"));
        };
        Ok(Listed { name, sizes, kind, offset: self.number(8)? })
    }
}

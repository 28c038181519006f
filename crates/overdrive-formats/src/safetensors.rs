//! safetensors: a JSON header of names, types and offsets, then the bytes.
//! <https://huggingface.co/docs/safetensors>
//!
//! The crate of the same name parses and checks the header: at most 100 MB, and offsets that cover
//! the file without gap or overlap. Here its types become ours, and its errors say what was
//! expected.

mod opened;
mod parts;

pub use opened::OpenedSafetensors;
pub use parts::read_parts;

use crate::tensors::tensor;
use crate::{FormatError, Tensors, file};
use bytes::Bytes;
use overdrive_ir::{DType, TensorType};
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Bytes of the length of the header.
const LENGTH: u64 = 8;
/// The largest header that is read, in bytes.
const LARGEST_HEADER: u64 = 100 << 20;

/// Element types that both sides have.
const DTYPES: [(DType, Dtype); 19] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F8E4M3, Dtype::F8_E4M3),
    (DType::F8E5M2, Dtype::F8_E5M2),
    (DType::E8M0, Dtype::F8_E8M0),
    (DType::F6E2M3, Dtype::F6_E2M3),
    (DType::F6E3M2, Dtype::F6_E3M2),
    (DType::F4E2M1, Dtype::F4),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

fn ours(theirs: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(_, t)| *t == theirs).map(|(dtype, _)| *dtype)
}

fn theirs(ours: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(o, _)| *o == ours).map(|(_, dtype)| *dtype)
}

/// Whether a file can hold tensors of this type.
pub fn can_hold(dtype: DType) -> bool {
    theirs(dtype).is_some()
}

/// Reads every tensor of a file.
///
/// # Errors
/// When the file cannot be read, or is not what its header says; its size is compared before the
/// rest is read.
pub fn read(path: &Path) -> Result<Tensors, FormatError> {
    header(path)?;
    decode(path, file::bytes(path)?)
}

/// The size of the header with its length, in bytes, and what it says if it can be read. Errs where
/// it does not fit the size of the file: a sparse file may claim to be larger than memory.
fn header(path: &Path) -> Result<(u64, Option<Metadata>), FormatError> {
    let size =
        overdrive_files::open(path)?.metadata().map_err(FormatError::io(path, "read"))?.len();
    let start = overdrive_files::beginning(path, LENGTH)?;
    let header = start.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    let header =
        overdrive_files::beginning(path, LENGTH.saturating_add(header.min(LARGEST_HEADER)))?;
    // A header that cannot be read at all is told by the reader of the whole.
    let metadata = header.get(LENGTH as usize..).map(serde_json::from_slice::<Metadata>);
    let metadata = metadata.and_then(Result::ok);
    let data = metadata.as_ref().map_or(0, |metadata| metadata.data_len() as u64);
    let claimed = header.len() as u64 + data;
    if claimed == size {
        return Ok((header.len() as u64, metadata));
    }
    match SafeTensors::deserialize(&header) {
        Err(SafeTensorError::MetadataIncompleteBuffer) | Ok(_) => {
            let expected = format!("{claimed} bytes, as the header says");
            Err(FormatError::damaged(path, "data", expected, format!("{size} bytes")))
        }
        Err(error) => Err(damaged(path, &header, error)),
    }
}

/// The metadata of a file; none where its header has none, or cannot be read.
///
/// # Errors
/// As [`read`].
pub fn metadata(path: &Path) -> Result<BTreeMap<String, String>, FormatError> {
    let (_, header) = header(path)?;
    let found = header.and_then(|header| header.metadata().clone());
    Ok(found.into_iter().flatten().collect())
}

/// Reads every tensor from the bytes of a file; `path` is what errors call it.
///
/// # Errors
/// When they are not what the header says, or of types that are unknown here.
pub fn decode(path: &Path, bytes: impl Into<Bytes>) -> Result<Tensors, FormatError> {
    let bytes = bytes.into();
    let views = SafeTensors::deserialize(&bytes).map_err(|e| damaged(path, &bytes, e))?;
    let mut tensors = Tensors::new();
    for (name, view) in views.iter() {
        let ty = our_type(path, name, (view.dtype(), view.shape()))?;
        tensors.insert(name.to_owned(), tensor(path, name, ty, bytes.slice_ref(view.data()))?);
    }
    Ok(tensors)
}

/// A type in the file as ours.
fn our_type(
    path: &Path,
    name: &str,
    (dtype, shape): (Dtype, &[usize]),
) -> Result<TensorType, FormatError> {
    let Some(known) = ours(dtype) else {
        let error = FormatError::damaged(path, name, "an element type known here", dtype);
        return Err(error.remedy("convert this tensor to another type"));
    };
    Ok(TensorType::new(known, shape))
}

/// Writes tensors to a file, which appears whole or not at all.
pub fn write(path: &Path, tensors: &Tensors) -> Result<(), FormatError> {
    write_described(path, tensors, BTreeMap::new())
}

/// The same with metadata of the file, for facts that types and shapes do not tell.
pub fn write_described(
    path: &Path,
    tensors: &Tensors,
    metadata: BTreeMap<String, String>,
) -> Result<(), FormatError> {
    let views = views(path, tensors)?;
    let metadata = given(metadata);
    file::replace(path, |unfinished| {
        safetensors::serialize_to_file(views, metadata, unfinished).map_err(|e| match e {
            SafeTensorError::IoError(source) => FormatError::io(path, "write")(source),
            other => unfit(path, other),
        })
    })
}

/// The bytes of the file that `write` would write; `path` is what errors call it.
pub fn encode(path: &Path, tensors: &Tensors) -> Result<Vec<u8>, FormatError> {
    encode_described(path, tensors, BTreeMap::new())
}

/// The same with a file's metadata.
pub(crate) fn encode_described(
    path: &Path,
    tensors: &Tensors,
    metadata: BTreeMap<String, String>,
) -> Result<Vec<u8>, FormatError> {
    safetensors::serialize(views(path, tensors)?, given(metadata)).map_err(|e| unfit(path, e))
}

fn given(metadata: BTreeMap<String, String>) -> Option<HashMap<String, String>> {
    (!metadata.is_empty()).then(|| metadata.into_iter().collect())
}

fn views<'t>(
    path: &Path,
    tensors: &'t Tensors,
) -> Result<Vec<(&'t String, TensorView<'t>)>, FormatError> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let invalid = |found: String| {
            FormatError::damaged(path, name, "a tensor that safetensors can hold", found)
                .remedy("convert this tensor to another type")
        };
        let dtype = theirs(tensor.ty().dtype).ok_or_else(|| invalid(tensor.ty().to_string()))?;
        let view = TensorView::new(dtype, tensor.ty().sizes(), tensor.bytes());
        views.push((name, view.map_err(|e| invalid(format!("{} ({e})", tensor.ty())))?));
    }
    Ok(views)
}

fn unfit(path: &Path, error: SafeTensorError) -> FormatError {
    FormatError::damaged(path, "header", "tensors that safetensors can hold", error)
}

/// The crate's error with the figures that it leaves out.
fn damaged(path: &Path, bytes: &[u8], error: SafeTensorError) -> FormatError {
    let size = bytes.len();
    let claimed = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
    let (place, expected, found) = match (&error, claimed) {
        (SafeTensorError::HeaderTooSmall, _) | (_, None) => {
            ("header length", "8 bytes".to_owned(), format!("{size} bytes"))
        }
        (SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength, Some(claimed)) => {
            (
                "header length",
                format!("at most the {} bytes that follow", size - 8),
                format!("{claimed} bytes"),
            )
        }
        (SafeTensorError::MetadataIncompleteBuffer, _) => (
            "data",
            "tensors that cover the file exactly".to_owned(),
            format!("{size} bytes in all: {error}"),
        ),
        (SafeTensorError::InvalidOffset(name), _) => (
            name.as_str(),
            "offsets in order, without gap or overlap".to_owned(),
            error.to_string(),
        ),
        _ => (
            "header",
            "JSON with dtype, shape and data_offsets of each tensor".to_owned(),
            error.to_string(),
        ),
    };
    FormatError::damaged(path, place, expected, found)
}

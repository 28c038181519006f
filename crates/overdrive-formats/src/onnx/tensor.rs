//! `TensorProto` to `Tensor`, without a copy of raw data.
//!
//! Every length is checked against the bytes that are there before anything is built. External data
//! is read from the model's own folder only: a location that is absolute, climbs out, or leads out
//! through a link is refused.

use super::item::{ItemValue, KnownTensor};
use super::proto::TensorProto;
use super::proto::tensor_proto::{DataLocation, DataType};
use super::types::ours;
use crate::{FormatError, file};
use bytes::Bytes;
use overdrive_ir::{DType, Tensor, TensorType};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// The files of a model's tensors.
#[derive(Debug)]
pub(super) struct ExternalData {
    path: PathBuf,
    /// External files that were read.
    files: RefCell<HashMap<String, Bytes>>,
}

impl ExternalData {
    pub(super) fn beside(path: &Path) -> Self {
        Self { path: path.to_owned(), files: RefCell::default() }
    }

    /// The value of a proto, which becomes a parameter of this name; errors call it by its own.
    pub(super) fn value<'b>(
        &self,
        proto: &TensorProto,
        parameter: Option<Rc<str>>,
    ) -> Result<ItemValue<'b>, FormatError> {
        if proto.data_type() != DataType::Uint4 as i32 {
            return Ok(ItemValue::Known(KnownTensor { tensor: self.tensor(proto)?, parameter }));
        }
        let codes = TensorProto { data_type: Some(DataType::Int4 as i32), ..proto.clone() };
        let tensor = signed(&self.tensor(&codes)?);
        Ok(ItemValue::Unsigned4(KnownTensor { tensor, parameter }))
    }

    /// The tensor of a proto; errors call it by its name.
    pub(super) fn tensor(&self, proto: &TensorProto) -> Result<Tensor, FormatError> {
        let damaged = |expected: String, found: String| {
            FormatError::damaged(&self.path, &format!("tensor `{}`", proto.name()), expected, found)
        };
        let dtype = ours(proto.data_type()).map_err(|found| {
            damaged("an element type known here".into(), found)
                .remedy("convert this tensor to another type")
        })?;
        let dims =
            proto.dims.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<usize>, _>>();
        let dims = dims
            .map_err(|_| damaged("dimensions of at least 0".into(), format!("{:?}", proto.dims)))?;
        let ty = TensorType::new(dtype, dims);
        if !ty.is_addressable() {
            return Err(damaged("a shape that can be addressed".into(), ty.to_string()));
        }
        let bytes = if proto.data_location() == DataLocation::External {
            self.external(proto)?
        } else if proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty()) {
            proto.raw_data.clone().unwrap_or_default()
        } else {
            typed(proto, dtype).into()
        };
        if bytes.len() != ty.bytes() {
            return Err(damaged(
                format!("the {} bytes of {ty}", ty.bytes()),
                format!("{} bytes", bytes.len()),
            ));
        }
        let bytes = match dtype {
            // Any byte but 0 is true.
            DType::Bool if bytes.iter().any(|b| *b > 1) => {
                bytes.iter().map(|b| u8::from(*b != 0)).collect()
            }
            _ => bytes,
        };
        Ok(Tensor::sharing(ty, bytes).expect("the length was checked"))
    }

    fn external(&self, proto: &TensorProto) -> Result<Bytes, FormatError> {
        let place = format!("external data of tensor `{}`", proto.name());
        let damaged = |expected: &str, found: String| {
            FormatError::damaged(&self.path, &place, expected, found)
        };
        let entry =
            |key: &str| proto.external_data.iter().find(|e| e.key() == key).map(|e| e.value());
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| damaged("a count of bytes", format!("{key} `{text}`"))),
        };
        let location = entry("location").ok_or_else(|| damaged("a location", "none".into()))?;
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        let file = self.file(location, &place)?;
        let end = length.map_or(Some(file.len()), |length| offset.checked_add(length));
        match end.filter(|&end| offset <= end && end <= file.len()) {
            Some(end) => Ok(file.slice(offset..end)),
            None => {
                let length =
                    length.map_or("to its end".to_owned(), |length| format!("{length} bytes"));
                let found = format!("{length} from byte {offset} on");
                Err(damaged(
                    &format!("a range within the {} bytes of `{location}`", file.len()),
                    found,
                ))
            }
        }
    }

    /// The bytes of a file in the model's folder.
    fn file(&self, location: &str, place: &str) -> Result<Bytes, FormatError> {
        if let Some(bytes) = self.files.borrow().get(location) {
            return Ok(bytes.clone());
        }
        let bytes = file::bytes(&self.located(location, place)?)?;
        self.files.borrow_mut().insert(location.to_owned(), bytes.clone());
        Ok(bytes)
    }

    /// The path of a file in the model's folder; errors call whoever names it `place`.
    pub(super) fn located(&self, location: &str, place: &str) -> Result<PathBuf, FormatError> {
        let outside = || {
            let error = FormatError::damaged(
                &self.path,
                place,
                "a file in the model's folder",
                format!("`{location}`"),
            );
            error.remedy("keep external data beside the model")
        };
        let relative = Path::new(location);
        if !relative
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        {
            return Err(outside());
        }
        let folder = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let target = folder.join(relative);
        let real = |path: &Path| path.canonicalize().map_err(FormatError::io(path, "open"));
        let found = target.canonicalize().map_err(|error| {
            let found = format!("`{location}`, which cannot be opened: {error}");
            FormatError::damaged(&self.path, place, "a file in the model's folder", found)
                .remedy("fetch this file too, and keep it beside the model")
        })?;
        if !found.starts_with(real(&folder)?) {
            return Err(outside());
        }
        Ok(target)
    }
}

/// Codes of uint4 as those of i4 that are 8 less: their highest bit flips.
fn signed(codes: &Tensor) -> Tensor {
    let mut bytes: Vec<u8> = codes.bytes().iter().map(|pair| pair ^ 0x88).collect();
    // Bits after the last code stay 0.
    if codes.ty().elements() % 2 == 1
        && let Some(last) = bytes.last_mut()
    {
        *last &= 0x0f;
    }
    Tensor::sharing(codes.ty().clone(), bytes.into()).expect("as many bytes as before")
}

/// Bytes of the typed fields. Small formats come as codes in `int32_data`, 4-bit ones two to an
/// entry.
fn typed(proto: &TensorProto, dtype: DType) -> Vec<u8> {
    let low = |width: usize| -> Vec<u8> {
        proto.int32_data.iter().flat_map(|x| x.to_le_bytes().into_iter().take(width)).collect()
    };
    match DataType::try_from(proto.data_type()) {
        Ok(DataType::Float) => proto.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Ok(DataType::Double) => proto.double_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Ok(DataType::Int64) => proto.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Ok(DataType::Uint64) => proto.uint64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Ok(DataType::Uint32) => {
            proto.uint64_data.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect()
        }
        _ => low(dtype.bits().div_ceil(8)),
    }
}

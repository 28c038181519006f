//! `OnnxFile`: a model that is ready to be written, as one message of protobuf or with data beside
//! it.
//!
//! Readers of protobuf take messages of less than 2 GiB. Weights that do not fit stand in a second
//! file of the same folder, `NAME.data`. Each begins on a new page, so that a reader can map it.
//! Small tensors stay in the message, since readers compute shapes from them. Invariant: the
//! message names the data by its file name alone, so that both can be moved together.

use super::proto::tensor_proto::DataLocation;
use super::proto::{ModelProto, StringStringEntryProto};
use crate::FormatError;
use prost::Message;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Bytes of a message that every reader takes.
const MOST: usize = i32::MAX as usize;
/// Tensors of fewer bytes stay in the message.
const SMALL: usize = 1024;
/// Tensors in the data begin at multiples of it: a page of memory.
const PAGE: u64 = 4096;
/// Ending of the data's name.
const DATA: &str = ".data";

/// The place of weights.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum WeightPlace {
    /// In the message, where they fit.
    Within,
    /// In a file beside it.
    Beside,
}

/// A model to be written.
#[derive(Clone, Debug)]
pub struct OnnxFile {
    /// The name of the file in errors.
    shown: PathBuf,
    model: ModelProto,
}

impl OnnxFile {
    pub(super) fn new(shown: &Path, model: ModelProto) -> Self {
        Self { shown: shown.to_owned(), model }
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// If they are more than a message has.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let bytes = self.model.encoded_len();
        if bytes <= MOST {
            return Ok(self.model.encode_to_vec());
        }
        let expected = format!("a model of at most {MOST} bytes, as protobuf has them");
        let error =
            FormatError::damaged(&self.shown, "weights", expected, format!("{bytes} bytes"));
        Err(error.remedy("write it to a file, `overdrive export MODEL --onnx FILE`"))
    }

    /// Writes the file, and `NAME.data` beside it if the weights have their place there or do not
    /// fit into the file. Gives the bytes of both.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(mut self, path: &Path, place: WeightPlace) -> Result<u64, FormatError> {
        let apart = place == WeightPlace::Beside || self.model.encoded_len() > MOST;
        let data = if apart { self.write_data(path)? } else { 0 };
        let bytes = self.to_bytes()?;
        std::fs::write(path, &bytes).map_err(FormatError::io(path, "write"))?;
        Ok(data + bytes.len() as u64)
    }

    /// Moves the weights into a file beside `path`.
    fn write_data(&mut self, path: &Path) -> Result<u64, FormatError> {
        let mut name = OsString::from(path.file_name().unwrap_or_default());
        name.push(DATA);
        let path = path.with_file_name(&name);
        let failed = || FormatError::io(&path, "write");
        let mut file = BufWriter::new(File::create(&path).map_err(failed())?);
        let mut end = 0u64;
        let graph = self.model.graph.iter_mut();
        for tensor in graph.flat_map(|graph| &mut graph.initializer) {
            let Some(bytes) = tensor.raw_data.take_if(|bytes| bytes.len() >= SMALL) else {
                continue;
            };
            let offset = end.next_multiple_of(PAGE);
            let gap = [0u8; PAGE as usize];
            file.write_all(&gap[..(offset - end) as usize]).map_err(failed())?;
            file.write_all(&bytes).map_err(failed())?;
            end = offset + bytes.len() as u64;
            let entry = |key: &str, value: String| StringStringEntryProto {
                key: Some(key.to_owned()),
                value: Some(value),
            };
            tensor.data_location = Some(DataLocation::External as i32);
            tensor.external_data = vec![
                entry("location", name.to_string_lossy().into_owned()),
                entry("offset", offset.to_string()),
                entry("length", bytes.len().to_string()),
            ];
        }
        file.flush().map_err(failed())?;
        Ok(end)
    }
}

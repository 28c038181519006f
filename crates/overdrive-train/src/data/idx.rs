//! IDX: the format of MNIST and its relatives: magic `0 0 type rank`, sizes, elements, all
//! big-endian.
//! <https://yann.lecun.com/exdb/mnist/>. Bytes only, gzip or plain.
//!
//! Images lie in `*-images-idx3-ubyte`, their labels beside them in `*-labels-idx1-ubyte`.

use super::Samples;
use crate::TrainError;
use flate2::read::GzDecoder;
use overdrive_ir::{DType, Tensor, TensorType};
use std::io::{BufReader, Read};
use std::path::Path;

/// The element type that is read: unsigned bytes.
const UBYTE: u8 = 0x08;

/// More dimensions than any image has.
const MOST_DIMENSIONS: u8 = 8;

const DAMAGED: &str = "the file is damaged, cut short, or of another format";

/// Reads a file of images and the file of labels beside it.
///
/// # Errors
/// When either cannot be read, is of another format, or their counts differ.
pub(super) fn read(images: &Path) -> Result<Samples, TrainError> {
    let name = images.file_name().unwrap_or_default().to_string_lossy();
    let beside = name.replace("images", "labels").replace("idx3", "idx1");
    if beside == name {
        let remedy = "name the images `*-images-idx3-ubyte` and the labels `*-labels-idx1-ubyte`";
        return Err(TrainError::invalid(images.display(), "a file of images", name, remedy));
    }
    let labels_path = images.with_file_name(beside);
    let features = array(images)?;
    let labels = array(&labels_path)?;
    if labels.ty().rank() != 1 {
        let found = labels.ty().to_string();
        return Err(TrainError::invalid(
            labels_path.display(),
            "labels of one dimension",
            found,
            DAMAGED,
        ));
    }
    let labels = labels.bytes().iter().map(|&b| u32::from(b)).collect();
    Samples::new(&images.display().to_string(), features, labels)
}

fn array(path: &Path) -> Result<Tensor, TrainError> {
    let file = overdrive_files::open(path)?;
    let place = path.display().to_string();
    match path.extension().is_some_and(|e| e == "gz") {
        true => decode(&place, &mut GzDecoder::new(BufReader::new(file))),
        false => decode(&place, &mut BufReader::new(file)),
    }
}

/// Reads one array of bytes. Nothing is allocated for a size that is merely claimed.
pub(super) fn decode(place: &str, reader: &mut dyn Read) -> Result<Tensor, TrainError> {
    let fault =
        |expected: String, found: String| TrainError::invalid(place, expected, found, DAMAGED);
    let mut exactly = |count: u64| {
        let mut bytes = Vec::new();
        let read = reader.take(count).read_to_end(&mut bytes);
        read.map_err(|e| fault(format!("{count} bytes"), e.to_string()))?;
        match bytes.len() as u64 == count {
            true => Ok(bytes),
            false => Err(fault(format!("{count} bytes"), format!("{} bytes", bytes.len()))),
        }
    };
    let magic = exactly(4)?;
    let [0, 0, UBYTE, rank @ 1..=MOST_DIMENSIONS] = magic[..] else {
        return Err(fault("an IDX file of unsigned bytes".into(), format!("magic {magic:02x?}")));
    };
    let sizes = exactly(4 * u64::from(rank))?;
    let size = |c: &[u8]| u32::from_be_bytes(c.try_into().expect("chunks of four bytes")) as usize;
    let ty = TensorType::new(DType::U8, sizes.chunks_exact(4).map(size).collect::<Vec<_>>());
    if !ty.is_addressable() {
        return Err(fault("a shape that can be addressed".into(), ty.to_string()));
    }
    let bytes = exactly(ty.bytes() as u64)?;
    if reader.read(&mut [0]).is_ok_and(|n| n > 0) {
        return Err(fault(format!("the end after {ty}"), "more bytes".into()));
    }
    Ok(Tensor::from_bytes(ty, bytes).expect("the length was read"))
}

//! A model repository of the Triton Inference Server: a folder that `tritonserver
//! --model-repository` serves.
//! <https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md>
//!
//! It holds the model's folder with `config.pbtxt`, and `1/model.onnx` for Triton's ONNX Runtime
//! back end. It also holds inputs to warm up with, so that the first request does not pay for the
//! first call.

use crate::FormatError;
use crate::onnx::{self, OnnxFile, WeightPlace};
use overdrive_files::Contents;
use overdrive_ir::{DType, Dim, Tensor, TensorType};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// A model to be served.
#[derive(Debug, Clone)]
pub struct Served {
    /// Its name, in requests too.
    pub name: String,
    /// Its ONNX file.
    pub model: ServedModel,
    /// Inputs of one sample: without the batch where there is one; a named dimension may have any
    /// size.
    pub inputs: Vec<(String, TensorType)>,
    /// Outputs, likewise.
    pub outputs: Vec<(String, TensorType)>,
    /// Most samples in a call, which the server collects from requests; none where the file is for
    /// a fixed batch.
    pub max_batch: Option<usize>,
    /// One sample by input, to warm up with.
    pub warm_up: Vec<(String, Tensor)>,
}

/// The ONNX file of a model that is served.
#[derive(Debug, Clone)]
pub enum ServedModel {
    /// One that is written.
    Made(Box<OnnxFile>),
    /// A user's own, which is copied with the data beside it.
    Copied(PathBuf),
}

/// Time that a request may wait for others to share its call.
const QUEUE_DELAY_MICROSECONDS: u32 = 100;

/// The configuration of a model.
const CONFIG: &str = "config.pbtxt";

/// The manifest of a repository, and how to recognise repositories of ours without one.
pub const CONTENTS: Contents = Contents {
    name: "a model repository",
    writes: |name| match name.split('/').collect::<Vec<_>>()[..] {
        [_, ""]
        | [_, "1" | "warmup", ""]
        | [_, CONFIG]
        | [_, "1", "model.onnx" | "model.onnx.data"] => true,
        [_, "warmup", input] => input.starts_with("input"),
        _ => false,
    },
    is_ours: |folder| {
        let models = std::fs::read_dir(folder).into_iter().flatten().flatten();
        models.into_iter().any(|model| model.path().join(CONFIG).is_file())
    },
};

/// Makes the folder and writes the repository into it.
///
/// # Errors
/// For a name that is no folder's; for an element type that Triton lacks; what the system refuses.
pub fn write(folder: &Path, served: &Served) -> Result<(), FormatError> {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if served.name.is_empty() || served.name.starts_with('.') || !served.name.chars().all(is_plain)
    {
        let expected = "a name of letters, digits, `_`, `-` and `.`, which is a folder's too";
        return Err(FormatError::damaged(folder, "name", expected, format!("`{}`", served.name)));
    }
    let config = config(folder, served)?;
    let io = |action| FormatError::io(folder, action);
    let model = folder.join(&served.name);
    fs::create_dir_all(model.join("1")).map_err(io("create"))?;
    fs::create_dir_all(model.join("warmup")).map_err(io("create"))?;
    fs::write(model.join(CONFIG), &config).map_err(io("write"))?;
    let file = model.join("1/model.onnx");
    match &served.model {
        ServedModel::Made(made) => _ = made.clone().write(&file, WeightPlace::Within)?,
        ServedModel::Copied(from) => onnx::Model::open(from)?.copy(&file)?,
    }
    for (i, (_, tensor)) in served.warm_up.iter().enumerate() {
        fs::write(model.join("warmup").join(file_of(i)), tensor.bytes()).map_err(io("write"))?;
    }
    Ok(())
}

/// Name of the file of an input: the input's own may be no name of a file.
fn file_of(input: usize) -> String {
    format!("input{input}")
}

/// `config.pbtxt`: a `ModelConfig` of `model_config.proto` in protobuf's text format.
fn config(folder: &Path, served: &Served) -> Result<String, FormatError> {
    let mut text = String::new();
    let mut line = |content: String| writeln!(text, "{content}").expect("writing to a string");
    line(format!("name: {}", quoted(&served.name)));
    line("backend: \"onnxruntime\"".to_owned());
    line(format!("max_batch_size: {}", served.max_batch.unwrap_or(0)));
    for (list, ports) in [("input", &served.inputs), ("output", &served.outputs)] {
        for (name, ty) in ports {
            let (name, ty) = (quoted(name), port(folder, ty)?);
            line(format!("{list} {{ name: {name} {ty} }}"));
        }
    }
    if served.max_batch.is_some() {
        line(format!(
            "dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_DELAY_MICROSECONDS} }}"
        ));
    }
    // Without a batch its size is 0; with one the smallest and the largest are both warm.
    let sizes =
        served.max_batch.map_or(vec![0], |most| if most > 1 { vec![1, most] } else { vec![1] });
    for size in sizes.into_iter().filter(|_| !served.warm_up.is_empty()) {
        line("model_warmup {".to_owned());
        line(format!("  name: \"batch of {size}\""));
        line(format!("  batch_size: {size}"));
        for (i, (name, tensor)) in served.warm_up.iter().enumerate() {
            let (name, ty, file) = (quoted(name), port(folder, tensor.ty())?, file_of(i));
            line(format!(
                "  inputs {{ key: {name} value {{ {ty} input_data_file: \"{file}\" }} }}"
            ));
        }
        line("}".to_owned());
    }
    Ok(text)
}

/// `data_type: TYPE_FP32 dims: [ 3, -1 ]`
fn port(folder: &Path, ty: &TensorType) -> Result<String, FormatError> {
    let kind = match ty.dtype {
        DType::Bool => "BOOL",
        DType::U8 => "UINT8",
        DType::U16 => "UINT16",
        DType::U32 => "UINT32",
        DType::U64 => "UINT64",
        DType::I8 => "INT8",
        DType::I16 => "INT16",
        DType::I32 => "INT32",
        DType::I64 => "INT64",
        DType::F16 => "FP16",
        DType::F32 => "FP32",
        DType::F64 => "FP64",
        DType::BF16 => "BF16",
        other => {
            let error =
                FormatError::damaged(folder, CONFIG, "an element type that Triton has", other);
            return Err(error.remedy("convert the inputs and outputs of the model"));
        }
    };
    let size = |dim: &Dim| match dim {
        Dim::Size(n) => n.to_string(),
        Dim::Named(_) => "-1".to_owned(),
    };
    let sizes: Vec<String> = ty.shape.0.iter().map(size).collect();
    Ok(format!("data_type: TYPE_{kind} dims: [ {} ]", sizes.join(", ")))
}

/// A string of protobuf's text format.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => write!(quoted, "\\{}", char::from(byte)),
            0x20..0x7F => write!(quoted, "{}", char::from(byte)),
            _ => write!(quoted, "\\{byte:03o}"),
        }
        .expect("writing to a string");
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::Dialect;
    use overdrive_ir::Builder;

    fn small_model() -> ServedModel {
        let b = Builder::new("small");
        b.output("y", b.input("x", TensorType::new(DType::F32, [3, 4])).exp());
        let graph = b.finish().unwrap();
        ServedModel::Made(Box::new(onnx::made(Path::new("m"), &graph, Dialect::Standard).unwrap()))
    }

    fn served(max_batch: Option<usize>) -> Served {
        let x = TensorType::new(DType::F32, [3, 4]);
        Served {
            name: "small".to_owned(),
            model: small_model(),
            inputs: vec![("x".to_owned(), x.clone())],
            outputs: vec![("y \"z\"".to_owned(), TensorType::new(DType::I64, ["tokens"]))],
            max_batch,
            warm_up: vec![("x".to_owned(), Tensor::from_f32([3, 4], &[0.5; 12]))],
        }
    }

    #[test]
    fn a_repository_says_what_the_server_needs() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("repository");
        for max_batch in [Some(8), None] {
            write(&at, &served(max_batch)).unwrap();
            let config = fs::read_to_string(at.join("small/config.pbtxt")).unwrap();
            let expected = match max_batch {
                Some(_) => include_str!("triton/batched.pbtxt"),
                None => include_str!("triton/fixed.pbtxt"),
            };
            assert_eq!(config, expected);
            assert!(onnx::Model::open(&at.join("small/1/model.onnx")).is_ok());
            assert_eq!(fs::read(at.join("small/warmup/input0")).unwrap().len(), 48);
        }
    }

    #[test]
    fn no_name_climbs_out() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["..", "", "a/b", "a b"] {
            let at = folder.path().join("repository");
            assert!(
                write(&at, &Served { name: name.to_owned(), ..served(None) }).is_err(),
                "{name}"
            );
            assert!(!at.exists());
        }
        let fp8 = vec![("x".to_owned(), TensorType::new(DType::F8E4M3, [2]))];
        let error =
            write(&folder.path().join("r"), &Served { inputs: fp8, ..served(None) }).unwrap_err();
        assert!(error.to_string().contains("Triton"), "{error}");
    }
}

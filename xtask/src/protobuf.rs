//! Rust types of ONNX's messages, from the project's own `onnx.proto`, without protoc.
//!
//! Generated once and committed: a build of the formats then needs no compiler of protobuf.

use std::fs;

const SOURCE: &str = include_str!("../../crates/overdrive-formats/proto/onnx.proto");

const HEADER: &str = "\
//! Messages of ONNX, written by `cargo xtask generate` from proto/onnx.proto; tensors' raw data are
//! shared bytes.
";

/// The module of `onnx.proto`.
pub(crate) fn onnx() -> String {
    let folder = std::env::temp_dir().join(format!("overdrive-proto-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let text = generate(&folder);
    // Files left in a temporary folder do no harm.
    let _ = fs::remove_dir_all(&folder);
    text
}

fn generate(folder: &std::path::Path) -> String {
    let proto = folder.join("onnx.proto");
    fs::write(&proto, SOURCE).expect("the temporary folder is writable");
    let files = protox::compile([&proto], [folder]).expect("onnx.proto is well formed");
    prost_build::Config::new()
        .bytes(["."])
        .disable_comments(["."])
        .out_dir(folder)
        .compile_fds(files)
        .expect("the temporary folder is writable");
    let module = fs::read_to_string(folder.join("onnx.rs")).expect("the module was written");
    format!("{HEADER}\n{module}")
}

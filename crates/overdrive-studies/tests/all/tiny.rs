//! The tiny random models of `pretrained/`, for the tests here and those of
//! `overdrive-decoding`.

use overdrive_cpu::CpuBackend;
use overdrive_studies::pretrained::Pretrained;
use std::path::{Path, PathBuf};

pub(crate) const DECODERS: [&str; 17] = [
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi",
    "phi3",
    "phi_norms",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "yarn",
];

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

pub(crate) fn model(name: &str) -> Pretrained {
    Pretrained::read(&folder(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn backend() -> CpuBackend {
    CpuBackend::new(Some(1)).unwrap()
}

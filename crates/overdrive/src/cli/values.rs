//! Values of options: modes, number formats, sizes by name, tolerances.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use overdrive::cuda::Gpu;
use overdrive::cuda::data_sheets::{a100, h100, h200};
use overdrive::ir::{DType, Mode};
use overdrive::models::CacheCodes;
use overdrive::passes::Lora;
use overdrive::train::{FORMATS, Formats, Moments, Parameters, Shards};
use std::path::PathBuf;

/// Execution modes by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum ModeName {
    Eager,
    Jit,
    Compile,
    Graph,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Eager => Mode::Eager,
            ModeName::Jit => Mode::Jit,
            ModeName::Compile => Mode::Compile,
            ModeName::Graph => Mode::Graph,
        }
    }
}

/// The states that are sharded over ranks.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardName {
    /// The optimizer's states and the reduced gradients (ZeRO-2)
    Optimizer,
    /// The same and the model's matrices, which are gathered for each layer (ZeRO-3, FSDP)
    All,
}

impl From<ShardName> for Shards {
    fn from(name: ShardName) -> Self {
        match name {
            ShardName::Optimizer => Self::Optimizer,
            ShardName::All => Self::Parameters,
        }
    }
}

/// Formats of an optimizer's moments by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MomentsName {
    /// As the update computes them: 8 bytes a parameter for AdamW
    F32,
    /// 4 bytes a parameter
    Bf16,
    /// Codes of 8 bits with a scale for each 256 elements: 2 bytes a parameter
    Fp8,
}

impl From<MomentsName> for Moments {
    fn from(name: MomentsName) -> Self {
        match name {
            MomentsName::F32 => Self::F32,
            MomentsName::Bf16 => Self::Bf16,
            MomentsName::Fp8 => Self::Fp8,
        }
    }
}

/// How a training step keeps parameters, by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParametersName {
    /// 4 bytes a parameter
    F32,
    /// f32, and copies in the format of contractions, which each update makes: 6 bytes a parameter
    Masters,
    /// bf16 alone, which each update rounds stochastically: 2 bytes a parameter
    Stochastic,
}

impl From<ParametersName> for Parameters {
    fn from(name: ParametersName) -> Self {
        match name {
            ParametersName::F32 => Self::F32,
            ParametersName::Masters => Self::Masters,
            ParametersName::Stochastic => Self::Stochastic,
        }
    }
}

/// GPUs by name that plans can be made for without them.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum GpuName {
    H200,
    H100,
    A100,
}

impl From<GpuName> for Gpu {
    fn from(name: GpuName) -> Self {
        Gpu::new(&match name {
            GpuName::H200 => h200(),
            GpuName::H100 => h100(),
            GpuName::A100 => a100(),
        })
    }
}

/// Formats of contractions by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Precision {
    F32,
    Bf16,
    F16,
}

impl From<Precision> for DType {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
        }
    }
}

/// Codes of a cache of keys and values by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheName {
    /// Codes of i8: errors of at most 1/254 of the largest number of a token and head
    Int8,
    /// Codes of f8e4m3: relative errors of at most 1/16
    Fp8,
}

impl From<CacheName> for CacheCodes {
    fn from(name: CacheName) -> Self {
        match name {
            CacheName::Int8 => Self::Int8,
            CacheName::Fp8 => Self::Fp8,
        }
    }
}

pub(super) fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x <= 1.0 => Ok(x),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x < 1.0 => Ok(x),
        _ => Err("expected a number between 0 and 1".to_owned()),
    }
}

pub(super) fn library(text: &str) -> Result<(String, PathBuf), String> {
    let parsed = text.split_once('=').filter(|(name, file)| !name.is_empty() && !file.is_empty());
    parsed
        .map(|(name, file)| (name.to_owned(), PathBuf::from(file)))
        .ok_or_else(|| "expected ENGINE=FILE".to_owned())
}

pub(super) fn named_size(text: &str) -> Result<(String, usize), String> {
    let parsed =
        text.split_once('=').and_then(|(name, size)| Some((name.to_owned(), size.parse().ok()?)));
    parsed.filter(|(name, _)| !name.is_empty()).ok_or_else(|| "expected NAME=SIZE".to_owned())
}

pub(super) fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// The formats of training by name.
pub(super) fn formats() -> impl TypedValueParser<Value = &'static Formats> {
    let names = FORMATS.iter().map(|known| PossibleValue::new(known.name).help(known.help));
    PossibleValuesParser::new(names)
        .map(|name| Formats::named(&name).expect("a possible value is a name"))
}

/// Rank and strength of adapters.
pub(super) fn lora(text: &str) -> Result<Lora, String> {
    let expected = || "expected RANK or RANK,ALPHA, a whole number and one above 0".to_owned();
    let (rank, alpha) =
        text.split_once(',').map_or((text, None), |(rank, alpha)| (rank, Some(alpha)));
    let rank: u32 = rank.trim().parse().ok().filter(|rank| *rank > 0).ok_or_else(expected)?;
    let alpha = match alpha {
        Some(alpha) => alpha.trim().parse().map_err(|_| expected())?,
        None => 2.0 * f64::from(rank),
    };
    if !(alpha > 0.0 && f64::is_finite(alpha)) {
        return Err(expected());
    }
    Ok(Lora { rank: rank as usize, alpha })
}

//! Arguments of `optimize`.

use super::quantize::MetricName;
use super::shared::{Machine, Replacing};
use super::values::{named_size, tolerance};
use clap::{Args, ValueEnum};
use overdrive::optimize;
use std::path::PathBuf;

/// Arguments of `optimize`.
#[derive(Args, Debug)]
pub(crate) struct Optimize {
    /// A built-in model, the folder of one, a folder in Hugging Face's format, a .gguf or an .onnx
    /// file
    #[arg(required_unless_present = "replay")]
    pub model: Option<String>,
    /// Data that calibrates and judges, as for `quantize`: `digits`, `text` or a file [default:
    /// `text` where the model has a tokenizer, else random inputs]
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Quantity to reduce: `latency` (time of a call), `throughput` (time of a call of 32 samples),
    /// `memory` (bytes on the device) or `size` (bytes of parameters)
    #[arg(long, default_value = "latency", value_name = "TARGET")]
    pub target: TargetName,
    /// The time that counts is that of decoding: one more token after so many, of one sequence (32
    /// for `throughput`). For a decoder in Hugging Face's format or a .gguf file
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub decode: Option<u32>,
    /// Largest loss: points of top1, percent of perplexity, 1 - cosine, or increase of mse
    /// [default: 0.5 points, 1 %, 0.005; 1 % of the float mse]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub max_loss: Option<f64>,
    /// Confidence of a PASS: with this probability no form that loses more than --max-loss is
    /// chosen
    #[arg(long, value_name = "P", default_value_t = 0.999, value_parser = confidence)]
    pub confidence: f64,
    /// Metric that judges [default: as for `quantize`]
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<MetricName>,
    /// How much is tried: `quick` (methods without a search, on all layers alike), `normal` (no
    /// training or descent; mixes), `high` (all, even if another is better)
    #[arg(long, default_value = "normal", value_name = "EFFORT")]
    pub effort: EffortName,
    /// Minutes after which nothing new is tried; the candidates so far are then judged [default: 3,
    /// 10 and 60 by effort]
    #[arg(long, value_name = "N", value_parser = tolerance)]
    pub minutes: Option<f64>,
    /// Size of a named dimension for calibration, judging and timing [default: the model's; the
    /// batch of an .onnx file 8]
    #[arg(long = "shape", value_name = "NAME=SIZE", value_parser = named_size)]
    pub shapes: Vec<(String, usize)>,
    /// Batches that calibrate; of random inputs as many choose, and as many judge
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub batches: u32,
    /// For a model in Hugging Face's format: the output layer may be changed too
    #[arg(long)]
    pub head: bool,
    /// Folder of the model and of its evidence: model/, decision.json, report.md
    #[arg(short, long, value_name = "DIR", required_unless_present = "replay")]
    pub out: Option<PathBuf>,
    /// Formats in which the model is written too, beside our folder: `onnx`, `triton`, and of a
    /// model in Hugging Face's format `gptq`, `awq` or `modelopt`. Each is read again first, and
    /// must give the outputs that were judged
    #[arg(long, value_name = "FORMATS", value_delimiter = ',')]
    pub export: Vec<FormatName>,
    /// Continues an interrupted search: figures in decision.json in the folder of -o are not
    /// measured again
    #[arg(long)]
    pub resume: bool,
    /// Decides again from the timings and scores of a decision.json; with -o the model is made
    /// again too, and must have the same bytes
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "resume", "model", "data", "target", "decode", "max_loss", "confidence", "metric", "effort",
        "minutes", "shapes", "batches", "head",
    ])]
    pub replay: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

fn confidence(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.5..1.0).contains(&x) => Ok(x),
        _ => Err("expected a number of at least 0.5 and below 1".to_owned()),
    }
}

/// Targets by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum TargetName {
    Latency,
    Throughput,
    Memory,
    Size,
}

impl From<TargetName> for optimize::Target {
    fn from(name: TargetName) -> Self {
        match name {
            TargetName::Latency => Self::Latency,
            TargetName::Throughput => Self::Throughput,
            TargetName::Memory => Self::Memory,
            TargetName::Size => Self::Size,
        }
    }
}

/// Formats of other programs by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum FormatName {
    Onnx,
    Triton,
    Gptq,
    Awq,
    Modelopt,
}

impl FormatName {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Onnx, Self::Triton, Self::Gptq, Self::Awq, Self::Modelopt];
}

/// Efforts by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum EffortName {
    Quick,
    Normal,
    High,
}

impl From<EffortName> for optimize::Effort {
    fn from(name: EffortName) -> Self {
        match name {
            EffortName::Quick => Self::Quick,
            EffortName::Normal => Self::Normal,
            EffortName::High => Self::High,
        }
    }
}

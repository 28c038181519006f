//! Arguments of `quantize`.

use super::shared::{Machine, Replacing};
use super::values::{named_size, tolerance};
use clap::{Args, ValueEnum};
use overdrive::studies::quantization::Metric;
use std::path::PathBuf;

/// Arguments of `quantize`.
#[derive(Args, Debug)]
pub(crate) struct Quantize {
    /// A built-in model, the folder of one, a folder in Hugging Face's format, a .gguf or an .onnx
    /// file
    pub model: String,
    /// Mode: `int8-dynamic`, `int8-static`, `int8-weights`, `fp8`, `mxfp8`, `int4-gptq`, ...; a
    /// wrong name lists them all. For -o NAME.gguf: `f16`, `q8_0`, `q4_k`, `q5_k` or `q6_k`. For
    /// --search and --sensitivity: the modes that layers may take, with commas [default there:
    /// int8-dynamic,int4-gptq]
    #[arg(
        long = "mode",
        value_name = "MODE",
        value_delimiter = ',',
        required_unless_present_any = ["search", "sensitivity"]
    )]
    pub modes: Vec<String>,
    /// Place to write the model to: a folder, or one file, NAME.onnx, whose dimensions are free, or
    /// NAME.gguf, which llama.cpp reads. For an .onnx model the folder has a model.onnx too
    #[arg(
        short,
        long,
        alias = "output",
        value_name = "PLACE",
        required_unless_present = "sensitivity"
    )]
    pub out: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// `digits`, `text`, or a file: labelled samples or text as `train` takes them, or inputs by
    /// name (.npz or .safetensors). A quarter of the inputs calibrates, half judges. A model of
    /// Hugging Face reads text by its own tokenizer. A classifier also reads labelled texts, .csv
    /// or .jsonl with `text` and `label` [default: `text` where the model has a tokenizer, else
    /// random inputs]
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Size of a named dimension for calibration, judging and timing [default: the model's; the
    /// batch of an .onnx file 8]
    #[arg(long = "shape", value_name = "NAME=SIZE", value_parser = named_size)]
    pub shapes: Vec<(String, usize)>,
    /// Metric that judges [default: top1 of classes, mse (mean squared error) of quantities,
    /// perplexity of text, cosine to the float outputs of inputs alone]
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<MetricName>,
    /// Largest loss: points of top1, percent of perplexity, 1 - cosine, or increase of mse. If
    /// more is lost, writes nothing and exits 4
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub max_loss: Option<f64>,
    /// Mixes modes: scans every layer alone and prints the front of loss, bytes and latency. Writes
    /// the smallest model of it that keeps --max-loss and --max-slowdown
    #[arg(long)]
    pub search: bool,
    /// For --search: a smaller model may take X times the float model's time. If all that keep
    /// --max-loss clearly take more, nothing is written and the exit code is 1
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "search",
        value_parser = tolerance)]
    pub max_slowdown: f64,
    /// Prints what each layer costs alone, and writes nothing
    #[arg(long, conflicts_with = "search")]
    pub sensitivity: bool,
    /// Weights that share a scale, for modes with groups [default: 128; MX 32; NVFP4 16]
    #[arg(long, value_name = "N", conflicts_with_all = ["search", "sensitivity"],
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub group: Option<u32>,
    /// For a model in Hugging Face's format: quantizes the output layer too. If it shares the
    /// embedding's weights, a copy of them is quantized
    #[arg(long)]
    pub head: bool,
    /// Layout of codes for other programs, of a model in Hugging Face's format: `gptq` or `awq` of
    /// int4, `modelopt` of nvfp4 [default: compressed-tensors, which has every mode]
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["search", "sensitivity"])]
    pub export: Option<ExportName>,
    /// Batches that calibrate; for inputs without labels, as many judge
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batches: u32,
    /// Updates of modes that learn [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Samples per latency [default: until the interval is within 1 %]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=10_000))]
    pub trials: Option<u32>,
    /// Has other libraries quantize the same layers of a model in Hugging Face's format, timed in
    /// alternation with ours: torchao, bitsandbytes. Each needs its package in python3 (PYTHON
    /// names another) [without names: torchao]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1,
        default_missing_value = "torchao", require_equals = true,
        conflicts_with_all = ["search", "sensitivity"])]
    pub peers: Vec<String>,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// Layouts of codes by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum ExportName {
    Gptq,
    Awq,
    Modelopt,
}

/// Measures of quality by name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum MetricName {
    Top1,
    Perplexity,
    Cosine,
    Mse,
}

impl From<Metric> for MetricName {
    fn from(metric: Metric) -> Self {
        match metric {
            Metric::Top1 => Self::Top1,
            Metric::Perplexity => Self::Perplexity,
            Metric::Cosine => Self::Cosine,
            Metric::SquaredError => Self::Mse,
        }
    }
}

impl MetricName {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Top1 => "top1",
            Self::Perplexity => "perplexity",
            Self::Cosine => "cosine",
            Self::Mse => "mse",
        }
    }
}

//! Arguments of `train`.

use super::{Machine, Precision, Replacing};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `train`.
#[derive(Args, Debug)]
pub(crate) struct Train {
    /// A built-in model, or a folder that `train` wrote, to go on from its weights
    pub model: String,
    /// `digits`, `text`, or a file: .csv, .npz, IDX (*-images-idx3-ubyte), any other is UTF-8 text
    #[arg(long, value_name = "DATA")]
    pub data: String,
    /// Of text: a tokenizer.json whose ids the model knows [default: a token a byte]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Number format of contractions; parameters stay in f32
    #[arg(long, default_value = "f32", value_name = "DTYPE")]
    pub precision: Precision,
    /// Folder of the trained model
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// What may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Goes on from the checkpoint that an interrupted run of the same command left beside the folder
    #[arg(long)]
    pub resume: bool,
    /// Updates [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Samples in each batch [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// Batches of each update
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub accumulate: u32,
    /// Learning rate after the warm-up [default: the model's]
    #[arg(long, value_name = "X")]
    pub lr: Option<f64>,
    /// Stops when the validation loss has not fallen for this many looks, and keeps the best weights
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub patience: Option<u32>,
    /// Fold of labelled samples whose fifth is for testing
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..5))]
    pub fold: u8,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

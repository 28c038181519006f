//! Arguments of `train`.

use super::explain::size;
use super::optimization::Optimization;
use super::shared::{Machine, RankOptions, Replacing};
use super::values::{MomentsName, ParametersName, ShardName, formats, lora};
use clap::{Args, ValueEnum};
use overdrive::passes::{Compression, ContextExchange, Lora};
use overdrive::train::Formats;
use overdrive::train::data::Target;
use std::path::PathBuf;

/// Arguments of `train`.
#[derive(Args, Debug)]
pub(crate) struct Train {
    /// A built-in model; or, to train it further, a folder (also in Hugging Face's format) or a
    /// .gguf file [default: one sized to --data]
    pub model: Option<String>,
    /// For a folder in Hugging Face's format: trains new weights for its config.json, which may be
    /// all that it holds. Weights in the folder are ignored
    #[arg(long)]
    pub from_scratch: bool,
    /// `digits`, `text`, or a file: .csv, .npz, IDX (*-images-idx3-ubyte), a token file of
    /// `overdrive tokens`, any other is UTF-8 text.
    /// For a classifier in Hugging Face's format: .csv or .jsonl with `text` (or `sentence`) and
    /// `label`
    #[arg(long, value_name = "DATA")]
    pub data: String,
    /// Column of targets. For a .csv file, its name or its number from 0 [default: the last]; for
    /// labelled texts, its name [default: label]
    #[arg(long, value_name = "NAME|INDEX")]
    pub label: Option<String>,
    /// For a .csv file: whether targets are classes or a quantity (regression) [default: a quantity
    /// if all are numbers, some with a fraction; else classes]
    #[arg(long, value_name = "KIND")]
    pub target: Option<TargetName>,
    /// For text: a tokenizer.json whose ids the model knows. A token file must be of it [default:
    /// the model's, else a token a byte]
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Number formats of contractions; for parameters see --parameters
    #[arg(long, default_value = "f32", value_name = "FORMATS", value_parser = formats())]
    pub precision: &'static Formats,
    /// Number formats of your own: JSON with `precision` and `float8`
    #[arg(long, value_name = "FILE", conflicts_with = "precision")]
    pub recipe: Option<PathBuf>,
    /// Number format of the optimizer's moments. Those of vectors, and of tensors of fewer than
    /// 4096 elements, stay in f32
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    pub moments: MomentsName,
    /// How the step keeps the parameters that it trains. Weights are those of `f32` with `masters`.
    /// With `stochastic` vectors, and tensors of fewer than 4096 elements, stay in f32. The folder
    /// has f32 in any case
    #[arg(long, default_value = "f32", value_name = "FORMAT")]
    pub parameters: ParametersName,
    /// Folder of the trained model
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Continues from the checkpoint that an interrupted run of the same command left beside the
    /// folder
    #[arg(long)]
    pub resume: bool,
    /// Updates [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Samples in each batch [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// Batches of each update
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub accumulate: u32,
    /// How it learns.
    #[command(flatten)]
    pub optimization: Optimization,
    /// Most memory of the device that a step may take: `512MiB`, `4GiB`, or bytes. Parameters,
    /// moments and the scratch of a GPU's kernels are included. To fit it, logits are made some
    /// rows at a time, and values are computed again. On a GPU moments and values wait in memory of
    /// the host. Weights are the same up to rounding
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory_limit: Option<u64>,
    /// Stops when the validation loss has not fallen for this many looks, and keeps the best
    /// weights. Each look takes the same samples of the validation part, spread evenly [default: 5
    /// for a table, else never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub patience: Option<u32>,
    /// For a model in Hugging Face's format: tokens of each sample [default: 128, or 2048 from
    /// scratch, or its longest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Option<u32>,
    /// Trains low-rank adapters beside the linear layers of attention and feed-forward layers.
    /// Weights are frozen meanwhile; at the end the adapters are merged into them [default ALPHA:
    /// twice RANK]
    #[arg(long, value_name = "RANK[,ALPHA]", value_parser = lora)]
    pub lora: Option<Lora>,
    /// For a model in Hugging Face's format: keeps the adapters too, in DIR/adapter, as PEFT reads
    /// them
    #[arg(long, requires = "lora")]
    pub adapter: bool,
    /// For a decoder in Hugging Face's format: trains only gates that choose tiles of attention, of
    /// TILE queries and keys (64 or 128 for speed). The folder has the weights as they were, and
    /// the gates in attention_gate.safetensors, for --attention-gate of other commands
    #[arg(long, value_name = "TILE", value_parser = clap::value_parser!(u32).range(1..=4096),
        conflicts_with_all = ["lora", "resume", "patience", "memory_limit", "eval_every"])]
    pub gate: Option<u32>,
    /// Ranks.
    #[command(flatten)]
    pub ranks: RankOptions,
    /// With several ranks: what is sharded over those along `data`, in addition to the batch. Each
    /// rank then holds a part of it, which saves memory
    #[arg(long, value_name = "WHAT")]
    pub shard: Option<ShardName>,
    /// With several ranks: sums gradients in fewer bytes. `int8` and `fp8` are codes with a scale
    /// for each 256 elements; `topk:SHARE` sends the largest elements, as in `topk:0.01`;
    /// `powersgd:RANK` sends two thin factors of each matrix, as in `powersgd:4`. The last two send
    /// the rest in later steps
    #[arg(long, value_name = "SCHEME")]
    pub compress: Option<Compression>,
    /// With several ranks along `context`: how they compute attention. `ring` passes keys round,
    /// `ulysses` exchanges positions for heads. `ulysses:RANKS` does so in groups of so many, and
    /// keys go round the groups [default: the fastest by an estimate]
    #[arg(long, value_name = "EXCHANGE")]
    pub context: Option<ContextExchange>,
    /// Fold of labelled samples whose fifth is for testing
    #[arg(long, value_name = "K", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..5))]
    pub fold: u8,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// The kind of a column of targets.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetName {
    /// A class for each row: cross entropy
    Classes,
    /// A number for each row: mean squared error
    Quantity,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Self {
        match name {
            TargetName::Classes => Self::Classes,
            TargetName::Quantity => Self::Quantity,
        }
    }
}

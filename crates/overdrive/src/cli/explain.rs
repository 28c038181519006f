//! Arguments of `explain`, and those that say which graph is meant.

use super::optimization::OptimizerName;
use super::shared::{AttentionOptions, Machine};
use super::values::{
    GpuName, ModeName, MomentsName, ParametersName, ShardName, formats, lora, named_size,
};
use clap::Args;
use overdrive::ir::{Graph, Mesh};
use overdrive::passes::{Compression, ContextExchange, Lora, Sharded};
use overdrive::train::{Formats, Shards, Sharing, TrainError, sharded_step};

/// One model at one size, as one mode runs it: of `explain` and `profile`.
#[derive(Args, Debug)]
pub(crate) struct SubjectArguments {
    /// A built-in model, a folder that holds one, or an .onnx file. With --training, config.json
    /// may be all that a folder in Hugging Face's format holds
    pub model: String,
    /// Execution mode
    #[arg(long, default_value = "compile", value_name = "MODE")]
    pub mode: ModeName,
    /// Number formats of contractions; those of fp8 are for --training
    #[arg(long, default_value = "f32", value_name = "FORMATS", value_parser = formats())]
    pub dtype: &'static Formats,
    /// Batch size [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// The training step of the model instead of its forward pass
    #[arg(long)]
    pub training: bool,
    /// Update rule of that step
    #[arg(long, default_value = "adamw", value_name = "RULE", requires = "training")]
    pub optimizer: OptimizerName,
    /// Number format of the optimizer's moments in that step
    #[arg(long, default_value = "f32", value_name = "FORMAT", requires = "training")]
    pub moments: MomentsName,
    /// How that step keeps parameters
    #[arg(long, default_value = "f32", value_name = "FORMAT", requires = "training")]
    pub parameters: ParametersName,
    /// Adapters that it trains in place of the weights, as `train` does
    #[arg(long, value_name = "RANK[,ALPHA]", value_parser = lora, requires = "training")]
    pub lora: Option<Lora>,
    /// Size of a named dimension [default: the model's]
    #[arg(long = "shape", value_name = "NAME=SIZE", value_parser = named_size)]
    pub shapes: Vec<(String, usize)>,
    /// Attention.
    #[command(flatten)]
    pub attention: AttentionOptions,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// The ranks that share a training step: of `explain` and `profile`.
#[derive(Args, Debug)]
pub(crate) struct RankArguments {
    /// The training step as these ranks take it: `data=4`, or with the axes `pipeline`, `tensor`
    /// and `context` as in `train`
    #[arg(long, value_name = "AXIS=RANKS,...", requires = "training")]
    pub mesh: Option<Mesh>,
    /// The states that those ranks share out among each other, beside the batch
    #[arg(long, requires = "mesh")]
    pub shard: Option<ShardName>,
    /// How those ranks compress gradients: f32, bf16, int8, fp8, topk:SHARE or powersgd:RANK
    #[arg(long, value_name = "SCHEME", requires = "mesh")]
    pub compress: Option<Compression>,
    /// How those ranks along `context` compute attention: ring, ulysses or ulysses:RANKS, as in
    /// `train` [default: the fastest by an estimate]
    #[arg(long, value_name = "EXCHANGE", requires = "mesh")]
    pub context: Option<ContextExchange>,
}

impl RankArguments {
    /// The step of these ranks, from that of all of them.
    ///
    /// # Errors
    /// When the mesh does not divide the model.
    pub(crate) fn sharded(&self, whole: &Graph, mesh: &Mesh) -> Result<Sharded, TrainError> {
        let states = self.shard.map_or(Shards::Nothing, Shards::from);
        sharded_step(whole, mesh, Sharing { states, context: self.context }, self.compress)
    }
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The explained graph.
    #[command(flatten)]
    pub subject: SubjectArguments,
    /// Most memory of the device that the plan may take, states and the scratch of a GPU's kernels
    /// included: `512MiB`, `4GiB`, or bytes. To fit, a training step makes logits some rows at a
    /// time, recomputes values, and on a GPU moves moments and values to host memory
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory_limit: Option<u64>,
    /// The ranks of a training step, one of which is explained. No device is needed but the one
    /// that plans.
    #[command(flatten)]
    pub ranks: RankArguments,
    /// Batches of each update. Stages along `pipeline` work on several at once
    #[arg(long, value_name = "N", default_value_t = 1, requires = "training",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub accumulate: u32,
    /// Plans for this GPU by its data sheet; none has to be there
    #[arg(long, value_name = "GPU", conflicts_with = "device")]
    pub gpu: Option<GpuName>,
    /// Predicts the step of those ranks over these links: `nvlink-h200` (8 GPUs a host),
    /// `infiniband-400` (one GPU a host), or a file of measured links in JSON
    #[arg(long, value_name = "NAME|FILE", requires = "mesh")]
    pub fabric: Option<String>,
    /// Measured milliseconds of the step on one device, with the batch of a rank. The prediction
    /// then stands on them [default: an estimate by the peaks of the device]
    #[arg(long, value_name = "MS", requires = "fabric", value_parser = milliseconds)]
    pub step_ms: Option<f64>,
    /// Predicts the step for each of these sizes of the mesh's first axis: `1,8,64,512,4096`. Along
    /// `data` the batch of a rank stays the same, along other axes that of all ranks
    #[arg(long, value_name = "SIZES", value_delimiter = ',', requires = "fabric",
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub scale: Vec<u32>,
    /// Passes, steps, memory and notes as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// A time that something took.
fn milliseconds(text: &str) -> Result<f64, String> {
    let above_zero = text.parse().ok().filter(|x: &f64| *x > 0.0 && x.is_finite());
    above_zero.ok_or_else(|| "expected milliseconds above 0".to_owned())
}

/// Bytes, in binary units where one is named.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let bytes = match unit {
        Some((number, shift)) => {
            let number = number.trim().parse::<f64>().ok();
            let bytes = number.map(|number| number * (1u64 << shift) as f64);
            // As many as an f64 counts one by one.
            bytes.filter(|bytes| (1.0..=(1u64 << 53) as f64).contains(bytes)).map(|x| x as u64)
        }
        None => text.parse().ok().filter(|bytes| *bytes > 0),
    };
    bytes.ok_or_else(|| {
        "expected bytes, or a number of KiB, MiB, GiB or TiB, as in `2.5GiB`".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_bytes_or_binary_units() {
        let read = ["1", "64KiB", "3 MiB", "2GiB", "1.5GiB"].map(|text| size(text).unwrap());
        assert_eq!(read, [1, 64 << 10, 3 << 20, 2 << 30, 3 << 29]);
        for text in ["", "0", "-1", "1.5", "2GB", "nanGiB", "infKiB", "-1MiB", "0GiB", "GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
        for text in ["99999999999TiB", "1e300GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}

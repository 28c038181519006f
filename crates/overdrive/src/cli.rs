//! The command line: names and values only; `commands/` has their work.
//!
//! Long because the flags of every command are in one place, where one word for one thing is
//! easiest to keep.

mod examples;
mod explain;
mod optimization;
mod optimize;
mod quantize;
mod shared;
mod tokens;
mod train;
mod values;

pub(crate) use explain::{Explain, RankArguments, SubjectArguments};
pub(crate) use optimization::{Betas, Clip, Optimization, OptimizerName};
pub(crate) use optimize::{FormatName, Optimize};
pub(crate) use quantize::{ExportName, MetricName, Quantize};
pub(crate) use shared::{AttentionOptions, Isa, Machine, RankOptions, Replacing};
pub(crate) use tokens::Tokens;
pub(crate) use train::Train;
pub(crate) use values::{CacheName, ModeName, Precision};

use crate::terminal::Volume;
use clap::{Arg, ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use values::{library, named_size, probability, tolerance};

/// Makes deep-learning models faster, smaller and cheaper to train, and proves it.
#[derive(Parser, Debug)]
#[command(name = "overdrive", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Verbosity, the same in every command.
    #[command(flatten)]
    pub said: Said,
}

impl Arguments {
    /// Parses a command line. A negative number is the value of its option, so that the message
    /// names the range, and no option `-1`.
    pub(crate) fn of<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let negative = |option: Arg| match option.get_action().takes_values() {
            true => option.allow_negative_numbers(true),
            false => option,
        };
        let mut command = Self::command().mut_subcommands(|command| command.mut_args(negative));
        let matches = command.try_get_matches_from_mut(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// `-q` and `-v`.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Said {
    /// Prints only the result, or its path, and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Prints everything: all tables of `run`, `bench` and `report`
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl From<Said> for Volume {
    fn from(said: Said) -> Self {
        match said {
            Said { quiet: true, .. } => Volume::Quiet,
            Said { verbose: true, .. } => Volume::Verbose,
            _ => Volume::Normal,
        }
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Every study that this machine can do, with a report
    #[command(after_help = examples::RUN)]
    Run(Run),
    /// One model across execution modes, precisions and batch sizes
    #[command(after_help = examples::BENCH)]
    Bench(Bench),
    /// One forward pass on your own inputs
    #[command(after_help = examples::EVAL)]
    Eval(Eval),
    /// The model for other engines
    #[command(after_help = examples::EXPORT)]
    Export(Export),
    /// How a model becomes a plan: changes by each pass, steps, memory, and declined optimizations
    #[command(visible_alias = "plan", after_help = examples::EXPLAIN)]
    Explain(Explain),
    /// Shows where the time goes: operators by self time, and a trace
    #[command(after_help = examples::PROFILE)]
    Profile(Profile),
    /// Continues a text: decoding with a cache of keys and values
    #[command(after_help = examples::GENERATE)]
    Generate(Generate),
    /// Text to a token file, which `train` and `quantize` read at once
    #[command(after_help = examples::TOKENS)]
    Tokens(Tokens),
    /// Trains a model on data, and scores it on samples that it has not seen
    #[command(after_help = examples::TRAIN)]
    Train(Train),
    /// The form of a model to deploy on this machine, with the evidence
    #[command(after_help = examples::OPTIMIZE)]
    Optimize(Optimize),
    /// A smaller model, with its accuracy, bytes and latency
    #[command(after_help = examples::QUANTIZE)]
    Quantize(Quantize),
    /// Draws a report again from results alone, of one machine or several
    #[command(after_help = examples::REPORT)]
    Report(Report),
    /// Whether one revision, or one program, is slower than another
    #[command(after_help = examples::REGRESS)]
    Regress(Regress),
    /// Results of two sides, side by side
    #[command(after_help = examples::COMPARE)]
    Compare(Compare),
    /// Results over time, and where they changed
    #[command(after_help = examples::HISTORY)]
    History(History),
    /// The built-in models
    #[command(after_help = examples::MODELS)]
    Models(Json),
    /// This machine: processor, features, back ends
    #[command(after_help = examples::INFO)]
    Info(Info),
    /// Completions for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
}

/// The names that `run` takes.
fn studies() -> String {
    let names: Vec<&str> = overdrive::studies::STUDIES.iter().map(|study| study.name()).collect();
    format!("Studies to run: {} [default: all]", names.join(", "))
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Studies to run
    #[arg(value_name = "STUDY", help = studies())]
    pub studies: Vec<String>,
    /// A model to study instead of the built-in ones: a folder, also in Hugging Face's format, an
    /// .onnx or .gguf file, or a built-in name. Its studies are compilation, quantization and
    /// decoding
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// For --model: data that calibrates and judges, as for `quantize`: `digits`, `text` or a file
    #[arg(long, value_name = "DATA", requires = "model")]
    pub data: Option<String>,
    /// For --model: size of a named dimension [default: the model's; the batch of an .onnx file 8]
    #[arg(long = "shape", value_name = "NAME=SIZE", value_parser = named_size, requires = "model")]
    pub shapes: Vec<(String, usize)>,
    /// Screening within three minutes, without verdicts
    #[arg(long)]
    pub quick: bool,
    /// Only sessions with a case whose name contains this, as the report spells it; may be given
    /// several times
    #[arg(long, value_name = "TEXT")]
    pub case: Vec<String>,
    /// For scripts: no progress, the summary as Markdown on standard output
    #[arg(long)]
    pub ci: bool,
    /// Continues an interrupted run: cases of results.json in this folder are not taken again
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// Has other frameworks do the same work, in alternation with ours: pytorch, openvino; each
    /// needs its package in python3 (PYTHON names another) [without names: pytorch]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1,
        default_missing_value = "pytorch", require_equals = true)]
    pub peers: Vec<String>,
    /// Numbers of ranks that study `distributed` measures beside one, such as 2,4. Each rank has a
    /// GPU, the first being that of --device [default: all GPUs; on a CPU 2, which share its cores]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub ranks: Vec<u32>,
    /// Folder of the report [default: reports/<date-time>]
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
pub(crate) struct Report {
    /// results.json, a report.html that holds them, the folder of either, or results of
    /// criterion.rs, nvbench, PyTorch's profiler or the older suite. Verdicts of a gate.json of
    /// `regress` are shown with the results of the same cases
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// Folder of the report [default: that of the first results; of a model's results
    /// reports/<date-time>]
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// A built-in model, a folder that holds one, or an .onnx file
    pub model: String,
    /// Back ends: `cpu`, `cuda:N`, and other engines (`overdrive info` lists them). The others are
    /// compared with the first [default: --device, and every engine that is found for it]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub backends: Option<Vec<String>>,
    /// Library of an engine, instead of the one that would be found
    #[arg(long = "library", value_name = "ENGINE=FILE", value_parser = library)]
    pub libraries: Vec<(String, PathBuf)>,
    /// Has other frameworks do the same work, in alternation with ours: pytorch, openvino; each
    /// needs its package in python3 (PYTHON names another) [without names: pytorch]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1,
        default_missing_value = "pytorch", require_equals = true)]
    pub peers: Vec<String>,
    /// Execution modes: eager, jit, compile, and on a GPU graph [default: eager,jit,compile; for
    /// other engines compile]
    #[arg(long, value_delimiter = ',', value_name = "MODES")]
    pub modes: Option<Vec<ModeName>>,
    /// Number formats of contractions: f32, bf16, f16
    #[arg(long, value_delimiter = ',', default_value = "f32", value_name = "DTYPES")]
    pub dtype: Vec<Precision>,
    /// Batch sizes [default: the model's]
    #[arg(long, value_delimiter = ',', value_name = "SIZES",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Vec<u32>,
    /// The text that the model reads instead of random tokens, for models that read text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Inputs by name instead of random ones, .npz or .safetensors; sizes are theirs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "batch", "shapes"])]
    pub inputs: Option<PathBuf>,
    /// Size of a named dimension [default: the model's]
    #[arg(long = "shape", value_name = "NAME=SIZE", value_parser = named_size)]
    pub shapes: Vec<(String, usize)>,
    /// Samples per case [default: until the interval is within 1 %]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=10_000))]
    pub trials: Option<u32>,
    /// Warm-up calls with --trials
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub warmup: u32,
    /// Folder for results.json and report.md
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Results as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// Arguments of `regress`.
#[derive(Args, Debug)]
pub(crate) struct Regress {
    /// Revision of Overdrive to compare with: a branch, a tag, a commit
    #[arg(long, value_name = "REV", conflicts_with = "baseline_cmd")]
    pub baseline: Option<String>,
    /// Revision to judge [default: HEAD]
    #[arg(long, value_name = "REV", conflicts_with = "current_cmd", requires = "baseline")]
    pub current: Option<String>,
    /// Command to compare with: the shell runs it, it writes results to the file $OVERDRIVE_RESULTS
    #[arg(long, value_name = "CMD", requires = "current_cmd")]
    pub baseline_cmd: Option<String>,
    /// Command to judge
    #[arg(long, value_name = "CMD", requires = "baseline_cmd")]
    pub current_cmd: Option<String>,
    /// Studies to compare [default: all, which takes hours]
    #[arg(long, value_name = "STUDY", value_delimiter = ',', requires = "baseline")]
    pub study: Vec<String>,
    /// Command of each revision instead of studies: `bench mlp --modes compile --trials 20`
    #[arg(long, value_name = "ARGS", conflicts_with = "study", requires = "baseline")]
    pub measure: Option<String>,
    /// Clone of Overdrive's repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub repo: PathBuf,
    /// Also Markdown for a pull request and JUnit XML
    #[arg(long)]
    pub ci: bool,
    /// Folder of gate.json and of every process's results [default: reports/<date-time>]
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Longest time for measuring, in seconds; it ends sooner where everything is decided [default:
    /// 60, or ten blocks of six processes if those take longer]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub budget: Option<u64>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Longest life of one process, in seconds
    #[arg(long, value_name = "S", default_value_t = 900,
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Seed of inputs
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub(crate) struct Compare {
    /// Results to compare with: whatever `report` takes, or the folder of a report; several
    /// sessions with commas between them
    pub first: PathBuf,
    /// Results to compare, in the same forms; three sessions a side give a verdict
    pub second: PathBuf,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `history`.
#[derive(Args, Debug)]
pub(crate) struct History {
    /// Histories: lines of JSON
    #[arg(value_name = "FILE", default_value = "history.jsonl")]
    pub files: Vec<PathBuf>,
    /// Appends these results to the history first: whatever `report` takes, or the folder of a
    /// report
    #[arg(long, value_name = "RESULTS")]
    pub add: Vec<PathBuf>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub case: Option<String>,
    /// The series and their changes as JSON, for charts
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `eval`.
#[derive(Args, Debug)]
pub(crate) struct Eval {
    /// A built-in model, a folder that holds one, or an .onnx file
    pub model: String,
    /// Inputs by name, .npz or .safetensors
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// Parameters by name, .npz or .safetensors [default: the model's]
    #[arg(long, value_name = "FILE")]
    pub parameters: Option<PathBuf>,
    /// File for the outputs, .npz or .safetensors
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Expected outputs; exits 4 where ours disagree
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Relative tolerance of --expect
    #[arg(long, default_value_t = 1e-3, value_name = "X", value_parser = tolerance)]
    pub rtol: f64,
    /// Absolute tolerance of --expect
    #[arg(long, default_value_t = 1e-5, value_name = "X", value_parser = tolerance)]
    pub atol: f64,
    /// Execution mode
    #[arg(long, default_value = "compile", value_name = "MODE")]
    pub mode: ModeName,
    /// Attention.
    #[command(flatten)]
    pub attention: AttentionOptions,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// Arguments of `export`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("format").required(true).multiple(true)
    .args(["onnx", "triton", "stablehlo"]))]
pub(crate) struct Export {
    /// A built-in model, a folder that holds one, or an .onnx file
    pub model: String,
    /// The ONNX file to write; dimensions without a --shape are free in it
    #[arg(long, value_name = "FILE")]
    pub onnx: Option<PathBuf>,
    /// Writes the weights to FILE.data beside the ONNX file, as it happens anyway beyond 2 GiB
    #[arg(long, requires = "onnx")]
    pub external_data: bool,
    /// The model repository of the Triton Inference Server to write; its largest batch is the
    /// model's, or --shape batch=N
    #[arg(long, value_name = "DIR")]
    pub triton: Option<PathBuf>,
    /// Writes only ops of the ONNX standard, as TensorRT reads; int4 weights in blocks are then no
    /// MatMulNBits of ONNX Runtime, which multiplies them packed
    #[arg(long, conflicts_with = "stablehlo")]
    pub standard_ops: bool,
    /// The file of StableHLO text to write, for XLA
    #[arg(long, value_name = "FILE")]
    pub stablehlo: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// Size of a named dimension [default: free in a file of ONNX, else the model's]
    #[arg(long = "shape", value_name = "NAME=SIZE", value_parser = named_size)]
    pub shapes: Vec<(String, usize)>,
    /// Takes sizes, and the values that decide shapes, from these inputs, .npz or .safetensors
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shapes", "triton"])]
    pub inputs: Option<PathBuf>,
}

/// Arguments of `profile`.
#[derive(Args, Debug)]
pub(crate) struct Profile {
    /// The profiled graph.
    #[command(flatten)]
    pub subject: SubjectArguments,
    /// The ranks of a training step. Each is profiled: on a GPU of its own, from that of --device
    /// on, or on its share of the cores.
    #[command(flatten)]
    pub ranks: RankArguments,
    /// Calls to sum over
    #[arg(long, default_value_t = 20, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub calls: u32,
    /// Chrome trace, for Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Which existing outputs may be replaced.
    #[command(flatten)]
    pub replacing: Replacing,
    /// The table as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `generate`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("texts").required(true).args(["prompt", "prompts", "judge"]))]
pub(crate) struct Generate {
    /// A folder in Hugging Face's format, a .gguf file, or a model of bytes: `text-transformer`, a
    /// folder that holds one
    pub model: String,
    /// The text to continue
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with a text to continue on each line; several are decoded together, and as one ends
    /// the next one joins. Line i is drawn with the seed + i, counted from 0; blank lines are
    /// counted and left out
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Makes no text, but decodes that of a file token by token: perplexity, and with --cache the
    /// difference to a cache of numbers. With --attention-threshold the text is read in windows of
    /// the model's context, and the difference is that to attention that skips nothing
    #[arg(long, value_name = "FILE")]
    pub judge: Option<PathBuf>,
    /// With --judge: one table of what sparse attention saves and costs. Tiles are skipped at
    /// random, by place, by a threshold, and by the gate of the folder if it has one. Each policy
    /// skips 50, 75 and 90 %; the text is read in windows of the model's context
    #[arg(long, requires = "judge", conflicts_with_all = ["prompt", "prompts", "threshold", "gate",
        "float8", "cache"])]
    pub attention_policies: bool,
    /// Most texts that are decoded together [default: 8]
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt", "judge"],
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Option<u32>,
    /// Keeps keys and values in pages of N tokens, of which a text has only those that it has
    /// reached. Saves memory where lengths differ; a step takes a little longer
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt", "judge"],
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub page_size: Option<u32>,
    /// Pages for all texts together. If they run out, the text that began last waits [default: as
    /// many as the longest texts need]
    #[arg(long, value_name = "N", requires = "page_size",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub pages: Option<u32>,
    /// Most tokens to add, or of --judge to read [default: 64, of --judge 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_tokens: Option<u32>,
    /// Above 0: draws tokens at random, from sharper (below 1) or flatter probabilities; 0: always
    /// the likeliest
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = tolerance,
        conflicts_with = "judge")]
    pub temperature: f64,
    /// Draws from the K likeliest tokens only
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "judge")]
    pub top_k: Option<u32>,
    /// Draws from the fewest likeliest tokens that make up this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability,
        conflicts_with = "judge")]
    pub top_p: f64,
    /// Number format of weights, keys, values and operands of products: f32, bf16, f16. Sums, norms
    /// and logits stay f32 [default: the folder's format if the device multiplies it directly, else
    /// f32]
    #[arg(long, value_name = "DTYPE")]
    pub dtype: Option<Precision>,
    /// Keeps keys and values as codes of 8 bits, with an f32 scale for each token and head. For a
    /// folder in Hugging Face's format or a .gguf file [default: in the format of --dtype]
    #[arg(long, value_name = "CODES")]
    pub cache: Option<CacheName>,
    /// Proposes up to N tokens at a time, which one run of the model checks. Those that the model
    /// would choose itself are kept, so that the text stays the same, up to rounding. Without
    /// --draft it proposes what followed the latest tokens earlier in the text. Pays off where
    /// proposals are often right: compare tokens/s with a run without it
    #[arg(long, value_name = "N", conflicts_with = "judge",
        value_parser = clap::value_parser!(u32).range(1..=16))]
    pub speculate: Option<u32>,
    /// A smaller model of the same tokenizer that proposes the tokens: a folder in Hugging Face's
    /// format or a .gguf file
    #[arg(long, value_name = "MODEL", requires = "speculate")]
    pub draft: Option<String>,
    /// Attention.
    #[command(flatten)]
    pub attention: AttentionOptions,
    /// Execution mode [default: graph on a GPU, or else compile]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeName>,
    /// Text, tokens and times as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Ranks.
    #[command(flatten)]
    pub ranks: RankOptions,
    /// Machine and seed.
    #[command(flatten)]
    pub machine: Machine,
}

/// Arguments of `info`.
#[derive(Args, Debug)]
pub(crate) struct Info {
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The processor's instruction set.
    #[command(flatten)]
    pub isa: Isa,
    /// Why each product on a GPU runs as it does: the remembered choices whose text contains TEXT,
    /// with all timings
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    pub choices: Option<String>,
    /// Unpacks the libraries of a Python package into the cache, fetched by pip: onnxruntime,
    /// onnxruntime-gpu, onnxruntime-openvino
    #[arg(long, value_name = "PACKAGE", conflicts_with = "choices")]
    pub install: Option<String>,
    /// The package's wheel, instead of the one that pip would fetch
    #[arg(long, value_name = "FILE", requires = "install")]
    pub wheel: Option<PathBuf>,
    /// Library of an engine, instead of the one that would be found
    #[arg(long = "library", value_name = "ENGINE=FILE", value_parser = library)]
    pub libraries: Vec<(String, PathBuf)>,
}

/// `--json`, where a script would want it.
#[derive(Args, Debug)]
pub(crate) struct Json {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a line as a shell splits it, but for escapes.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        parts
            .flat_map(|(i, part)| match i % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            })
            .collect()
    }

    #[test]
    fn every_command_ends_with_two_examples_that_it_takes() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().skip(1).collect();
            assert_eq!(lines.len(), 2, "{}", command.get_name());
            for line in lines {
                assert!(line.starts_with(&format!("  overdrive {}", command.get_name())), "{line}");
                let parsed = Arguments::try_parse_from(words(line));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn every_command_may_say_less_or_more() {
        for line in ["run -q", "-q run", "models --quiet", "info -v", "bench mlp --verbose"] {
            assert!(
                Arguments::try_parse_from(words(&format!("overdrive {line}"))).is_ok(),
                "{line}"
            );
        }
        assert!(Arguments::try_parse_from(["overdrive", "run", "-q", "-v"]).is_err());
    }

    #[track_caller]
    fn refused(line: &str, said: &[&str]) {
        let error = Arguments::of(words(line)).expect_err(line).to_string();
        said.iter().for_each(|word| assert!(error.contains(word), "{line}: {error}"));
    }

    #[test]
    fn a_hyphen_begins_a_text_and_a_negative_number_has_a_range() {
        for text in ["- item", "-x", "--- a", "-1"] {
            let given = ["overdrive", "generate", "m", "--prompt", text];
            let parsed = Arguments::of(given).expect("a text").command;
            assert!(
                matches!(parsed, Command::Generate(Generate { prompt: Some(p), .. }) if p == text)
            );
        }
        refused("overdrive generate m --prompt a --temperature -1", &["at least 0"]);
        refused("overdrive generate m --prompt a --top-p -1", &["above 0 and at most 1"]);
        refused("overdrive generate m --prompt a --top-k -3", &["-3 is not in 1.."]);
        refused("overdrive run --threads -1", &["-1 is not in 1..=1024"]);
        refused("overdrive generate m --prompt a -x", &["unexpected argument '-x'"]);
    }

    #[test]
    fn generate_takes_one_kind_of_text_and_its_own_options() {
        refused("overdrive generate m", &["--prompt", "--prompts", "--judge"]);
        for options in ["--prompts f", "--judge f", "--page-size 4", "--batch 2"] {
            refused(&format!("overdrive generate m --prompt a {options}"), &["cannot be used"]);
        }
        for options in ["--temperature 1", "--top-k 1", "--top-p 0.5", "--batch 2"] {
            refused(&format!("overdrive generate m --judge f {options}"), &["cannot be used"]);
        }
        let line = "overdrive generate m --prompts f --batch 2 --page-size 4 --pages 9";
        assert!(Arguments::of(words(line)).is_ok());
    }

    #[test]
    fn one_option_means_one_thing() {
        for command in Arguments::command().get_subcommands() {
            for option in command.get_arguments() {
                let (short, long) = (option.get_short(), option.get_long());
                assert_eq!(
                    short == Some('o'),
                    long == Some("out"),
                    "{}: {option}",
                    command.get_name()
                );
            }
        }
    }
}

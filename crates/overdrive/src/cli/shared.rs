//! Options that several commands have: the machine, ranks, what may be replaced, instruction sets,
//! what attention skips.

use super::values::share;
use clap::Args;
use overdrive::cpu::InstructionSet;
use overdrive::files::Existing;
use overdrive::ir::Mesh;

/// Machine and seed, shared by everything that measures.
#[derive(Args, Debug, Clone)]
pub(crate) struct Machine {
    /// Device: `auto` (a GPU if there is one that works), `cpu` or `cuda:N`
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
    /// Worker threads, at least 1 [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// The processor's instruction set.
    #[command(flatten)]
    pub isa: Isa,
    /// Seed of inputs, of the order of cases, and of drawn tokens
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// Several processes that do one command together, of every command that can.
#[derive(Args, Debug, Clone)]
pub(crate) struct RankOptions {
    /// Ranks of this machine that do this together: the same command is started once for each. Rank
    /// I takes GPU I. Launchers (torchrun, srun, mpirun) need no option. Ranks exchange over TCP;
    /// those that mpirun started, by MPI where the program is built with the feature `mpi`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub nproc: Option<u32>,
    /// With several ranks: how they share the work, as a grid whose sizes multiply to their number:
    /// `data=2,tensor=2`. `data` splits batches, `pipeline` the model into stages, `tensor` each
    /// layer, `context` the positions of samples; `generate` has `tensor` alone [default:
    /// data=RANKS; of `generate` tensor=RANKS]
    #[arg(long, value_name = "AXIS=RANKS,...")]
    pub mesh: Option<Mesh>,
    /// With several ranks: seconds after which a rank that others wait for is taken for hung
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub rank_timeout: u64,
}

/// `--force`, of every command that writes.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Replacing {
    /// Replaces what an earlier command wrote there; nothing else, whatever it is, is ever replaced
    #[arg(long)]
    pub force: bool,
}

impl From<Replacing> for Existing {
    fn from(replacing: Replacing) -> Self {
        if replacing.force { Existing::Replace } else { Existing::Keep }
    }
}

/// Limit on the instruction set of the processor's back end.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Isa {
    /// Uses no instructions of the processor beyond these; `overdrive info` lists what it has
    /// [default: the best]
    #[arg(long = "isa", value_name = "NAME")]
    pub set: Option<InstructionSet>,
}

impl Isa {
    /// The set to use.
    pub(crate) fn set(self) -> InstructionSet {
        self.set.unwrap_or_else(InstructionSet::best)
    }
}

/// Other attention than the model's own: tiles of scores that are left out, or products in fp8.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct AttentionOptions {
    /// Attention skips tiles of 64 queries and 128 keys whose weights are below this share of the
    /// largest: about 1 over the number of tokens. Attention of fewer than 64 queries or 129 keys
    /// skips nothing [default: nothing is skipped]
    #[arg(long = "attention-threshold", value_name = "SHARE", value_parser = share)]
    pub threshold: Option<f64>,
    /// Attention skips this share of its tiles, those that the gate of the folder scores lowest.
    /// `train --gate` makes such a folder [default: nothing is skipped]
    #[arg(long = "attention-gate", value_name = "SHARE", value_parser = share,
        conflicts_with = "threshold")]
    pub gate: Option<f64>,
    /// Attention multiplies codes of fp8: queries, keys, values and weights in e4m3, with scales.
    /// Attention of fewer than 128 queries or 256 keys stays as it is. A Hopper GPU has a kernel
    /// for bf16 and f16, which pays from about 8,000 tokens on. Other devices compute the same more
    /// slowly [default: in the model's format]
    #[arg(long = "attention-float8", conflicts_with_all = ["threshold", "gate"])]
    pub float8: bool,
}

impl AttentionOptions {
    /// The option that was given, as it was written.
    pub(crate) fn option(self) -> Option<String> {
        let threshold = self.threshold.map(|share| format!("--attention-threshold {share}"));
        let gate = self.gate.map(|share| format!("--attention-gate {share}"));
        threshold.or(gate).or_else(|| self.float8.then(|| "--attention-float8".to_owned()))
    }
}

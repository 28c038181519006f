//! Commands that run on several ranks: who starts them, and how each joins the others.
//!
//! A launcher starts one process a rank, and so does `--nproc`. Invariant: a command learns that it
//! is a rank before it does anything else, so that the others hear of whatever fails there.

mod nproc;
mod this_rank;

pub(crate) use this_rank::Rank;

use crate::cli::{Machine, RankOptions};
use crate::devices;
use crate::failure::Failure;
use overdrive::bench::exit::Exit;
use overdrive::ir::Mesh;
use overdrive::ranks::Launch;
use overdrive_process::Stop;
use std::time::Duration;

/// A rank that a launcher started, before it joins the others.
pub(crate) struct Launched {
    launch: Launch,
    mesh: Mesh,
    patience: Duration,
}

impl Launched {
    /// Meets the others.
    pub(crate) fn join(self) -> Result<Rank, Failure> {
        Rank::join(self.launch, &self.mesh, self.patience)
    }
}

/// Does `work` alone, or as one rank that a launcher started; or starts ranks of this machine that
/// do. Without `--mesh` all ranks are along `usual`.
pub(crate) fn run(
    (options, machine, usual): (&RankOptions, &Machine, &str),
    stop: &Stop,
    work: impl FnOnce(Option<Launched>) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let launch = launched(options)?;
    let asked = options.nproc.map(|n| n as usize);
    let size = launch.as_ref().map(|launch| launch.size).or(asked).unwrap_or(1);
    let mesh = mesh((options, usual), size)?;
    if launch.is_none() && size > 1 {
        check_device(machine, size)?;
        return nproc::run(size, stop);
    }
    let patience = Duration::from_secs(options.rank_timeout);
    work(launch.map(|launch| Launched { launch, mesh, patience }))
}

/// Errs where a launcher started several processes of a command whose ranks do not join. Each would
/// do all of the work, and measure while the others do.
pub(crate) fn only_one(command: &str) -> Result<(), Failure> {
    let found = match Launch::of_environment() {
        Ok(None) => return Ok(()),
        Ok(Some(launch)) => format!("that the launcher started {}", launch.size),
        // They need not be enough to join.
        Err(error) => format!("variables that {} gives to several", error.launcher),
    };
    let study = match command {
        "run" => "; the study `distributed` starts ranks of its own",
        _ => "",
    };
    Err(Failure::bad_input(format!(
        "`{command}`: expected one process, found {found}; only ranks of `train` and `generate` \
         work together: start it once, without the launcher and its variables{study}"
    )))
}

/// Errs where one GPU is asked for, since each rank needs its own.
fn check_device(machine: &Machine, ranks: usize) -> Result<(), Failure> {
    let Some(gpu) = devices::named_gpu(machine)? else { return Ok(()) };
    Err(Failure::bad_input(format!(
        "--device cuda:{gpu}: expected a GPU for each of the {ranks} ranks of --nproc, found one; \
         leave the option out, and rank I takes GPU I of those that CUDA_VISIBLE_DEVICES shows"
    )))
}

/// The launch of this process by a launcher; `None` where it runs alone.
fn launched(options: &RankOptions) -> Result<Option<Launch>, Failure> {
    let launch = Launch::of_environment().map_err(Failure::bad_input)?;
    let asked = options.nproc.map(|n| n as usize);
    match (&launch, asked) {
        (Some(launch), Some(asked)) if launch.size != asked => Err(Failure::bad_input(format!(
            "--nproc {asked}: expected as many ranks as the launcher started, found {}; leave \
                 the option out under a launcher",
            launch.size
        ))),
        _ => Ok(launch),
    }
}

/// The mesh of so many ranks: the one asked for, else all along `usual`.
fn mesh((options, usual): (&RankOptions, &str), ranks: usize) -> Result<Mesh, Failure> {
    let Some(mesh) = &options.mesh else { return Ok(Mesh::new([(usual, ranks)])) };
    let found = mesh.ranks();
    if found == ranks {
        return Ok(mesh.clone());
    }
    let remedy = match ranks {
        1 => format!("add --nproc {found}, or start with a launcher"),
        _ => format!("change the sizes, or start {found} ranks"),
    };
    Err(Failure::bad_input(format!(
        "--mesh {mesh}: expected sizes that multiply to the number of ranks, {ranks}, found \
         {found}; {remedy}"
    )))
}

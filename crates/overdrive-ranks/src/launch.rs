//! `Launch`: what a launcher says of the processes that it started, in their environment.
//!
//! The variables of torchrun take precedence over those of Open MPI, and these over Slurm's, since
//! the latter often start the former. Invariant: what is missing or contradicts itself is an error
//! that names the variable, never a guess.

use crate::slurm::{first_host, port_of};
use std::fmt;

/// The transport of bytes between ranks that are processes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// A star of connections around rank 0.
    Tcp,
    /// The MPI library of mpirun.
    #[cfg(feature = "mpi")]
    Mpi,
}

impl Transport {
    /// The rule: ranks that Open MPI's mpirun started exchange by MPI in a program that is built
    /// with the feature `mpi`. All other ranks exchange over TCP.
    #[cfg(feature = "mpi")]
    const OF_MPIRUN: Self = Self::Mpi;
    #[cfg(not(feature = "mpi"))]
    const OF_MPIRUN: Self = Self::Tcp;
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            #[cfg(feature = "mpi")]
            Self::Mpi => "MPI",
        })
    }
}

/// One process among those that a launcher started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Its rank, below `size`.
    pub rank: usize,
    /// Ranks of the run.
    pub size: usize,
    /// Its number among the ranks on this machine: the GPU that it takes. None where the launcher
    /// does not say.
    pub local_rank: Option<usize>,
    /// Ranks that share the cores of this machine; 1 where the launcher may have bound each rank to
    /// cores of its own.
    pub sharing: usize,
    /// The transport of their bytes.
    pub transport: Transport,
    /// Over TCP: the host of rank 0.
    pub host: String,
    /// Over TCP: the port that rank 0 listens at, unless `port_is_held`.
    pub port: u16,
    /// The launcher's own store listens at that port. Ranks then meet at one of those beside it.
    pub port_is_held: bool,
    /// Tells this run from others; empty where the launcher does not.
    pub run: String,
}

/// Why the environment tells of no launch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("started by {launcher}: expected {expected}, found {found}; {remedy}")]
pub struct LaunchError {
    /// The launcher whose variables they are.
    pub launcher: &'static str,
    /// The expected values.
    pub expected: String,
    /// The values found.
    pub found: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// More ranks than any machine has: each rank keeps a list of all.
const MOST_RANKS: usize = 1 << 20;

/// Ports beside that of a launcher's store that ranks try.
const BESIDE: u16 = 16;

/// `True` where torchrun's store listens at `MASTER_PORT`.
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Set by Kubernetes' training operator, for torchrun; a number, or `auto`, `gpu` or `cpu`.
const POD_RANKS: &str = "PET_NPROC_PER_NODE";

const TORCHRUN: &str = "torchrun";
const OPEN_MPI: &str = "Open MPI";
const SLURM: &str = "Slurm";

/// The variables of a launcher.
struct Variables<'a> {
    launcher: &'static str,
    of: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.of)(name).filter(|text| !text.trim().is_empty())
    }

    fn error(&self, expected: String, found: String) -> LaunchError {
        let remedy = match self.launcher {
            TORCHRUN => "start with torchrun or `--nproc N`, or unset RANK",
            OPEN_MPI => "start with `mpirun -n N -x MASTER_ADDR=HOST -x MASTER_PORT=PORT`",
            _ => "start with `srun -n N`",
        };
        LaunchError { launcher: self.launcher, expected, found, remedy }
    }

    fn number(&self, name: &str) -> Result<Option<usize>, LaunchError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.trim().parse().map(Some);
        number.map_err(|_| {
            self.error(format!("{name} to be a whole number"), format!("{name}={text}"))
        })
    }

    fn required(&self, name: &str) -> Result<usize, LaunchError> {
        let missing = || self.error(format!("the variable {name}"), "none".to_owned());
        self.number(name)?.ok_or_else(missing)
    }

    /// Host and port of rank 0, in the words of the user or of the launcher, else as `usual` says.
    fn meeting(
        &self,
        usual: impl Fn() -> (Option<String>, Option<u16>),
    ) -> Result<(String, u16), LaunchError> {
        let (host, port) = usual();
        let missing = |name: &str| self.error(format!("the variable {name}"), "none".to_owned());
        let host = self.text("MASTER_ADDR").or(host).ok_or_else(|| missing("MASTER_ADDR"))?;
        let port = match self.number("MASTER_PORT")? {
            None => port.ok_or_else(|| missing("MASTER_PORT"))?,
            Some(number) => {
                u16::try_from(number).ok().filter(|port| *port > 0).ok_or_else(|| {
                    let expected = "MASTER_PORT from 1 to 65535".to_owned();
                    self.error(expected, format!("MASTER_PORT={number}"))
                })?
            }
        };
        Ok((host.trim().to_owned(), port))
    }
}

impl Launch {
    /// As the environment of this process says; `None` where nothing started it as one of several.
    ///
    /// # Errors
    /// When variables are missing or contradict each other.
    pub fn of_environment() -> Result<Option<Self>, LaunchError> {
        Self::of(&|name| std::env::var(name).ok())
    }

    /// As these variables say.
    ///
    /// # Errors
    /// When variables are missing or contradict each other.
    pub fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let of = |launcher| Variables { launcher, of: variable };
        let has = |name: &str| of(TORCHRUN).text(name).is_some();
        let launch = if has("RANK") || has("WORLD_SIZE") {
            let launch = torchrun(&of(TORCHRUN))?;
            // Under a launcher of launchers both are right.
            if has("OMPI_COMM_WORLD_RANK") && !has("TORCHELASTIC_RUN_ID") {
                agrees(&launch, &of(OPEN_MPI))?;
            }
            launch
        } else if has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE") {
            open_mpi(&of(OPEN_MPI))?
        } else if has("SLURM_PROCID") && (has("SLURM_STEP_ID") || has("SLURM_STEPID")) {
            // The script of a batch job has a SLURM_PROCID too, but is no step.
            slurm(&of(SLURM))?
        } else {
            return Ok(None);
        };
        Ok((launch.size > 1).then_some(launch))
    }

    /// Rank `rank` of `size` that this machine runs by itself, meeting at a port of it.
    pub fn local(rank: usize, size: usize, port: u16, run: &str) -> Self {
        let (host, run) = ("127.0.0.1".to_owned(), run.to_owned());
        let (local_rank, transport) = (Some(rank), Transport::Tcp);
        let port_is_held = false;
        Self { rank, size, local_rank, sharing: size, transport, host, port, port_is_held, run }
    }

    /// The ports at which rank 0 may listen, in the order in which all ranks try them.
    pub(crate) fn ports(&self) -> Vec<u16> {
        if !self.port_is_held {
            return vec![self.port];
        }
        match self.port.checked_add(BESIDE) {
            Some(last) => (self.port + 1..=last).collect(),
            None => (self.port - BESIDE..self.port).collect(),
        }
    }

    /// The variables that say so to the process, as torchrun has them. An empty one counts as none.
    pub fn variables(&self) -> [(&'static str, String); 8] {
        let held = if self.port_is_held { "True" } else { "False" };
        [
            ("RANK", self.rank.to_string()),
            ("WORLD_SIZE", self.size.to_string()),
            ("LOCAL_RANK", self.local_rank.map(|rank| rank.to_string()).unwrap_or_default()),
            ("LOCAL_WORLD_SIZE", self.sharing.to_string()),
            ("MASTER_ADDR", self.host.clone()),
            ("MASTER_PORT", self.port.to_string()),
            ("TORCHELASTIC_RUN_ID", self.run.clone()),
            (AGENT_STORE, held.to_owned()),
        ]
    }
}

fn torchrun(of: &Variables<'_>) -> Result<Launch, LaunchError> {
    let (rank, size) = (of.required("RANK")?, of.required("WORLD_SIZE")?);
    let local_rank = of.number("LOCAL_RANK")?;
    if let (None, Some(ranks)) = (local_rank, several_of_pod(of)) {
        let expected = format!("torchrun to start {POD_RANKS}={ranks} ranks in each pod");
        return Err(of.error(expected, "a process without LOCAL_RANK".to_owned()));
    }
    let sharing = of.number("LOCAL_WORLD_SIZE")?.unwrap_or(1).max(1);
    let run = of.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
    if size == 0 {
        return Err(of.error("WORLD_SIZE of at least 1".to_owned(), "WORLD_SIZE=0".to_owned()));
    }
    if size == 1 && rank == 0 {
        return Ok(Launch::local(0, 1, 0, &run));
    }
    let (host, port) = of.meeting(|| (None, None))?;
    let (transport, port_is_held) = (Transport::Tcp, of.text(AGENT_STORE) == Some("True".into()));
    let launch =
        Launch { rank, size, local_rank, sharing, transport, host, port, port_is_held, run };
    within(launch, of, ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
}

/// Ranks that Kubernetes' training operator wants in each pod, if several. Its `WORLD_SIZE` counts
/// them, but its `RANK` numbers the pods.
fn several_of_pod(of: &Variables<'_>) -> Option<usize> {
    of.text(POD_RANKS)?.trim().parse().ok().filter(|ranks| *ranks > 1)
}

fn open_mpi(of: &Variables<'_>) -> Result<Launch, LaunchError> {
    let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
    let [rank, size, local_rank] = names.map(|name| of.required(name));
    let (rank, size, local_rank) = (rank?, size?, local_rank?);
    let job = of.text("PMIX_NAMESPACE").or_else(|| of.text("OMPI_MCA_ess_base_jobid"));
    let is_one_machine = of.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(size);
    let transport = Transport::OF_MPIRUN;
    let (host, port) = match transport {
        Transport::Tcp => of.meeting(|| {
            let here = is_one_machine.then(|| "127.0.0.1".to_owned());
            (here, job.as_deref().map(port_of))
        })?,
        // MPI knows where the ranks are.
        #[cfg(feature = "mpi")]
        Transport::Mpi => (String::new(), 0),
    };
    let (run, local_rank, port_is_held) = (job.unwrap_or_default(), Some(local_rank), false);
    let launch =
        Launch { rank, size, local_rank, sharing: 1, transport, host, port, port_is_held, run };
    within(launch, of, names)
}

fn slurm(of: &Variables<'_>) -> Result<Launch, LaunchError> {
    let names = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"];
    let rank = of.required(names[0])?;
    // A step may have fewer tasks than its job.
    let size = match of.number("SLURM_STEP_NUM_TASKS")? {
        Some(size) => size,
        None => of.required(names[1])?,
    };
    let local_rank = of.required(names[2])?;
    let first = |name| of.text(name);
    let step = first("SLURM_STEP_ID").or_else(|| first("SLURM_STEPID")).unwrap_or_default();
    let job = first("SLURM_JOB_ID").or_else(|| first("SLURM_JOBID"));
    let run = job.map(|job| format!("{job}.{step}"));
    let lists = ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
    let (host, port) = of.meeting(|| {
        let listed = lists.iter().find_map(|name| first_host(&first(name)?));
        let host = listed.or_else(|| first("SLURM_LAUNCH_NODE_IPADDR"));
        (host, run.as_deref().map(port_of))
    })?;
    let (run, local_rank, port_is_held) = (run.unwrap_or_default(), Some(local_rank), false);
    let transport = Transport::Tcp;
    let launch =
        Launch { rank, size, local_rank, sharing: 1, transport, host, port, port_is_held, run };
    within(launch, of, names)
}

/// Errs unless the ranks are numbers below what they count.
fn within(
    launch: Launch,
    of: &Variables<'_>,
    [rank, size, local]: [&str; 3],
) -> Result<Launch, LaunchError> {
    if launch.size > MOST_RANKS {
        let expected = format!("{size} of at most {MOST_RANKS}");
        return Err(of.error(expected, format!("{size}={}", launch.size)));
    }
    if launch.rank >= launch.size {
        let found = format!("{rank}={} and {size}={}", launch.rank, launch.size);
        return Err(of.error(format!("{rank} below {size}"), found));
    }
    if let Some(number) = launch.local_rank.filter(|number| *number >= launch.size) {
        let found = format!("{local}={number} and {size}={}", launch.size);
        return Err(of.error(format!("{local} below {size}"), found));
    }
    Ok(launch)
}

/// Errs where both launchers speak of the same process and say different things.
fn agrees(launch: &Launch, of: &Variables<'_>) -> Result<(), LaunchError> {
    let other = (of.required("OMPI_COMM_WORLD_RANK")?, of.required("OMPI_COMM_WORLD_SIZE")?);
    if other == (launch.rank, launch.size) {
        return Ok(());
    }
    let expected = format!("RANK={} and WORLD_SIZE={}, as Open MPI says", other.0, other.1);
    let found = format!("RANK={} and WORLD_SIZE={}", launch.rank, launch.size);
    let remedy = "unset RANK and WORLD_SIZE";
    Err(LaunchError { launcher: OPEN_MPI, expected, found, remedy })
}

//! The environment of a measurement, recorded so that figures can be doubted: processor, clocks,
//! load, limits, toolchain.
//!
//! Everything is read from system files below a root. Missing files leave fields empty, in a Linux
//! container as on another system. Names of hosts and users are never read.

mod context_switches;
mod cpu;
mod limits;
mod revision;
mod small_file;

pub use context_switches::{ContextSwitches, context_switches};
pub use cpu::{Cache, Cpu};
pub use revision::{Revision, Toolchain};

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use small_file::read;

/// The machine and its state when the run began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Name of the operating system as Rust knows it: `linux`, `macos`, `windows`.
    pub os: String,
    /// Release of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The processor.
    pub cpu: Cpu,
    /// CPUs that this process may use.
    pub allowed_cpus: Option<u32>,
    /// CPUs that a control group grants, where it sets a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_cpus: Option<f64>,
    /// Physical memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Load average of the last minute, when the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_average: Option<f64>,
    /// Accelerators, as their back ends describe them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Accelerator>,
    /// The toolchain that built this program.
    pub toolchain: Toolchain,
}

/// An accelerator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Accelerator {
    /// Its key in cases: `cuda:0`.
    pub key: String,
    /// The product's name.
    pub name: String,
    /// Driver, clocks, link, limits: by name with unit.
    pub properties: BTreeMap<String, String>,
}

impl Environment {
    /// Looks at this machine.
    pub fn probe() -> Self {
        Self::probe_in(Path::new("/"))
    }

    fn probe_in(root: &Path) -> Self {
        let allowed_cpus = std::thread::available_parallelism().ok();
        Self {
            os: std::env::consts::OS.to_owned(),
            kernel: read(root, "proc/sys/kernel/osrelease"),
            cpu: Cpu::probe(root),
            allowed_cpus: allowed_cpus.and_then(|count| u32::try_from(count.get()).ok()),
            quota_cpus: limits::quota_cpus(root),
            memory_bytes: limits::memory_bytes(root),
            load_average: limits::load_average(root),
            devices: Vec::new(),
            toolchain: Toolchain::built(),
        }
    }

    /// An unknown machine, for results that another program wrote.
    pub fn unrecorded() -> Self {
        let unknown = || "not recorded".to_owned();
        let mut machine = Self::probe_in(Path::new("/nonexistent"));
        (machine.os, machine.cpu.model, machine.allowed_cpus) = (unknown(), unknown(), None);
        let Toolchain { rustc, target, profile, flags } = &mut machine.toolchain;
        (*rustc, *target, *profile, *flags) =
            (unknown(), String::new(), String::new(), String::new());
        machine
    }

    /// Caveats on figures from here.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(governor) =
            self.cpu.governor.as_deref().filter(|&governor| governor != "performance")
        {
            warnings.push(format!("the frequency governor is `{governor}`, not `performance`"));
        }
        if let Some(load) = self.load_average.filter(|&load| load > 0.5) {
            warnings.push(format!(
                "load average {load:.2} at the start: other programs may disturb times"
            ));
        }
        if let Some(quota) = self.quota_cpus {
            warnings.push(format!(
                "a control group grants {quota:.1} CPUs and pauses the process beyond"
            ));
        }
        if !["release", ""].contains(&self.toolchain.profile.as_str()) {
            warnings.push(format!("this is a `{}` build, not `release`", self.toolchain.profile));
        }
        warnings
    }
}

#[cfg(test)]
mod tests;

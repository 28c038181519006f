//! Energy of the processor package, where the machine can tell: Intel's and AMD's RAPL counters under
//! `/sys/class/powercap`, readable by root on most systems. Absent means absent; nothing is estimated.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A span shorter than this is not told: the counters are refreshed about every millisecond and the package
/// does other things too.
pub const SHORTEST_SPAN_NS: u64 = 2_000_000_000;

/// Energy of many calls, beside what the idle machine takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnergyUse {
    /// Which counter: `rapl`, `nvml`.
    pub source: String,
    /// Calls made during the span.
    pub calls: u64,
    /// Length of the span, at least [`SHORTEST_SPAN_NS`].
    pub span_ns: u64,
    /// Energy of the span, idle power included.
    pub energy_joules: f64,
    /// Power of the machine when nothing was asked of it.
    pub idle_watts: f64,
}

impl EnergyUse {
    /// Energy per call, idle power included.
    pub fn joules_per_call(&self) -> f64 {
        self.energy_joules / self.calls as f64
    }
}

/// The package counters of a machine.
#[derive(Debug, Clone)]
pub struct Rapl {
    packages: Vec<Package>,
}

#[derive(Debug, Clone)]
struct Package {
    counter: PathBuf,
    wraps_at_uj: u64,
}

/// A reading of every package's counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaplReading(Vec<u64>);

impl Rapl {
    /// The machine's counters, if there are any and they may be read.
    pub fn open() -> Option<Self> {
        Self::open_in(Path::new("/sys/class/powercap"))
    }

    fn open_in(folder: &Path) -> Option<Self> {
        let mut packages = Vec::new();
        for entry in fs::read_dir(folder).ok()?.flatten() {
            // `intel-rapl:0` is a package; `intel-rapl:0:0` a part of it that must not be counted twice.
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("intel-rapl:") && name.matches(':').count() == 1 {
                let wraps_at_uj = read_number(&entry.path().join("max_energy_range_uj"))?;
                packages.push(Package { counter: entry.path().join("energy_uj"), wraps_at_uj });
            }
        }
        let rapl = Self { packages };
        (!rapl.packages.is_empty() && rapl.read().is_some()).then_some(rapl)
    }

    /// Reads every counter; `None` if one has become unreadable.
    pub fn read(&self) -> Option<RaplReading> {
        self.packages
            .iter()
            .map(|package| read_number(&package.counter))
            .collect::<Option<_>>()
            .map(RaplReading)
    }

    /// Joules of all packages between two readings, less than one wrap of a counter apart.
    pub fn joules_between(&self, before: &RaplReading, after: &RaplReading) -> f64 {
        let used = |((package, &before), &after): ((&Package, &u64), &u64)| {
            if after >= before { after - before } else { after + package.wraps_at_uj - before }
        };
        let microjoules: u64 = self.packages.iter().zip(&before.0).zip(&after.0).map(used).sum();
        microjoules as f64 * 1e-6
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_summed_parts_are_not_and_counters_wrap() {
        let folder = std::env::temp_dir().join(format!("overdrive-rapl-{}", std::process::id()));
        let write = |name: &str, energy: &str| {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("energy_uj"), energy).unwrap();
            fs::write(folder.join(name).join("max_energy_range_uj"), "1000000\n").unwrap();
        };
        write("intel-rapl", "0");
        write("intel-rapl:0", "900000\n");
        write("intel-rapl:0:0", "5");
        write("intel-rapl:1", "100000\n");
        let rapl = Rapl::open_in(&folder).unwrap();
        let before = rapl.read().unwrap();
        write("intel-rapl:0", "100000\n");
        write("intel-rapl:1", "150000\n");
        let joules = rapl.joules_between(&before, &rapl.read().unwrap());
        fs::remove_dir_all(&folder).unwrap();
        assert!((joules - 0.25).abs() < 1e-9, "{joules}");
    }

    #[test]
    fn no_counter_means_none() {
        assert!(Rapl::open_in(Path::new("/nonexistent")).is_none());
    }
}

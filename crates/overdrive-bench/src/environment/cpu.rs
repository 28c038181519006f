//! The processor, as `/proc/cpuinfo` and `/sys/devices/system/cpu` describe it.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::small_file::read;

/// Instruction sets that a kernel of ours or of a rival might choose by; the other flags say
/// nothing about speed.
const TELLING_FEATURES: [&str; 8] = ["avx", "amx", "fma", "f16c", "asimd", "sve", "bf16", "i8mm"];

/// A processor and how it was set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cpu {
    /// Marketing name, or the architecture where the system does not tell.
    pub model: String,
    /// CPUs that are online, threads of one core counted each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logical: Option<u32>,
    /// Distinct cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical: Option<u32>,
    /// Whether two threads share a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smt: Option<bool>,
    /// Frequency governor of the first CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Whether the clock may rise above its base frequency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turbo: Option<bool>,
    /// Highest frequency that the system would set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_mhz: Option<u32>,
    /// Whether a hypervisor is below, which may take the CPU away unseen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtualised: Option<bool>,
    /// Data and unified caches of the first CPU, from the nearest on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<Cache>,
    /// Instruction sets that matter here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Instruction set that our back end was limited to (`--isa`), if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction_set: Option<String>,
}

/// A data or unified cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// 1, 2 or 3.
    pub level: u32,
    /// Its size.
    pub bytes: u64,
}

impl Cpu {
    pub(super) fn probe(root: &Path) -> Self {
        let info = read(root, "proc/cpuinfo").unwrap_or_default();
        let flags: BTreeSet<&str> = first(&info, "flags")
            .or_else(|| first(&info, "Features"))
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let telling =
            |flag: &&&str| TELLING_FEATURES.iter().any(|feature| flag.starts_with(feature));
        let system = |path: &str| read(root, &format!("sys/devices/system/cpu/{path}"));
        let is_one = |text: String| text == "1";
        let turbo = system("intel_pstate/no_turbo")
            .map(|text| text == "0")
            .or_else(|| system("cpufreq/boost").map(is_one));
        Self {
            model: first(&info, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            logical: count(all(&info, "processor").count()),
            physical: count(cores(&info)),
            smt: system("smt/active").map(is_one),
            governor: system("cpu0/cpufreq/scaling_governor"),
            turbo,
            max_mhz: system("cpu0/cpufreq/cpuinfo_max_freq")
                .and_then(|khz| Some(khz.parse::<u32>().ok()? / 1000)),
            virtualised: (!flags.is_empty()).then(|| flags.contains("hypervisor")),
            caches: (0..8)
                .map_while(|index| system(&format!("cpu0/cache/index{index}/level")).map(|_| index))
                .filter_map(|index| cache(root, index))
                .collect(),
            features: flags.iter().filter(telling).map(|flag| (*flag).to_owned()).collect(),
            instruction_set: None,
        }
    }
}

fn cache(root: &Path, index: u32) -> Option<Cache> {
    let field =
        |name: &str| read(root, &format!("sys/devices/system/cpu/cpu0/cache/index{index}/{name}"));
    if field("type")? == "Instruction" {
        return None;
    }
    let kib: u64 = field("size")?.strip_suffix('K')?.parse().ok()?;
    Some(Cache { level: field("level")?.parse().ok()?, bytes: kib * 1024 })
}

/// Distinct pairs of socket and core.
fn cores(info: &str) -> usize {
    all(info, "physical id").zip(all(info, "core id")).collect::<BTreeSet<_>>().len()
}

/// Every value of a field of `/proc/cpuinfo`, in the order of the CPUs.
fn all<'t>(info: &'t str, field: &str) -> impl Iterator<Item = &'t str> {
    info.lines().filter_map(move |line| {
        let (name, value) = line.split_once(':')?;
        (name.trim_end() == field).then(|| value.trim())
    })
}

fn first<'t>(info: &'t str, field: &str) -> Option<&'t str> {
    all(info, field).next()
}

/// A count of zero means that the system does not tell.
fn count(found: usize) -> Option<u32> {
    u32::try_from(found).ok().filter(|&found| found > 0)
}

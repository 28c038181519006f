//! A machine is described from a tree of files, so that each kind of it can be invented here.

use super::*;
use std::fs;

/// A machine written to a temporary folder, removed with the value.
struct Machine(std::path::PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root =
            std::env::temp_dir().join(format!("overdrive-machine-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const CPUINFO: &str = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nphysical id\t: 0\ncore \
                       id\t\t: 0\n\
    flags\t\t: fpu sse2 fma avx2 avx512_bf16 hypervisor\n\nprocessor\t: 1\nmodel name\t: Some CPU \
                       @ 2.0GHz\n\
    physical id\t: 0\ncore id\t\t: 0\nflags\t\t: fpu\n";

#[test]
fn a_described_machine_is_read() {
    let machine = Machine::new(
        "full",
        &[
            ("proc/cpuinfo", CPUINFO),
            ("proc/loadavg", "1.25 0.5 0.1 1/100 7\n"),
            ("proc/meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/devices/system/cpu/smt/active", "1\n"),
            ("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/level", "1\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n"),
            ("sys/devices/system/cpu/cpu0/cache/index1/level", "1\n"),
            ("sys/devices/system/cpu/cpu0/cache/index1/type", "Instruction\n"),
            ("sys/devices/system/cpu/cpu0/cache/index1/size", "32K\n"),
        ],
    );
    let found = Environment::probe_in(&machine.0);
    assert_eq!(found.cpu.model, "Some CPU @ 2.0GHz");
    assert_eq!((found.cpu.logical, found.cpu.physical), (Some(2), Some(1)));
    assert_eq!(
        (found.cpu.smt, found.cpu.turbo, found.cpu.virtualised),
        (Some(true), Some(true), Some(true))
    );
    assert_eq!((found.cpu.governor.as_deref(), found.cpu.max_mhz), (Some("powersave"), Some(3500)));
    assert_eq!(found.cpu.features, ["avx2", "avx512_bf16", "fma"]);
    assert_eq!(found.cpu.caches, [Cache { level: 1, bytes: 48 * 1024 }]);
    assert_eq!((found.load_average, found.memory_bytes), (Some(1.25), Some(2 << 20)));
    assert_eq!(found.quota_cpus, Some(1.5));
    let warnings = found.warnings().join("; ");
    for word in ["powersave", "1.25", "1.5 CPUs"] {
        assert!(warnings.contains(word), "{warnings}");
    }
}

#[test]
fn the_older_control_groups_are_read_too() {
    let files = [
        ("proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/x\n"),
        ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
    ];
    assert_eq!(Environment::probe_in(&Machine::new("legacy", &files).0).quota_cpus, Some(0.5));
}

#[test]
fn what_a_machine_does_not_tell_is_absent() {
    let found = Environment::probe_in(Path::new("/nonexistent"));
    assert_eq!(found.cpu.model, std::env::consts::ARCH);
    assert_eq!(
        (found.cpu.logical, found.cpu.smt, found.quota_cpus, found.load_average),
        (None, None, None, None)
    );
}

#[test]
fn this_machine_is_described_without_its_name() {
    let text = serde_json::to_string(&Environment::probe()).unwrap();
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if hostname.trim().len() > 3 {
        assert!(!text.contains(hostname.trim()), "{text}");
    }
    assert!(Environment::probe().toolchain.rustc.starts_with("rustc 1."));
}

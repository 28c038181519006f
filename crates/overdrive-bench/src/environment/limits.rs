//! The rest of the machine: its load, its memory, and the quota of a control group.

use std::path::Path;

use super::small_file::read;

pub(super) fn load_average(root: &Path) -> Option<f64> {
    read(root, "proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

pub(super) fn memory_bytes(root: &Path) -> Option<u64> {
    let info = read(root, "proc/meminfo")?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The smallest quota on the way from this process's control group to the root, in CPUs; `None`
/// without one.
pub(super) fn quota_cpus(root: &Path) -> Option<f64> {
    let groups = read(root, "proc/self/cgroup")?;
    let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let unified_quotas = unified.into_iter().flat_map(ancestors).filter_map(|group| {
        let text = read(root, &format!("sys/fs/cgroup{group}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    // Version 1 mounts each controller by itself; its line reads `4:cpu,cpuacct:/path`.
    let legacy = groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|controller| controller == "cpu").then_some(group)
    });
    let legacy_quotas = legacy.into_iter().flat_map(ancestors).filter_map(|group| {
        let number = |name: &str| {
            read(root, &format!("sys/fs/cgroup/cpu{group}/{name}"))?.parse::<f64>().ok()
        };
        let quota = number("cpu.cfs_quota_us")?;
        // -1 means no quota.
        (quota > 0.0).then_some(quota / number("cpu.cfs_period_us")?)
    });
    unified_quotas.chain(legacy_quotas).reduce(f64::min)
}

/// `/a/b`, `/a` and the root (as an empty path).
fn ancestors(group: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(group.trim_end_matches('/')), |group| {
        Some(&group[..group.rfind('/')?])
    })
}

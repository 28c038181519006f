//! Host memory that is left for pinned allocations.

/// Memory of the host that plans may pin: half of the free memory, where the system tells.
pub(crate) fn host_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 512)
}

//! Host memory as plans see it: how much is left for pinned allocations, and how fast loops over it
//! are.

/// Cores of a host for each of its GPUs, nominal: for plans of GPUs that exist only as data.
pub(crate) const CORES: usize = 16;

/// Bytes per second that a core of a present server reads and writes in an update, beside copies of
/// a GPU. The 16 cores of an H200's host were measured at 97 GB/s alone. Beside copies a step of
/// 6.7 G parameters took as long as 60 GB/s would. AVX-512 would compute faster than memory
/// delivers.
const CORE_BYTES_PER_SECOND: f64 = 4e9;

/// Bytes per second of the memory of a socket that copies of a GPU leave to its cores, nominal: 8
/// channels of DDR5-4800, less 110 GB/s.
const SOCKET_BYTES_PER_SECOND: f64 = 200e9;

/// Bytes per second that loops of so many cores read and write.
pub(crate) fn loop_bytes_per_second(cores: usize) -> f64 {
    (cores as f64 * CORE_BYTES_PER_SECOND).min(SOCKET_BYTES_PER_SECOND)
}

/// Memory of the host that plans may pin: half of the free memory, where the system tells.
pub(crate) fn host_bytes() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 512)
}

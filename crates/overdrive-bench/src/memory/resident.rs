//! The kernel's resident high-water mark of this process (`VmHWM`), which Linux lets its owner
//! reset.

/// Lowers the mark to what is resident now and says what that is; `None` where that cannot be done.
#[cfg(target_os = "linux")]
pub(super) fn reset_high_water_mark() -> Option<u64> {
    // 5 resets the mark, since Linux 4.0: proc_pid_clear_refs(5).
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    status_bytes("VmRSS:")
}

/// The mark.
#[cfg(target_os = "linux")]
pub(super) fn high_water_mark_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

#[cfg(target_os = "linux")]
fn status_bytes(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Other systems keep a mark that cannot be reset, which would answer another question.
#[cfg(not(target_os = "linux"))]
pub(super) fn reset_high_water_mark() -> Option<u64> {
    None
}

/// Never used if it cannot be reset.
#[cfg(not(target_os = "linux"))]
pub(super) fn high_water_mark_bytes() -> Option<u64> {
    None
}

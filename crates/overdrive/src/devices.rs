//! From `--device` and `--threads` to back ends.

use crate::cli::Machine;
use crate::failure::Failure;
use overdrive::cpu::CpuBackend;

/// Errs unless the device that was asked for is one that this build drives.
pub(crate) fn check(machine: &Machine) -> Result<(), Failure> {
    match machine.device.as_str() {
        "auto" | "cpu" => Ok(()),
        other => Err(Failure::bad_input(format!(
            "unknown device `{other}`: this version drives `cpu` (and `auto`, which is the same here)"
        ))),
    }
}

/// The number of threads to use.
pub(crate) fn threads(machine: &Machine) -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    machine.threads.map_or(available, |n| n as usize)
}

/// The CPU with the threads asked for.
pub(crate) fn cpu(machine: &Machine) -> Result<CpuBackend, Failure> {
    check(machine)?;
    with_threads(threads(machine))
}

/// The CPU with this many threads.
pub(crate) fn with_threads(threads: usize) -> Result<CpuBackend, Failure> {
    CpuBackend::new(Some(threads)).map_err(Failure::harness)
}

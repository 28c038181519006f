//! A GPU that exists only as data.

use overdrive_cuda::compiler::Architecture;
use overdrive_cuda::device::Properties;

/// An H200, from its data sheet.
#[allow(dead_code)] // Each test binary uses its part.
pub(crate) fn h200() -> Properties {
    Properties {
        name: "NVIDIA H200".to_owned(),
        architecture: Architecture::Sm90a,
        multiprocessors: 132,
        l2_bytes: 60 << 20,
        memory_bytes: 141_000_000_000,
        clock_hertz: 1.98e9,
        bytes_per_second: 4.8e12,
        driver: None,
        cuda: (13, 0),
    }
}

//! GPUs as their data sheets describe them: plans are made for them where there are none.
//!
//! Figures are those of the SXM modules. The clock is the highest that the driver allows, as for
//! a GPU that is there.

use crate::compiler::Architecture;
use crate::device::Properties;

/// H200, 141 GB.
pub fn h200() -> Properties {
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

/// H100, 80 GB.
pub fn h100() -> Properties {
    Properties {
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        l2_bytes: 50 << 20,
        memory_bytes: 80_000_000_000,
        bytes_per_second: 3.35e12,
        ..h200()
    }
}

/// A100, 80 GB.
pub fn a100() -> Properties {
    Properties {
        name: "NVIDIA A100-SXM4-80GB".to_owned(),
        architecture: Architecture::Sm80,
        multiprocessors: 108,
        l2_bytes: 40 << 20,
        memory_bytes: 80_000_000_000,
        clock_hertz: 1.41e9,
        bytes_per_second: 2.039e12,
        ..h200()
    }
}

//! Rates from the data sheet, which this processor cannot exceed at its highest clock.
//!
//! Known only where the system tells that clock; a virtual machine seldom does, and then nothing is
//! claimed.

use std::collections::BTreeMap;

use overdrive_ir::{DType, Peaks};

#[cfg(target_arch = "x86_64")]
use crate::isa::InstructionSet;

/// Arithmetic peaks of `threads` cores.
pub(crate) fn peaks(threads: usize) -> Peaks {
    let Some(hertz) = highest_clock() else { return Peaks::default() };
    let rate = |flops_per_cycle: f64| threads as f64 * hertz * flops_per_cycle;
    let flops_per_second =
        flops_per_cycle().into_iter().map(|(dtype, per_cycle)| (dtype, rate(per_cycle))).collect();
    Peaks { flops_per_second, levels: vec![] }
}

fn highest_clock() -> Option<f64> {
    let text =
        std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").ok()?;
    text.trim().parse::<f64>().ok().map(|kilohertz| kilohertz * 1e3)
}

/// Two multiply-adds of the widest vectors a cycle. A CPU with tiles does a 16 x 16 x 32 product of
/// bf16, or 16 x 16 x 64 of i8, in 16 cycles. Six products of bf16 are one of f32.
#[cfg(target_arch = "x86_64")]
fn flops_per_cycle() -> BTreeMap<DType, f64> {
    let bytes = if InstructionSet::Avx512.is_usable() {
        64.0
    } else if InstructionSet::Avx2.is_usable() {
        32.0
    } else {
        16.0
    };
    let vector = |element_bytes: f64| 2.0 * 2.0 * bytes / element_bytes;
    let tiles = InstructionSet::Amx.is_usable();
    let halves = if tiles { 1024.0 } else { vector(2.0) };
    BTreeMap::from([
        (DType::F64, vector(8.0)),
        (DType::F32, if tiles { halves / 6.0 } else { vector(4.0) }),
        (DType::BF16, halves),
        (DType::F16, halves),
        (DType::I8, if tiles { 2048.0 } else { vector(1.0) }),
    ])
}

#[cfg(not(target_arch = "x86_64"))]
fn flops_per_cycle() -> BTreeMap<DType, f64> {
    BTreeMap::new()
}

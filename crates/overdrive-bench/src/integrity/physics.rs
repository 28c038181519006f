//! Checks figures against physical limits of the recorded machine, whichever program reported them.
//!
//! The bounds are generous. For a processor they are the widest units of its instruction set, at a
//! clock that no product reaches. For a device, they are what is recorded of it. An algorithm may
//! need fewer operations than the graph counts, and has room for that. The bounds catch times that
//! were edited or misread, not an optimist's kernel: `status::Physics` knows the peaks of the
//! device itself.

use crate::case::Case;
use crate::digits;
use crate::environment::Environment;
use crate::measurement::Measurement;
use crate::status::{Physics, StatusKind};

/// No processor has had a higher clock.
const HIGHEST_HZ: f64 = 6.5e9;
/// Operations a cycle of the widest unit of a core, by the feature that tells of it; the first that
/// is there counts.
const PER_CYCLE: [(&str, f64); 4] =
    [("amx", 2048.0), ("avx512", 256.0), ("avx2", 128.0), ("", 64.0)];
/// Bytes a cycle between a core and its nearest cache.
const CORE_BYTES: f64 = 256.0;
/// The same of a multiprocessor of a GPU, by the narrowest format there is, with sparsity.
const MULTIPROCESSOR: (f64, f64) = (65_536.0, 1024.0);
/// Fewer multiplications than the graph counts, as Winograd's convolutions need.
const SAVED: f64 = 4.0;

/// Limits that the recorded machine cannot exceed in this case; `None` where too little is
/// recorded.
fn bounds(environment: &Environment, case: &Case) -> Option<Physics> {
    let configuration = &case.configuration;
    // A back end names its device by its key or by the product's name.
    let named = &configuration.device;
    let device =
        environment.devices.iter().find(|device| [&device.key, &device.name].contains(&named));
    let is_processor =
        environment.devices.is_empty() || ["cpu", &environment.cpu.model].contains(&named.as_str());
    let (cycles, (flops, bytes)) = match device {
        Some(device) => {
            let number = |name: &str| device.properties.get(name)?.parse::<f64>().ok();
            let clock = number("highest_sm_clock_mhz")? * 1e6;
            (clock * number("multiprocessors")?, MULTIPROCESSOR)
        }
        None if !is_processor || named.starts_with("cuda") => return None,
        None => {
            let cpu = &environment.cpu;
            if cpu.features.is_empty() {
                return None;
            }
            let has = |word: &str| {
                word.is_empty() || cpu.features.iter().any(|name| name.starts_with(word))
            };
            let (_, flops) = PER_CYCLE.into_iter().find(|(feature, _)| has(feature))?;
            let all = cpu.logical.or(environment.allowed_cpus).unwrap_or(1024);
            let threads = if configuration.threads > 0 { configuration.threads } else { all };
            (HIGHEST_HZ * f64::from(threads), (flops, CORE_BYTES))
        }
    };
    Some(Physics { flops_per_second: cycles * flops * SAVED, bytes_per_second: cycles * bytes })
}

/// Why a measurement is faster than the recorded machine can be, if it is.
pub fn exceeded(
    environment: &Environment,
    case: &Case,
    measurement: &Measurement,
) -> Option<String> {
    let (work, series) = (measurement.work.as_ref()?, measurement.latency.as_ref()?);
    let status = bounds(environment, case)?.check(series.summary.median_ns, work)?;
    let rate = work.flops as f64 / (series.summary.median_ns * 1e-9);
    Some(format!("{}, {}", status.detail, digits::rate(rate, None, "FLOP")))
}

/// Refuses an impossible time that no status owns up to.
pub(super) fn check(
    environment: &Environment,
    case: &Case,
    measurement: &Measurement,
) -> Result<(), String> {
    let is_told = measurement.statuses.iter().any(|status| status.kind == StatusKind::Invalid);
    match exceeded(environment, case, measurement).filter(|_| !is_told) {
        Some(why) => Err(format!("the recorded machine cannot be so fast: {why}")),
        None => Ok(()),
    }
}

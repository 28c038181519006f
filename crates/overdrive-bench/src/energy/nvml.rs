//! A GPU as NVIDIA's management library sees it: its energy, and why its clock is low.
//! The library is loaded on demand. If it is missing, an error says so.
//!
//! Nothing here changes a setting of the card.

use std::ffi::OsStr;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::Meter;
use crate::failure::Failure;
use crate::series::Flag;

/// Names under which the library is found: that of the driver, of its development package, of
/// Windows.
const LIBRARIES: [&str; 3] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"];

/// The GPU to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// By position in PCI order, which is not CUDA's order where `CUDA_VISIBLE_DEVICES` is set.
    Index(u32),
    /// By identity, the same for CUDA and NVML: `GPU-6f0c...`.
    Uuid(String),
}

/// A GPU to be asked about itself.
#[derive(Debug)]
pub struct Gpu {
    nvml: Nvml,
    which: Selector,
}

impl Gpu {
    /// Loads the library and looks for the GPU.
    ///
    /// # Errors
    /// That there is no library, no driver, no right to use it, or no such GPU.
    pub fn open(which: Selector) -> Result<Self, Failure> {
        let mut refusals = Vec::new();
        for name in LIBRARIES {
            match Nvml::builder().lib_path(OsStr::new(name)).init() {
                Ok(nvml) => {
                    let gpu = Self { nvml, which };
                    gpu.device()?;
                    return Ok(gpu);
                }
                Err(error) => refusals.push(format!("{name}: {error}")),
            }
        }
        Err(Failure::unsupported(format!(
            "NVIDIA's management library cannot be used ({}); it comes with the NVIDIA driver",
            refusals.join("; ")
        )))
    }

    /// The machine's GPU, where it has one and no other could be meant.
    ///
    /// # Errors
    /// As [`Gpu::open`], and that there are several.
    pub fn only() -> Result<Self, Failure> {
        let gpu = Self::open(Selector::Index(0))?;
        match gpu.nvml.device_count() {
            Ok(1) => Ok(gpu),
            _ => Err(Failure::unsupported("this machine has several GPUs: name one by its UUID")),
        }
    }

    /// The product's name.
    ///
    /// # Errors
    /// When the GPU does not answer.
    pub fn name(&self) -> Result<String, Failure> {
        self.ask("name", |device| device.name())
    }

    /// Energy since the driver was loaded, in joules. Refreshed about every 0.1 s.
    ///
    /// # Errors
    /// When the GPU does not count it (before Volta) or does not answer.
    pub fn total_energy_joules(&self) -> Result<f64, Failure> {
        self.ask("total energy", |device| device.total_energy_consumption())
            .map(|mj| mj as f64 * 1e-3)
    }

    /// Why the clock is lower now than it could be, as flags of a sample; empty where nothing holds
    /// it down.
    ///
    /// # Errors
    /// When the GPU does not tell or does not answer.
    pub fn flags(&self) -> Result<Vec<Flag>, Failure> {
        self.ask("clock event reasons", |device| device.current_throttle_reasons()).map(flags)
    }

    fn ask<T>(
        &self,
        what: &str,
        question: impl FnOnce(&Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<T, Failure> {
        question(&self.device()?).map_err(|error| {
            Failure::unsupported(format!("the GPU does not tell its {what}: {error}"))
        })
    }

    fn device(&self) -> Result<Device<'_>, Failure> {
        let found = match &self.which {
            Selector::Index(index) => self.nvml.device_by_index(*index),
            Selector::Uuid(uuid) => self.nvml.device_by_uuid(uuid.as_str()),
        };
        found.map_err(|error| {
            let count =
                self.nvml.device_count().map_or("unknown".to_owned(), |count| count.to_string());
            Failure::unsupported(format!(
                "no GPU {:?}: {error}; this machine has {count}",
                self.which
            ))
        })
    }
}

impl Meter for Gpu {
    fn source(&self) -> &'static str {
        "nvml"
    }

    fn joules(&mut self) -> Result<f64, Failure> {
        self.total_energy_joules()
    }
}

/// Several GPUs as one.
impl Meter for Vec<Gpu> {
    fn source(&self) -> &'static str {
        "nvml"
    }

    fn joules(&mut self) -> Result<f64, Failure> {
        self.iter().map(Gpu::total_energy_joules).sum()
    }
}

/// A slowdown by the hardware may have either cause and is called thermal unless the card says
/// power.
fn flags(reasons: ThrottleReasons) -> Vec<Flag> {
    let power = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let thermal = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    let unexplained = ThrottleReasons::HW_SLOWDOWN;
    let mut flags = Vec::new();
    if reasons.intersects(thermal)
        || (reasons.intersects(unexplained) && !reasons.intersects(power))
    {
        flags.push(Flag::Thermal);
    }
    if reasons.intersects(power) {
        flags.push(Flag::PowerCap);
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_and_power_are_flags_and_idling_is_none() {
        use ThrottleReasons as Reasons;
        assert_eq!(flags(Reasons::GPU_IDLE | Reasons::APPLICATIONS_CLOCKS_SETTING), []);
        assert_eq!(flags(Reasons::SW_POWER_CAP), [Flag::PowerCap]);
        assert_eq!(flags(Reasons::HW_SLOWDOWN), [Flag::Thermal]);
        assert_eq!(
            flags(Reasons::HW_SLOWDOWN | Reasons::HW_POWER_BRAKE_SLOWDOWN),
            [Flag::PowerCap]
        );
        let both = Reasons::SW_THERMAL_SLOWDOWN | Reasons::SW_POWER_CAP;
        assert_eq!(flags(both), [Flag::Thermal, Flag::PowerCap]);
    }

    #[test]
    fn a_machine_without_the_gpu_says_what_is_missing() {
        let failure = Gpu::open(Selector::Uuid("GPU-no-such-card".into())).unwrap_err();
        let words = ["NVIDIA driver", "no GPU"];
        assert!(words.iter().any(|word| failure.reason.contains(word)), "{failure}");
    }
}

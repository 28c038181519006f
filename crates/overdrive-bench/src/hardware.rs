//! The facts of a machine that decide whether two figures may be compared: models, counts, driver
//! and toolchain.
//!
//! Nothing here is calibrated, and nothing changes from boot to boot, as clocks, load and sizes of
//! free memory do. A key that held a measured frequency would split one machine's history into
//! many.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::environment::Environment;

/// The key of a machine and of what built the program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Hardware {
    /// The processor's marketing name.
    pub cpu: String,
    /// CPUs that the process may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Accelerators: product's name and driver, in the order of their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Operating system and architecture, compiler, extra flags.
    pub toolchain: String,
}

impl Hardware {
    /// The key of the machine that results are from.
    pub fn of(environment: &Environment) -> Self {
        let device = |device: &crate::environment::Accelerator| {
            let driver = device.properties.iter().find(|(name, _)| name.contains("driver"));
            match driver {
                Some((name, version)) => format!("{}, {name} {version}", device.name),
                None => device.name.clone(),
            }
        };
        let toolchain = &environment.toolchain;
        let parts = [&toolchain.rustc, &toolchain.target, &toolchain.profile, &toolchain.flags];
        let parts: Vec<&str> =
            parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        Self {
            cpu: environment.cpu.model.clone(),
            cpus: environment.allowed_cpus,
            devices: environment.devices.iter().map(device).collect(),
            toolchain: parts.join(", "),
        }
    }

    /// In what two machines differ, toolchains apart; nothing if, by all that is recorded, they are
    /// one.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let known = |cpus: Option<u32>| {
            cpus.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
        };
        let devices = |devices: &[String]| {
            if devices.is_empty() { "none".to_owned() } else { devices.join("; ") }
        };
        let pairs = [
            ("processor", self.cpu.clone(), other.cpu.clone()),
            ("CPUs", known(self.cpus), known(other.cpus)),
            ("accelerators", devices(&self.devices), devices(&other.devices)),
        ];
        let differing = pairs.into_iter().filter(|(_, one, two)| one != two);
        differing.map(|(what, one, two)| format!("{what}: {one} and {two}")).collect()
    }
}

/// `Some CPU, 2 CPUs, rustc 1.95.0, x86_64-unknown-linux-gnu, release`
impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cpu)?;
        if let Some(count) = self.cpus {
            write!(f, ", {count} CPUs")?;
        }
        for device in &self.devices {
            write!(f, ", {device}")?;
        }
        write!(f, ", {}", self.toolchain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Accelerator;
    use std::collections::BTreeMap;

    #[test]
    fn clocks_and_load_do_not_split_a_machine_and_a_driver_does() {
        let mut environment = crate::testing::results().environment;
        let gpu = |driver: &str, clock: &str| Accelerator {
            key: "cuda:0".into(),
            name: "Some GPU".into(),
            properties: BTreeMap::from([
                ("driver".to_owned(), driver.to_owned()),
                ("sm_clock_mhz".to_owned(), clock.to_owned()),
            ]),
        };
        environment.devices = vec![gpu("580.1", "1980")];
        let first = Hardware::of(&environment);
        environment.devices = vec![gpu("580.1", "1410")];
        environment.load_average = Some(7.0);
        environment.cpu.max_mhz = Some(1234);
        assert_eq!(Hardware::of(&environment), first);
        environment.devices = vec![gpu("590.2", "1980")];
        let newer = Hardware::of(&environment);
        assert_eq!(
            first.differences(&newer),
            ["accelerators: Some GPU, driver 580.1 and Some GPU, driver 590.2"]
        );
        assert_eq!(
            first.to_string(),
            "Some CPU, 2 CPUs, Some GPU, driver 580.1, rustc 1.95.0, x86_64-unknown-linux-gnu, \
             release"
        );
    }
}

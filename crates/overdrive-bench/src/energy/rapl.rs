//! Intel's and AMD's RAPL energy counters of the processor packages. Linux shows them under
//! `/sys/class/powercap`. On most systems only root can read them, and most virtual machines lack
//! them.

use std::fs;
use std::path::{Path, PathBuf};

use super::Meter;
use crate::failure::Failure;

const FOLDER: &str = "/sys/class/powercap";

/// The package counters of a machine, summed.
#[derive(Debug)]
pub struct Rapl {
    packages: Vec<Package>,
    joules: f64,
}

#[derive(Debug)]
struct Package {
    counter: PathBuf,
    wraps_at_uj: u64,
    last_uj: u64,
}

impl Rapl {
    /// The machine's counters.
    ///
    /// # Errors
    /// If the counters are missing, or the right to read them.
    pub fn open() -> Result<Self, Failure> {
        Self::open_in(Path::new(FOLDER))
    }

    fn open_in(folder: &Path) -> Result<Self, Failure> {
        let absent = || {
            Failure::unsupported(format!(
                "no RAPL package counter under `{}`: the processor has none, or a virtual machine \
                 hides it",
                folder.display()
            ))
        };
        let mut packages = Vec::new();
        for entry in fs::read_dir(folder).map_err(|_| absent())?.flatten() {
            // `intel-rapl:0` is a package and `intel-rapl:0:0` a part of it. A platform domain
            // (`psys`) stands beside the packages and contains them. Neither may be counted twice.
            let name = entry.file_name().to_string_lossy().into_owned();
            let domain = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.matches(':').count() == 1 && domain.starts_with("package") {
                let counter = entry.path().join("energy_uj");
                let wraps_at_uj = read_number(&entry.path().join("max_energy_range_uj"))?;
                packages.push(Package { last_uj: read_number(&counter)?, counter, wraps_at_uj });
            }
        }
        if packages.is_empty() { Err(absent()) } else { Ok(Self { packages, joules: 0.0 }) }
    }
}

impl Meter for Rapl {
    fn source(&self) -> &'static str {
        "rapl"
    }

    /// Readings must be less than one wrap of a counter apart: some 20 minutes at 200 W.
    fn joules(&mut self) -> Result<f64, Failure> {
        for package in &mut self.packages {
            let now_uj = read_number(&package.counter)?;
            let wrapped = if now_uj < package.last_uj { package.wraps_at_uj } else { 0 };
            self.joules += (wrapped + now_uj).saturating_sub(package.last_uj) as f64 * 1e-6;
            package.last_uj = now_uj;
        }
        Ok(self.joules)
    }
}

fn read_number(path: &Path) -> Result<u64, Failure> {
    let text = fs::read_to_string(path).map_err(|reason| {
        Failure::unsupported(format!(
            "cannot read the energy counter `{}`: {reason}; root may, or whom root grants it",
            path.display()
        ))
    })?;
    text.trim()
        .parse()
        .map_err(|_| Failure::unsupported(format!("`{}` holds no number", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn packages_are_summed_parts_and_platform_are_not_and_counters_wrap() {
        let folder = tempfile::tempdir().unwrap();
        let write = |domain: &str, name: &str, energy: &str| {
            let domain = folder.path().join(domain);
            fs::create_dir_all(&domain).unwrap();
            fs::write(domain.join("name"), name).unwrap();
            fs::write(domain.join("energy_uj"), energy).unwrap();
            fs::write(domain.join("max_energy_range_uj"), "1000000\n").unwrap();
        };
        write("intel-rapl", "", "0");
        write("intel-rapl:0", "package-0\n", "900000\n");
        write("intel-rapl:0:0", "core\n", "5");
        write("intel-rapl:1", "package-1\n", "100000\n");
        write("intel-rapl:2", "psys\n", "0");
        let mut rapl = Rapl::open_in(folder.path()).unwrap();
        write("intel-rapl:0", "package-0\n", "100000\n");
        write("intel-rapl:1", "package-1\n", "150000\n");
        write("intel-rapl:2", "psys\n", "500000");
        let joules = rapl.joules().unwrap();
        assert!((joules - 0.25).abs() < 1e-9, "{joules}");
        assert_eq!(rapl.joules().unwrap(), joules, "nothing more was used");
    }

    #[test]
    fn no_counter_says_what_is_missing() {
        let failure = Rapl::open_in(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported);
        assert!(
            failure.reason.contains("/nonexistent") && failure.reason.contains("RAPL"),
            "{failure}"
        );
    }
}

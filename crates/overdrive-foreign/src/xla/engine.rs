//! XLA as an engine: on a GPU by the plugin that JAX brings, on the processor by one that the user
//! or a package has.

use super::backend::XlaBackend;
use super::plugin::Plugin;
use crate::engine::{Engine, EngineDevice, FoundEngine, Missing, OpenRequest, Places};
use crate::python;
use overdrive_ir::{Backend, Description};
use std::path::{Path, PathBuf};

/// XLA, by the kind of device that its plugin is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Xla {
    /// NVIDIA's, AMD's or Intel's.
    Gpu,
    /// The host's.
    Processor,
}

impl Xla {
    fn missing(self, reason: impl ToString) -> Missing {
        let remedy = match self {
            Self::Gpu => "`pip install jax[cuda13]`, or name a PJRT plugin: `--library xla=FILE`",
            Self::Processor => {
                "JAX has it inside: name a PJRT plugin that was built alone, `--library \
                 xla-cpu=FILE`"
            }
        };
        Missing {
            engine: self.name().to_owned(),
            reason: reason.to_string(),
            remedy: remedy.to_owned(),
        }
    }

    /// The plugin that the user named, or the first beside Python's packages.
    fn plugin(self, places: &Places) -> Result<PathBuf, Missing> {
        if let Some(named) = places.named(self.name()) {
            return Ok(named.to_owned());
        }
        let is_it = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match self {
                Self::Gpu => name.starts_with("xla_") && name.ends_with("_plugin.so"),
                Self::Processor => name == "pjrt_c_api_cpu_plugin.so",
            }
        };
        // JAX finds plugins in `jax_plugins/NAME/`; a package of its own has one in its folder.
        let mut found: Vec<PathBuf> = python::packages()
            .iter()
            .flat_map(|folder| [folders(&folder.join("jax_plugins")), folders(folder)].concat())
            .flat_map(|folder| entries(&folder))
            .filter(|path| is_it(path))
            .collect();
        // The newest CUDA, where several are there.
        found.sort();
        found.pop().ok_or_else(|| self.missing("no PJRT plugin beside Python's packages"))
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_dir()).collect()
}

impl Engine for Xla {
    fn name(&self) -> &'static str {
        match self {
            Self::Gpu => "xla",
            Self::Processor => "xla-cpu",
        }
    }

    fn about(&self) -> &'static str {
        "the compiler behind JAX, by a PJRT plugin"
    }

    fn runs_on(&self) -> EngineDevice {
        match self {
            Self::Gpu => EngineDevice::Gpu,
            Self::Processor => EngineDevice::Processor,
        }
    }

    fn find(&self, places: &Places) -> Result<FoundEngine, Missing> {
        let path = self.plugin(places)?;
        let (major, minor) = Plugin::load(&path).map_err(|e| self.missing(e))?.version();
        Ok(FoundEngine { version: format!("PJRT {major}.{minor}"), library: Some(path) })
    }

    fn open(&self, request: &OpenRequest<'_>) -> Result<Box<dyn Backend>, Missing> {
        let path = self.plugin(request.places)?;
        if *self == Self::Processor {
            // Its pool has a thread for each processor that the process may use, and no option says
            // otherwise.
            let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
            if request.threads != processors {
                let (asked, engine) = (request.threads, self.name().to_owned());
                let reason = format!("it takes {processors} threads, {asked} are asked for");
                let remedy = format!(
                    "ask for {processors}, or give the process {asked} processors: `taskset`"
                );
                return Err(Missing { engine, reason, remedy });
            }
        }
        let Description { memory_bytes, peaks, .. } = request.device.clone();
        let backend = XlaBackend::new(&path, request.ordinal).map_err(|e| self.missing(e))?;
        if (backend.description().device == "cpu") != (*self == Self::Processor) {
            return Err(self.missing(format!("{} is for {}", path.display(), backend.version())));
        }
        Ok(Box::new(backend.with_limits(memory_bytes, peaks)))
    }
}

//! `Engine`: a program of somebody else's that runs models, how it is found on this machine, and
//! how it becomes a [`Backend`].
//!
//! Invariant: finding an engine compiles nothing and changes nothing. An error about a missing part
//! says what to install.

use overdrive_ir::{Backend, Description, Graph, Mode, WithoutKernels};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A program that runs models.
pub trait Engine: Sync {
    /// Its name on the command line and in reports, and that of its back end.
    fn name(&self) -> &'static str;
    /// A description in one line.
    fn about(&self) -> &'static str;
    /// The device that it runs models on.
    fn runs_on(&self) -> EngineDevice;
    /// The modes that mean something of its own there.
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Compile]
    }
    /// Looks for it.
    ///
    /// # Errors
    /// If this machine lacks the engine; the error says what to install.
    fn find(&self, places: &Places) -> Result<FoundEngine, Missing>;
    /// Makes it ready for models.
    ///
    /// # Errors
    /// Those of `find`, and the engine's own error if it refuses to start.
    fn open(&self, request: &OpenRequest<'_>) -> Result<Box<dyn Backend>, Missing>;
}

/// The device that an engine runs models on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineDevice {
    /// The host's processor.
    Processor,
    /// A GPU.
    Gpu,
}

/// An engine that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEngine {
    /// Its version, in its own words.
    pub version: String,
    /// Its library; none where it is part of this program.
    pub library: Option<PathBuf>,
}

/// An engine that is not there, or does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{engine}: {reason}; {remedy}")]
pub struct Missing {
    /// Its name.
    pub engine: String,
    /// The missing part and the places searched, or the engine's own error.
    pub reason: String,
    /// The remedy: something to install or to do.
    pub remedy: String,
}

/// Places to search for libraries, besides those of Python packages.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Libraries that the user named, by engine: what is named is taken or the engine is missing.
    pub named: BTreeMap<String, PathBuf>,
    /// The folder that installed engines lie in.
    pub installed: Option<PathBuf>,
}

/// A request to open an engine.
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// Our own description of the device: its name, its memory, and what nothing on it can exceed.
    pub device: &'a Description,
    /// Threads on the host that it may use.
    pub threads: usize,
    /// Number of the GPU, for an engine that runs on one.
    pub ordinal: usize,
    /// Places to search for it.
    pub places: &'a Places,
    /// The file that the model came from, for engines that read such files themselves.
    pub original: Option<&'a OriginalFile>,
}

/// A user's ONNX file, and the graph that we read from it. An engine that runs this very graph gets
/// the file itself.
#[derive(Debug, Clone)]
pub struct OriginalFile {
    /// The file.
    pub path: PathBuf,
    /// Sizes of its named dimensions.
    pub sizes: BTreeMap<String, usize>,
    /// The graph that was read with these sizes.
    pub graph: Graph,
}

impl OpenRequest<'_> {
    /// The device as an engine has it: our device's name and limits, and no kernels of ours.
    pub(crate) fn target(&self) -> WithoutKernels {
        let &Description { ref device, memory_bytes, ref peaks, .. } = self.device;
        WithoutKernels(Description {
            device: device.clone(),
            memory_bytes,
            peaks: peaks.clone(),
            ..Description::default()
        })
    }
}

impl Places {
    /// The library that the user named for an engine.
    pub fn named(&self, engine: &str) -> Option<&Path> {
        self.named.get(engine).map(PathBuf::as_path)
    }
}

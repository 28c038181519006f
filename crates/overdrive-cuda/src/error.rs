//! What CUDA and its libraries report, in their own words.

use cudarc::driver::DriverError;
use cudarc::nvrtc::result::NvrtcError;

/// Why a call of CUDA failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A library is not on this machine.
    #[error("{library} was not found: {remedy}")]
    Missing {
        /// Name of the library.
        library: &'static str,
        /// What to install, or which variable to set.
        remedy: &'static str,
    },
    /// The driver refused.
    #[error("CUDA: {0}")]
    Driver(#[from] DriverError),
    /// NVRTC itself failed.
    #[error("NVRTC: {0}")]
    Nvrtc(#[from] NvrtcError),
    /// A kernel does not compile: our defect.
    #[error("kernel `{kernel}` does not compile for {architecture}:\n{log}")]
    Compile {
        /// Name of the source.
        kernel: String,
        /// The architecture, as in `sm_90a`.
        architecture: String,
        /// The compiler's words.
        log: String,
    },
}

//! Errors that CUDA and its libraries report, in their own words.

use crate::host_memory::host_bytes;
use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use cudarc::nvrtc::result::NvrtcError;
use overdrive_ir::{BackendError, RankError};

/// Why a call of CUDA failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A library is not on this machine.
    #[error("{library} was not found: {remedy}")]
    Missing {
        /// Name of the library.
        library: &'static str,
        /// The package to install, or the variable to set.
        remedy: &'static str,
    },
    /// The driver is older than what this program was built against.
    #[error(
        "the driver runs CUDA up to {found}, expected 13.0 or later: install driver 580 or later"
    )]
    OldDriver {
        /// The newest CUDA that it runs.
        found: String,
    },
    /// There is no GPU of this number.
    #[error("no GPU {ordinal}: this machine has {found}; use one of those, or `--device cpu`")]
    NoSuchDevice {
        /// The requested number.
        ordinal: usize,
        /// The GPUs that there are.
        found: String,
    },
    /// The device has not as much memory left.
    #[error("{needed} bytes of device memory were asked for, {available} are free")]
    OutOfMemory {
        /// Requested bytes.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// The host has not as much memory left that may be pinned.
    #[error("{needed} bytes of pinned host memory were asked for and refused")]
    PinnedMemory {
        /// Requested bytes.
        needed: u64,
    },
    /// A loop of the host, in the middle of a plan, failed.
    #[error("loops on the host: {message}")]
    Host {
        /// The step or the cause.
        message: String,
    },
    /// The driver refused.
    #[error("{}", words(*.0))]
    Driver(DriverError),
    /// cuBLASLt refused.
    #[error("cuBLASLt: {0}")]
    CublasLt(#[from] CublasError),
    /// NVRTC itself failed.
    #[error("NVRTC: {0}")]
    Nvrtc(#[from] NvrtcError),
    /// NCCL failed.
    #[error("NCCL, at {call}: {message}")]
    Nccl {
        /// The function that was called.
        call: &'static str,
        /// NCCL's words.
        message: String,
    },
    /// Copies between GPUs failed.
    #[error("copies between GPUs: {message}")]
    Peers {
        /// The reason, and the remedy.
        message: String,
    },
    /// Another rank has failed.
    #[error(transparent)]
    Ranks(RankError),
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

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered`.
fn words(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(
            |_| format!("CUDA error {}", error.0 as u32),
            |s| s.to_string_lossy().into_owned(),
        )
    };
    let lost = if is_sticky(error.0) {
        "; the device's context is lost: what runs on other devices can go on, this one needs a \
         new process"
    } else {
        ""
    };
    format!("{}: {}{lost}", text(error.error_name()), text(error.error_string()))
}

/// Errors of a kernel that ran, after which every call of the context fails in the same way.
fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
    )
}

impl Error {
    /// The same for users of the back end. The failed step comes before CUDA's words.
    pub fn during(self, step: impl Into<String>) -> BackendError {
        match self {
            Self::OutOfMemory { needed, available } => BackendError::OutOfMemory {
                needed,
                available,
                remedy: format!(
                    "{}: use a smaller batch or sequence, a narrower type, or rematerialization; \
                     or free memory of the device",
                    step.into()
                ),
            },
            Self::PinnedMemory { needed } => BackendError::OutOfMemory {
                needed,
                available: host_bytes().unwrap_or(0),
                remedy: format!(
                    "{}: pinned host memory was refused; raise `--memory-limit`, so that less is \
                     kept there, or free memory of the host",
                    step.into()
                ),
            },
            Self::Ranks(error) => BackendError::Ranks(error),
            other => BackendError::Device { step: step.into(), message: other.to_string() },
        }
    }
}

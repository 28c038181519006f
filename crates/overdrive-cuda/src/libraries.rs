//! NVIDIA's libraries: which of them this machine has, in which version, and how to get the others.
//!
//! Why apart: the loader of `cudarc` panics where a library is missing, so whoever is about to call
//! one asks here first. Invariant: nothing here fails on a machine without any of them.

use crate::Error;
use cudarc::{cublaslt, driver, nvrtc};

/// A library that is loaded when the program runs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Library {
    /// The driver: without it there is no GPU.
    Driver,
    /// The compiler of kernels: without it nothing runs.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Collectives of several GPUs.
    Nccl,
}

impl Library {
    /// All of them, the indispensable ones first.
    pub const ALL: [Library; 4] = [Self::Driver, Self::Nvrtc, Self::CublasLt, Self::Nccl];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Nccl => "NCCL",
        }
    }

    /// The file that the loader looks for.
    pub fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Nvrtc => "libnvrtc.so.13",
            Self::CublasLt => "libcublasLt.so.13",
            Self::Nccl => crate::nccl::FILE,
        }
    }

    /// How to install it.
    pub fn remedy(self) -> &'static str {
        if cfg!(all(target_env = "musl", target_feature = "crt-static")) {
            return "this program is linked statically and loads no libraries; take the archive \
                    for glibc";
        }
        match self {
            Self::Driver => {
                "install NVIDIA's driver (it brings libcuda.so.1), or use `--device cpu`"
            }
            Self::Nvrtc => {
                "install the CUDA 13 toolkit's NVRTC, or `pip install nvidia-cuda-nvrtc` and add \
                 its lib folder to LD_LIBRARY_PATH"
            }
            Self::CublasLt => {
                "install the CUDA 13 toolkit's cuBLAS, or `pip install nvidia-cublas` and add its \
                 lib folder to LD_LIBRARY_PATH"
            }
            Self::Nccl => {
                "for several GPUs install NCCL 2.14 or later (libnccl2), or `pip install \
                 nvidia-nccl-cu13` and add its nvidia/nccl/lib folder to LD_LIBRARY_PATH"
            }
        }
    }

    /// Whether the loader finds it.
    pub fn is_present(self) -> bool {
        // SAFETY: these only ask the loader for the library.
        unsafe {
            match self {
                Self::Driver => driver::sys::is_culib_present(),
                Self::Nvrtc => nvrtc::sys::is_culib_present(),
                Self::CublasLt => cublaslt::sys::is_culib_present(),
                Self::Nccl => crate::nccl::version().is_some(),
            }
        }
    }

    /// Errs with the remedy where the loader does not find it.
    ///
    /// # Errors
    /// `Missing`.
    pub fn require(self) -> Result<(), Error> {
        if self.is_present() {
            return Ok(());
        }
        Err(self.missing())
    }

    /// The error of a machine that lacks it, with the remedy.
    pub(crate) fn missing(self) -> Error {
        Error::Missing { library: self.file(), remedy: self.remedy() }
    }

    /// Its version, `(major, minor)`, as the library reports it. For the driver, it is the newest
    /// CUDA that it runs.
    pub fn version(self) -> Option<(u32, u32)> {
        if !self.is_present() {
            return None;
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there, and the pointers are to integers that outlive the calls.
        unsafe {
            match self {
                Self::Driver => {
                    driver::sys::cuDriverGetVersion(&mut major).result().ok()?;
                    (major, minor) = (major / 1000, major % 1000 / 10);
                }
                Self::Nvrtc => nvrtc::sys::nvrtcVersion(&mut major, &mut minor).result().ok()?,
                Self::CublasLt => {
                    let version = cublaslt::sys::cublasLtGetVersion() as i32;
                    (major, minor) = (version / 10_000, version % 10_000 / 100);
                }
                Self::Nccl => return crate::nccl::version(),
            }
        }
        Some((major as u32, minor as u32))
    }
}

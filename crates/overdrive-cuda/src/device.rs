//! `Device`: one GPU with its context, its work stream and the functions loaded on it.

use crate::Error;
use crate::compiler::{Architecture, Source, compile};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU of this machine.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    architecture: Architecture,
    /// By the name of the source and its text.
    modules: Mutex<HashMap<Source, Arc<CudaModule>>>,
}

impl Device {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// `Missing` without a driver; `Driver` when there is no such GPU.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        // SAFETY: only asks the loader for the library.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            let remedy = "install NVIDIA's driver (it brings libcuda.so.1), or use `--device cpu`";
            return Err(Error::Missing { library: "libcuda.so.1", remedy });
        }
        let context = CudaContext::new(ordinal)?;
        // SAFETY: all work of a device goes through one stream, so nothing needs the events of cudarc.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let (major, minor) = context.compute_capability()?;
        let architecture = Architecture::of_device(major as u32, minor as u32);
        Ok(Arc::new(Self { context, stream, architecture, modules: Mutex::default() }))
    }

    /// The context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The stream that all work of this device goes through.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// What kernels are compiled for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The function `entry` of a source, compiled and loaded at its first use.
    ///
    /// # Errors
    /// As `compile`, and what the driver says to the binary.
    pub fn function(&self, source: &Source, entry: &str) -> Result<CudaFunction, Error> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if !modules.contains_key(source) {
            let binary = compile(source, self.architecture)?;
            modules.insert(source.clone(), self.context.load_module(Ptx::from_binary(binary))?);
        }
        Ok(modules[source].load_function(entry)?)
    }
}

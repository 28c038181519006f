//! `Device`: one GPU with its context, its work stream, its memory pool and the functions loaded on
//! it.

use crate::Error;
use crate::cache::Cache;
use crate::compiler::{Architecture, KernelSource, compile_cached};
use crate::host_cores::{HostCores, HostShare};
use crate::libraries::Library;
use crate::occupancy::Occupancy;
use crate::pool::{Pool, PoolUse};
use crate::staging::Staging;
use cudarc::driver::sys::{self, CUdevice_attribute};
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaModule, CudaStream};
use cudarc::nvrtc::Ptx;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU of this machine.
#[derive(Debug)]
pub struct Device {
    /// Before the context, which the pinned memory belongs to.
    staging: Mutex<Staging>,
    /// Held by the thread that uses the stream, because a capture takes in the work that any thread
    /// enqueues.
    turn: ReentrantMutex<()>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    pool: Pool,
    properties: Properties,
    /// See `context_bytes`.
    context_bytes: Option<u64>,
    /// By the name of the source and its text.
    modules: Mutex<HashMap<KernelSource, Arc<CudaModule>>>,
    /// Compiled kernels of earlier runs.
    cache: Option<Cache>,
    /// Events that nobody uses.
    events: Mutex<Vec<CudaEvent>>,
    /// The part of the host that plans may give work.
    host_share: Mutex<HostShare>,
    /// Its cores, once one does.
    host_cores: Mutex<Option<Arc<HostCores>>>,
}

impl Drop for Device {
    /// Gives the memory that the pool kept back to the system. The pool outlives the device, and
    /// other processes could not have it: PyTorch found no room beside ranks that had ended.
    fn drop(&mut self) {
        // Frees are in the order of the stream. A device that failed has nothing to give.
        let freed = self.context.synchronize().map_err(Error::from);
        drop(freed.and_then(|()| self.trim_pool()));
    }
}

/// The driver's facts about a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Properties {
    /// The device's name: `NVIDIA H200`.
    pub name: String,
    /// The architecture that kernels are compiled for.
    pub architecture: Architecture,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the second-level cache.
    pub l2_bytes: usize,
    /// Memory, used or not.
    pub memory_bytes: u64,
    /// The highest SM clock.
    pub clock_hertz: f64,
    /// Theoretical bandwidth of the memory, in bytes per second.
    pub bytes_per_second: f64,
    /// Version of the driver, where the system tells: `580.159.03`.
    pub driver: Option<String>,
    /// The newest CUDA that the driver runs, as `(major, minor)`.
    pub cuda: (u32, u32),
}

impl Device {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// `Missing` without a driver or a compiler of kernels, `OldDriver`, `NoSuchDevice`; `Driver`
    /// with CUDA's words.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        let gpus = count()?;
        if ordinal >= gpus {
            let found = match gpus {
                0 => "none".to_owned(),
                1 => "one, `cuda:0`".to_owned(),
                n => format!("{n}, `cuda:0` to `cuda:{}`", n - 1),
            };
            return Err(Error::NoSuchDevice { ordinal, found });
        }
        Library::Nvrtc.require()?;
        let opening = Occupancy::before(ordinal);
        let context = CudaContext::new(ordinal)?;
        let context_bytes = opening.and_then(|opening| opening.grown_bytes());
        // SAFETY: all work of a device goes through one stream, so nothing needs the events of
        // cudarc.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let pool = Pool::keeping(&context)?;
        let properties = properties(&context)?;
        let staging = Mutex::new(Staging::new(&context, &stream)?);
        let (modules, events) = (Mutex::default(), Mutex::default());
        let cache = Cache::of_user();
        Ok(Arc::new(Self {
            staging,
            turn: ReentrantMutex::new(()),
            context,
            stream,
            pool,
            properties,
            context_bytes,
            modules,
            cache,
            events,
            host_share: Mutex::default(),
            host_cores: Mutex::default(),
        }))
    }

    /// The context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The stream that all work of this device goes through.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Bytes of the device's memory that the driver took for this process when the context was
    /// made. The figure is absent without NVIDIA's management library, and where this process had
    /// opened the device before.
    pub fn context_bytes(&self) -> Option<u64> {
        self.context_bytes
    }

    /// The driver's facts about it.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The architecture that kernels are compiled for.
    pub fn architecture(&self) -> Architecture {
        self.properties.architecture
    }

    /// The function `entry` of a source, compiled and loaded at its first use.
    ///
    /// # Errors
    /// Those of `compile`, and the driver's when it loads the binary.
    pub fn function(&self, source: &KernelSource, entry: &str) -> Result<CudaFunction, Error> {
        let modules = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        // A statement of its own: the lock must not be held while a kernel is compiled.
        let known = modules().get(source).cloned();
        let module = match known {
            Some(module) => module,
            None => {
                let code = compile_cached(source, self.architecture(), self.cache.as_ref())?;
                let module = self.context.load_module(Ptx::from_binary(code.to_vec()))?;
                Arc::clone(modules().entry(source.clone()).or_insert(module))
            }
        };
        Ok(module.load_function(entry)?)
    }

    /// Bytes of the stream-ordered pool.
    ///
    /// # Errors
    /// The driver's error.
    pub fn pool_use(&self) -> Result<PoolUse, Error> {
        self.pool.used()
    }

    /// Gives unused memory of the pool back to the system.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn trim_pool(&self) -> Result<(), Error> {
        self.pool.trim()
    }

    /// Keeps steps of the host to a part of it, from the next plan that has some on.
    pub(crate) fn share_host(&self, share: HostShare) {
        *self.host_share.lock().unwrap_or_else(PoisonError::into_inner) = share;
        *self.host_cores.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The cores of the host, for steps that run there.
    ///
    /// # Errors
    /// `Host` when the system starts no threads.
    pub(crate) fn host_cores(&self) -> Result<Arc<HostCores>, Error> {
        let mut known = self.host_cores.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = match known.take() {
            Some(cores) => cores,
            None => {
                let share = self.host_share.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::new(HostCores::new(*share)?)
            }
        };
        Ok(Arc::clone(known.insert(cores)))
    }

    /// Errs with the step of the host that failed since the last look.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) fn check_host(&self) -> Result<(), Error> {
        let known = self.host_cores.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.map_or(Ok(()), |cores| cores.check())
    }

    /// The stream's use by this thread alone, as long as the guard lives. A thread may hold
    /// several.
    pub(crate) fn turn(&self) -> ReentrantMutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn upload(&self, from: &[u8], to: sys::CUdeviceptr) -> Result<(), Error> {
        let _turn = self.turn();
        self.staging.lock().unwrap_or_else(PoisonError::into_inner).upload(from, to)
    }

    /// Copies to the host, and waits for it.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn download(&self, from: sys::CUdeviceptr, to: &mut [u8]) -> Result<(), Error> {
        let _turn = self.turn();
        self.staging.lock().unwrap_or_else(PoisonError::into_inner).download(from, to)
    }

    /// An event with a clock, to be given back by `recycle`.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn event(&self) -> Result<CudaEvent, Error> {
        let waiting = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match waiting {
            Some(event) => Ok(event),
            None => Ok(self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?),
        }
    }

    /// Takes an event that nobody waits for any more.
    pub(crate) fn recycle(&self, event: CudaEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// GPUs that the driver shows.
///
/// # Errors
/// `Missing` without a driver; `OldDriver`; `Driver` where it does not start.
pub fn count() -> Result<usize, Error> {
    Library::Driver.require()?;
    if let Some((major, minor)) = Library::Driver.version().filter(|&version| version < (13, 0)) {
        return Err(Error::OldDriver { found: format!("{major}.{minor}") });
    }
    match CudaContext::device_count() {
        Ok(count) => Ok(count as usize),
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
        Err(e) => Err(e.into()),
    }
}

fn properties(context: &CudaContext) -> Result<Properties, Error> {
    let attribute = |which| context.attribute(which);
    let (major, minor) = context.compute_capability()?;
    let memory_kilohertz = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
    let bus_bits = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
    Ok(Properties {
        name: context.name()?,
        architecture: Architecture::of_device(major as u32, minor as u32),
        multiprocessors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?
            as u32,
        l2_bytes: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        memory_bytes: context.total_mem()? as u64,
        clock_hertz: f64::from(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?)
            * 1e3,
        // Two transfers a cycle.
        bytes_per_second: 2.0 * f64::from(memory_kilohertz) * 1e3 * f64::from(bus_bits) / 8.0,
        driver: std::fs::read_to_string("/sys/module/nvidia/version")
            .ok()
            .map(|v| v.trim().to_owned()),
        cuda: Library::Driver.version().unwrap_or_default(),
    })
}

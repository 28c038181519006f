//! Random initial states, drawn where they lie: 1.3 G numbers take sixteen cores of a host seconds.
//!
//! Elements are bit for bit those of [`Init::tensor`]. Random bits are the same, and so are the
//! operations in f64. A device and a host round each of them alike.

use crate::compiler::{Architecture, KernelSource};
use crate::kernels::line::SourceByArchitecture;
use crate::memory::DeviceBytes;
use crate::{Device, Error};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use overdrive_ir::eval::philox;
use overdrive_ir::{DType, Init, TensorType};

/// Threads of a block; each draws four elements.
const THREADS: usize = 256;

/// The kernels for each type of elements.
pub(crate) fn sources() -> Vec<SourceByArchitecture> {
    let floats = DType::ALL.into_iter().filter(|&dtype| is_written(dtype));
    floats.map(|dtype| (source(dtype), &Architecture::DECLARED[..])).collect()
}

/// Whether a kernel writes elements of a type: floats of whole bytes.
fn is_written(dtype: DType) -> bool {
    dtype.is_float() && dtype.bits() >= 8
}

fn source(dtype: DType) -> KernelSource {
    let defines = vec![("ELEMENT", dtype.to_string())];
    KernelSource { name: "draw".into(), text: include_str!("draw.cu").into(), defines }
}

/// A random state that a device can draw.
pub(crate) struct Drawing {
    kernel: &'static str,
    dtype: DType,
    elements: u64,
    blocks: u32,
    seed: u64,
    site: u64,
    /// Standard deviation or half width.
    scale: f64,
}

impl Drawing {
    /// The drawing of the state `name`; none if it is not random, or the host must do it.
    pub(crate) fn of(init: &Init, name: &str, ty: &TensorType) -> Option<Self> {
        let (kernel, seed, scale) = match *init {
            Init::Normal { std, seed } => ("draw_normal", seed, std),
            Init::Uniform { bound, seed } => ("draw_uniform", seed, bound),
            _ => return None,
        };
        let blocks = u32::try_from(ty.elements().div_ceil(4 * THREADS)).ok()?;
        let (dtype, elements) = (ty.dtype, ty.elements() as u64);
        let site = philox::site_of(name);
        let is_ours = is_written(dtype) && blocks > 0;
        is_ours.then_some(Self { kernel, dtype, elements, blocks, seed, site, scale })
    }

    /// Enqueues it; `to` has the bytes of its type.
    ///
    /// # Errors
    /// As compiling and launching.
    pub(crate) fn enqueue(&self, device: &Device, to: &DeviceBytes) -> Result<(), Error> {
        let function = device.function(&source(self.dtype), self.kernel)?;
        let config = LaunchConfig {
            grid_dim: (self.blocks, 1, 1),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        let to = to.address();
        let mut launch = device.stream().launch_builder(&function);
        launch.arg(&to).arg(&self.elements).arg(&self.seed).arg(&self.site).arg(&self.scale);
        // SAFETY: the kernel takes these five, and writes no element from `elements` on.
        unsafe { launch.launch(config)? };
        Ok(())
    }
}

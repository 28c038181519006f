//! Strided copies: the widest elements that sizes, strides and addresses allow.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use overdrive_ir::plan::View;

use super::element;
use super::line::SourceByArchitecture;
use super::nest::{Nest, ViewStart, one_each, position};
use super::source::source;
use crate::compiler::{Architecture, KernelSource};
use crate::launch::Refusal;
use crate::{Device, Error};

/// The kernel and what it includes.
const TEXT: &str = concat!(include_str!("nest.cuh"), include_str!("transfer.cu"));

/// The widest element that a thread moves, in bytes.
pub(super) const WIDEST: usize = 16;

/// A compiled copy from a view to another of equal extents.
#[derive(Debug)]
pub(super) struct Transfer {
    nest: Nest<2>,
    function: CudaFunction,
    config: LaunchConfig,
}

/// A copy before any device has seen it.
#[derive(Debug)]
pub(super) struct TransferShape {
    nest: Nest<2>,
    source: KernelSource,
    config: LaunchConfig,
}

/// Representative specialisations of all sources.
pub(super) fn sources() -> Vec<SourceByArchitecture> {
    let of = |(bytes, position): (&str, &str)| {
        let defines = vec![("BYTES", bytes.to_owned()), ("POSITION", position.to_owned())];
        (source("transfer", TEXT, defines), &Architecture::DECLARED[..])
    };
    [("16", "u32"), ("1", "u64")].map(of).into()
}

impl TransferShape {
    pub(super) fn new(from: &View, to: &View) -> Result<Self, Refusal> {
        let mut nest = Nest::new(&to.ty.sizes(), [&from.strides, &to.strides])?;
        let mut bytes = element::bytes(to.ty.dtype)?;
        let aligned =
            |bytes| ViewStart::new(from).is_aligned(bytes) && ViewStart::new(to).is_aligned(bytes);
        while bytes < WIDEST && nest.can_double() && aligned(2 * bytes) {
            nest.double();
            bytes *= 2;
        }
        let defines =
            vec![("BYTES", bytes.to_string()), ("POSITION", position(nest.count).to_owned())];
        let config = one_each(nest.count)?;
        Ok(Self { nest, source: source("transfer", TEXT, defines), config })
    }

    pub(super) fn load(self, device: &Device) -> Result<Transfer, Error> {
        let function = device.function(&self.source, "transfer")?;
        Ok(Transfer { nest: self.nest, function, config: self.config })
    }
}

impl Transfer {
    /// # Safety
    /// The addresses are those of the views.
    pub(super) unsafe fn run(
        &self,
        stream: &Arc<CudaStream>,
        [from, to]: [CUdeviceptr; 2],
    ) -> Result<(), Error> {
        if self.nest.count == 0 {
            return Ok(());
        }
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(&from).arg(&to).arg(&self.nest);
        // SAFETY: as the caller promised; the parameters are those of the kernel.
        unsafe { launch.launch(self.config)? };
        Ok(())
    }
}

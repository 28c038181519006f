//! `reduce_window`: folds of a sliding window (pooling), a thread per result.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use overdrive_ir::plan::View;
use overdrive_ir::{Prim, Reducer, Window};

use super::element;
use super::line::{CallShape, Compile, Launched, NamedKernel, Shaped, Sources};
use super::nest::{RANK, ViewStart, one_each};
use super::source::source;
use crate::Error;
use crate::compiler::KernelSource;
use crate::launch::{Addresses, Launch, Refusal, Site};

/// The kernel and what it includes.
const TEXT: &str = concat!(include_str!("nest.cuh"), include_str!("reduce_window.cu"));

/// `Windows` of `reduce_window.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Windows {
    rank: u32,
    count: u64,
    results: [u32; RANK],
    result_strides: [i64; RANK],
    operands: [u32; RANK],
    operand_strides: [i64; RANK],
    taps: [u32; RANK],
    strides: [u32; RANK],
    dilations: [u32; RANK],
    pads: [u32; RANK],
    all_taps: u32,
}

// SAFETY: plain numbers in C's layout.
unsafe impl DeviceRepr for Windows {}

impl Windows {
    fn new(operand: &View, result: &View, windows: &[Window]) -> Result<Self, Refusal> {
        let (from, to) = (operand.ty.sizes(), result.ty.sizes());
        let taps: usize = windows.iter().map(|window| window.size).product();
        let largest = windows
            .iter()
            .flat_map(|w| [w.size, w.stride, w.dilation, w.pad_low, w.pad_high])
            .chain(from.iter().copied())
            .chain([taps])
            .max();
        if windows.len() > RANK || largest.is_some_and(|n| n > 1 << 29) {
            let reason = format!("windows {windows:?}; {RANK} dimensions of 2^29 are the most");
            return Err(Refusal::Unsupported(reason));
        }
        let mut all = Self {
            rank: windows.len() as u32,
            count: result.ty.elements() as u64,
            results: [1; RANK],
            result_strides: [0; RANK],
            operands: [1; RANK],
            operand_strides: [0; RANK],
            taps: [1; RANK],
            strides: [1; RANK],
            dilations: [1; RANK],
            pads: [0; RANK],
            all_taps: taps as u32,
        };
        for (d, window) in windows.iter().enumerate() {
            (all.results[d], all.result_strides[d]) = (to[d] as u32, result.strides[d]);
            (all.operands[d], all.operand_strides[d]) = (from[d] as u32, operand.strides[d]);
            (all.taps[d], all.strides[d]) = (window.size as u32, window.stride as u32);
            (all.dilations[d], all.pads[d]) = (window.dilation as u32, window.pad_low as u32);
        }
        Ok(all)
    }
}

/// A `reduce_window` before any device has seen it.
#[derive(Debug)]
struct ReduceWindowShape {
    windows: Windows,
    source: KernelSource,
    config: LaunchConfig,
    operand: ViewStart,
    result: ViewStart,
}

/// A compiled `reduce_window`.
#[derive(Debug)]
struct ReduceWindow {
    shape: ReduceWindowShape,
    function: CudaFunction,
}

/// `reduce_window`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines: |_, operands| element::combines(operands),
    ..NamedKernel::new(
        "reduce_window",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::ReduceWindow { reducer, windows }, &[operand], &[Some(result)]) => {
                Some(shape([operand, result], *reducer, windows))
            }
            _ => None,
        }),
        Sources::All(sources),
    )
};

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let of = |(element, fold): (&str, &str)| {
        let defines = vec![("ELEMENT", element.to_owned()), ("FOLD", fold.to_owned())];
        source("reduce_window", TEXT, defines)
    };
    element::REPRESENTATIVES.map(of).into()
}

/// The shape of a `reduce_window`.
fn shape([operand, result]: [&View; 2], reducer: Reducer, windows: &[Window]) -> Shaped {
    let dtype = operand.ty.dtype;
    let defines = vec![
        ("ELEMENT", element::combined(dtype)?.to_owned()),
        ("FOLD", element::fold(reducer).to_owned()),
    ];
    let windows = Windows::new(operand, result, windows)?;
    let (source, config) = (source("reduce_window", TEXT, defines), one_each(windows.count)?);
    let [operand, result] = [operand, result].map(ViewStart::new);
    Ok(Box::new(ReduceWindowShape { windows, source, config, operand, result }))
}

impl CallShape for ReduceWindowShape {
    fn load(self: Box<Self>, site: &Site<'_>) -> Launched {
        let function = site.device.function(&self.source, "reduce_window")?;
        Ok(Box::new(ReduceWindow { shape: *self, function }))
    }
}

impl Launch for ReduceWindow {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let ReduceWindowShape { windows, config, operand, result, .. } = &self.shape;
        if windows.count == 0 {
            return Ok(());
        }
        let [operand, result] = [operand, result].map(|place| place.of(addresses));
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(&operand).arg(&result).arg(windows);
        // SAFETY: the parameters are those of the kernel, which reads only taps that are inside.
        unsafe { launch.launch(*config)? };
        Ok(())
    }
}

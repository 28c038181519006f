//! `sort`: sorted values and their original positions, along one axis, stable (`sort.cu` says how).

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use overdrive_ir::plan::View;
use overdrive_ir::{Prim, SortOrder};

use super::element;
use super::line::{CallShape, Compile, Launched, NamedKernel, Shaped, Sources};
use super::nest::{Nest, ViewStart};
use super::source::source;
use crate::Error;
use crate::compiler::KernelSource;
use crate::launch::{Addresses, Launch, Refusal, Site};

/// The kernel and what it includes.
const TEXT: &str = concat!(include_str!("nest.cuh"), include_str!("sort.cu"));

/// Elements that a block sorts in shared memory: 32 KiB of the widest pairs.
const CHUNK: u32 = 2048;
/// Threads of a block that works on a chunk, and of one that works on single elements.
const THREADS: u32 = 1024;
/// Blocks that the second dimension of a grid has.
const GRID_Y: u32 = 65535;

/// `SortLines` of `sort.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct SortLines {
    nest: Nest<3>,
    steps: [i64; 3],
    length: u32,
}

// SAFETY: plain numbers in C's layout.
unsafe impl DeviceRepr for SortLines {}

/// A sort before any device has seen it.
#[derive(Debug)]
struct SortShape {
    lines: SortLines,
    /// A power of two.
    padded: u32,
    source: KernelSource,
    operand: ViewStart,
    results: [Option<ViewStart>; 2],
    pair_bytes: usize,
}

/// A compiled sort.
#[derive(Debug)]
struct Sort {
    shape: SortShape,
    passes: Passes,
}

#[derive(Debug)]
enum Passes {
    /// A block per line.
    One(CudaFunction),
    /// Through the workspace.
    Many(Box<Long>),
}

#[derive(Debug)]
struct Long {
    load: CudaFunction,
    sort_chunks: CudaFunction,
    merge_step: CudaFunction,
    merge_chunks: CudaFunction,
    store: CudaFunction,
}

/// `sort`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines: |_, operands| element::combines(operands),
    ..NamedKernel::new(
        "sort",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::Sort { axis, order }, &[operand], &[values, indices]) => {
                Some(shape(operand, [values, indices], (*axis, *order)))
            }
            _ => None,
        }),
        Sources::All(sources),
    )
};

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let of = |(element, _): (&str, &str)| {
        let mut defines = vec![("ELEMENT", element.to_owned()), ("CHUNK", CHUNK.to_string())];
        if element != "f64" {
            defines.push(("DESCENDING", "1".to_owned()));
        }
        source("sort", TEXT, defines)
    };
    element::REPRESENTATIVES.map(of).into()
}

/// The shape of a sort along `axis`.
fn shape(operand: &View, results: [Option<&View>; 2], (axis, order): (usize, SortOrder)) -> Shaped {
    let mut sizes = operand.ty.sizes();
    let length = sizes.remove(axis);
    let without = |view: &View| {
        let mut strides = view.strides.clone();
        let step = strides.remove(axis);
        (strides, step)
    };
    let absent = (vec![0; sizes.len()], 0);
    let [from, values, indices] =
        [Some(operand), results[0], results[1]].map(|view| view.map_or(absent.clone(), without));
    let nest = Nest::new(&sizes, [&from.0, &values.0, &indices.0])?;
    if nest.count > i32::MAX as u64 || length > (GRID_Y * THREADS / 2) as usize {
        let found = format!("{} lines of {length}", nest.count);
        return Err(Refusal::Unsupported(format!(
            "{found} elements are more than one sort takes; split them"
        )));
    }
    let mut defines = vec![
        ("ELEMENT", element::combined(operand.ty.dtype)?.to_owned()),
        ("CHUNK", CHUNK.to_string()),
    ];
    if order == SortOrder::Descending {
        defines.push(("DESCENDING", String::new()));
    }
    Ok(Box::new(SortShape {
        lines: SortLines { nest, steps: [from.1, values.1, indices.1], length: length as u32 },
        padded: (length as u32).next_power_of_two().max(2),
        source: source("sort", TEXT, defines),
        operand: ViewStart::new(operand),
        results: results.map(|view| view.map(ViewStart::new)),
        pair_bytes: if operand.ty.dtype.bits() == 64 { 16 } else { 8 },
    }))
}

impl CallShape for SortShape {
    /// A long line waits in scratch between passes, as pairs of value and position.
    fn scratch_bytes(&self) -> usize {
        if self.padded <= CHUNK {
            return 0;
        }
        self.lines.nest.count as usize * self.padded as usize * self.pair_bytes
    }

    fn load(self: Box<Self>, site: &Site<'_>) -> Launched {
        let function = |entry| site.device.function(&self.source, entry);
        let passes = if self.padded <= CHUNK {
            Passes::One(function("sort_lines")?)
        } else {
            Passes::Many(Box::new(Long {
                load: function("load")?,
                sort_chunks: function("sort_chunks")?,
                merge_step: function("merge_step")?,
                merge_chunks: function("merge_chunks")?,
                store: function("store")?,
            }))
        };
        Ok(Box::new(Sort { shape: *self, passes }))
    }
}

impl Long {
    /// # Safety
    /// `pairs` has room for all lines, and the other addresses are those of the views.
    unsafe fn run(
        &self,
        stream: &Arc<CudaStream>,
        [from, values, indices, pairs]: [CUdeviceptr; 4],
        (lines, padded): (&SortLines, u32),
    ) -> Result<(), Error> {
        let over = |blocks: u32| LaunchConfig {
            grid_dim: (lines.nest.count as u32, blocks, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let each = over(padded / THREADS);
        let chunks = over(padded / CHUNK);
        // SAFETY: as the caller promised; the parameters are those of the kernels.
        unsafe {
            stream
                .launch_builder(&self.load)
                .arg(&from)
                .arg(&pairs)
                .arg(lines)
                .arg(&padded)
                .launch(each)?;
            stream.launch_builder(&self.sort_chunks).arg(&pairs).arg(&padded).launch(chunks)?;
            let mut block = 2 * CHUNK;
            while block <= padded {
                let mut distance = block / 2;
                while distance >= CHUNK {
                    let mut launch = stream.launch_builder(&self.merge_step);
                    launch.arg(&pairs).arg(&padded).arg(&block).arg(&distance).launch(chunks)?;
                    distance /= 2;
                }
                let mut launch = stream.launch_builder(&self.merge_chunks);
                launch.arg(&pairs).arg(&padded).arg(&block).launch(chunks)?;
                block *= 2;
            }
            let mut launch = stream.launch_builder(&self.store);
            launch
                .arg(&from)
                .arg(&values)
                .arg(&indices)
                .arg(&pairs)
                .arg(lines)
                .arg(&padded)
                .launch(each)?;
        }
        Ok(())
    }
}

impl Launch for Sort {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let SortShape { lines, padded, operand, results, .. } = &self.shape;
        if lines.nest.count == 0 || lines.length == 0 {
            return Ok(());
        }
        let from = operand.of(addresses);
        let [values, indices] = results.map(|place| place.map_or(0, |place| place.of(addresses)));
        match &self.passes {
            Passes::One(function) => {
                let config = LaunchConfig {
                    grid_dim: (lines.nest.count as u32, 1, 1),
                    block_dim: ((padded / 2).clamp(32, THREADS), 1, 1),
                    shared_mem_bytes: 0,
                };
                let mut launch = stream.launch_builder(function);
                launch.arg(&from).arg(&values).arg(&indices).arg(lines).arg(padded);
                // SAFETY: the parameters are those of the kernel, and a chunk has room for the
                // line.
                unsafe { launch.launch(config)? };
                Ok(())
            }
            Passes::Many(long) => {
                let places = [from, values, indices, addresses.workspace()];
                // SAFETY: the workspace has the requested size.
                unsafe { long.run(stream, places, (lines, *padded)) }
            }
        }
    }

    fn workspace_bytes(&self) -> usize {
        self.shape.scratch_bytes()
    }
}

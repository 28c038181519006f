//! `gather`: windows of an operand at positions that are data; a thread moves up to 16 bytes of
//! one.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use overdrive_ir::Prim;
use overdrive_ir::plan::View;

use super::element;
use super::line::{CallShape, Compile, Launched, NamedKernel, Shaped, Sources};
use super::nest::{Nest, ViewStart, one_each, position};
use super::rows::IndexedRows;
use super::source::source;
use super::transfer::WIDEST;
use crate::Error;
use crate::compiler::KernelSource;
use crate::launch::{Addresses, Launch, Site};

/// The kernel and what it includes.
const TEXT: &str =
    concat!(include_str!("nest.cuh"), include_str!("rows.cuh"), include_str!("gather.cu"));

/// A gather before any device has seen it.
#[derive(Debug)]
struct GatherShape {
    rows: IndexedRows,
    window: Nest<2>,
    source: KernelSource,
    config: LaunchConfig,
    /// Operand, indices, result.
    places: [ViewStart; 3],
}

/// A compiled gather.
#[derive(Debug)]
struct Gather {
    shape: GatherShape,
    function: CudaFunction,
}

/// `gather`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines: |_, operands| element::moves(operands),
    ..NamedKernel::new(
        "gather",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::Gather { axes }, &[operand, indices], &[Some(result)]) => {
                Some(shape([operand, indices], result, axes))
            }
            _ => None,
        }),
        Sources::All(sources),
    )
};

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let of = |(index, (bytes, position)): (&str, (&str, &str))| {
        let defines = [("BYTES", bytes), ("POSITION", position), ("INDEX", index)];
        source("gather", TEXT, defines.map(|(key, value)| (key, value.to_owned())).into())
    };
    let widths = [("16", "u32"), ("1", "u64")];
    widths
        .into_iter()
        .flat_map(|width| ["i32", "u64"].map(|index| (index, width)))
        .map(of)
        .collect()
}

/// The shape of a gather along `axes`.
fn shape([operand, indices]: [&View; 2], result: &View, axes: &[usize]) -> Shaped {
    let mut rows = IndexedRows::new(operand, indices, axes, result)?;
    let (sizes, strides) = operand.without(axes);
    let mut window = Nest::new(&sizes, [&strides, &result.strides[indices.ty.rank() - 1..]])?;
    let places = [operand, indices, result].map(ViewStart::new);
    let mut bytes = element::bytes(result.ty.dtype)?;
    let aligned = |bytes| places[0].is_aligned(bytes) && places[2].is_aligned(bytes);
    while bytes < WIDEST && window.can_double() && rows.can_double() && aligned(2 * bytes) {
        window.double();
        rows.double();
        bytes *= 2;
    }
    let count = rows.nest.count * window.count;
    let mut defines = vec![
        ("BYTES", bytes.to_string()),
        ("POSITION", position(count).to_owned()),
        ("INDEX", indices.ty.dtype.name().to_owned()),
    ];
    if operand.ty.elements() == 0 {
        defines.push(("EMPTY", String::new()));
    }
    let (source, config) = (source("gather", TEXT, defines), one_each(count)?);
    Ok(Box::new(GatherShape { rows, window, source, config, places }))
}

impl CallShape for GatherShape {
    fn load(self: Box<Self>, site: &Site<'_>) -> Launched {
        let function = site.device.function(&self.source, "gather")?;
        Ok(Box::new(Gather { shape: *self, function }))
    }
}

impl Launch for Gather {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let GatherShape { rows, window, config, places, .. } = &self.shape;
        if config.grid_dim.0 == 0 {
            return Ok(());
        }
        let [operand, indices, result] = places.map(|place| place.of(addresses));
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(&operand).arg(&indices).arg(&result).arg(rows).arg(window);
        // SAFETY: the parameters are those of the kernel; clamped indices keep windows inside of
        // the operand.
        unsafe { launch.launch(*config)? };
        Ok(())
    }
}

//! `scatter`: updates folded into windows in the order of their rows, the same bits on every run
//! (`scatter.cu` says how).

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use overdrive_ir::plan::View;
use overdrive_ir::{Prim, Reducer};

use super::element;
use super::line::{CallShape, Compile, Launched, NamedKernel, Shaped, Sources};
use super::nest::{Nest, ViewStart, one_each};
use super::rows::IndexedRows;
use super::source::source;
use super::transfer::{Transfer, TransferShape};
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Refusal, Site};

/// The kernel and what it includes.
const TEXT: &str =
    concat!(include_str!("nest.cuh"), include_str!("rows.cuh"), include_str!("scatter.cu"));

/// `Destinations` of `scatter.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Destinations {
    rows: IndexedRows,
    /// Over the elements of a window: strides in the updates, and in the result.
    window: Nest<2>,
}

// SAFETY: plain numbers in C's layout.
unsafe impl DeviceRepr for Destinations {}

/// A scatter before any device has seen it.
#[derive(Debug)]
struct ScatterShape {
    whole: TransferShape,
    places: Destinations,
    source: KernelSource,
    /// The launch of few rows; rows, destinations, elements of all windows of many.
    configs: Result<LaunchConfig, [LaunchConfig; 3]>,
    /// Operand, indices, updates, result.
    views: [ViewStart; 4],
}

/// A compiled scatter.
#[derive(Debug)]
struct Scatter {
    whole: Transfer,
    places: Destinations,
    /// Count, allocate, fill, order, fold.
    functions: [CudaFunction; 5],
    /// Rows, destinations, elements of all windows.
    configs: [LaunchConfig; 3],
    /// Operand, indices, updates, result.
    views: [ViewStart; 4],
}

/// `scatter`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines: |op, operands| match op.prim() {
        Some(Prim::Scatter { reducer: Some(_), .. }) => element::combines(operands),
        _ => element::moves(operands),
    },
    ..NamedKernel::new(
        "scatter",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::Scatter { axes, reducer }, &[operand, indices, updates], &[Some(result)]) => {
                Some(shape([operand, indices, updates], result, (axes, *reducer)))
            }
            _ => None,
        }),
        Sources::All(sources),
    )
};

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let of = |defines: &[(&'static str, &str)]| {
        let defines = defines.iter().map(|&(key, value)| (key, value.to_owned()));
        source("scatter", TEXT, defines.collect())
    };
    let folded = element::REPRESENTATIVES
        .into_iter()
        .map(|(element, fold)| of(&[("INDEX", "i32"), ("ELEMENT", element), ("FOLD", fold)]));
    [of(&[("INDEX", "i64"), ("ELEMENT", "BitsOf<8>::type")])].into_iter().chain(folded).collect()
}

/// Most rows for which each element of a window walks over all rows of an overwriting scatter. That
/// takes one launch, as for the caches of sequences that are decoded together.
const FEW_ROWS: u64 = 64;

/// A compiled scatter of few rows.
struct ScatterOfFewRows {
    whole: Transfer,
    places: Destinations,
    entry: Entry,
    /// Operand, indices, updates, result.
    views: [ViewStart; 4],
}

impl Launch for ScatterOfFewRows {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let [operand, mut indices, mut updates, mut result] =
            self.views.map(|place| place.of(addresses));
        if operand != result {
            // SAFETY: the copy was compiled for operand and result, and these are their addresses.
            unsafe { self.whole.run(stream, [operand, result])? };
        }
        if self.places.window.count == 0 || self.places.rows.nest.count == 0 {
            return Ok(());
        }
        let mut places = self.places;
        let mut parameters = [
            (&raw mut indices).cast::<c_void>(),
            (&raw mut updates).cast(),
            (&raw mut result).cast(),
            (&raw mut places).cast(),
        ];
        // SAFETY: the parameters are those of the kernel, and clamped indices keep the windows
        // inside of the result.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}

/// The shape of a scatter along `axes`.
fn shape(
    [operand, indices, updates]: [&View; 3],
    result: &View,
    (axes, reducer): (&[usize], Option<Reducer>),
) -> Shaped {
    let rows = IndexedRows::new(result, indices, axes, updates)?;
    let (sizes, strides) = result.without(axes);
    let window = Nest::new(&sizes, [&updates.strides[indices.ty.rank() - 1..], &strides])?;
    let destinations = rows.destinations();
    if rows.nest.count > i32::MAX as u64 || destinations > i32::MAX as u64 {
        let found = format!("{} rows to {destinations} destinations", rows.nest.count);
        return Err(Refusal::Unsupported(format!(
            "{found}; 2^31 of each are the most, split the scatter"
        )));
    }
    let dtype = result.ty.dtype;
    let mut defines = vec![("INDEX", indices.ty.dtype.name().to_owned())];
    match reducer {
        // Elements that are only moved need no arithmetic.
        None => defines.push(("ELEMENT", format!("BitsOf<{}>::type", element::bytes(dtype)?))),
        Some(reducer) => {
            defines.push(("ELEMENT", element::combined(dtype)?.to_owned()));
            defines.push(("FOLD", element::fold(reducer).to_owned()));
        }
    }
    let configs = if reducer.is_none() && rows.nest.count <= FEW_ROWS {
        Ok(one_each(window.count)?)
    } else {
        Err([
            one_each(rows.nest.count)?,
            one_each(destinations)?,
            one_each(rows.nest.count * window.count)?,
        ])
    };
    Ok(Box::new(ScatterShape {
        whole: TransferShape::new(operand, result)?,
        places: Destinations { rows, window },
        source: source("scatter", TEXT, defines),
        configs,
        views: [operand, indices, updates, result].map(ViewStart::new),
    }))
}

impl CallShape for ScatterShape {
    fn scratch_bytes(&self) -> usize {
        if self.configs.is_ok() { 0 } else { self.places.scratch_bytes() }
    }

    fn load(self: Box<Self>, site: &Site<'_>) -> Launched {
        let Self { whole, places, source, configs, views } = *self;
        let whole = whole.load(site.device)?;
        let function = |entry| site.device.function(&source, entry);
        Ok(match configs {
            Ok(config) => {
                let entry = Entry::new(site.device, (&source, "few"), config)?;
                Box::new(ScatterOfFewRows { whole, places, entry, views })
            }
            Err(configs) => {
                let functions = [
                    function("count")?,
                    function("allocate")?,
                    function("fill")?,
                    function("order")?,
                    function("fold")?,
                ];
                Box::new(Scatter { whole, places, functions, configs, views })
            }
        })
    }
}

/// Threads that sort the rows of a destination.
const SORTERS: u32 = 128;

impl Destinations {
    /// Numbers of 4 bytes in the scratch: the list's length, counts, starts and cursors per
    /// destination; keys, list and ordered list per row. The first two are zeroed before each call.
    fn counts(&self) -> [u64; 7] {
        let (rows, destinations) = (self.rows.nest.count, self.rows.destinations());
        [1, destinations, destinations, destinations, rows, rows, rows]
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.counts().iter().sum::<u64>() as usize
    }

    /// The addresses of those parts.
    fn parts(&self, scratch: CUdeviceptr) -> [CUdeviceptr; 7] {
        let mut at = scratch;
        self.counts().map(|count| {
            let part = at;
            at += 4 * count;
            part
        })
    }
}

impl Launch for Scatter {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let [operand, indices, updates, result] = self.views.map(|place| place.of(addresses));
        if operand != result {
            // SAFETY: the copy was compiled for operand and result, and these are their addresses.
            unsafe { self.whole.run(stream, [operand, result])? };
        }
        let (rows, destinations) =
            (self.places.rows.nest.count as u32, self.places.rows.destinations() as u32);
        if self.configs[2].grid_dim.0 == 0 || destinations == 0 {
            return Ok(());
        }
        let [total, counts, starts, cursors, keys, list, ordered] =
            self.places.parts(addresses.workspace());
        let [of_rows, of_destinations, of_elements] = self.configs;
        let sorters = LaunchConfig {
            grid_dim: (rows, 1, 1),
            block_dim: (SORTERS, 1, 1),
            shared_mem_bytes: 0,
        };
        let [count, allocate, fill, order, fold] = &self.functions;
        // SAFETY: the workspace has all parts; the parameters are those of the kernels, and clamped
        // indices keep the windows inside of the result.
        unsafe {
            let zeroed = 1 + destinations as usize;
            cudarc::driver::result::memset_d8_async(total, 0, 4 * zeroed, stream.cu_stream())?;
            let mut launch = stream.launch_builder(count);
            launch.arg(&indices).arg(&self.places).arg(&keys).arg(&counts).launch(of_rows)?;
            let mut launch = stream.launch_builder(allocate);
            launch.arg(&counts).arg(&starts).arg(&cursors).arg(&total).arg(&destinations);
            launch.launch(of_destinations)?;
            let mut launch = stream.launch_builder(fill);
            launch.arg(&keys).arg(&cursors).arg(&list).arg(&rows).launch(of_rows)?;
            let mut launch = stream.launch_builder(order);
            launch.arg(&keys).arg(&counts).arg(&starts).arg(&list).arg(&ordered).arg(&rows);
            launch.launch(sorters)?;
            let mut launch = stream.launch_builder(fold);
            launch
                .arg(&updates)
                .arg(&result)
                .arg(&self.places)
                .arg(&keys)
                .arg(&counts)
                .arg(&starts)
                .arg(&ordered);
            launch.launch(of_elements)?;
        }
        Ok(())
    }

    fn workspace_bytes(&self) -> usize {
        self.places.scratch_bytes()
    }
}

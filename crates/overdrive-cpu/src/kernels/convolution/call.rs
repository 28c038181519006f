//! The compiled step: chunks of output pixels, each a block product and its epilogue.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use half::{bf16, f16};
use overdrive_ir::plan::{ConvolutionCall, Program, View};
use overdrive_ir::{DType, Plan, row_major};

use super::columns::{Axis, Columns};
use crate::exec::space::{accesses, along_columns, is_random, merge, merges, permuted};
use crate::exec::{Format, Named, Runnable, Unsupported};
use crate::gemm::{BlockProduct, Element, Kernel, Lines};
use crate::kernels::place::Strided;
use crate::kernels::transfer::Transfer;
use crate::loops::{CompiledEpilogue, Tile};
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;
use crate::threads::{Pool, Worker};

/// Bytes of sums, and of packed columns, that a chunk may have: both stay in the second-level cache.
const CHUNK_BYTES: usize = 256 << 10;

/// Compiles a convolution.
pub(crate) fn compile(plan: &Plan, call: &ConvolutionCall) -> Result<Box<dyn Runnable>, Unsupported> {
    Ok(match call.input.ty.dtype {
        DType::F64 => Box::new(Convolution::<f64>::new(plan, call)?),
        DType::F32 => Box::new(Convolution::<f32>::new(plan, call)?),
        DType::F16 => Box::new(Convolution::<f16>::new(plan, call)?),
        DType::BF16 => Box::new(Convolution::<bf16>::new(plan, call)?),
        DType::I8 => Box::new(Convolution::<i8>::new(plan, call)?),
        other => {
            return Err(Unsupported::new(format!("there are no convolutions of {other}; convert it first")));
        }
    })
}

/// Weights on their way into panels, and the panels: per group, per block of k.
struct Weights {
    view: Strided,
    /// To a row-major copy, where the weights lie otherwise.
    gather: Option<Transfer>,
    dense: AlignedBytes,
    packed: AlignedBytes,
}

/// A compiled `ConvolutionCall`.
struct Convolution<T: Element> {
    kernel: &'static Kernel<T>,
    input: Strided,
    weights: Weights,
    columns: Columns,
    groups: usize,
    /// Output channels of a group.
    outputs: usize,
    /// Depth of a block of k.
    depth: usize,
    epilogue: CompiledEpilogue,
    /// Pixels that are one row of the epilogue: all of an image, or a line of it.
    line: usize,
}

impl<T: Format> Convolution<T> {
    fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        if call.kernel.ty.dtype != T::DTYPE || call.accumulate != T::Acc::DTYPE {
            let expected = format!("{} by {} with sums in {}", T::DTYPE, T::DTYPE, T::Acc::DTYPE);
            let found = format!("{} with sums in {}", call.kernel.ty.dtype, call.accumulate);
            return Err(Unsupported::new(format!("convolutions are {expected}, not by {found}")));
        }
        let (input, kernel) = (Strided::new(&call.input), Kernel::<T>::best());
        let (sizes, extents) = (call.kernel.ty.sizes(), &call.epilogue.0.extents);
        let axis = |d: usize| Axis {
            dimension: call.window[d],
            input: input.sizes[2 + d],
            stride: input.strides[2 + d],
            output: extents[2 + d],
        };
        let axes = (0..call.window.len()).map(axis).collect();
        let columns = Columns::new(axes, (sizes[1], input.strides[1]), &sizes[2..]);
        let depth = kernel.depth(columns.rows());
        let outputs = sizes[0] / call.groups;
        let (program, line) = by_lines(&call.epilogue.0)?;
        let epilogue = CompiledEpilogue::new(&program, &|slot| plan.slot(slot).ty.dtype)
            .map_err(|e| Unsupported::new(e.to_string()))?;
        let weights =
            Weights::new(&call.kernel, packed_bytes(kernel, outputs, columns.rows(), depth) * call.groups)?;
        Ok(Self { kernel, input, weights, columns, groups: call.groups, outputs, depth, epilogue, line })
    }

    /// Pixels of a chunk: whole panels, few enough that its sums and columns stay in cache, and that there is a chunk
    /// for each thread.
    fn chunk(&self, threads: usize) -> usize {
        let width = self.kernel.tile()[1];
        let wide = self.outputs.max(self.depth) * size_of::<T::Acc>();
        let pixels = self.columns.pixels();
        let shared = (pixels * self.input.sizes[0] * self.groups).div_ceil(4 * threads);
        let most = (CHUNK_BYTES / wide).min(shared).min(pixels);
        (most / width).max(1) * width
    }

    /// Fills the panels of the weights.
    fn pack(&self, pool: &Pool, slots: &SlotTable) {
        let rows = self.columns.rows();
        let from = match &self.weights.gather {
            None => self.weights.view.get(slots).cast_const(),
            Some(transfer) => {
                // SAFETY: the view has its elements, and the copy has room for them.
                pool.run(transfer.parts(), |part, _| unsafe {
                    transfer.run_part(part, self.weights.view.get(slots), self.weights.dense.start());
                });
                self.weights.dense.start().cast_const()
            }
        };
        let from = Shared(from.cast::<T>());
        let blocks = rows.div_ceil(self.depth);
        pool.run(self.groups * blocks, |task, _| {
            let (group, k0) = (task / blocks, task % blocks * self.depth);
            let lines = Lines {
                from: from.get().wrapping_add(group * self.outputs * rows + k0),
                lines: self.outputs,
                line_stride: rows,
                k: (rows - k0).min(self.depth),
                k_stride: 1,
            };
            // SAFETY: the weights are dense; each block of panels has a place of its own.
            unsafe { self.kernel.pack_a(lines, self.panels(group, k0)) }
        });
    }

    /// Where the panels of a block of k begin.
    fn panels(&self, group: usize, k0: usize) -> *mut u8 {
        let of_group = packed_bytes(self.kernel, self.outputs, self.columns.rows(), self.depth);
        let before = k0 / self.depth * self.kernel.a_bytes(self.outputs, self.depth);
        self.weights.packed.start().wrapping_add(group * of_group + before)
    }

    /// The pixels `first..` of a chunk, of one image and group.
    fn run_chunk(
        &self,
        (image, group): (usize, usize),
        pixels: [usize; 2],
        worker: &mut Worker<'_>,
        slots: &SlotTable,
    ) {
        let [first, chunk] = pixels;
        let (rows, width) = (self.columns.rows(), self.kernel.tile()[1]);
        let cols = (self.columns.pixels() - first).min(chunk);
        let aligned = |bytes: usize| bytes.next_multiple_of(64);
        let sums_bytes = aligned(self.outputs * chunk * size_of::<T::Acc>());
        let b_bytes = aligned(self.kernel.b_bytes(chunk, self.depth));
        let panel_bytes = aligned(self.depth * width * size_of::<T>());
        let scratch =
            worker.scratch.bytes(sums_bytes + b_bytes + panel_bytes + self.epilogue.scratch_bytes());
        let (sums, rest) = scratch.split_at_mut(sums_bytes);
        let (b, rest) = rest.split_at_mut(b_bytes);
        let (panel, epilogue_scratch) = rest.split_at_mut(panel_bytes);
        let channels = self.input.sizes[1] / self.groups;
        let offset = image as i64 * self.input.strides[0] + (group * channels) as i64 * self.input.strides[1];
        let from = self.input.get(slots).cast::<T>().wrapping_offset(offset as isize);
        for k0 in (0..rows).step_by(self.depth) {
            let depth = (rows - k0).min(self.depth);
            for column in (0..cols).step_by(width) {
                // SAFETY: the buffers hold a block, and a panel; the image has what the columns read.
                unsafe {
                    let to = b.as_mut_ptr().add(self.kernel.b_bytes(column, depth));
                    let direct = self.kernel.takes_rows();
                    let rows = if direct { to.cast() } else { panel.as_mut_ptr().cast::<T>() };
                    self.columns.panel(from, (k0, depth), (first + column, width), rows);
                    if !direct {
                        let lines = Lines {
                            from: rows.cast_const(),
                            lines: width,
                            line_stride: 1,
                            k: depth,
                            k_stride: width,
                        };
                        self.kernel.pack_b_block(lines, to);
                    }
                }
            }
            let product = BlockProduct {
                a: self.panels(group, k0).cast_const(),
                b: b.as_ptr(),
                c: sums.as_mut_ptr().cast(),
                c_stride: chunk,
                rows: self.outputs,
                cols,
                k: depth,
                accumulate: k0 > 0,
            };
            // SAFETY: both sides are packed for this kernel, and the sums are this worker's.
            unsafe { self.kernel.multiply_block(product) };
        }
        let mut pixel = first;
        while pixel < first + cols {
            let run = (self.line - pixel % self.line).min(first + cols - pixel);
            let lines = self.columns.pixels() / self.line;
            let tile = Tile {
                sums: sums.as_ptr().wrapping_add((pixel - first) * size_of::<T::Acc>()),
                row_bytes: chunk * size_of::<T::Acc>(),
                batch: image * lines + pixel / self.line,
                row: group * self.outputs,
                col: pixel % self.line,
                rows: self.outputs,
                cols: run,
            };
            // SAFETY: the tile lies in the output, whose other parts belong to other tasks.
            unsafe { self.epilogue.apply(slots, tile, epilogue_scratch) };
            pixel += run;
        }
    }
}

impl<T: Format> Runnable for Convolution<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let pixels = self.columns.pixels();
        if pixels == 0 || self.outputs == 0 || self.input.sizes[0] == 0 {
            return;
        }
        self.pack(pool, slots);
        let chunk = self.chunk(pool.threads());
        let chunks = pixels.div_ceil(chunk);
        pool.run(self.input.sizes[0] * self.groups * chunks, |task, worker| {
            let (image, rest) = (task / (self.groups * chunks), task % (self.groups * chunks));
            self.run_chunk((image, rest / chunks), [rest % chunks * chunk, chunk], worker, slots);
        });
    }

    fn workspace_bytes(&self) -> usize {
        self.weights.dense.len() + self.weights.packed.len()
    }
}

/// A pointer that tasks read from.
#[derive(Clone, Copy)]
struct Shared<T>(*const T);

// SAFETY: what it points to is only read.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(&self) -> *const T {
        self.0
    }
}

impl Weights {
    fn new(view: &View, packed_bytes: usize) -> Result<Self, Unsupported> {
        let dense: Vec<i64> = row_major(&view.ty.sizes()).into_iter().map(|s| s as i64).collect();
        let strided = Strided::new(view);
        let gather = (strided.strides != dense)
            .then(|| Transfer::new(&strided.sizes, &strided.strides, &dense, strided.width()));
        let bytes = gather.as_ref().map_or(0, |_| view.ty.bytes());
        let filled = |bytes| AlignedBytes::filled(bytes, 0).map_err(|e| Unsupported::new(e.to_string()));
        Ok(Self { view: strided, gather, dense: filled(bytes)?, packed: filled(packed_bytes)? })
    }
}

/// Bytes of all panels of a group's weights.
fn packed_bytes<T: Element>(kernel: &Kernel<T>, outputs: usize, rows: usize, depth: usize) -> usize {
    rows / depth * kernel.a_bytes(outputs, depth) + kernel.a_bytes(outputs, rows % depth)
}

/// The epilogue over `[images and lines..., O, pixels of a line]`, and how many pixels that is: all of an image where its
/// spatial dimensions merge into one, and the last of them otherwise.
fn by_lines(program: &Program) -> Result<(Program, usize), Unsupported> {
    let mut merged = program.clone();
    if merged.extents.len() == 2 {
        merged.extents.push(1);
        accesses(&mut merged).for_each(|access| access.strides.push(0));
    }
    while merged.extents.len() > 3 {
        let d = merged.extents.len() - 1;
        let extent = merged.extents[d] as i64;
        if !merges(&merged, d, |strides| strides[d - 1] == strides[d] * extent) {
            break;
        }
        merge(&mut merged, d);
    }
    let rank = merged.extents.len();
    if rank <= 3 {
        along_columns(&mut merged);
        let line = merged.extents[2];
        return Ok((merged, line));
    }
    if is_random(program) {
        return Err(Unsupported::new(
            "random bits after a convolution whose result is not laid out by pixels",
        ));
    }
    let order: Vec<usize> = [0].into_iter().chain(2..rank - 1).chain([1, rank - 1]).collect();
    let line = merged.extents[rank - 1];
    let mut result = permuted(&merged, &order);
    along_columns(&mut result);
    Ok((result, line))
}

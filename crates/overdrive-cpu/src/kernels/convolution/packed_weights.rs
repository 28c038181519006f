//! Weights, most often the left matrix, in the panels of the micro-kernel, per group and block of
//! k.
//!
//! If the weights never change, a step of the plan packs them once (`PackFilter`), and convolutions
//! read its slot. Weights that training moves are packed in each call.
#![allow(unsafe_code)] // Raw pointers into slots and buffers.

use overdrive_ir::plan::{ConvolutionCall, Layout};
use overdrive_ir::{Plan, SlotId};

use crate::exec::{Format, Runnable, Unsupported};
use crate::gemm::{Element, MicroKernel, OperandLines};
use crate::kernels::place::Strided;
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;
use crate::threads::{Apart, Pool, ScratchParts};

/// Minimum output channels per group before packing the weights pays off.
const PAID: usize = 48;

/// The micro-kernel of a call.
pub(super) fn kernel_of<T: Format>(call: &ConvolutionCall) -> &'static MicroKernel<T> {
    let pixels =
        call.epilogue.0.extents[2..].iter().product::<usize>() * call.epilogue.0.extents[0];
    let outputs = call.kernel.ty.sizes()[0] / call.groups.max(1);
    if outputs >= PAID { MicroKernel::best_packed(pixels) } else { MicroKernel::best() }
}

/// The order of k: how a row of the left matrix is made of an output channel's weights.
pub(super) trait WeightOrder<T>: Send + Sync {
    /// Fills `to`, which holds zeros, from the weight at `(channel, tap)`; taps are row-major.
    fn row(&self, weight: &dyn Fn(usize, usize) -> T, to: &mut [T]);
}

/// k as `[groups of channels, taps, channels of one]`, with zeros for those that the last group
/// lacks.
pub(super) struct Taps {
    pub(super) count: usize,
    pub(super) channels: usize,
    pub(super) interleaved: usize,
}

impl<T> WeightOrder<T> for Taps {
    fn row(&self, weight: &dyn Fn(usize, usize) -> T, to: &mut [T]) {
        let g = self.interleaved;
        for channel in 0..self.channels {
            let first = channel / g * self.count * g + channel % g;
            (0..self.count).for_each(|tap| to[first + tap * g] = weight(channel, tap));
        }
    }
}

/// k as taps, row-major, of so many channels each.
#[cfg(target_arch = "x86_64")]
pub(super) struct ByTaps {
    pub(super) taps: usize,
    pub(super) channels: usize,
    pub(super) room: usize,
}

#[cfg(target_arch = "x86_64")]
impl<T> WeightOrder<T> for ByTaps {
    fn row(&self, weight: &dyn Fn(usize, usize) -> T, to: &mut [T]) {
        for (tap, to) in to.chunks_exact_mut(self.room).enumerate().take(self.taps) {
            (0..self.channels).for_each(|channel| to[channel] = weight(channel, tap));
        }
    }
}

/// The side of the product that weights are.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightSide {
    /// Output channels are rows.
    Left,
    /// Output channels are columns.
    Right,
}

impl WeightSide {
    /// Output channels of a panel.
    fn width<T: Element>(self, kernel: &MicroKernel<T>) -> usize {
        match self {
            WeightSide::Left => kernel.tile()[0],
            WeightSide::Right => kernel.tile()[1],
        }
    }

    fn bytes<T: Element>(self, kernel: &MicroKernel<T>, outputs: usize, k: usize) -> usize {
        match self {
            WeightSide::Left => kernel.a_bytes(outputs, k),
            WeightSide::Right => kernel.b_bytes(outputs, k),
        }
    }

    /// # Safety
    /// The lines can be read, and `to` has the bytes of them.
    unsafe fn pack<T: Element>(self, kernel: &MicroKernel<T>, lines: OperandLines<T>, to: *mut u8) {
        // SAFETY: the lines can be read, and `to` has the bytes of their panels on this side.
        unsafe {
            match self {
                WeightSide::Left => kernel.pack_a(lines, to),
                WeightSide::Right => kernel.pack_b_block(lines, to),
            }
        }
    }
}

/// A range of k that is packed, and multiplied, at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct KBlock {
    pub(super) first: usize,
    pub(super) depth: usize,
}

impl KBlock {
    /// Cuts a range of k as the kernel wants it. A sum over nothing is one block of depth 0.
    pub(super) fn cut<T: Element>(kernel: &MicroKernel<T>, first: usize, k: usize) -> Vec<Self> {
        let depth = kernel.depth(k);
        let block = |at: usize| Self { first: first + at, depth: (k - at).min(depth) };
        (0..k.max(1)).step_by(depth).map(block).collect()
    }
}

/// Weights on their way into panels.
pub(super) struct Packer<T: Element> {
    kernel: &'static MicroKernel<T>,
    side: WeightSide,
    view: Strided,
    /// Offset of each tap from the first, in elements.
    taps: Vec<i64>,
    order: Box<dyn WeightOrder<T>>,
    groups: usize,
    /// Output channels of a group.
    outputs: usize,
    k: usize,
    blocks: Vec<KBlock>,
    /// Offset of the panels of each block, in bytes. The last entry is the size of a group.
    starts: Vec<usize>,
}

impl<T: Element> Packer<T> {
    /// `blocks` cover k one after the other.
    pub(super) fn new(
        (kernel, side): (&'static MicroKernel<T>, WeightSide),
        call: &ConvolutionCall,
        order: Box<dyn WeightOrder<T>>,
        blocks: Vec<KBlock>,
    ) -> Self {
        let (view, groups) = (Strided::new(&call.kernel), call.groups);
        let outputs = view.sizes[0] / groups;
        let mut taps = Vec::new();
        overdrive_ir::eval::for_each_index(&view.sizes[2..], |tap| {
            taps.push(
                tap.iter().zip(&view.strides[2..]).map(|(&t, &stride)| t as i64 * stride).sum(),
            );
        });
        let k = blocks.last().map_or(0, |block| block.first + block.depth);
        let mut starts = vec![0];
        for block in &blocks {
            starts.push(starts[starts.len() - 1] + side.bytes(kernel, outputs, block.depth));
        }
        Self { kernel, side, view, taps, order, groups, outputs, k, blocks, starts }
    }

    /// Bytes of all panels.
    pub(super) fn bytes(&self) -> usize {
        self.groups * self.starts[self.blocks.len()]
    }

    /// Offset of the panels of a block and group from `row` on, in bytes. `row` is the first of a
    /// panel.
    fn offset(&self, group: usize, block: usize, row: usize) -> usize {
        let above = self.side.bytes(self.kernel, row, self.blocks[block].depth);
        group * self.starts[self.blocks.len()] + self.starts[block] + above
    }

    /// Fills the panels.
    ///
    /// # Safety
    /// The weights are there, and `to` has [`bytes`](Self::bytes), aligned to 64, that nobody else
    /// touches.
    pub(super) unsafe fn pack(&self, pool: &Pool, slots: &SlotTable, to: *mut u8) {
        let (from, to) = (Apart::new(self.view.get(slots)), Apart::new(to));
        let height = self.side.width(self.kernel);
        let panels = self.outputs.div_ceil(height);
        pool.run(self.groups * panels, |task, worker| {
            let (group, row) = (task / panels, task % panels * height);
            let rows = (self.outputs - row).min(height);
            let placed = worker
                .scratch
                .place(ScratchParts::new([("rows of weights", rows * self.k * size_of::<T>())]));
            let dense = placed.starts[0].cast::<T>();
            for line in 0..rows {
                let output = (group * self.outputs + row + line) as i64 * self.view.strides[0];
                let weight = |channel: usize, tap: usize| {
                    let at = output + channel as i64 * self.view.strides[1] + self.taps[tap];
                    // SAFETY: output, channel and tap are below the view's sizes, so the view has
                    // the element.
                    unsafe { *from.at(0).cast::<T>().offset(at as isize) }
                };
                // SAFETY: the scratch is this worker's and has room for the rows; any bits are an
                // element of these types.
                let line =
                    unsafe { std::slice::from_raw_parts_mut(dense.add(line * self.k), self.k) };
                line.fill(T::default());
                self.order.row(&weight, line);
            }
            for (block, &KBlock { first, depth }) in self.blocks.iter().enumerate() {
                let from = dense.cast_const().wrapping_add(first);
                let lines =
                    OperandLines { from, lines: rows, line_stride: self.k, k: depth, k_stride: 1 };
                // SAFETY: the rows are in scratch; each panel has a place of its own.
                unsafe {
                    self.side.pack(self.kernel, lines, to.at(0).add(self.offset(group, block, row)))
                }
            }
        });
    }
}

/// Packed weights.
pub(super) struct PackedWeights<T: Element> {
    packer: Packer<T>,
    packed: Packed,
}

enum Packed {
    /// A prepare step has packed them.
    Ahead(SlotId),
    /// Each call packs them.
    PerCall(AlignedBytes),
}

impl<T: Element> PackedWeights<T> {
    pub(super) fn new(plan: &Plan, slot: SlotId, packer: Packer<T>) -> Result<Self, Unsupported> {
        let packed = match plan.slot(slot).layout {
            Layout::Packed { bytes, .. } => {
                assert_eq!(
                    bytes,
                    packer.bytes(),
                    "the plan asks for the packing that this back end declares"
                );
                Packed::Ahead(slot)
            }
            _ => {
                let own = AlignedBytes::filled(packer.bytes(), 0);
                Packed::PerCall(own.map_err(|e| Unsupported::new(e.to_string()))?)
            }
        };
        Ok(Self { packer, packed })
    }

    /// Output channels of a group.
    pub(super) fn outputs(&self) -> usize {
        self.packer.outputs
    }

    /// The blocks of k.
    pub(super) fn blocks(&self) -> &[KBlock] {
        &self.packer.blocks
    }

    /// Bytes of the own buffer.
    pub(super) fn bytes(&self) -> usize {
        match &self.packed {
            Packed::Ahead(_) => 0,
            Packed::PerCall(own) => own.len(),
        }
    }

    /// Packs the weights that are packed in each call.
    pub(super) fn pack(&self, pool: &Pool, slots: &SlotTable) {
        if let Packed::PerCall(own) = &self.packed {
            // SAFETY: the plan lets a step read its operands; the buffer is this step's own.
            unsafe { self.packer.pack(pool, slots, own.start()) }
        }
    }

    /// The panels of a block of k from `row` on, which is a panel's first.
    pub(super) fn panels(
        &self,
        slots: &SlotTable,
        group: usize,
        block: usize,
        row: usize,
    ) -> *const u8 {
        let start = match &self.packed {
            Packed::Ahead(slot) => slots.get(*slot),
            Packed::PerCall(own) => own.start(),
        };
        start.wrapping_add(self.packer.offset(group, block, row)).cast_const()
    }
}

/// The step that packs ahead.
pub(super) struct PackFilter<T: Element> {
    pub(super) packer: Packer<T>,
    pub(super) to: SlotId,
}

impl<T: Element> Runnable for PackFilter<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        // SAFETY: the plan's slots are apart, and the packed one is as long as the capabilities
        // said.
        unsafe { self.packer.pack(pool, slots, slots.get(self.to)) }
    }
}

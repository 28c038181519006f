//! The left matrix: weights in the panels of the micro-kernel, per group and block of k.
#![allow(unsafe_code)] // Raw pointers into slots and buffers.

use overdrive_ir::plan::View;
use overdrive_ir::row_major;

use crate::exec::Unsupported;
use crate::gemm::{Element, Kernel, Lines};
use crate::kernels::place::Strided;
use crate::kernels::transfer::Transfer;
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Weights on their way into panels, and the panels.
pub(super) struct Weights<T: Element> {
    kernel: &'static Kernel<T>,
    view: Strided,
    /// To a row-major copy, where the weights lie otherwise.
    gather: Option<Transfer>,
    dense: AlignedBytes,
    /// Channels that are interleaved, if they are: `[O, groups of channels, taps, channels of one]`, with zeros for those
    /// that the last group lacks.
    interleaved: usize,
    woven: AlignedBytes,
    packed: AlignedBytes,
    /// Output channels of a group.
    outputs: usize,
    /// What is summed over, and the depth of its blocks.
    k: usize,
    depth: usize,
}

/// How weights are cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) groups: usize,
    pub(super) interleaved: usize,
    pub(super) k: usize,
    pub(super) depth: usize,
}

impl<T: Element> Weights<T> {
    pub(super) fn new(kernel: &'static Kernel<T>, view: &View, cut: Cut) -> Result<Self, Unsupported> {
        let Cut { groups, interleaved, k, depth } = cut;
        let dense: Vec<i64> = row_major(&view.ty.sizes()).into_iter().map(|s| s as i64).collect();
        let strided = Strided::new(view);
        let gather = (strided.strides != dense)
            .then(|| Transfer::new(&strided.sizes, &strided.strides, &dense, strided.width()));
        let outputs = view.ty.sizes()[0] / groups;
        let filled = |bytes| AlignedBytes::filled(bytes, 0).map_err(|e| Unsupported::new(e.to_string()));
        let dense = filled(gather.as_ref().map_or(0, |_| view.ty.bytes()))?;
        let woven = filled(if interleaved > 1 { groups * outputs * k * size_of::<T>() } else { 0 })?;
        let mut weights = Self {
            kernel,
            view: strided,
            gather,
            dense,
            interleaved,
            woven,
            packed: filled(0)?,
            outputs,
            k,
            depth,
        };
        weights.packed = filled(weights.packed_bytes() * groups)?;
        Ok(weights)
    }

    /// Output channels of a group.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of the buffers.
    pub(super) fn bytes(&self) -> usize {
        self.dense.len() + self.woven.len() + self.packed.len()
    }

    /// Bytes of all panels of a group.
    fn packed_bytes(&self) -> usize {
        let Self { kernel, outputs, k, depth, .. } = self;
        k / depth * kernel.a_bytes(*outputs, *depth) + kernel.a_bytes(*outputs, k % depth)
    }

    /// Where the panels of rows from `row` on, which is a panel's first, begin in a block of k.
    pub(super) fn panels(&self, group: usize, k0: usize, row: usize) -> *const u8 {
        let before = k0 / self.depth * self.kernel.a_bytes(self.outputs, self.depth);
        let above = self.kernel.a_bytes(row, (self.k - k0).min(self.depth));
        self.packed.start().wrapping_add(group * self.packed_bytes() + before + above).cast_const()
    }

    /// Fills the panels.
    pub(super) fn pack(&self, pool: &Pool, slots: &SlotTable) {
        if self.k == 0 {
            return;
        }
        let mut from = Shared(self.view.get(slots).cast_const().cast::<T>());
        if let Some(transfer) = &self.gather {
            // SAFETY: the view has its elements, and the copy has room for them.
            pool.run(transfer.parts(), |part, _| unsafe {
                transfer.run_part(part, self.view.get(slots), self.dense.start());
            });
            from = Shared(self.dense.start().cast_const().cast());
        }
        let groups = self.view.sizes[0] / self.outputs.max(1);
        if self.interleaved > 1 {
            // SAFETY: the weights are dense; each output channel has a place of its own.
            pool.run(groups * self.outputs, |output, _| unsafe { self.weave(from.get(), output) });
            from = Shared(self.woven.start().cast_const().cast());
        }
        let blocks = self.k.div_ceil(self.depth);
        pool.run(groups * blocks, |task, _| {
            let (group, k0) = (task / blocks, task % blocks * self.depth);
            let lines = Lines {
                from: from.get().wrapping_add(group * self.outputs * self.k + k0),
                lines: self.outputs,
                line_stride: self.k,
                k: (self.k - k0).min(self.depth),
                k_stride: 1,
            };
            // SAFETY: the weights are dense; each block of panels has a place of its own.
            unsafe { self.kernel.pack_a(lines, self.panels(group, k0, 0).cast_mut()) }
        });
    }

    /// Interleaves the channels of an output channel's weights.
    unsafe fn weave(&self, from: *const T, output: usize) {
        let (channels, g) = (self.view.sizes[1], self.interleaved);
        let taps = self.k / channels.next_multiple_of(g);
        // SAFETY: the output channel has its weights, dense, and as many places, and those of zeros are never written.
        unsafe {
            let from = std::slice::from_raw_parts(from.add(output * channels * taps), channels * taps);
            let to = self.woven.start().cast::<T>().add(output * self.k);
            for (channel, weights) in from.chunks_exact(taps).enumerate() {
                let to = to.add(channel / g * taps * g + channel % g);
                weights.iter().enumerate().for_each(|(tap, &weight)| *to.add(tap * g) = weight);
            }
        }
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

//! The decisions of a plan that are for convolutions only. They are packing kernels ahead of time,
//! storing channels innermost, and reserving room for partial folds of an image.

use super::steps::{About, Planner};
use crate::lower::contraction;
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::{ConvolutionCall, Instr, Layout, SlotId, SlotPlace, StepKind, View};
use overdrive_ir::{Call, Graph, Mode, Prim, Target, TensorType, Value};

impl Planner<'_> {
    /// Packs a kernel that never changes, once, where the device has a packed form.
    pub(super) fn pack_filter_ahead(&mut self, call: &mut ConvolutionCall) {
        let ahead = self.is_fixed(call.kernel.slot) && self.plan.mode != Mode::Eager;
        let kernel = ahead.then(|| self.target.kernel(&Call::Convolution(call)).ok()).flatten();
        let Some((name, bytes)) = kernel.and_then(|kernel| kernel.packed) else { return };
        // The packed form may depend on everything but the epilogue.
        let ConvolutionCall { input, kernel, window, groups, accumulate, epilogue, .. } = &*call;
        let (ty, extents) = (&input.ty, &epilogue.0.extents);
        let strides = &input.strides;
        let key =
            format!("{kernel} by {ty} {strides:?} {window:?} {groups} {accumulate} to {extents:?}");
        let known = self.packed.get(&key).copied();
        let slot = known.unwrap_or_else(|| {
            let slot = self
                .slot(&kernel.ty, SlotPlace::Persistent { space: Default::default(), offset: 0 });
            self.plan.slots[slot.0 as usize].layout = Layout::Packed { name, bytes };
            let cost = overdrive_ir::Cost { flops: 0, bytes: (kernel.ty.bytes() + bytes) as u64 };
            let touched = [vec![kernel.slot], vec![slot]];
            self.step(
                StepKind::PackFilter(call.clone()),
                touched,
                About { name: "pack", scope: "", cost },
            );
            slot
        });
        self.packed.insert(key, slot);
        call.kernel.slot = slot;
    }

    /// The slot of a convolution for its partial folds of space.
    pub(super) fn parts_of_a_fold(&mut self, call: &ConvolutionCall) -> Option<SlotId> {
        let program = &call.epilogue.0;
        let fold = program.instrs.iter().position(|instr| matches!(instr, Instr::Reduce(_)))?;
        let kernel = self.target.kernel(&Call::Convolution(call));
        let parts = kernel.expect("`fuse` folds where the device does").parts;
        let sizes = [program.extents[0], parts, program.extents[1]];
        Some(self.arena_slot(&TensorType::new(program.dtypes[fold], sizes)))
    }

    /// The layout in which a contraction stores a value. Channels are innermost if the contraction
    /// is a convolution that supports it, and all readers are such convolutions too.
    pub(super) fn destination_after(&mut self, value: Value, last: bool) -> View {
        let ty = self.graph.ty(value).clone();
        let internal = last && self.plan.mode != Mode::Eager && !self.results.contains_key(&value);
        if !internal || ty.rank() != 4 {
            return self.destination(value);
        }
        let [n, c, h, w] = [0, 1, 2, 3].map(|d| ty.sizes()[d]);
        let strides: Vec<i64> = [h * w * c, 1, w * c, c].map(|stride| stride as i64).to_vec();
        let readers = self.readers.get(&value).cloned().unwrap_or_default();
        let well = |id: &overdrive_ir::NodeId| {
            let node = self.graph.node(*id);
            node.operands.iter().filter(|&&v| v == value).count() == 1
                && node.op.composite::<Fused>().is_some_and(|_| {
                    let region = &node.regions[0];
                    let at =
                        node.operands.iter().position(|&v| v == value).expect("it reads the value");
                    let port = region.inputs()[at].value;
                    let uses = region
                        .nodes()
                        .iter()
                        .flat_map(|n| &n.operands)
                        .filter(|&&v| v == port)
                        .count();
                    let input = contraction(region).is_some_and(|core| core.operands[0] == port);
                    input && uses == 1 && takes_channels_last(self.target, region, &strides)
                })
        };
        if readers.is_empty() || !readers.iter().all(well) {
            return self.destination(value);
        }
        let slot = self.arena_slot(&ty.with_shape([n, h, w, c]));
        let view = View { slot, ty, offset: 0, strides };
        self.located.insert(value, view.clone());
        view
    }
}

/// Whether a region is a convolution that the device computes with channels innermost from an input
/// of these strides.
pub(super) fn takes_channels_last(target: &dyn Target, region: &Graph, strides: &[i64]) -> bool {
    let Some(core) = contraction(region) else { return false };
    let Some(Prim::Convolution(convolution)) = core.op.prim() else { return false };
    let types = [core.operands[0], core.operands[1], core.results[0]].map(|value| region.ty(value));
    let call = Call::Lying { convolution, types, strides };
    target.kernel(&call).is_ok_and(|kernel| kernel.channels_last)
}

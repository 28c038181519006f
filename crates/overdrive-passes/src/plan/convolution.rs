//! The decisions of a plan that are for convolutions only. They are packing kernels ahead of time,
//! storing channels innermost, and reserving room for partial folds of an image.

use super::steps::{About, Planner};
use crate::fuse::{cut_one, is_step_of_its_own};
use crate::lower::contraction;
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::{ConvolutionCall, Instr, Layout, SlotId, SlotPlace, StepKind, View};
use overdrive_ir::{Call, Graph, Mode, NodeId, Pad, Prim, Target, TensorType, Value};

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

    /// The place of a value that is computed from images, whose channels are innermost if `last`.
    /// Then its own channels are innermost too, if its readers are convolutions that support it,
    /// or hand it on to such.
    pub(super) fn destination_after(&mut self, value: Value, last: bool) -> View {
        if !last || self.plan.mode == Mode::Eager || !self.is_wanted_last(value, DEEP) {
            return self.destination(value);
        }
        let ty = self.graph.ty(value).clone();
        let [n, c, h, w] = [0, 1, 2, 3].map(|d| ty.sizes()[d]);
        let slot = self.arena_slot(&ty.with_shape([n, h, w, c]));
        let view = View { slot, strides: channels_last(&ty), ty, offset: 0 };
        self.located.insert(value, view.clone());
        view
    }

    /// Whether views of images, and there are some, have channels innermost.
    pub(super) fn are_last<'v>(&self, views: impl IntoIterator<Item = &'v View>) -> bool {
        let spread = |view: &&View| view.ty.sizes()[2..].iter().any(|&n| n > 1);
        let images = views.into_iter().filter(|view| view.ty.rank() == 4);
        let mut images = images.filter(spread).peekable();
        images.peek().is_some() && images.all(|view| view.strides[1] == 1 && view.strides[3] > 1)
    }

    /// Whether all readers of a value, some step away at most, want its channels innermost.
    fn is_wanted_last(&self, value: Value, deep: usize) -> bool {
        let ty = self.graph.ty(value);
        let readers = self.readers.nodes(value);
        let internal = !self.results.contains_key(&value) && !readers.is_empty();
        deep > 0
            && internal
            && ty.rank() == 4
            && readers.iter().all(|&id| self.reads_last(id, value, deep))
    }

    fn reads_last(&self, id: NodeId, value: Value, deep: usize) -> bool {
        let (graph, node) = (self.graph, self.graph.node(id));
        let handed_on = |result: &Value| self.is_wanted_last(*result, deep - 1);
        let alone;
        let (region, operands) = if node.op.composite::<Fused>().is_some() {
            (&node.regions[0], &node.operands)
        } else if is_step_of_its_own(graph, node, self.target) {
            alone = cut_one(graph, id);
            (&alone.region, &alone.inputs)
        } else {
            return match node.op.prim() {
                Some(Prim::Pad { pads }) => {
                    pads[..2].iter().all(|pad| *pad == Pad::default())
                        && node.results.iter().all(handed_on)
                }
                Some(Prim::ReduceWindow { .. } | Prim::Concat { .. }) => {
                    node.results.iter().all(handed_on)
                }
                _ => false,
            };
        };
        let Some(core) = contraction(region) else {
            // Loops read any order.
            let image = |result: &&Value| graph.ty(**result).rank() == 4;
            return node.results.iter().filter(image).all(handed_on);
        };
        let Some(input) = operands.iter().position(|&v| v == value) else { return false };
        let port = region.inputs()[input].value;
        let strides = match core.operands[0] == port {
            true => channels_last(graph.ty(value)),
            // An epilogue follows the order of the sums.
            false => channels_last(region.ty(core.operands[0])),
        };
        let weights = core.operands[1] == port;
        !weights && takes_channels_last(self.target, region, &strides)
    }
}

/// Most steps between a value and the convolutions for which its layout is chosen.
const DEEP: usize = 5;

/// Strides of images whose channels are innermost.
fn channels_last(ty: &TensorType) -> Vec<i64> {
    match ty.sizes()[..] {
        [_, c, h, w] => [h * w * c, 1, w * c, c].map(|stride| stride as i64).to_vec(),
        _ => vec![],
    }
}

/// Whether a region is a convolution that the device computes with channels innermost from an input
/// of these strides.
pub(super) fn takes_channels_last(target: &dyn Target, region: &Graph, strides: &[i64]) -> bool {
    let Some(core) = contraction(region) else { return false };
    let Some(Prim::Convolution(convolution)) = core.op.prim() else { return false };
    if strides.len() != 4 {
        return false;
    }
    let types = [core.operands[0], core.operands[1], core.results[0]].map(|value| region.ty(value));
    let call = Call::Lying { convolution, types, strides };
    target.kernel(&call).is_ok_and(|kernel| kernel.channels_last)
}

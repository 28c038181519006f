//! Copies, pad and concat: loops that only move elements, several of them writing one buffer.

use super::locate::identity;
use super::steps::{About, Planner};
use overdrive_ir::plan::View;
use overdrive_ir::{Builder, Cost, Graph, Node, Pad, TensorType};

impl Planner<'_> {
    pub(super) fn copy(&mut self, from: &View, to: &View, name: &str) {
        self.loop_of(&identity(&from.ty), std::slice::from_ref(from), to, (name, ""));
    }

    pub(super) fn loop_of(
        &mut self,
        region: &Graph,
        operands: &[View],
        result: &View,
        (name, scope): (&str, &str),
    ) {
        let bytes = operands.iter().chain([result]).map(|v| v.ty.bytes() as u64).sum();
        let cost = Cost { flops: region.cost().flops, bytes };
        self.loop_step(region, operands, std::slice::from_ref(result), About { name, scope, cost });
    }

    pub(super) fn concat(&mut self, node: &Node, axis: usize) {
        let all: Vec<View> = node.operands.iter().map(|&value| self.locate(value)).collect();
        let to = match self.located.get(&node.results[0]) {
            // Some or all of its parts are written there.
            Some(view) => view.clone(),
            None => self.destination_after(node.results[0], self.are_last(&all)),
        };
        let mut start = 0;
        for from in all {
            let extent = from.ty.sizes()[axis];
            let offset = to.offset + start * to.strides[axis];
            let part = View { ty: from.ty.clone(), offset, ..to.clone() };
            if part != from {
                self.loop_of(&identity(&from.ty), &[from], &part, ("concat", &node.scope));
            }
            start += extent as i64;
        }
    }

    pub(super) fn pad(&mut self, node: &Node, pads: &[Pad]) {
        let (from, value) = (self.locate(node.operands[0]), self.locate(node.operands[1]));
        let to = self.destination_after(node.results[0], self.are_last([&from]));
        self.loop_of(&fill(&to.ty), &[value], &to, ("pad", &node.scope));
        let (sizes, padded) = (from.ty.sizes(), to.ty.sizes());
        let (mut source, mut target) = (from.clone(), to.clone());
        let mut kept = Vec::with_capacity(sizes.len());
        for (axis, pad) in pads.iter().enumerate() {
            let step = pad.interior as i64 + 1;
            // Elements whose place `low + i * step` lies inside the result.
            let first = if pad.low < 0 { (-pad.low + step - 1) / step } else { 0 };
            let room = padded[axis] as i64 - pad.low;
            let end = (sizes[axis] as i64).min(if room > 0 { (room + step - 1) / step } else { 0 });
            kept.push((end - first).max(0) as usize);
            source.offset += first * from.strides[axis];
            target.offset += (pad.low + first * step) * to.strides[axis];
            target.strides[axis] *= step;
        }
        let ty = TensorType::new(from.ty.dtype, kept);
        if ty.elements() > 0 {
            (source.ty, target.ty) = (ty.clone(), ty.clone());
            self.loop_of(&identity(&ty), &[source], &target, ("pad", &node.scope));
        }
    }
}

/// The region that spreads a scalar over a shape.
fn fill(ty: &TensorType) -> Graph {
    let b = Builder::new("fill");
    let x = b.input("0", TensorType::scalar(ty.dtype));
    b.output("0", x.broadcast_in(&ty.shape, &[]));
    b.finish().expect("a scalar broadcasts to any shape")
}

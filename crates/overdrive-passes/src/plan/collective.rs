//! Steps of collectives: a start and an end.

use super::steps::{About, Planner, is_dense};
use overdrive_ir::plan::{StepKind, View};
use overdrive_ir::{Cost, Node, Prim};

impl Planner<'_> {
    /// Collectives read and write whole slots in row-major order.
    pub(super) fn collective(&mut self, node: &Node, prim: &Prim) {
        let mut operand = self.operand_for_ranks(node);
        if self.plan.slot(operand.slot).bytes() != operand.ty.bytes() {
            operand = self.materialize(&operand, "copy");
        }
        let wanted = self.destination(node.results[0]);
        let result = match is_dense(&wanted) {
            true => wanted.clone(),
            false => View::row_major(self.arena_slot(&wanted.ty), wanted.ty.clone()),
        };
        let channel = prim.channel().expect("collectives have a channel").id;
        let (name, cost) = (prim.name(), self.graph.node_cost(node));
        let touched = || [vec![operand.slot], vec![result.slot]];
        let about = |cost| About { name: &name, scope: &node.scope, cost };
        let start = StepKind::CollectiveStart { prim: prim.clone() };
        self.step(start, touched(), about(cost));
        self.step(StepKind::CollectiveDone { channel }, touched(), about(Cost::default()));
        if result != wanted {
            self.copy(&result, &wanted, "transpose");
        }
    }

    /// The dense operand. A constant has one for all collectives: those in which this rank only
    /// receives are many.
    fn operand_for_ranks(&mut self, node: &Node) -> View {
        let view = self.locate(node.operands[0]);
        if is_dense(&view) || !self.is_fixed(view.slot) {
            return self.dense(node.operands[0], node);
        }
        let key = format!("row-major {view:?}");
        if let Some(&slot) = self.packed.get(&key) {
            return View::row_major(slot, view.ty);
        }
        let dense = self.materialize(&view, &node.op.name());
        self.packed.insert(key, dense.slot);
        dense
    }
}

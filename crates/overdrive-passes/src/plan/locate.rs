//! Places of values: views on demand, destinations chosen for their readers.

use super::steps::{Planner, is_dense};
use crate::lower::index::reshape_strides;
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::{SlotPlace, View};
use overdrive_ir::{
    Builder, Graph, Mode, Node, NodeId, Origin, Prim, TensorType, Value, row_major,
};

/// Axes of images, whose order is chosen apart.
const IMAGE: usize = 4;

/// The region that hands its only input on: a copy when lowered.
pub(super) fn identity(ty: &TensorType) -> Graph {
    let b = Builder::new("copy");
    let x = b.input("0", ty.clone());
    b.output("0", x);
    b.finish().expect("the identity is well typed")
}

impl Planner<'_> {
    /// Does anything need this value, directly or through views?
    pub(super) fn is_used(&self, value: Value) -> bool {
        self.readers.is_kept(value) || !self.readers.nodes(value).is_empty()
    }

    /// The view of a value; emits what is needed to have one.
    pub(super) fn locate(&mut self, value: Value) -> View {
        if let Some(view) = self.located.get(&value) {
            return view.clone();
        }
        let graph = self.graph;
        let Origin::Node(id, _) = graph.origin(value) else {
            unreachable!("inputs and states are located from the start")
        };
        let node = graph.node(id);
        let ty = graph.ty(value).clone();
        let view = match node.op.prim() {
            Some(Prim::Constant { value }) => {
                let slot = self.slot(&ty, SlotPlace::Constant(value.clone()));
                View::row_major(slot, ty)
            }
            Some(Prim::Iota { .. }) => {
                let region = crate::fuse::cut_one(graph, id).region;
                let result = self.destination(value);
                self.loop_of(&region, &[], &result, ("iota", &node.scope));
                result
            }
            Some(prim) => {
                let operand = self.locate(node.operands[0]);
                match view_of(prim, &operand, &ty) {
                    Some(view) => view,
                    None => {
                        let dense = self.materialize(&operand, "reshape");
                        view_of(prim, &dense, &ty).expect("any view of a dense value is a view")
                    }
                }
            }
            None => unreachable!("`{}` is located when its step is made", node.op.name()),
        };
        self.located.insert(value, view.clone());
        view
    }

    /// A row-major buffer for a value that a step is about to compute; in the order that its only
    /// reader wants.
    pub(super) fn destination(&mut self, value: Value) -> View {
        let view = self.choose(value);
        self.located.insert(value, view.clone());
        view
    }

    fn choose(&mut self, value: Value) -> View {
        let ty = self.graph.ty(value).clone();
        if let Some(part) = self.joined_part(value) {
            return part;
        }
        match (self.readers.nodes(value), self.results.get(&value).map(Vec::as_slice)) {
            ([only], None) => {
                let node = self.graph.node(*only);
                if let Some(view) = self.through_only_reader(node, &ty) {
                    return view;
                }
            }
            (_, Some([Some(output)])) => {
                let slot = self.slot(&ty, SlotPlace::Output(*output));
                return View::row_major(slot, ty);
            }
            (_, None) => {
                if let Some(transpose) = self.turned_by(value)
                    && let Some(view) = self.through_only_reader(self.graph.node(transpose), &ty)
                {
                    return view;
                }
            }
            _ => {}
        }
        let slot = self.arena_slot(&ty);
        View::row_major(slot, ty)
    }

    /// The place of a value inside the one that joins it with others, so that nothing is copied. It
    /// is one run of bytes there, as loops and products write it and any step reads it.
    fn joined_part(&mut self, value: Value) -> Option<View> {
        let fuses = matches!(self.plan.mode, Mode::Compile | Mode::Graph);
        let readers = fuses.then(|| self.readers.nodes(value))?;
        let joins =
            |id: &&NodeId| matches!(self.graph.node(**id).op.prim(), Some(Prim::Concat { .. }));
        let mut joining = readers.iter().filter(joins);
        let id = *joining.next().filter(|_| joining.next().is_none())?;
        let others = readers.iter().filter(|reader| **reader != id);
        let node = self.graph.node(id);
        let Some(Prim::Concat { axis }) = node.op.prim() else { return None };
        let sizes = self.graph.ty(node.results[0]).sizes();
        let bits = self.graph.ty(value).dtype.bits();
        let outer = &sizes[..*axis];
        let is_one_run = bits >= 8 && outer.iter().all(|&n| n == 1) && sizes.len() != IMAGE;
        let stands_alone = !self.results.contains_key(&value)
            && others.clone().all(|&reader| self.is_loop(reader) || self.multiplies(reader));
        let Origin::Node(own, _) = self.graph.origin(value) else { return None };
        if !is_one_run || !stands_alone || !(self.is_loop(own) || self.multiplies(own)) {
            return None;
        }
        // A preparation stays apart from what each call writes.
        let is_fixed = |v| self.located.get(v).is_some_and(|view| self.is_fixed(view.slot));
        if self.graph.node(own).operands.iter().all(is_fixed) {
            return None;
        }
        let (axis, operands) = (*axis, node.operands.clone());
        let at = operands.iter().position(|&operand| operand == value)?;
        let result = node.results[0];
        let to = match self.located.get(&result) {
            Some(view) => view.clone(),
            None => self.destination(result),
        };
        let dense = row_major(&sizes).into_iter().map(|stride| stride as i64);
        let before: usize = operands[..at].iter().map(|&v| self.graph.ty(v).sizes()[axis]).sum();
        let offset = to.offset + before as i64 * to.strides[axis];
        let ty = self.graph.ty(value).clone();
        to.strides.iter().copied().eq(dense).then_some(View { ty, offset, ..to })
    }

    /// Whether a node is a product of two tensors, alone or with its epilogue.
    fn multiplies(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let is_product = |node: &Node| matches!(node.op.prim(), Some(Prim::DotGeneral(_)));
        is_product(node)
            || node.op.composite::<Fused>().is_some()
                && crate::lower::contraction(&node.regions[0]).is_some_and(is_product)
    }

    /// The transpose in whose order a value lies. Loops read any order; who else wants its own
    /// would copy.
    fn turned_by(&self, value: Value) -> Option<NodeId> {
        if self.results.contains_key(&value) {
            return None;
        }
        let mut turning = self.readers.nodes(value).iter().copied().filter(|&id| !self.is_loop(id));
        let only = turning.next().filter(|_| turning.next().is_none())?;
        matches!(self.graph.node(only).op.prim(), Some(Prim::Transpose { .. })).then_some(only)
    }

    /// Whether a node is a loop without a contraction.
    fn is_loop(&self, id: NodeId) -> bool {
        let fused = self.graph.node(id).op.composite::<Fused>();
        fused.is_some() && crate::lower::contraction(&self.graph.node(id).regions[0]).is_none()
    }

    fn through_only_reader(&mut self, node: &Node, ty: &TensorType) -> Option<View> {
        match node.op.prim()? {
            Prim::Transpose { perm } => {
                let inner = self.destination(node.results[0]);
                let mut strides = vec![0; perm.len()];
                perm.iter().zip(&inner.strides).for_each(|(&p, &s)| strides[p] = s);
                Some(View { ty: ty.clone(), strides, ..inner })
            }
            // A reshape of a dense buffer is dense; other orders fall back to a buffer of the
            // value's own.
            Prim::Reshape { .. } => {
                let reader = node.results[0];
                self.turned_by(reader).is_none().then(|| {
                    let inner = self.destination(reader);
                    View::row_major(inner.slot, ty.clone())
                })
            }
            _ => None,
        }
    }

    /// A dense copy of a view.
    pub(super) fn materialize(&mut self, view: &View, name: &str) -> View {
        let slot = self.arena_slot(&view.ty);
        let dense = View::row_major(slot, view.ty.clone());
        self.copy(view, &dense, name);
        dense
    }

    /// The value as a dense row-major buffer.
    pub(super) fn dense(&mut self, value: Value, node: &Node) -> View {
        let view = self.locate(value);
        if is_dense(&view) { view } else { self.materialize(&view, &node.op.name()) }
    }
}

/// The view that a view primitive gives of another view. `None` where elements would have to move.
pub(super) fn view_of(prim: &Prim, operand: &View, ty: &TensorType) -> Option<View> {
    let sizes = operand.ty.sizes();
    let (mut offset, strides) = (operand.offset, &operand.strides);
    let strides = match prim {
        Prim::Broadcast { dims, .. } => {
            let mut result = vec![0; ty.rank()];
            for (axis, &d) in dims.iter().enumerate() {
                result[d] = if sizes[axis] == 1 { 0 } else { strides[axis] };
            }
            result
        }
        Prim::Transpose { perm } => perm.iter().map(|&p| strides[p]).collect(),
        Prim::Slice { start, stride, .. } => {
            offset += start.iter().zip(strides).map(|(&s, &by)| s as i64 * by).sum::<i64>();
            stride.iter().zip(strides).map(|(&s, &by)| s as i64 * by).collect()
        }
        Prim::Reshape { .. } => reshape_strides(&sizes, strides, &ty.sizes())?,
        _ => unreachable!("`{}` is no view", prim.name()),
    };
    Some(View { slot: operand.slot, ty: ty.clone(), offset, strides })
}

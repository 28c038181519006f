//! `Wire`: the collectives that schemes are made of, and the states that they keep.

use crate::shard::part;
use overdrive_ir::{
    Axis, Builder, Channel, Compare, Expr, Graph, Init, Mesh, Node, Pad, Prim, Reducer, Sharding,
    TensorType, Unary,
};

/// The ranks of an axis, as one rank of the mesh sees them.
pub(super) struct Wire<'m> {
    mesh: &'m Mesh,
    axis: &'m Axis,
    /// A channel that no collective has yet.
    channel: u64,
    states: Vec<Sharding>,
}

/// The ranks on which a state has values of their own.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Differs {
    /// Each rank of the mesh.
    OnAllRanks,
    /// Those that differ in another axis than that of gradients.
    AlongOtherAxes,
}

impl<'m> Wire<'m> {
    /// That of `axis` of the mesh of a sharded graph.
    pub(super) fn new(graph: &Graph, mesh: &'m Mesh, axis: &'m Axis) -> Self {
        Self { mesh, axis, channel: last_channel(graph) + 1, states: vec![] }
    }

    /// Ranks along the axis.
    pub(super) fn ranks(&self) -> usize {
        self.mesh.size(self.axis)
    }

    /// Whether a group is that of the axis, with more than one rank.
    pub(super) fn is_group(&self, group: &Mesh) -> bool {
        self.ranks() > 1 && *group == self.mesh.along(self.axis)
    }

    /// The shardings of the states that were declared, in their order.
    pub(super) fn into_states(self) -> Vec<Sharding> {
        self.states
    }

    /// The number of the next channel; those of later collectives are larger.
    pub(super) fn next_channel(&self) -> u64 {
        self.channel
    }

    fn channel(&mut self) -> Channel {
        let id = self.channel;
        self.channel += 1;
        Channel { id, group: self.mesh.along(self.axis) }
    }

    /// `[1, ...]` of each rank as `[ranks, ...]`; in general, joined along the first dimension.
    pub(super) fn all_gather<'b>(&mut self, x: Expr<'b>) -> Expr<'b> {
        let channel = self.channel();
        x.builder().op1(Prim::AllGather { axis: 0, channel }, &[x])
    }

    /// `[ranks, ...]`: part i to rank i, for what all ranks sent here.
    pub(super) fn all_to_all<'b>(&mut self, x: Expr<'b>) -> Expr<'b> {
        let channel = self.channel();
        x.builder().op1(Prim::AllToAll { split: 0, concat: 0, channel }, &[x])
    }

    /// The sum over ranks.
    pub(super) fn all_reduce<'b>(&mut self, x: Expr<'b>) -> Expr<'b> {
        let channel = self.channel();
        x.builder().op1(Prim::AllReduce { reducer: Reducer::Sum, channel }, &[x])
    }

    /// This rank's part of a dimension, or all if there is none.
    pub(super) fn own_part<'b>(&self, x: Expr<'b>, dim: Option<usize>) -> Expr<'b> {
        dim.map_or(x, |dim| part(x, (dim, self.axis), self.mesh))
    }

    /// Declares a state. In the graph it has leading dimensions of size 1, one for each axis along
    /// which ranks differ. So the whole state holds the values of all ranks, and is split like any
    /// other.
    pub(super) fn state<'b>(
        &mut self,
        b: &'b Builder,
        name: &str,
        ty: &TensorType,
        (init, differs): (Init, Differs),
    ) -> Expr<'b> {
        let others = self.mesh.axes.iter().map(|(axis, _)| axis).filter(|axis| *axis != self.axis);
        let own = (differs == Differs::OnAllRanks).then_some(self.axis);
        let axes: Vec<_> = own.into_iter().chain(others).cloned().map(Some).collect();
        let sizes = [vec![1; axes.len()], ty.sizes()].concat();
        let split = [axes, vec![None; ty.rank()]].concat();
        self.states.push(Sharding { split, partial: vec![] });
        b.state_named(name, ty.with_shape(sizes), init).reshape(ty.sizes())
    }
}

/// Replaces a state where `new` is finite.
pub(super) fn keep<'b>(name: &str, [old, new]: [Expr<'b>; 2]) {
    let (b, size) = (new.builder(), new.unary(Unary::Abs));
    let kept = size.compare(Compare::Lt, size.constant(f64::INFINITY)).select(new, old);
    let shape = b.find_state(name).expect("a state is declared before it is kept").shape();
    b.update(name, kept.reshape(shape));
}

/// Zeros after the elements of `[n]`, up to `size`.
pub(super) fn padded(x: Expr<'_>, size: usize) -> Expr<'_> {
    match size - x.size(0) {
        0 => x,
        more => x.pad(vec![Pad { low: 0, high: more as i64, interior: 0 }], 0.0),
    }
}

/// The largest number of a channel in a graph and its regions; 0 if there is none.
fn last_channel(graph: &Graph) -> u64 {
    let of_node = |node: &Node| {
        let own = node.op.prim().and_then(Prim::channel).map_or(0, |channel| channel.id);
        node.regions.iter().map(last_channel).fold(own, u64::max)
    };
    graph.nodes().iter().map(of_node).max().unwrap_or(0)
}

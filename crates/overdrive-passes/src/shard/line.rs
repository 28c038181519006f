//! `Line`: the ranks along one axis of the mesh, and what differs from rank to rank.
//!
//! All ranks run the same graph. Tables of the rank's position choose what depends on the rank, and
//! fold away once the rank is known.

use super::layout::{over, position};
use overdrive_ir::{Axis, Builder, Compare, DType, Expr, Mesh, Prim, Tensor};

/// The ranks along an axis.
pub(super) struct Line<'b, 'm> {
    pub(super) b: &'b Builder,
    pub(super) mesh: &'m Mesh,
    pub(super) axis: Axis,
    pub(super) ranks: usize,
}

impl<'b> Line<'b, '_> {
    /// A number of this rank.
    pub(super) fn number(&self, of: impl Fn(usize) -> usize) -> Expr<'b> {
        let table: Vec<i128> = (0..self.ranks).map(|rank| of(rank) as i128).collect();
        let table = self.b.constant(Tensor::from_ints(DType::I32, [self.ranks], &table));
        table.at(&[position(self.b, &self.axis)])
    }

    /// The first of two where `of` this rank, else the second.
    pub(super) fn pick(&self, of: impl Fn(usize) -> bool, [yes, no]: [Expr<'b>; 2]) -> Expr<'b> {
        let number = self.number(|rank| usize::from(of(rank)));
        let condition = number.compare(Compare::Eq, number.constant(1.0));
        condition.broadcast_in(&yes.shape(), &[]).select(yes, no)
    }

    /// The value of the rank whose `target` this one is.
    pub(super) fn permuted(&self, x: Expr<'b>, target: impl Fn(usize) -> usize) -> Expr<'b> {
        let pairs = (0..self.ranks).map(|rank| (rank, target(rank))).collect();
        self.b.op1(Prim::Permute { pairs, channel: over(self.b, self.mesh, &self.axis) }, &[x])
    }
}

//! Ulysses: ranks exchange their positions of all heads for all positions of their heads. Each then
//! computes attention of the whole sequence for these.
//!
//! Source: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509. If the ranks divide the query
//! heads but not those of keys, keys are repeated, as often as the exchange needs. Groups of
//! neighbours may exchange among each other alone. Then a group has the positions of all its ranks,
//! and keys go round the groups: Fang and Zhao, "USP", arXiv:2405.07719.

use super::layout::over;
use super::line::Line;
use overdrive_ir::{Expr, Prim};

/// The dimension of the heads, in `[B, H, T, D]` and `[B, H, T]`.
pub(super) const HEADS: usize = 1;

/// The dimension of the sequence.
pub(super) const TIME: usize = 2;

/// Groups of neighbours, which share the heads of attention.
pub(super) struct Groups<'a, 'b, 'm> {
    pub(super) line: &'a Line<'b, 'm>,
    /// Ranks of a group.
    pub(super) size: usize,
}

impl<'b> Groups<'_, 'b, '_> {
    /// All positions of a group `[B, H / size, T, ...]`, of this rank's heads.
    pub(super) fn of_heads(&self, x: Expr<'b>) -> Expr<'b> {
        self.exchanged(x, [HEADS, TIME])
    }

    /// All heads `[B, H, T / size, ...]`, of this rank's positions.
    pub(super) fn of_positions(&self, x: Expr<'b>) -> Expr<'b> {
        self.exchanged(x, [TIME, HEADS])
    }

    /// Cuts dimension `split`, gives each rank of the group its part, and joins the parts that the
    /// others gave along `concat`.
    fn exchanged(&self, x: Expr<'b>, [split, concat]: [usize; 2]) -> Expr<'b> {
        let (line, size) = (self.line, self.size);
        if size == 1 {
            return x;
        }
        if size == line.ranks {
            let channel = over(line.b, line.mesh, &line.axis);
            return line.b.op1(Prim::AllToAll { split, concat, channel }, &[x]);
        }
        // A channel has all ranks of an axis: a part of them permutes.
        let part = x.size(split) / size;
        let parts = (0..size).map(|i| x.slice_axis(split, i * part, (i + 1) * part));
        let parts: Vec<Expr<'b>> = parts.collect();
        let sent = |turn: usize| {
            let to = |member: usize| (member + turn) % size;
            let part = self.chosen(&parts, to);
            match turn {
                0 => part,
                _ => line.permuted(part, |rank| rank - rank % size + to(rank % size)),
            }
        };
        let arrived: Vec<Expr<'b>> = (0..size).map(sent).collect();
        let of = |from| self.chosen(&arrived, |member| (member + size - from) % size);
        line.b.concat(&(0..size).map(of).collect::<Vec<_>>(), concat)
    }

    /// The one of some values that this member of the group takes.
    fn chosen(&self, values: &[Expr<'b>], which: impl Fn(usize) -> usize) -> Expr<'b> {
        let (mut chosen, is) = (values[0], |rank: usize| which(rank % self.size));
        for (i, value) in values.iter().enumerate().skip(1) {
            chosen = self.line.pick(|rank| is(rank) == i, [*value, chosen]);
        }
        chosen
    }
}

/// Keys `[B, Hkv, T, D]`, each head `times` times in a row.
pub(super) fn repeated(x: Expr<'_>, times: usize) -> Expr<'_> {
    if times == 1 {
        return x;
    }
    let mut sizes = x.sizes();
    sizes.insert(HEADS + 1, times);
    let wide = x.broadcast_in(&sizes.clone().into(), &[0, HEADS, TIME + 1, TIME + 2]);
    sizes[HEADS] *= sizes.remove(HEADS + 1);
    wide.reshape(sizes)
}

/// Sums of such heads, in the accumulation type: of the gradient of keys that were repeated.
pub(super) fn folded(x: Expr<'_>, times: usize) -> Expr<'_> {
    if times == 1 {
        return x;
    }
    let mut sizes = x.sizes();
    sizes[HEADS] /= times;
    sizes.insert(HEADS + 1, times);
    x.convert(x.dtype().accumulation()).reshape(sizes).sum(&[HEADS + 1])
}

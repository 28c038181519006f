//! `Blocks`: the one rule of scales. A scale has the rank of what it scales, and each of its
//! extents divides that of the tensor. An element of it covers a block of consecutive elements
//! along every axis.
//!
//! A scale per tensor (`[1, 1]`), per channel (`[N, 1]`) and per group (`[N, K/128]`) are thus the
//! same thing. So are a microscaling block of 32 and an NVFP4 block of 16. Invariant: splitting and
//! joining are reshapes, so that whatever is computed between them is elementwise with plain
//! broadcasts, which every back end fuses.

use crate::{Dim, Expr, Reducer, Shape};

/// Whether each extent of `scale` divides that of `x`; named extents must be equal or 1.
pub(crate) fn covers(scale: &Shape, x: &Shape) -> bool {
    let divides = |(s, d): (&Dim, &Dim)| match (s, d) {
        _ if s == d || *s == Dim::Size(1) => true,
        (Dim::Size(s), Dim::Size(d)) => *s > 0 && d.is_multiple_of(*s),
        _ => false,
    };
    scale.rank() == x.rank() && scale.0.iter().zip(&x.0).all(divides)
}

/// The extents of a tensor, split into blocks that share an element of its scale.
pub(crate) struct Blocks {
    sizes: Vec<usize>,
    counts: Vec<usize>,
}

impl Blocks {
    /// The blocks of a tensor with extents `sizes` and a scale with extents `counts`.
    pub(crate) fn new(sizes: &[usize], counts: &[usize]) -> Self {
        Self { sizes: sizes.to_vec(), counts: counts.to_vec() }
    }

    /// The index of the scale that covers the element at `index`.
    pub(crate) fn at(&self, index: &[usize]) -> Vec<usize> {
        let within = |axis: usize| index[axis] / (self.sizes[axis] / self.counts[axis]);
        (0..index.len()).map(within).collect()
    }

    /// Extents in which each axis with several blocks of several elements is two: the block and the
    /// place in it.
    fn parts(&self) -> impl Iterator<Item = [Option<(usize, bool)>; 2]> {
        self.sizes.iter().zip(&self.counts).map(|(&size, &count)| match count {
            _ if count == size => [Some((size, false)), None],
            1 => [Some((size, true)), None],
            _ => [Some((count, false)), Some((size / count, true))],
        })
    }

    /// The tensor under the split extents.
    pub(crate) fn split<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        x.reshape(self.parts().flatten().flatten().map(|(extent, _)| extent).collect::<Vec<_>>())
    }

    /// The scale with extent 1 wherever an element of it covers several.
    pub(crate) fn spread<'b>(&self, scale: Expr<'b>) -> Expr<'b> {
        let extent = |(extent, within): (usize, bool)| if within { 1 } else { extent };
        scale.reshape(self.parts().flatten().flatten().map(extent).collect::<Vec<_>>())
    }

    /// Back from the split extents.
    pub(crate) fn join<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        x.reshape(self.sizes.clone())
    }

    /// Folds a tensor of the split extents into the shape of the scale.
    pub(crate) fn fold<'b>(&self, x: Expr<'b>, reducer: Reducer) -> Expr<'b> {
        let parts = self.parts().flatten().flatten().enumerate();
        let axes: Vec<usize> =
            parts.filter(|(_, (_, within))| *within).map(|(axis, _)| axis).collect();
        x.reduce(reducer, &axes).reshape(self.counts.clone())
    }
}

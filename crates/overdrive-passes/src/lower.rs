//! Lowering: a region of elementwise ops, reductions and views becomes one scalar `Program`.
//!
//! The program is pulled from the results. Each value is emitted under the index map at which it is
//! needed, so views compose into index arithmetic and broadcasts vanish. A region around a
//! contraction becomes its epilogue, with the sum as `Instr::Accumulator`. Half-precision values
//! are computed in f32, and rounded where they are stored or where the graph says `convert`. This
//! is at least as accurate as the ops one by one. Invariant: whatever lowers means the same as the
//! region; what does not lower says why, and `fuse` declines it.

mod emit;
pub(crate) mod index;

pub(crate) use emit::lower;

use overdrive_ir::{DType, Graph, Node, Prim, TensorType};

/// The contraction of a region, if it has one: the node whose sums an epilogue sees.
pub(crate) fn contraction(region: &Graph) -> Option<&Node> {
    region.nodes().iter().find(|n| is_contraction(n))
}

/// True for the primitives that run as GEMM or convolution. Also true for composites: `fuse` lets
/// only those into a region whose kernel applies an epilogue to its sums.
pub(crate) fn is_contraction(node: &Node) -> bool {
    node.op.prim().is_none_or(|prim| matches!(prim, Prim::DotGeneral(_) | Prim::Convolution(_)))
}

/// The type in which a register holds a value of this type.
pub(crate) fn register_dtype(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Axes of the first reduction of a region.
fn reduced(region: &Graph) -> Option<(&Node, &[usize])> {
    region.nodes().iter().find_map(|node| match node.op.prim() {
        Some(Prim::Reduce { axes, .. }) => Some((node, axes.as_slice())),
        _ => None,
    })
}

/// Whether a region is a convolution whose results are folded over all of space, and over nothing
/// else.
pub(crate) fn folds_space(region: &Graph) -> bool {
    let Some(core) = contraction(region) else { return false };
    let (rank, space) = (region.ty(core.results[0]).rank(), region.ty(core.results[0]).sizes());
    let whole = |node: &Node| match node.op.prim() {
        Some(Prim::Reduce { axes, .. }) => {
            axes.iter().copied().eq(2..rank) && region.ty(node.operands[0]).sizes() == space
        }
        _ => true,
    };
    let convolution = matches!(core.op.prim(), Some(Prim::Convolution(_)));
    // Without pixels there would be no result to hand on.
    convolution && rank > 2 && !space.contains(&0) && region.nodes().iter().all(whole)
}

/// The iteration space of a region.
pub(crate) struct Space {
    /// Full shape, in axis order.
    full: Vec<usize>,
    /// Reduced axes of it.
    reduced: Vec<usize>,
}

impl Space {
    /// The space of a region: that of its contraction, of its reductions' operands, or of its first
    /// result.
    pub(crate) fn of(region: &Graph) -> Result<Self, String> {
        let fold = reduced(region);
        let axes = fold.map_or(vec![], |(_, axes)| axes.to_vec());
        if let Some(value) =
            contraction(region).map(|n| n.results[0]).or(fold.map(|(n, _)| n.operands[0]))
        {
            return Ok(Self { full: region.ty(value).sizes(), reduced: axes });
        }
        let first = region.outputs().first().ok_or("the region has no result")?;
        Ok(Self { full: region.ty(first.value).sizes(), reduced: vec![] })
    }

    fn kept(&self) -> Vec<usize> {
        (0..self.full.len()).filter(|axis| !self.reduced.contains(axis)).collect()
    }

    /// Extents in loop order: kept dimensions, then reduced ones.
    fn extents(&self) -> Vec<usize> {
        self.kept().iter().chain(&self.reduced).map(|&axis| self.full[axis]).collect()
    }

    /// Maps each axis of a result to the loop nest. The result has the full shape, or the reduced
    /// one with or without dimensions of 1.
    fn map_of(&self, ty: &TensorType) -> Option<index::IndexMap> {
        let (sizes, kept) = (ty.sizes(), self.kept());
        let order: Vec<usize> = kept.iter().chain(&self.reduced).copied().collect();
        let dim_of =
            |axis: usize| order.iter().position(|&a| a == axis).expect("every axis has its loop");
        if sizes == self.full {
            return Some((0..sizes.len()).map(|axis| index::Affine::dim(dim_of(axis))).collect());
        }
        if self.reduced.is_empty() {
            return None;
        }
        let row: Vec<usize> = kept.iter().map(|&axis| self.full[axis]).collect();
        if sizes == row {
            return Some((0..row.len()).map(index::Affine::dim).collect());
        }
        let ones: Vec<usize> = (0..self.full.len())
            .map(|axis| if self.reduced.contains(&axis) { 1 } else { self.full[axis] })
            .collect();
        let axis_map = |axis: usize| match self.reduced.contains(&axis) {
            true => index::Affine::default(),
            false => index::Affine::dim(dim_of(axis)),
        };
        (sizes == ones).then(|| (0..sizes.len()).map(axis_map).collect())
    }
}

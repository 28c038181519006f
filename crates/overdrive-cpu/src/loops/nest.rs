//! The iteration space as loops: the dimension that the lanes lie along, and the loops over the
//! others.
//!
//! Dimensions that every address walks as one are merged. The lanes' dimension is the one with the
//! least estimated cost.
//!
//! - *Along*: a row's lanes are walked block by block, and folded where the program reduces.
//! - *Across*: lanes are a block of neighbouring results, and the loops inside fold down the
//!   columns.

use overdrive_ir::plan::Program;

use super::expression::{AddressStart, Affine, Expression, Node};

/// How the lanes lie to the dimension that is folded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Lanes {
    /// Inside the row: lanes of one row, elementwise or folded.
    Along,
    /// Lanes are different rows.
    Across,
}

/// An address over a nest: bytes per step of each loop.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Walk {
    pub source: AddressStart,
    pub element: i64,
    pub offset: i64,
    pub outer: Vec<i64>,
    pub inner: Vec<i64>,
    pub lane: i64,
}

impl Walk {
    /// Whether neighbouring lanes are neighbouring elements.
    pub(super) fn contiguous(&self) -> bool {
        self.lane == self.element
    }
}

/// The loops.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LoopNest {
    pub lanes: Lanes,
    /// Extents of the loops over rows (or blocks of rows), outermost first.
    pub outer: Vec<usize>,
    /// Extents of the loops within a row, around the lanes.
    pub inner: Vec<usize>,
    /// Extent of the lanes' dimension.
    pub lane: usize,
    /// The addresses of the expression, in its order.
    pub walks: Vec<Walk>,
}

/// A dimension and whether it is reduced.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct LoopDim {
    extent: usize,
    reduced: bool,
}

impl LoopNest {
    /// The loops for a space whose last `reduced` dimensions are folded.
    pub(super) fn new(expression: &Expression, extents: &[usize], reduced: usize) -> LoopNest {
        let first = extents.len() - reduced;
        let dims: Vec<(usize, LoopDim)> = extents
            .iter()
            .enumerate()
            .filter(|(_, extent)| **extent != 1)
            .map(|(d, &extent)| (d, LoopDim { extent, reduced: d >= first }))
            .collect();
        // Stores in steps of one element should be walked innermost.
        let guide = expression.stores.iter().map(|s| &expression.affines[s.affine]);
        let inside = expression.nodes.iter().filter_map(|n| match n {
            Node::Load(affine) => Some(&expression.affines[*affine]),
            _ => None,
        });
        let guides: Vec<&Affine> = guide.chain(inside).collect();
        let mut order = dims;
        order.sort_by_key(|(d, dim)| {
            let stride =
                guides.iter().map(|a| a.strides[*d].unsigned_abs()).find(|&s| s != 0).unwrap_or(0);
            (dim.reduced, std::cmp::Reverse(stride))
        });
        let mut walks: Vec<Vec<i64>> = vec![Vec::new(); expression.affines.len()];
        let mut merged: Vec<LoopDim> = Vec::new();
        for (d, dim) in order {
            let strides = expression.affines.iter().map(|a| a.strides[d]);
            let joins = merged.last().is_some_and(|outer| outer.reduced == dim.reduced)
                && walks.iter().zip(strides.clone()).all(|(walk, s)| {
                    walk.last().is_some_and(|outer| *outer == s * dim.extent as i64)
                });
            if joins {
                let outer = merged.last_mut().expect("it joins a dimension");
                outer.extent *= dim.extent;
                walks
                    .iter_mut()
                    .zip(strides)
                    .for_each(|(walk, s)| *walk.last_mut().expect("as deep") = s);
            } else {
                merged.push(dim);
                walks.iter_mut().zip(strides).for_each(|(walk, s)| walk.push(s));
            }
        }
        let lane = (0..merged.len()).min_by(|&a, &b| {
            let cost = |d: usize| lane_cost(expression, &walks, d, merged[d].extent);
            cost(a).total_cmp(&cost(b)).then(b.cmp(&a))
        });
        LoopNest::around(expression, &merged, walks, lane, reduced > 0)
    }

    /// The loops of an epilogue: rows of the product outside, columns along the lanes.
    pub(super) fn rows(expression: &Expression, program: &Program) -> LoopNest {
        let columns = program.extents.len() - 1;
        let dim = |(d, &extent): (usize, &usize)| LoopDim {
            extent,
            reduced: d == columns && program.reduced > 0,
        };
        let dims: Vec<LoopDim> = program.extents.iter().enumerate().map(dim).collect();
        let walks = expression.affines.iter().map(|a| a.strides.clone()).collect();
        LoopNest::around(expression, &dims, walks, Some(columns), program.reduced > 0)
    }

    fn around(
        expression: &Expression,
        dims: &[LoopDim],
        walks: Vec<Vec<i64>>,
        lane: Option<usize>,
        reduces: bool,
    ) -> LoopNest {
        let lanes = match lane {
            Some(d) if reduces && !dims[d].reduced => Lanes::Across,
            _ => Lanes::Along,
        };
        let rest = |reduced: bool| {
            (0..dims.len()).filter(move |&d| Some(d) != lane && dims[d].reduced == reduced)
        };
        let pick = |walk: &[i64], reduced: bool| rest(reduced).map(|d| walk[d]).collect();
        LoopNest {
            lanes,
            outer: rest(false).map(|d| dims[d].extent).collect(),
            inner: rest(true).map(|d| dims[d].extent).collect(),
            lane: lane.map_or(1, |d| dims[d].extent),
            walks: expression
                .affines
                .iter()
                .zip(&walks)
                .map(|(affine, walk)| Walk {
                    source: affine.source,
                    element: affine.element,
                    offset: affine.offset,
                    outer: pick(walk, false),
                    inner: pick(walk, true),
                    lane: lane.map_or(0, |d| walk[d]),
                })
                .collect(),
        }
    }

    /// Rows, or blocks of `block` rows where lanes lie across them.
    pub(super) fn rows_outside(&self) -> usize {
        self.outer.iter().product()
    }

    /// Lines of lanes within a row.
    pub(super) fn lines(&self) -> usize {
        self.inner.iter().product()
    }
}

/// The estimated time per element with the lanes along dimension `d`, in cycles per lane of a
/// vector. An access that strides is a load per lane. A cost per line weighs the more the shorter
/// the line.
fn lane_cost(expression: &Expression, walks: &[Vec<i64>], d: usize, extent: usize) -> f64 {
    const STRIDED: f64 = 6.0;
    const PER_LINE: f64 = 24.0;
    let accesses: f64 = expression
        .affines
        .iter()
        .zip(walks)
        .map(|(affine, walk)| match walk[d] {
            0 => 0.0,
            stride if stride == affine.element || affine.source == AddressStart::Index => 1.0,
            _ => STRIDED,
        })
        .sum();
    accesses + PER_LINE * expression.nodes.len() as f64 / extent.max(1) as f64
}

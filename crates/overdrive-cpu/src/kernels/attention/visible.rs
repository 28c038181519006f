//! The pairs of a block that a mask function shows, and the cells of those that it cannot tell
//! apart.

use std::ops::Range;

use overdrive_ir::Graph;
use overdrive_ir::ops::attention::find_mask;
use overdrive_ir::plan::View;
use overdrive_passes::Region;

use crate::exec::Unsupported;

/// The visible keys of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Visible {
    All,
    Some,
    None,
}

impl Visible {
    /// That of lanes, or of cells of them.
    pub(super) fn of(lanes: &[u8]) -> Self {
        let (any, all) = lanes.iter().fold((0, 1), |(any, all), &lane| (any | lane, all & lane));
        match (any, all) {
            (0, _) => Self::None,
            (_, 0) => Self::Some,
            _ => Self::All,
        }
    }
}

/// Lanes for each cell, at least: where there are fewer, each lane is computed.
pub(super) const CELL_LANES: usize = 4;

/// The spans of a block along one dimension that lie in one cell each, from the block's first on.
#[derive(Clone)]
pub(super) struct Spans {
    next: usize,
    end: usize,
    /// Positions before the block, in its first cell.
    before: usize,
    /// 0: one cell.
    cell: usize,
}

impl Spans {
    pub(super) fn new(first: usize, count: usize, cell: usize) -> Self {
        let before = first.checked_rem(cell).unwrap_or(0);
        Self { next: 0, end: count, before, cell }
    }
}

impl Iterator for Spans {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.next == self.end {
            return None;
        }
        let (start, before) = (self.next, std::mem::take(&mut self.before));
        let end = if self.cell == 0 { self.end } else { start + self.cell - before };
        self.next = end.min(self.end);
        Some(start..self.next)
    }
}

/// Queries and keys of the cells for whose pairs the mask function among these is the same.
///
/// # Errors
/// If no scalar program computes it.
pub(super) fn mask_cell(regions: &[Graph], captures: &[View]) -> Result<[usize; 2], Unsupported> {
    let Some(mask) = find_mask(regions) else { return Ok([0, 0]) };
    Ok(Region::new(mask, captures).map_err(Unsupported::new)?.grain())
}

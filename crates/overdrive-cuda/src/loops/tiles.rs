//! The order in which the threads of a map without reductions take their points.
//!
//! In a transpose one side is contiguous along the lanes and another along a second loop. Threads
//! side by side along the lanes alone would read one element of every sector. The rest of the
//! sector would be fetched again. So a block takes a tile: a warp lies along the second loop, and
//! the warps of a block along the lanes. The neighbours of a thread then read the rest of its
//! sector while it is in the first-level cache. Invariant: every point has one thread.

use super::coordinates::Counter;
use super::cpp::Text;
use super::nest::LoopNest;

/// Steps of the second loop in a tile: a warp.
const ACROSS: usize = 32;
/// Groups of lanes in a tile: the warps of a block.
const ALONG: usize = 8;

/// The order of points.
pub(super) struct PointOrder<'a> {
    nest: &'a LoopNest,
    /// Extents of the loops, that of the lanes in groups.
    extents: Vec<usize>,
    /// The second loop of a tile, where points are taken in tiles.
    second: Option<usize>,
}

impl<'a> PointOrder<'a> {
    pub(super) fn new(nest: &'a LoopNest) -> Self {
        let mut extents = nest.extents.clone();
        let lane = nest.lane();
        extents[lane] = extents[lane].div_ceil(nest.vector);
        let mut order = Self { nest, extents, second: None };
        order.second = order.tiled().filter(|_| order.extents[lane] >= ALONG);
        // Tiles that stick out have numbers too, which must fit the counters.
        if nest.is_small() && order.count() > i32::MAX as usize {
            order.second = None;
        }
        order
    }

    /// A loop along which some access is contiguous that strides along the lanes.
    fn tiled(&self) -> Option<usize> {
        let lane = self.nest.lane();
        let accesses = self.nest.walks.values().filter(|walk| walk.dtype.is_some());
        let mut striding = accesses.filter(|walk| walk.strides[lane].unsigned_abs() > 1);
        striding.find_map(|walk| {
            (0..self.extents.len())
                .find(|&d| d != lane && walk.strides[d] == 1 && self.extents[d] >= ACROSS)
        })
    }

    /// Extents in tiles.
    fn tiles(&self, second: usize) -> Vec<usize> {
        let mut tiles = self.extents.clone();
        tiles[second] = tiles[second].div_ceil(ACROSS);
        tiles[self.nest.lane()] = tiles[self.nest.lane()].div_ceil(ALONG);
        tiles
    }

    /// How many groups of lanes are counted.
    pub(super) fn count(&self) -> usize {
        match self.second {
            Some(second) => self.tiles(second).iter().product::<usize>() * ACROSS * ALONG,
            None => self.extents.iter().product(),
        }
    }

    /// Declares the loops' counters of number `group`, and has `content` follow where there is such
    /// a point.
    pub(super) fn at(&self, int: &'static str, text: &mut Text, content: &dyn Fn(&mut Text)) {
        let (lane, vector) = (self.nest.lane(), self.nest.vector);
        let Some(second) = self.second else {
            let counter = Counter { name: "group", int, first: 0 };
            counter.split(&self.extents, |d| if d == lane { vector } else { 1 }, text);
            return content(text);
        };
        text.line(format!("const {int} tile = group / {};", ACROSS * ALONG));
        let place = |d: usize, index: String| {
            if d == lane {
                format!("(({index}) * {ALONG} + group / {ACROSS} % {ALONG}) * {vector}")
            } else if d == second {
                format!("({index}) * {ACROSS} + group % {ACROSS}")
            } else {
                index
            }
        };
        Counter { name: "tile", int, first: 0 }.split_to(&self.tiles(second), place, text);
        let [last, across] = [lane, second].map(|d| self.nest.extents[d]);
        text.block(format!("if (i{lane} < {last} && i{second} < {across})"), content);
    }
}

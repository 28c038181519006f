//! Tiles that the Hopper kernel is compiled with.

use std::fmt;
use std::str::FromStr;

/// Dynamic shared memory that a block may have, less the room of the barriers.
const SHARED_BYTES: usize = 227 * 1024 - 512;

/// Most blocks of a cluster that every device with clusters has.
const MOST_BLOCKS: usize = 8;

/// Shared memory for a block of attention, or for several of a loop.
pub(super) const ROOM: usize = 48 << 10;

/// Most steps along the contracted index of blocks that leave room; 8 were measured.
const STEPS_OF_LEAN: usize = 8;

/// For bringing the first tile to its alignment.
const SLACK: usize = 1024;

/// How the consumer warpgroups share the work.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Schedule {
    /// Rows of one tile.
    Cooperative,
    /// Tiles of their own, one's epilogue under the other's products.
    PingPong,
}

/// The tile that a block computes at a time.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct HopperTile {
    /// Rows: of the block, or in ping-pong of each warpgroup.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Warpgroups that multiply.
    pub consumers: usize,
    /// How they share the work.
    pub schedule: Schedule,
    /// Blocks that share right operands.
    pub cluster: usize,
}

const fn cooperative(rows: usize, columns: usize, cluster: usize) -> HopperTile {
    let consumers = if rows > 64 { 2 } else { 1 };
    HopperTile { rows, columns, consumers, schedule: Schedule::Cooperative, cluster }
}

const fn ping_pong(rows: usize, columns: usize, cluster: usize) -> HopperTile {
    HopperTile { rows, columns, consumers: 2, schedule: Schedule::PingPong, cluster }
}

/// Those worth trying, for large products first.
pub(in crate::gemm) const TILES: [HopperTile; 11] = [
    cooperative(128, 256, 2),
    ping_pong(128, 128, 2),
    ping_pong(64, 256, 2),
    cooperative(128, 256, 1),
    cooperative(256, 128, 2),
    ping_pong(128, 128, 1),
    cooperative(128, 128, 1),
    cooperative(128, 64, 1),
    cooperative(64, 64, 1),
    cooperative(64, 32, 1),
    cooperative(64, 16, 1),
];

impl HopperTile {
    fn stage_bytes(&self) -> usize {
        (self.rows + self.columns) * 128
    }

    /// Bytes of shared memory for results on their way out by TMA.
    pub(super) fn store_bytes(&self) -> usize {
        self.consumers * 2 * 64 * 128
    }

    /// Bytes of shared memory for the values that `span` blocks tell each other of the rows of a
    /// tile.
    pub(super) fn meeting_bytes(&self, span: usize, folds: usize) -> usize {
        folds * span * self.rows * 4
    }

    /// How many blocks hold rows of `columns` elements between them, if the kernel can follow a
    /// product of such tiles row by row.
    pub(in crate::gemm) fn span(&self, columns: usize) -> Option<usize> {
        let span = columns / self.columns;
        let alone = self.cluster == 1 && self.schedule == Schedule::Cooperative;
        // Elements of a row stay in registers, which are too few for twice as many elements.
        let held = self.rows == 64 * self.consumers && (8..=128).contains(&self.columns);
        (alone && held && columns == span * self.columns && (1..=MOST_BLOCKS).contains(&span))
            .then_some(span)
    }

    /// Tiles of operands in flight, if `beside` bytes of shared memory are taken. `None` if fewer
    /// than three fit.
    pub(super) fn stages(&self, beside: usize) -> Option<usize> {
        let stages = (SHARED_BYTES - SLACK - beside) / self.stage_bytes();
        (stages >= 3).then_some(stages.min(16))
    }

    /// Bytes of dynamic shared memory.
    pub(super) fn shared_bytes(&self, stages: usize, beside: usize) -> usize {
        stages * self.stage_bytes() + beside + SLACK
    }

    /// Whether a block leaves half of the registers and `ROOM` to blocks of the next kernel. It
    /// does where it has few steps, because the work before and after the steps counts there.
    /// Measured on an H200 with two products of `transformer` (query, key and value; first of the
    /// feed-forward network): 222.5 us instead of 226.
    pub(super) fn is_lean(&self, [m, n]: [usize; 2], steps: usize) -> bool {
        let square = (self.rows, self.columns, self.cluster) == (128, 128, 1);
        let whole = m.is_multiple_of(self.rows) && n.is_multiple_of(self.columns);
        square && self.schedule == Schedule::Cooperative && whole && steps <= STEPS_OF_LEAN
    }

    /// Whether registers suffice, and the lines of operands that are not contiguous along k.
    pub(super) fn applies(&self, promote: bool, by_k: [bool; 2]) -> bool {
        let own = if self.schedule == Schedule::PingPong {
            self.rows
        } else {
            self.rows / self.consumers
        };
        let sums = own / 64 * self.columns / 2 * if promote { 2 } else { 1 };
        let whole_lines = by_k[1] || (self.columns / self.cluster).is_power_of_two();
        sums <= 128 && whole_lines
    }

    /// About how many cycles a product takes in this tile. Candidates are ordered by it. Once they
    /// have been timed, the choice never depends on it.
    ///
    /// The constants fit the times of 82 products in bf16 in up to six tiles each on an H200. They
    /// have 8 to 16384 rows and 512 to 50304 columns. The tile that comes first is 2 % slower than
    /// the best on average, and 14 % at most.
    pub(in crate::gemm) fn cycles(
        &self,
        [m, n, k]: [usize; 3],
        batch: usize,
        multiprocessors: usize,
    ) -> f64 {
        /// Multiply-adds of 16-bit operands that a multiprocessor does in a cycle.
        const RATE: f64 = 2048.0;
        /// Bytes that a multiprocessor gets from L2 in a cycle: alone, and where all work.
        const BYTES: [f64; 2] = [75.0, 47.0];
        /// The least that a step along the contracted index takes.
        const STEP: f64 = 160.0;
        /// From the launch to the first product, and from the last to the end.
        const FIXED: f64 = 3000.0;
        /// From a tile's last product to the next one's first, and more for each of its sums.
        /// In ping-pong the other warpgroup multiplies meanwhile.
        const TILE: f64 = 1500.0;
        const SUM: f64 = 0.02;
        let pairs = m.div_ceil(self.rows * self.cluster) * self.cluster;
        let tiles = pairs * n.div_ceil(self.columns) * batch;
        let turns = tiles.div_ceil(multiprocessors) as f64;
        let working = tiles.min(multiprocessors).max(1) as f64;
        let bytes = BYTES[0].min(BYTES[1] * multiprocessors as f64 / working);
        let area = (self.rows * self.columns) as f64;
        let loaded = ((self.rows + self.columns / self.cluster) * 128) as f64;
        let step = (area * 64.0 / RATE).max(loaded / bytes).max(STEP);
        let shown = if self.schedule == Schedule::PingPong { 1.0 } else { turns };
        let steps = k.div_ceil(64) as f64;
        FIXED + turns * steps * step + shown * (TILE + SUM * area)
    }

    /// Rows of tiles to walk before the next column, of `pairs` that there are. The tiles that run
    /// at once are then about square.
    pub(super) fn group(&self, pairs: usize) -> usize {
        (2048 / (self.rows * self.cluster)).clamp(1, pairs.max(1))
    }
}

impl fmt::Display for HopperTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = match self.schedule {
            Schedule::Cooperative => "",
            Schedule::PingPong => " ping-pong",
        };
        write!(f, "hopper {}x{} by {}{schedule}", self.rows, self.columns, self.cluster)
    }
}

/// The text names no tile of `TILES`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct UnknownTile;

impl FromStr for HopperTile {
    type Err = UnknownTile;

    fn from_str(text: &str) -> Result<Self, UnknownTile> {
        TILES.into_iter().find(|tile| tile.to_string() == text).ok_or(UnknownTile)
    }
}

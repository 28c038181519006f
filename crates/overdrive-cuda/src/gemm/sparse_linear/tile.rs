//! Chooses the layers that the kernel of `sparse_linear` takes, and the tiles that it is compiled
//! with.
//!
//! The kernel takes the products that it computed faster, on an H200, than cuBLASLt did by the
//! unpacked weight. With enough rows for every multiprocessor to have a large tile, the tensor
//! cores bring the gain (1.4 to 1.6 times). With few rows the smaller weight brings it (1.1 to 1.3
//! times). Invariant: a tile never needs more shared memory than a block may have.

use overdrive_ir::{DType, Decline, Operation, TensorType};

/// Inputs whose places are one load of the mask.
const INPUTS: usize = 128;
/// With few rows: outputs that keep most multiprocessors busy.
const FEWEST_OUTPUTS: usize = 4096;
/// With many rows: tiles that keep most multiprocessors busy (96 of 768 inputs gained nothing, 128
/// and 512 a third). Also inputs that outweigh the beginning and the end of a tile.
const FEWEST_TILES: usize = 100;
const FEWEST_INPUTS: usize = 1024;
/// Inputs of a tile; half of their weights are kept.
const TILE_INPUTS: usize = 64;
/// Dynamic shared memory that a block may have, less the room of the barriers.
const SHARED_BYTES: usize = 227 * 1024 - 512;
/// For bringing the first tile to its alignment.
const SLACK: usize = 1024;
/// Most tiles in flight.
const MOST_STAGES: usize = 16;

/// Why operands of these types are not for the kernel; `None` where they are.
pub(super) fn declines(_: &Operation, types: &[TensorType]) -> Option<Decline> {
    declined(types).map(Decline::Because)
}

fn declined(types: &[TensorType]) -> Option<String> {
    let [x, values, _, ..] = types else { return None };
    let unpacked = "the weight is unpacked before the product";
    if !matches!(x.dtype, DType::BF16 | DType::F16) {
        return Some(format!("its kernel multiplies bf16 and f16, not {}: {unpacked}", x.dtype));
    }
    let (sizes, [n, k]) = (x.sizes(), [values.sizes()[0], 2 * values.sizes()[1]]);
    let rows: usize = sizes[..sizes.len() - 1].iter().product();
    if !k.is_multiple_of(INPUTS) {
        return Some(format!(
            "its kernel reads the places of {INPUTS} inputs at a time, not of {k}: {unpacked}"
        ));
    }
    if rows == 0
        || n == 0
        || k == 0
        || [rows, n, k].iter().any(|&extent| extent > i32::MAX as usize / 2)
    {
        return Some(format!("nothing to compute, or too much for one launch: {unpacked}"));
    }
    slower(rows, [n, k]).map(|reason| format!("{reason}: {unpacked}"))
}

/// Why a product by the unpacked weight is at least as fast; `None` where it is not.
fn slower(rows: usize, [n, k]: [usize; 2]) -> Option<String> {
    let tile = SparseTile::of(rows);
    if tile != MANY {
        let fewest = FEWEST_OUTPUTS;
        return (n < fewest).then(|| {
            format!("{n} outputs of {rows} rows are too few to gain by 2:4, which takes {fewest}")
        });
    }
    let count: usize = tile.counts(rows, n).iter().product();
    let [outputs, tall] = [tile.outputs(), tile.rows];
    let of = format!("tiles of {outputs} outputs by {tall} rows");
    if count < FEWEST_TILES {
        return Some(format!(
            "{count} {of} are too few to gain by 2:4, which takes {FEWEST_TILES}"
        ));
    }
    (k < FEWEST_INPUTS)
        .then(|| format!("{k} inputs are too few to gain by 2:4, which takes {FEWEST_INPUTS}"))
}

/// The tile that a block computes at a time.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct SparseTile {
    /// Warpgroups that multiply, by 64 outputs each.
    pub(super) consumers: usize,
    /// Rows of x.
    pub(super) rows: usize,
}

const fn tile(consumers: usize, rows: usize) -> SparseTile {
    SparseTile { consumers, rows }
}

/// Those for few rows: up to as many as they have.
const FEW: [SparseTile; 3] = [tile(1, 16), tile(1, 32), tile(1, 64)];
/// That for many.
const MANY: SparseTile = tile(2, 256);
/// All.
pub(super) const TILES: [SparseTile; 4] = [FEW[0], FEW[1], FEW[2], MANY];

impl SparseTile {
    /// The one for `rows` rows of x.
    pub(super) fn of(rows: usize) -> Self {
        FEW.into_iter().find(|tile| rows <= tile.rows).unwrap_or(MANY)
    }

    pub(super) fn outputs(&self) -> usize {
        64 * self.consumers
    }

    /// Rows of y that are stored at a time.
    pub(super) fn slice(&self) -> usize {
        self.rows.min(64)
    }

    fn store_bytes(&self) -> usize {
        self.consumers * self.slice() * 128
    }

    fn stage_bytes(&self) -> usize {
        (self.outputs() + 2 * self.rows) * TILE_INPUTS
    }

    /// How many tiles of operands are in flight.
    pub(super) fn stages(&self) -> usize {
        ((SHARED_BYTES - SLACK - self.store_bytes()) / self.stage_bytes()).min(MOST_STAGES)
    }

    pub(super) fn shared_bytes(&self) -> usize {
        self.stages() * self.stage_bytes() + self.store_bytes() + SLACK
    }

    pub(super) fn threads(&self) -> usize {
        128 * (self.consumers + 1)
    }

    /// Tiles of outputs, and of rows.
    pub(super) fn counts(&self, rows: usize, n: usize) -> [usize; 2] {
        [n.div_ceil(self.outputs()), rows.div_ceil(self.rows)]
    }

    /// Tiles of outputs to walk before the next rows of x, of `count` that there are. The tiles
    /// that run at once are then about square.
    pub(super) fn group(&self, count: usize) -> usize {
        (2048 / self.outputs()).clamp(1, count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_fits_a_multiprocessor() {
        for tile in TILES {
            assert!(tile.shared_bytes() <= SHARED_BYTES && tile.stages() >= 4, "{tile:?}");
        }
    }

    #[test]
    fn the_kernel_takes_what_it_is_faster_at() {
        let layer = |rows: usize, [n, k]: [usize; 2], dtype| {
            let types = [
                TensorType::new(dtype, [rows, k]),
                TensorType::new(dtype, [n, k / 2]),
                TensorType::new(DType::U8, [n, k.div_ceil(8)]),
            ];
            declined(&types)
        };
        for (rows, weights) in
            [(8192, [8192, 8192]), (512, [8192, 8192]), (4096, [4096, 1024]), (16, [4096, 4096])]
        {
            assert_eq!(layer(rows, weights, DType::BF16), None, "{rows} by {weights:?}");
        }
        let slower = layer(256, [4096, 4096], DType::F16).unwrap_or_default();
        assert!(slower.contains("32 tiles") && slower.contains("unpacked"), "{slower}");
        for (rows, weights, dtype, word) in [
            (8192, [8192, 8192], DType::F32, "f32"),
            (8192, [8192, 1000], DType::BF16, "1000"),
            (0, [8192, 8192], DType::BF16, "nothing"),
            (8192, [8192, 512], DType::BF16, "512 inputs"),
        ] {
            let reason = layer(rows, weights, dtype).unwrap_or_default();
            assert!(reason.contains(word) && reason.contains("unpacked"), "{reason}");
        }
    }
}

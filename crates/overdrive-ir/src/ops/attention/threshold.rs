//! The tiles of scores that a threshold keeps.
//!
//! A tile has 64 queries and 128 keys of one head. Tiles of keys are visited from the last to the
//! first: under a causal mask the keys next to a query are its last ones. A query asks for a tile
//! if one of its scores there is at least the largest so far plus `ln threshold`. A tile that no
//! query asks for is skipped: its scores become -∞. They are below the largest score, which
//! therefore does not depend on the threshold. Source: skip-softmax attention, "BLASST",
//! arXiv:2512.12087.

use crate::prim::{Pad, Window};
use crate::{Compare, Expr, Prim, Reducer};

/// Queries and keys of a tile.
pub const TILE: [usize; 2] = [64, 128];

/// Numbers of tiles of queries and of keys.
fn tiles(pairs: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|d| pairs[d].div_ceil(TILE[d]))
}

/// Replaces the scores of tiles that are not kept by -∞. `rows` are the scores of a tile of
/// queries, -∞ where hidden.
pub(super) fn skip_of_tile(rows: &mut [Vec<f64>], threshold: f64) {
    let keys = rows.first().map_or(0, Vec::len);
    let mut largest = vec![f64::NEG_INFINITY; rows.len()];
    for first in (0..keys).step_by(TILE[1]).rev() {
        let tile = first..keys.min(first + TILE[1]);
        let mut is_kept = false;
        for (row, largest) in rows.iter().zip(&mut largest) {
            let most = row[tile.clone()].iter().copied().fold(f64::NEG_INFINITY, f64::max);
            is_kept |= most > f64::NEG_INFINITY && most >= *largest + threshold.ln();
            *largest = largest.max(most);
        }
        if !is_kept {
            rows.iter_mut().for_each(|row| row[tile.clone()].fill(f64::NEG_INFINITY));
        }
    }
}

/// Which tiles are kept, from scores `[B, H, Tq, Tk]` that are -∞ where hidden: booleans `[B, H,
/// tiles of queries, tiles of keys]`.
pub fn kept_tiles(scores: Expr<'_>, threshold: f64) -> Expr<'_> {
    let [batch, heads, queries, keys] = [0, 1, 2, 3].map(|d| scores.size(d));
    let [rows, columns] = tiles([queries, keys]);
    let after = |size: usize| Pad { high: size as i64, ..Pad::default() };
    let pads = [0, 0, rows * TILE[0] - queries, columns * TILE[1] - keys].map(after);
    let none = scores.constant(f64::NEG_INFINITY);
    let whole = scores.pad(pads.to_vec(), f64::NEG_INFINITY);
    let most = whole.reshape([batch, heads, rows, TILE[0], columns, TILE[1]]);
    let most = most.reduce(Reducer::Max, &[5]);
    // The largest of the tiles after each: windows that begin one tile later.
    let one = Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 };
    let size = columns.max(1);
    let later = Window { size, pad_high: size - 1, ..one };
    let windows = vec![one, one, one, one, later];
    let shifted = [0, 0, 0, 0, 1].map(after).to_vec();
    let next = most.pad(shifted, f64::NEG_INFINITY).slice_axis(4, 1, columns + 1);
    let largest =
        next.builder().op1(Prim::ReduceWindow { reducer: Reducer::Max, windows }, &[next]);
    let asks = most.compare(Compare::Ge, largest + threshold.ln());
    let sees = most.compare(Compare::Gt, none);
    sees.select(asks, sees).reduce(Reducer::Or, &[3])
}

/// Scores `[B, H, Tq, Tk]` with -∞ in place of those of tiles that are not kept.
pub(super) fn skip(scores: Expr<'_>, threshold: f64) -> Expr<'_> {
    let sizes = [0, 1, 2, 3].map(|d| scores.size(d));
    let [rows, columns] = tiles([sizes[2], sizes[3]]);
    let grid = [sizes[0], sizes[1], rows, TILE[0], columns, TILE[1]];
    let kept = kept_tiles(scores, threshold).broadcast_in(&grid.into(), &[0, 1, 2, 4]);
    let kept = kept.reshape([sizes[0], sizes[1], rows * TILE[0], columns * TILE[1]]);
    let kept = kept.slice_axis(2, 0, sizes[2]).slice_axis(3, 0, sizes[3]);
    kept.select(scores, scores.constant(f64::NEG_INFINITY))
}

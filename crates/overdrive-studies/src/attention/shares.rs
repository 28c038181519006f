//! Shares of attention that are left out: tiles of a row, and pairs of queries and keys that a mask
//! function hides.

/// Percentage points by which the share of a name may differ from the share of its tiles: one tile
/// of eight is 12.5 % for 10 %.
const NEAR: f64 = 3.0;

/// Visible tiles of a row of `side`, if so many percent are skipped: one at least.
pub(super) fn shown(percent: u8, side: usize) -> usize {
    ((side * (100 - usize::from(percent)) + 50) / 100).max(1)
}

/// The share of the tiles that are visible.
pub(super) fn visible((percent, side): (u8, usize)) -> f64 {
    shown(percent, side) as f64 / side as f64
}

/// The reason why a variant does not exist at a length: its tiles are too few for the share in its
/// name.
pub(super) fn too_few((percent, side): (u8, usize)) -> Option<String> {
    let share = 100.0 * (1.0 - visible((percent, side)));
    let is_near = (share - f64::from(percent)).abs() <= NEAR;
    (!is_near).then(|| {
        format!("with {side} x {side} tiles of a head it would skip {share:.0} %; take a longer T")
    })
}

/// Pairs of a sequence in which each query sees at most so many keys, itself and those before it.
pub(super) fn pairs_of_window(t: usize, width: usize) -> usize {
    (1..=t).map(|keys| keys.min(width)).sum()
}

/// Pairs of causal attention within documents that follow one another, by the ids of the tokens.
pub(super) fn pairs_of_documents(ids: &[i128]) -> usize {
    let documents = ids.chunk_by(|one, next| one == next);
    documents.map(|document| document.len() * (document.len() + 1) / 2).sum()
}

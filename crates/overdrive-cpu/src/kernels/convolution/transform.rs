//! The transforms of a convolution with fewer multiplications: from lines of the input to panels of combinations, and from
//! sums to lines of the output. AVX-512.
//!
//! Along a line, tiles are neighbouring lanes: every `STEP`-th element. Lines that have the same place in their tiles lie one
//! behind the other, so that the second combination, down the columns, is one run over all tiles of a span.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers.

use std::arch::x86_64::*;

use super::scheme::{OUTPUTS, Point, Scheme, Sign, Sum};

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

impl Sum for __m512 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: the functions below run only where AVX-512 is.
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        // SAFETY: likewise.
        unsafe { _mm512_sub_ps(self, other) }
    }
}

#[inline(always)]
fn combined(point: &Point, element: impl Fn(usize) -> __m512) -> __m512 {
    let first = element(point.first);
    match point.second {
        None => first,
        Some((Sign::Plus, second)) => first.plus(element(second)),
        Some((Sign::Minus, second)) => first.minus(element(second)),
    }
}

/// Every `STEP`-th element, 2 or 4, of 16 times as many from `from` on.
#[inline(always)]
unsafe fn every<const STEP: usize>(from: *const f32) -> __m512 {
    const fn index<const STEP: usize>() -> [i32; LANES] {
        let (mut index, mut i) = ([0; LANES], 0);
        while i < LANES {
            index[i] = (i * STEP % (2 * LANES)) as i32;
            i += 1;
        }
        index
    }
    // SAFETY: as the caller promised.
    unsafe {
        let index = _mm512_loadu_si512(const { &index::<STEP>() }.as_ptr().cast());
        let load = |i: usize| _mm512_loadu_ps(from.add(i * LANES));
        let low = _mm512_permutex2var_ps(load(0), index, load(1));
        if STEP == 2 {
            return low;
        }
        let high = _mm512_permutex2var_ps(load(2), index, load(3));
        _mm512_mask_blend_ps(0xFF00, low, high)
    }
}

/// What [`line`] makes of a line: where the first tile of each point goes, `pitch` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Points {
    pub(super) to: *mut f32,
    pub(super) pitch: usize,
}

/// Combines the elements of each tile's window along a line.
///
/// # Safety
/// The CPU has AVX-512. `from` holds the windows of `tiles` tiles, rounded up to whole vectors, and `to` has room for as many
/// of each point.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn line<S: Scheme>(from: *const f32, tiles: usize, to: Points) {
    for tile in (0..tiles).step_by(LANES) {
        // SAFETY: as the caller promised.
        unsafe {
            let from = from.add(tile * S::STEP);
            let element =
                |at: usize| if S::STEP == 2 { every::<2>(from.add(at)) } else { every::<4>(from.add(at)) };
            for (i, point) in S::POINTS.iter().enumerate() {
                _mm512_storeu_ps(to.to.add(i * to.pitch + tile), combined(point, element));
            }
        }
    }
}

/// A row of the right matrix in its panels.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// Where the row begins in the first panel.
    pub(super) to: *mut f32,
    /// Elements from a panel to the next, and of a panel's row, a multiple of [`LANES`].
    pub(super) panel: usize,
    pub(super) width: usize,
}

/// Combines lines of each tile's window. `lines(i)` is line `i` of the window, of all tiles one after the other.
///
/// # Safety
/// The CPU has AVX-512; the lines have `columns` elements, rounded up to whole panels, and the row as much room.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn column(point: &Point, lines: impl Fn(usize) -> *const f32, columns: usize, row: Row) {
    let mut to = row.to;
    for first in (0..columns).step_by(row.width) {
        for lane in (0..row.width).step_by(LANES) {
            // SAFETY: as the caller promised.
            unsafe {
                let element = |line: usize| _mm512_loadu_ps(lines(line).add(first + lane));
                _mm512_storeu_ps(to.add(lane), combined(point, element));
            }
        }
        to = to.wrapping_add(row.panel);
    }
}

/// Sums of one output channel, and the lines of the output that they become.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    /// The first sum; the next is `pitch` elements behind, and so on, row by row of pairs.
    pub(super) sums: *const f32,
    pub(super) pitch: usize,
    /// Lines of tiles, and tiles of a line.
    pub(super) lines: usize,
    pub(super) tiles: usize,
    /// Elements of a line of the output, of which there are [`OUTPUTS`] for each line of tiles.
    pub(super) to: *mut f32,
    pub(super) line: usize,
}

/// Makes outputs of sums.
///
/// # Safety
/// The CPU has AVX-512; the sums can be read, with a vector behind them, and there is room for the lines.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn outputs<S: Scheme>(of: Tiles) {
    const MOST: usize = 4;
    let Tiles { sums, pitch, lines, tiles, to, line } = of;
    let index =
        |i: usize| std::array::from_fn::<i32, LANES, _>(|lane| (i * 8 + lane / 2 + lane % 2 * LANES) as i32);
    let interleaved = [index(0), index(1)];
    let count = S::SUMS.len();
    for row in 0..lines {
        for tile in (0..tiles).step_by(LANES) {
            // SAFETY: as the caller promised; masks leave out what is behind a line's end.
            unsafe {
                let [low, high] = interleaved.map(|index| _mm512_loadu_si512(index.as_ptr().cast()));
                let sum = |y: usize, x: usize| {
                    _mm512_loadu_ps(sums.add((y * count + x) * pitch + row * tiles + tile))
                };
                let mut down = [[_mm512_setzero_ps(); MOST]; OUTPUTS];
                for x in 0..count {
                    let column: [__m512; MOST] =
                        std::array::from_fn(|y| if y < count { sum(y, x) } else { _mm512_setzero_ps() });
                    for (down, output) in down.iter_mut().zip(S::outputs(&column)) {
                        down[x] = output;
                    }
                }
                let here = (line - OUTPUTS * tile).min(OUTPUTS * LANES);
                let mask = ((1u64 << here) - 1) as u32;
                for (y, down) in down.iter().enumerate() {
                    let [a, b] = S::outputs(down);
                    let to = to.add((OUTPUTS * row + y) * line + OUTPUTS * tile);
                    _mm512_mask_storeu_ps(to, mask as u16, _mm512_permutex2var_ps(a, low, b));
                    let to = to.wrapping_add(LANES);
                    _mm512_mask_storeu_ps(to, (mask >> 16) as u16, _mm512_permutex2var_ps(a, high, b));
                }
            }
        }
    }
}

//! The transforms of a convolution with fewer multiplications: from lines of the input to panels of
//! combinations, and from sums to lines of the output. AVX-512.
//!
//! Along a line, tiles are neighbouring lanes: every `STEP`-th element. Lines that have the same
//! place in their tiles lie one behind the other. So the second combination, down the columns, is
//! one run over all tiles of a span.
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
        // SAFETY: the functions below run only where AVX-512 is.
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

/// Every second element of 32 from `from` on.
#[inline(always)]
unsafe fn pairs(from: *const f32) -> __m512 {
    const fn index() -> [i32; LANES] {
        let (mut index, mut i) = ([0; LANES], 0);
        while i < LANES {
            index[i] = 2 * i as i32;
            i += 1;
        }
        index
    }
    // SAFETY: 32 numbers can be read from `from` on, where AVX-512 is.
    unsafe {
        let index = _mm512_loadu_si512(const { &index() }.as_ptr().cast());
        _mm512_permutex2var_ps(_mm512_loadu_ps(from), index, _mm512_loadu_ps(from.add(LANES)))
    }
}

/// The four elements of each window, for 16 tiles of two.
#[inline(always)]
unsafe fn twos(from: *const f32) -> [__m512; 5] {
    // SAFETY: the windows of 16 tiles can be read from `from` on, 35 numbers, where AVX-512 is.
    unsafe {
        let [a, b] = [pairs(from), pairs(from.add(1))];
        [a, b, pairs(from.add(2)), pairs(from.add(3)), b]
    }
}

/// The elements of the windows of 16 tiles of four, transposed: the last of a window is the first
/// of the next.
#[inline(always)]
unsafe fn fours(from: *const f32) -> [__m512; 5] {
    const fn index(first: i32) -> [i32; LANES] {
        let (mut index, mut i) = ([0; LANES], 0);
        while i < LANES {
            index[i] = (i % 8 * 4) as i32 + first + (i / 8) as i32;
            i += 1;
        }
        index
    }
    // SAFETY: the windows of 16 tiles can be read from `from` on, 65 numbers, where AVX-512 is.
    unsafe {
        let load = |i: usize| _mm512_loadu_ps(from.add(i * LANES));
        let [v0, v1, v2, v3] = [load(0), load(1), load(2), load(3)];
        let low = _mm512_loadu_si512(const { &index(0) }.as_ptr().cast());
        let high = _mm512_loadu_si512(const { &index(2) }.as_ptr().cast());
        let [a, b] = [_mm512_permutex2var_ps(v0, low, v1), _mm512_permutex2var_ps(v2, low, v3)];
        let [c, d] = [_mm512_permutex2var_ps(v0, high, v1), _mm512_permutex2var_ps(v2, high, v3)];
        let first = _mm512_shuffle_f32x4::<0x44>(a, b);
        let next = _mm512_set1_epi32(from.add(4 * LANES).cast::<i32>().read_unaligned());
        let last = _mm512_alignr_epi32::<1>(next, _mm512_castps_si512(first));
        [
            first,
            _mm512_shuffle_f32x4::<0xEE>(a, b),
            _mm512_shuffle_f32x4::<0x44>(c, d),
            _mm512_shuffle_f32x4::<0xEE>(c, d),
            _mm512_castsi512_ps(last),
        ]
    }
}

/// The result of [`line`] for a line: where the first tile of each point goes, `pitch` elements
/// apart.
#[derive(Clone, Copy)]
pub(super) struct Points {
    pub(super) to: *mut f32,
    pub(super) pitch: usize,
}

/// Combines the elements of each tile's window along a line.
///
/// # Safety
/// The CPU has AVX-512. `from` holds the windows of `tiles` tiles, rounded up to whole vectors, and
/// `to` has room for as many of each point.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn line<S: Scheme>(from: *const f32, tiles: usize, to: Points) {
    for tile in (0..tiles).step_by(LANES) {
        // SAFETY: `from` has windows, and each point in `to` has room, for whole vectors of tiles.
        unsafe {
            let from = from.add(tile * S::STEP);
            let elements = match S::STEP {
                2 => twos(from),
                _ => fours(from),
            };
            for (i, point) in S::POINTS.iter().enumerate() {
                _mm512_storeu_ps(
                    to.to.add(i * to.pitch + tile),
                    combined(point, |at| elements[at]),
                );
            }
        }
    }
}

/// A row of the right matrix in its panels.
#[derive(Clone, Copy)]
pub(super) struct PanelRow {
    /// Address of the row in the first panel.
    pub(super) to: *mut f32,
    /// Elements from a panel to the next, and of a panel's row, a multiple of [`LANES`].
    pub(super) panel: usize,
    pub(super) width: usize,
}

/// Combines lines of each tile's window. `lines(i)` is line `i` of the window, of all tiles one
/// after the other.
///
/// # Safety
/// The CPU has AVX-512; the lines have `columns` elements, rounded up to whole panels, and the row
/// as much room.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn column(
    point: &Point,
    lines: impl Fn(usize) -> *const f32,
    columns: usize,
    row: PanelRow,
) {
    let mut to = row.to;
    for first in (0..columns).step_by(row.width) {
        for lane in (0..row.width).step_by(LANES) {
            // SAFETY: columns are rounded up to whole panels, which are whole vectors; lines and
            // the row have as many.
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
    /// Output, and the elements of one of its lines. There are [`OUTPUTS`] lines for each line of
    /// tiles.
    pub(super) to: *mut f32,
    pub(super) line: usize,
}

/// Makes outputs of sums.
///
/// # Safety
/// The CPU has AVX-512; the sums can be read, with a vector behind them, and there is room for the
/// lines.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn outputs<S: Scheme>(of: Tiles) {
    const MOST: usize = 4;
    let Tiles { sums, pitch, lines, tiles, to, line } = of;
    let index = |i: usize| {
        std::array::from_fn::<i32, LANES, _>(|lane| (i * 8 + lane / 2 + lane % 2 * LANES) as i32)
    };
    let interleaved = [index(0), index(1)];
    let count = S::SUMS.len();
    for row in 0..lines {
        for tile in (0..tiles).step_by(LANES) {
            // SAFETY: a vector can be read behind the sums; masks leave out the places behind a
            // line's end.
            unsafe {
                let [low, high] =
                    interleaved.map(|index| _mm512_loadu_si512(index.as_ptr().cast()));
                let sum = |y: usize, x: usize| {
                    _mm512_loadu_ps(sums.add((y * count + x) * pitch + row * tiles + tile))
                };
                let mut down = [[_mm512_setzero_ps(); MOST]; OUTPUTS];
                for x in 0..count {
                    // No function that takes a closure: it would not be compiled for these vectors.
                    let mut column = [_mm512_setzero_ps(); MOST];
                    for (y, line) in column.iter_mut().enumerate().take(count) {
                        *line = sum(y, x);
                    }
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
                    _mm512_mask_storeu_ps(
                        to,
                        (mask >> 16) as u16,
                        _mm512_permutex2var_ps(a, high, b),
                    );
                }
            }
        }
    }
}

//! Products of convolutions whose left operand is read where the pixels lie, on AVX-512: f32 by
//! multiply-adds, i8 by VNNI.
//!
//! A *piece* is up to seven neighbouring pixels of a line. A tile is one or two pieces by the 32
//! columns of a panel of weights. That takes at most 28 registers for sums, 2 for weights and 1 for
//! a pixel, of 32. Seven divides the lines of common networks. Two pieces need not be neighbours,
//! so that lines of seven pixels fill whole tiles. Panels are those of the micro-kernels of the
//! same formats.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers; `PiecesTile` says what they point to.

use std::arch::x86_64::{__m512, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_set1_epi32};

use super::kernel::{Element, MicroKernel};
use super::simd::Simd;
use super::x86::{F32x16, I8x64};
use crate::isa::InstructionSet;

/// Most pixels of a piece.
pub(crate) const PIECE: usize = 7;

/// Columns of a panel.
const PANEL: usize = 32;

/// Bytes of a unit, an f32 or four i8, and of a sum.
pub(crate) const UNIT: usize = 4;

/// Prefetch distance in steps of a panel.
const AHEAD: usize = 32;

/// One tile.
#[derive(Clone, Copy)]
pub(crate) struct PiecesTile<'a> {
    /// The first pixel of either piece, its bytes changed by [`Piecewise::SHIFT`], and bytes from a
    /// pixel to the next.
    pub(crate) pixels: [*const u8; 2],
    pub(crate) pixel_bytes: usize,
    /// Bytes from a pixel to the values that it multiplies, a run of `units` each.
    pub(crate) offsets: &'a [isize],
    pub(crate) units: usize,
    /// A panel of weights.
    pub(crate) b: *const u8,
    /// The first sum of either piece, and sums from a row to the next.
    pub(crate) c: [*mut u32; 2],
    pub(crate) c_stride: usize,
}

/// The kernel of tiles of so many pieces.
pub(crate) type PiecesKernel = unsafe fn(&PiecesTile<'_>);

/// A format of pixels and weights that has such tiles.
pub(crate) trait Piecewise: Element {
    /// Bits of each byte of a pixel that are the other way round. The left operand of VNNI is
    /// unsigned: i8 are shifted by 128, and heads of panels take that back. To do so for each tile
    /// would take as many of the ports that multiply as half of the products.
    const SHIFT: u8;

    /// The kernels, by pixels of a piece less one and pieces less one.
    const TILES: [[PiecesKernel; 2]; PIECE];

    /// The micro-kernel whose panels of B these kernels read. `None` where the instruction set in
    /// force has none, or prefers tiles of its own.
    fn panels() -> Option<&'static MicroKernel<Self>>;
}

/// A vector instruction set that multiplies pixels.
trait PixelSimd: Simd {
    /// A unit of a pixel in all lanes, as the left operand of a multiply-add.
    unsafe fn pixel(from: *const Self::Unit) -> Self::Vector;
}

impl PixelSimd for F32x16 {
    #[inline(always)]
    unsafe fn pixel(from: *const f32) -> __m512 {
        // SAFETY: the caller has the unit and the instructions.
        unsafe { Self::splat(from) }
    }
}

impl PixelSimd for I8x64 {
    #[inline(always)]
    unsafe fn pixel(from: *const i32) -> __m512i {
        // SAFETY: the caller has the unit and the instructions.
        unsafe { _mm512_set1_epi32(from.read_unaligned()) }
    }
}

/// `N` pieces of `P` pixels by two vectors.
#[inline(always)]
unsafe fn multiply<S: PixelSimd, const P: usize, const N: usize>(tile: &PiecesTile<'_>) {
    // SAFETY: the pixels have `units` at each offset, and the panel has a step for each of them. C
    // has a row of 32 sums for each pixel.
    unsafe {
        let mut b = tile.b.cast::<S::Unit>();
        let mut start = [S::zero(); 2];
        if S::HEAD {
            start = [S::load(b), S::load(b.add(S::LANES))];
            b = b.wrapping_add(PANEL);
        }
        let mut acc = [[start; P]; N];
        let row = tile.pixel_bytes;
        for &offset in tile.offsets {
            let mut at: [*const u8; N] =
                std::array::from_fn(|piece| tile.pixels[piece].wrapping_offset(offset));
            for _ in 0..tile.units {
                let weights = [S::load(b), S::load(b.add(S::LANES))];
                let ahead = b.wrapping_add(AHEAD * PANEL);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(S::LANES).cast());
                for (acc, at) in acc.iter_mut().zip(&mut at) {
                    for (pixel, acc) in acc.iter_mut().enumerate() {
                        let x = S::pixel(at.add(pixel * row).cast());
                        acc[0] = S::fma(x, weights[0], acc[0]);
                        acc[1] = S::fma(x, weights[1], acc[1]);
                    }
                    *at = at.wrapping_add(UNIT);
                }
                b = b.wrapping_add(PANEL);
            }
        }
        for (acc, &c) in acc.iter().zip(&tile.c) {
            for (pixel, acc) in acc.iter().enumerate() {
                let c = c.add(pixel * tile.c_stride).cast::<S::Acc>();
                S::store(acc[0], c);
                S::store(acc[1], c.add(S::LANES));
            }
        }
    }
}

macro_rules! piecewise {
    ($format:ty, $simd:ty, $shift:literal, $set:ident, $features:literal, $kernel:ident) => {
        /// # Safety
        /// The CPU has the instructions; the tile is as [`PiecesTile`] says.
        #[target_feature(enable = $features)]
        unsafe fn $kernel<const P: usize, const N: usize>(tile: &PiecesTile<'_>) {
            // SAFETY: as this function's.
            unsafe { multiply::<$simd, P, N>(tile) }
        }

        impl Piecewise for $format {
            const SHIFT: u8 = $shift;
            const TILES: [[PiecesKernel; 2]; PIECE] = [
                [$kernel::<1, 1>, $kernel::<1, 2>],
                [$kernel::<2, 1>, $kernel::<2, 2>],
                [$kernel::<3, 1>, $kernel::<3, 2>],
                [$kernel::<4, 1>, $kernel::<4, 2>],
                [$kernel::<5, 1>, $kernel::<5, 2>],
                [$kernel::<6, 1>, $kernel::<6, 2>],
                [$kernel::<7, 1>, $kernel::<7, 2>],
            ];

            fn panels() -> Option<&'static MicroKernel<Self>> {
                let usable = InstructionSet::$set.is_usable() && !InstructionSet::Amx.is_usable();
                usable.then(MicroKernel::best)
            }
        }
    };
}

piecewise!(f32, F32x16, 0, Avx512, "avx512f,avx512bw,avx512dq,avx512vl", f32_pieces);
piecewise!(i8, I8x64, 0x80, Avx512Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", i8_pieces);

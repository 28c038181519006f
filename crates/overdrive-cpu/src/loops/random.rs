//! Random bits: Philox 4x32-10, bit for bit that of `overdrive_ir::eval::philox`.
//!
//! A block of the generator gives four neighbouring elements, so runs of neighbours compute each
//! block once.
#![allow(unsafe_code)] // Slices from raw operands, as `LaneKernel::run` allows.

use overdrive_ir::eval::philox;

use super::isa::{Isa, LaneKernel, Operands};

/// Blocks computed side by side, a vector lane each.
pub(crate) const SIDE: usize = 16;

/// Source 0 is the first index (an address, as for `load_store::index`). Source 1 is the u64 seed,
/// source 2 the distance between the indices of neighbouring lanes. The immediate is the site.
pub(super) struct RandomBits;

impl LaneKernel for RandomBits {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes, and source 1 is the seed, a u64. The others are
        // numbers, not addresses.
        let (dst, seed) = unsafe { (o.dst::<u32>(n), *o.src[1].cast::<u64>()) };
        let (first, step, site) =
            (o.src[0].addr() as u64, o.src[2].addr() as u64, o.immediate as u64);
        if step != 1 {
            for (i, lane) in dst.iter_mut().enumerate() {
                *lane = philox::bits(seed, site, first.wrapping_add(step.wrapping_mul(i as u64)));
            }
            return;
        }
        let head = n.min(first.wrapping_neg() as usize % 4);
        for (i, lane) in dst[..head].iter_mut().enumerate() {
            *lane = philox::bits(seed, site, first + i as u64);
        }
        let mut chunks = dst[head..].chunks_exact_mut(4 * SIDE);
        let mut block = (first + head as u64) / 4;
        for chunk in &mut chunks {
            side_by_side(block, seed, site, chunk);
            block += SIDE as u64;
        }
        for (i, lane) in chunks.into_remainder().iter_mut().enumerate() {
            *lane = philox::bits(seed, site, 4 * block + i as u64);
        }
    }
}

/// `SIDE` blocks from `block` on into `4 * SIDE` elements.
#[inline(always)]
fn side_by_side(block: u64, seed: u64, site: u64, to: &mut [u32]) {
    let words = words(&std::array::from_fn(|lane| block + lane as u64), seed, site);
    for lane in 0..SIDE {
        for word in 0..4 {
            to[4 * lane + word] = words[word][lane];
        }
    }
}

/// The four words of each of `SIDE` blocks.
// Lanes of four arrays at once; this form is the one that vectorises.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub(crate) fn words(blocks: &[u64; SIDE], seed: u64, site: u64) -> [[u32; SIDE]; 4] {
    let mut c = [[0u32; SIDE]; 4];
    for lane in 0..SIDE {
        c[0][lane] = blocks[lane] as u32;
        c[1][lane] = (blocks[lane] >> 32) as u32;
        c[2][lane] = site as u32;
        c[3][lane] = (site >> 32) as u32;
    }
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        for lane in 0..SIDE {
            let p0 = 0xD251_1F53u64 * u64::from(c[0][lane]);
            let p1 = 0xCD9E_8D57u64 * u64::from(c[2][lane]);
            c[0][lane] = (p1 >> 32) as u32 ^ c[1][lane] ^ key[0];
            c[1][lane] = p1 as u32;
            c[2][lane] = (p0 >> 32) as u32 ^ c[3][lane] ^ key[1];
            c[3][lane] = p0 as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

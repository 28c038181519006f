//! Tiles of bf16 for convolutions, whose left operand is read where the pixels lie: steps of a
//! depth of their own.
#![allow(unsafe_code)] // Inline assembly on raw pointers.

use std::arch::asm;

use super::amx::{CONFIG, SIDE, TileConfig};

/// Two tiles of 16 pixels by the 32 columns of a panel of weights, in bf16: the left tiles are read
/// where the pixels lie.
#[derive(Clone, Copy)]
pub(crate) struct PixelTiles<'a> {
    /// The first pixel of either tile, and bytes from a pixel to the next.
    pub(crate) pixels: [*const u8; 2],
    pub(crate) pixel_bytes: usize,
    /// Bytes from a pixel to the values of it that each step multiplies.
    pub(crate) offsets: &'a [isize],
    /// Panels of the right matrix, in pairs of k.
    pub(crate) b: *const u8,
    /// The first sum of either tile, and bytes from a row to the next.
    pub(crate) c: [*mut f32; 2],
    pub(crate) c_bytes: usize,
}

/// The registers for steps of some depth.
pub(crate) struct PixelConfig {
    config: TileConfig,
    /// Bytes from a step of the right matrix to the next.
    b_bytes: usize,
}

impl PixelConfig {
    /// `depth` is even and at most 32.
    pub(crate) fn new(depth: usize) -> Self {
        assert!(
            depth.is_multiple_of(2) && (2..=32).contains(&depth),
            "a step is of 2 to 32 elements in pairs"
        );
        let mut config = CONFIG;
        config.row_bytes[4..6].fill(2 * depth as u16);
        config.rows[6..8].fill(depth as u8 / 2);
        Self { config, b_bytes: depth / 2 * 4 * SIDE }
    }

    /// Configures the registers, calls `work`, and releases them.
    ///
    /// # Safety
    /// The CPU has AMX.
    pub(crate) unsafe fn hold(&self, work: impl FnOnce()) {
        // SAFETY: the CPU has AMX, and `config` is a configuration in 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &self.config, options(nostack, readonly)) };
        work();
        // SAFETY: the registers are those configured above, and `work` is done with them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// Multiplies.
    ///
    /// # Safety
    /// - The registers are [held](Self::hold).
    /// - 16 pixels of either tile can be read at each offset.
    /// - The panel is as long as there are offsets, at least one.
    /// - 16 rows of 32 sums of either tile can be written, those of the second after the first's.
    pub(crate) unsafe fn multiply(&self, tiles: PixelTiles<'_>) {
        let PixelTiles { pixels: [p0, p1], pixel_bytes, offsets, b, c: [c0, c1], c_bytes } = tiles;
        // SAFETY: pixels can be read at each offset, and the panel has a step for each. Both tiles
        // of C have 16 rows of 32 sums.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "mov {o}, [{offsets}]",
                "lea {p}, [{p0} + {o}]",
                "tileloadd tmm4, [{p} + {row}]",
                "tileloadd tmm6, [{b} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {line} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "lea {p}, [{p1} + {o}]",
                "tileloadd tmm5, [{p} + {row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {offsets}, 8",
                "add {b}, {b_bytes}",
                "dec {steps}",
                "jnz 2b",
                o = out(reg) _, p = out(reg) _, p0 = in(reg) p0, p1 = in(reg) p1,
                row = in(reg) pixel_bytes,
                line = in(reg) 4 * SIDE, b_bytes = in(reg) self.b_bytes,
                offsets = inout(reg) offsets.as_ptr() => _, b = inout(reg) b => _,
                steps = inout(reg) offsets.len() => _, options(nostack, readonly),
            );
            asm!(
                "tilestored [{c0} + {s}], tmm0",
                "tilestored [{c0} + {s} + 64], tmm1",
                "tilestored [{c1} + {s}], tmm2",
                "tilestored [{c1} + {s} + 64], tmm3",
                c0 = in(reg) c0, c1 = in(reg) c1, s = in(reg) c_bytes, options(nostack),
            );
        }
    }
}

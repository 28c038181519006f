//! Intel AMX: bf16 and i8 products on eight tile registers of 16 rows by 64 bytes.
//!
//! A tile of C is 32 x 32: four accumulators, and two tiles each of A and B, so that four multiplications of 16
//! cycles share four loads of 8. Intrinsics are not stable yet; inline assembly is.
//!
//! The registers are 8 KiB more for the kernel to save at a context switch, so Linux wants to be asked for them
//! once a process; where it says no, the next kernel of the list is chosen.
#![allow(unsafe_code)] // Inline assembly on raw pointers, and one system call.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::ops::AddAssign;
use std::sync::OnceLock;

use super::simd::PackedBlock;

/// Rows and columns of C.
const SIDE: usize = 32;
/// Bytes of a panel's step: 32 lines of 32 bf16 or 64 i8.
const STEP: usize = SIDE * 64;

/// Whether the CPU multiplies tiles of bf16 and the operating system granted their registers.
pub(crate) fn bf16_is_granted() -> bool {
    const BF16: u32 = 1 << 22;
    has(BF16) && is_granted()
}

/// Whether the CPU multiplies tiles of i8 and the operating system granted their registers.
pub(super) fn i8_is_granted() -> bool {
    const INT8: u32 = 1 << 25;
    has(INT8) && is_granted()
}

/// Features are bits of EDX of leaf 7.
fn has(feature: u32) -> bool {
    __cpuid_count(7, 0).edx & feature != 0
}

fn is_granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        const TILE: u32 = 1 << 24;
        has(TILE) && request_tile_registers()
    })
}

#[cfg(target_os = "linux")]
fn request_tile_registers() -> bool {
    // <asm/prctl.h> and Documentation/arch/x86/xstate.rst.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but the process's permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_tile_registers() -> bool {
    false
}

/// The operand of `ldtilecfg`: palette 1, and for each register its bytes a row and its rows.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut register = 0;
    while register < 8 {
        row_bytes[register] = 64;
        rows[register] = 16;
        register += 1;
    }
    TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// A number format of tiles: how a step's tiles are multiplied.
trait Dot {
    /// An element of C.
    type Acc: Copy + Default + AddAssign;

    /// Adds `steps` steps of the panels `a` and `b` to tiles 0 to 3.
    ///
    /// # Safety
    /// The registers are configured, and the panels are as long as `steps` says, which is not 0.
    unsafe fn walk(a: *const u8, b: *const u8, steps: usize);
}

macro_rules! dot {
    ($name:ident: $acc:ty, $instruction:literal) => {
        struct $name;

        impl Dot for $name {
            type Acc = $acc;

            #[inline(always)]
            unsafe fn walk(a: *const u8, b: *const u8, steps: usize) {
                // SAFETY: as the caller promised.
                unsafe {
                    asm!(
                        "2:",
                        "tileloadd tmm4, [{a} + {line}]",
                        "tileloadd tmm6, [{b} + 2 * {line}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm7, [{b} + 2 * {line} + 64]",
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        "tileloadd tmm5, [{a} + {line} + 1024]",
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "add {a}, 2048",
                        "add {b}, 2048",
                        "dec {steps}",
                        "jnz 2b",
                        a = inout(reg) a => _, b = inout(reg) b => _, steps = inout(reg) steps => _,
                        line = in(reg) 64_usize, options(nostack, readonly),
                    );
                }
            }
        }
    };
}

dot!(Bf16: f32, "tdpbf16ps");
dot!(I8: i32, "tdpbssd");

/// bf16: A panels hold for each 32 k their 32 rows, B panels for each pair of k its 32 columns.
///
/// # Safety
/// [`bf16_is_granted`] said yes; the block is as [`PackedBlock`] says.
pub(super) unsafe fn bf16_amx(block: &PackedBlock<f32>) {
    // SAFETY: as the caller promised.
    unsafe { compute::<Bf16>(block) }
}

/// i8: A panels hold for each 64 k their 32 rows, B panels for each four k their 32 columns.
///
/// # Safety
/// [`i8_is_granted`] said yes; the block is as [`PackedBlock`] says.
pub(super) unsafe fn i8_amx(block: &PackedBlock<i32>) {
    // SAFETY: as the caller promised.
    unsafe { compute::<I8>(block) }
}

/// Computes a block.
///
/// # Safety
/// The CPU has the format's tiles; the block is as [`PackedBlock`] says.
#[inline(always)]
unsafe fn compute<D: Dot>(block: &PackedBlock<D::Acc>) {
    let panel = block.steps * STEP;
    // SAFETY: panels follow each other; row and col are inside of C; a tile that reaches over C's edge is
    // computed in `edge`, which has room for a whole one.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly));
        let mut edge = [D::Acc::default(); SIDE * SIDE];
        for row in (0..block.rows).step_by(SIDE) {
            for col in (0..block.cols).step_by(SIDE) {
                let (a, b) = (block.a.add(row / SIDE * panel), block.b.add(col / SIDE * panel));
                let c = block.c.add(row * block.c_stride + col);
                let (rows, cols) = ((block.rows - row).min(SIDE), (block.cols - col).min(SIDE));
                if rows == SIDE && cols == SIDE {
                    let tile = Tile { a, b, c: c.cast(), c_stride: block.c_stride };
                    tile.multiply::<D>(block.steps, block.accumulate);
                    continue;
                }
                let tile = Tile { a, b, c: edge.as_mut_ptr().cast(), c_stride: SIDE };
                tile.multiply::<D>(block.steps, false);
                for i in 0..rows {
                    for j in 0..cols {
                        let to = c.add(i * block.c_stride + j);
                        let mut sum = if block.accumulate { *to } else { D::Acc::default() };
                        sum += edge[i * SIDE + j];
                        *to = sum;
                    }
                }
            }
        }
        asm!("tilerelease", options(nostack, nomem));
    }
}

/// A whole tile of C, of elements of four bytes, and its panels.
struct Tile {
    a: *const u8,
    b: *const u8,
    c: *mut u32,
    c_stride: usize,
}

impl Tile {
    /// # Safety
    /// The registers are configured, and panels and C are as long as `steps` and the tile say.
    #[inline(always)]
    unsafe fn multiply<D: Dot>(self, steps: usize, accumulate: bool) {
        let Self { a, b, c, c_stride } = self;
        let c_bytes = c_stride * size_of::<u32>();
        let below = c.wrapping_add(16 * c_stride);
        // SAFETY: as the caller promised. The compiler itself never uses tile registers, so that they keep their
        // values from one block of assembly to the next, and need not be declared.
        unsafe {
            if accumulate {
                asm!(
                    "tileloadd tmm0, [{c} + {s}]",
                    "tileloadd tmm1, [{c} + {s} + 64]",
                    "tileloadd tmm2, [{below} + {s}]",
                    "tileloadd tmm3, [{below} + {s} + 64]",
                    c = in(reg) c, below = in(reg) below, s = in(reg) c_bytes, options(nostack, readonly),
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack, nomem)
                );
            }
            if steps > 0 {
                D::walk(a, b, steps);
            }
            asm!(
                "tilestored [{c} + {s}], tmm0",
                "tilestored [{c} + {s} + 64], tmm1",
                "tilestored [{below} + {s}], tmm2",
                "tilestored [{below} + {s} + 64], tmm3",
                c = in(reg) c, below = in(reg) below, s = in(reg) c_bytes, options(nostack),
            );
        }
    }
}

/// Two tiles of 16 pixels by the 32 columns of a panel of weights, in bf16: the left tiles are read where the pixels lie.
#[derive(Clone, Copy)]
pub(crate) struct PixelTiles<'a> {
    /// The first pixel of either tile, and bytes from a pixel to the next.
    pub(crate) pixels: [*const u8; 2],
    pub(crate) pixel_bytes: usize,
    /// Bytes from a pixel to what each step multiplies of it.
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
        let mut config = TileConfig { ..CONFIG };
        config.row_bytes[4..6].fill(2 * depth as u16);
        config.rows[6..8].fill(depth as u8 / 2);
        Self { config, b_bytes: depth / 2 * 4 * SIDE }
    }

    /// Configures the registers, calls `work`, and releases them.
    ///
    /// # Safety
    /// [`bf16_is_granted`] said yes.
    pub(crate) unsafe fn hold(&self, work: impl FnOnce()) {
        // SAFETY: as the caller promised.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &self.config, options(nostack, readonly)) };
        work();
        // SAFETY: likewise.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// Multiplies.
    ///
    /// # Safety
    /// The registers are [held](Self::hold); 16 pixels of either tile can be read at each offset, the panel is as long as there
    /// are offsets, at least one, and 16 rows of 32 sums of either tile can be written, those of the second after the first's.
    pub(crate) unsafe fn multiply(&self, tiles: PixelTiles<'_>) {
        let PixelTiles { pixels: [p0, p1], pixel_bytes, offsets, b, c: [c0, c1], c_bytes } = tiles;
        // SAFETY: as the caller promised.
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
                o = out(reg) _, p = out(reg) _, p0 = in(reg) p0, p1 = in(reg) p1, row = in(reg) pixel_bytes,
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

//! Intel AMX: bf16 and i8 products on eight tile registers of 16 rows by 64 bytes.
//!
//! A tile of C is 32 x 32: four accumulators, and two tiles each of A and B, so that four multiplications of 16
//! cycles share four loads of 8. They outrun the second-level cache, so that whatever comes next is asked for ahead:
//! the next step of B, the next tile of C, and the next block of packed weights. Intrinsics are not stable yet;
//! inline assembly is.
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

/// 32 rows of A: how tiles find their lines, in bytes.
#[derive(Clone, Copy)]
struct Left {
    start: *const u8,
    /// From one row to the next.
    line: usize,
    /// From the upper 16 rows to the lower.
    below: usize,
    /// From one step to the next.
    step: usize,
}

/// What is asked for while a tile is computed.
#[derive(Clone, Copy)]
struct After {
    /// Two lines a step into the second-level cache, and bytes from a step to the next.
    from: *const u8,
    step: usize,
    /// The tile of C that follows, two rows a step into the first level, and bytes from a row to the next.
    c: *const u8,
    c_line: usize,
}

/// A number format of tiles: how a step's tiles are multiplied.
trait Dot {
    /// An element of C.
    type Acc: Copy + Default + AddAssign;

    /// Adds `steps` steps of A and of the panel `b` to tiles 0 to 3, and asks for what comes after.
    ///
    /// # Safety
    /// The registers are configured, and both are as long as `steps` says, which is not 0.
    unsafe fn walk(a: Left, b: *const u8, steps: usize, after: After);
}

/// Eight cache lines of the next step of B: a core's second-level cache gives 27 bytes a cycle, where tiles take 32, so that it
/// must never wait to be asked.
macro_rules! near {
    ($offset:literal) => {
        concat!(
            near!(@ $offset, "0"), near!(@ $offset, "64"), near!(@ $offset, "128"), near!(@ $offset, "192"),
            near!(@ $offset, "256"), near!(@ $offset, "320"), near!(@ $offset, "384"), near!(@ $offset, "448"),
        )
    };
    (@ $offset:literal, $line:literal) => {
        concat!("prefetcht0 [{b} + 2048 + ", $offset, " + ", $line, "]\n")
    };
}

macro_rules! dot {
    ($name:ident: $acc:ty, $instruction:literal) => {
        struct $name;

        impl Dot for $name {
            type Acc = $acc;

            #[inline(always)]
            unsafe fn walk(a: Left, b: *const u8, steps: usize, after: After) {
                let Left { start, line, below, step } = a;
                // SAFETY: as the caller promised; a prefetch never faults.
                unsafe {
                    asm!(
                        "2:",
                        "tileloadd tmm4, [{a} + {line}]",
                        near!(0),
                        "tileloadd tmm6, [{b} + 2 * {b_line}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        near!(512),
                        "tileloadd tmm7, [{b} + 2 * {b_line} + 64]",
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        near!(1024),
                        "tileloadd tmm5, [{below} + {line}]",
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        near!(1536),
                        "prefetcht1 [{after}]",
                        "prefetcht1 [{after} + 64]",
                        "prefetcht0 [{c}]",
                        "prefetcht0 [{c} + 64]",
                        "prefetcht0 [{c} + {c_line}]",
                        "prefetcht0 [{c} + {c_line} + 64]",
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "add {a}, {step}",
                        "add {below}, {step}",
                        "add {b}, 2048",
                        "add {after}, {after_step}",
                        "lea {c}, [{c} + 2 * {c_line}]",
                        "dec {steps}",
                        "jnz 2b",
                        a = inout(reg) start => _, below = inout(reg) start.wrapping_add(below) => _,
                        line = in(reg) line, step = in(reg) step,
                        b = inout(reg) b => _, b_line = in(reg) 64_usize,
                        after = inout(reg) after.from => _, after_step = in(reg) after.step,
                        c = inout(reg) after.c => _, c_line = in(reg) after.c_line,
                        steps = inout(reg) steps => _, options(nostack, readonly),
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
    let a = match block.a_line {
        0 => Left { start: block.a, line: 64, below: STEP / 2, step: STEP },
        line => Left { start: block.a, line, below: SIDE / 2 * line, step: 64 },
    };
    let a_panel = if block.a_line == 0 { panel } else { SIDE * block.a_line };
    let mut after = After {
        from: block.next,
        step: if block.next.is_null() { 0 } else { 128 },
        c: block.c.cast(),
        c_line: block.c_stride * size_of::<D::Acc>(),
    };
    // SAFETY: panels follow each other; row and col are inside of C; a tile that reaches over C's edge is
    // computed in `edge`, which has room for a whole one.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly));
        let mut edge = [D::Acc::default(); SIDE * SIDE];
        for row in (0..block.rows).step_by(SIDE) {
            let a = Left { start: a.start.add(row / SIDE * a_panel), ..a };
            for col in (0..block.cols).step_by(SIDE) {
                let b = block.b.add(col / SIDE * panel);
                let c = block.c.add(row * block.c_stride + col);
                let (rows, cols) = ((block.rows - row).min(SIDE), (block.cols - col).min(SIDE));
                let whole = rows == SIDE && cols == SIDE;
                let (to, c_stride) =
                    if whole { (c.cast(), block.c_stride) } else { (edge.as_mut_ptr().cast(), SIDE) };
                let tile = Tile { a, b, c: to, c_stride };
                after.c = c.wrapping_add(SIDE).cast();
                tile.multiply::<D>(block.steps, block.accumulate && whole, after);
                after.from = after.from.wrapping_add(block.steps * after.step);
                if whole {
                    continue;
                }
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

/// A whole tile of C, of elements of four bytes, and what it is made of.
struct Tile {
    a: Left,
    b: *const u8,
    c: *mut u32,
    c_stride: usize,
}

impl Tile {
    /// # Safety
    /// The registers are configured, and panels and C are as long as `steps` and the tile say.
    #[inline(always)]
    unsafe fn multiply<D: Dot>(self, steps: usize, accumulate: bool, after: After) {
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
                D::walk(a, b, steps, after);
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

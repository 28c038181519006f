//! Intel AMX: bf16 and i8 products on eight tile registers of 16 rows by 64 bytes.
//!
//! A tile of C is 32 x 32: four accumulators, and two tiles each of A and B. So four
//! multiplications of 16 cycles share four loads of 8. They outrun the second-level cache. So the
//! kernel prefetches the next step of B, the next tile of C and the next block of packed weights.
//! Intrinsics are not stable yet; inline assembly is.
#![allow(unsafe_code)] // Inline assembly on raw pointers.

use std::arch::asm;
use std::ops::AddAssign;

use super::simd::PackedBlock;

/// Rows and columns of C.
pub(super) const SIDE: usize = 32;
/// Bytes of a step's two tiles: 32 lines of 32 bf16 or 64 i8.
pub(super) const PAIR: usize = SIDE * 64;

/// The operand of `ldtilecfg`: palette 1, and for each register its bytes a row and its rows.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    pub(super) row_bytes: [u16; 16],
    pub(super) rows: [u8; 16],
}

pub(super) static CONFIG: TileConfig = {
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
pub(super) struct Left {
    pub(super) start: *const u8,
    /// From one row to the next.
    pub(super) line: usize,
    /// From the upper 16 rows to the lower.
    below: usize,
    /// From one step to the next.
    step: usize,
}

/// The addresses to prefetch while a tile is computed.
#[derive(Clone, Copy)]
pub(super) struct After {
    /// A sixteenth of a step into the second-level cache, and bytes from a step to the next.
    pub(super) from: *const u8,
    pub(super) step: usize,
    /// The tile of C that follows, some rows a step into the first level, and bytes from a row to
    /// the next.
    pub(super) c: *const u8,
    pub(super) c_line: usize,
}

/// A number format of tiles: how a step's tiles are multiplied.
pub(super) trait Dot {
    /// An element of C.
    type Acc: Copy + Default + AddAssign;
    /// Bytes of a panel's step.
    const STEP: usize = PAIR;
    /// Whether the sums of a block are looked at before they are added to C.
    const LOOKS: bool = false;

    /// Adds `steps` steps of A and of the panel `b` to tiles 0 to 3, and prefetches `after`.
    ///
    /// # Safety
    /// The registers are configured, and both are as long as `steps` says, which is not 0.
    unsafe fn walk(a: Left, b: *const u8, steps: usize, after: After);

    /// Delivers the sums of two panels, as far as C has them.
    ///
    /// # Safety
    /// The panels are as long as `steps` says; nobody else touches what they are delivered to.
    #[inline(always)]
    unsafe fn deliver(
        sums: &mut [Self::Acc; SIDE * SIDE],
        _panels: [*const u8; 2],
        _steps: usize,
        to: To<Self::Acc>,
    ) {
        // SAFETY: nobody else touches the part of C that `to` names.
        unsafe { to.take(sums) }
    }
}

/// Sums on their way to C, whose rows are cache lines: a store of tiles that crosses them takes
/// twice the time.
#[repr(align(64))]
struct Edge<A>([A; SIDE * SIDE]);

/// A part of C, at most a tile.
pub(super) struct To<A> {
    pub(super) c: *mut A,
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Whether to add to what it holds, or to replace it.
    pub(super) accumulate: bool,
}

impl<A: Copy + AddAssign> To<A> {
    /// # Safety
    /// Nobody else touches the part.
    pub(super) unsafe fn take(&self, sums: &[A; SIDE * SIDE]) {
        for (i, sums) in sums.chunks_exact(SIDE).enumerate().take(self.rows) {
            // SAFETY: `i` is below `rows`, so the row has `cols` elements, and nobody else touches
            // the part.
            let to =
                unsafe { std::slice::from_raw_parts_mut(self.c.add(i * self.stride), self.cols) };
            if self.accumulate {
                to.iter_mut().zip(sums).for_each(|(to, &sum)| *to += sum);
            } else {
                to.copy_from_slice(&sums[..self.cols]);
            }
        }
    }
}

/// Prefetches eight cache lines of the next step of B. A core's second-level cache gives 27 bytes a
/// cycle, and tiles take 32. So the cache must never wait for a request.
macro_rules! near {
    ($offset:literal) => {
        concat!(
            near!(@ $offset, "0"), near!(@ $offset, "64"), near!(@ $offset, "128"),
            near!(@ $offset, "192"), near!(@ $offset, "256"), near!(@ $offset, "320"),
            near!(@ $offset, "384"), near!(@ $offset, "448"),
        )
    };
    (@ $offset:literal, $line:literal) => {
        concat!("prefetcht0 [{b} + 2048 + ", $offset, " + ", $line, "]\n")
    };
}
pub(super) use near;

macro_rules! dot {
    ($name:ident: $acc:ty, $instruction:literal) => {
        struct $name;

        impl Dot for $name {
            type Acc = $acc;

            #[inline(always)]
            unsafe fn walk(a: Left, b: *const u8, steps: usize, after: After) {
                let Left { start, line, below, step } = a;
                // SAFETY: the registers are configured, and `a` and `b` have `steps` steps. A
                // prefetch never faults.
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
                        a = inout(reg) start => _,
                        below = inout(reg) start.wrapping_add(below) => _,
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
/// The CPU has AMX; the block is as [`PackedBlock`] says.
pub(super) unsafe fn bf16_amx(block: &PackedBlock<f32>) {
    // SAFETY: the CPU has AMX, and the block's panels are those of bf16.
    unsafe { compute::<Bf16>(block) }
}

/// i8: A panels hold for each 64 k their 32 rows, B panels for each four k their 32 columns.
///
/// # Safety
/// The CPU has AMX; the block is as [`PackedBlock`] says.
pub(super) unsafe fn i8_amx(block: &PackedBlock<i32>) {
    // SAFETY: the CPU has AMX, and the block's panels are those of i8.
    unsafe { compute::<I8>(block) }
}

/// Computes a block.
///
/// # Safety
/// The CPU has the format's tiles; the block is as [`PackedBlock`] says.
#[inline(always)]
pub(super) unsafe fn compute<D: Dot>(block: &PackedBlock<D::Acc>) {
    let panel = block.steps * D::STEP;
    let a = match block.a_line {
        0 => Left { start: block.a, line: 64, below: PAIR / 2, step: D::STEP },
        line => Left { start: block.a, line, below: SIDE / 2 * line, step: 64 },
    };
    let a_panel = if block.a_line == 0 { panel } else { SIDE * block.a_line };
    let mut after = After {
        from: block.next,
        step: if block.next.is_null() { 0 } else { D::STEP / 16 },
        c: block.c.cast(),
        c_line: block.c_stride * size_of::<D::Acc>(),
    };
    // SAFETY: panels follow each other, and row and col are inside of C. A tile that reaches over
    // C's edge is computed in `edge`, which has room for a whole one. So is a tile whose sums are
    // looked at.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly));
        let mut edge = Edge([D::Acc::default(); SIDE * SIDE]);
        for row in (0..block.rows).step_by(SIDE) {
            let a = Left { start: a.start.add(row / SIDE * a_panel), ..a };
            for col in (0..block.cols).step_by(SIDE) {
                let b = block.b.add(col / SIDE * panel);
                let c = block.c.add(row * block.c_stride + col);
                let (rows, cols) = ((block.rows - row).min(SIDE), (block.cols - col).min(SIDE));
                let whole = rows == SIDE && cols == SIDE && !D::LOOKS;
                let (to, c_stride) = if whole {
                    (c.cast(), block.c_stride)
                } else {
                    (edge.0.as_mut_ptr().cast(), SIDE)
                };
                let tile = AmxTile { a, b, c: to, c_stride };
                after.c = c.wrapping_add(SIDE).cast();
                tile.multiply::<D>(block.steps, block.accumulate && whole, after);
                after.from = after.from.wrapping_add(block.steps * after.step);
                if whole {
                    continue;
                }
                let to = To { c, stride: block.c_stride, rows, cols, accumulate: block.accumulate };
                D::deliver(&mut edge.0, [a.start, b], block.steps, to);
            }
        }
        asm!("tilerelease", options(nostack, nomem));
    }
}

/// A whole tile of C, of elements of four bytes, and its operands.
struct AmxTile {
    a: Left,
    b: *const u8,
    c: *mut u32,
    c_stride: usize,
}

impl AmxTile {
    /// # Safety
    /// The registers are configured, and panels and C are as long as `steps` and the tile say.
    #[inline(always)]
    unsafe fn multiply<D: Dot>(self, steps: usize, accumulate: bool, after: After) {
        let Self { a, b, c, c_stride } = self;
        let c_bytes = c_stride * size_of::<u32>();
        let below = c.wrapping_add(16 * c_stride);
        // SAFETY: the registers are configured, `c` has a whole tile, and `a` and `b` have `steps`
        // steps. The compiler itself never uses tile registers. So they keep their values from one
        // block of assembly to the next, and need not be declared.
        unsafe {
            if accumulate {
                asm!(
                    "tileloadd tmm0, [{c} + {s}]",
                    "tileloadd tmm1, [{c} + {s} + 64]",
                    "tileloadd tmm2, [{below} + {s}]",
                    "tileloadd tmm3, [{below} + {s} + 64]",
                    c = in(reg) c, below = in(reg) below, s = in(reg) c_bytes,
                    options(nostack, readonly),
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

//! The one micro-kernel behind every vector instruction set, and the sweep over a packed block that
//! calls it.
//!
//! The form is that of BLIS (Van Zee and van de Geijn, 2015). An `MR x NR` tile of C lives in
//! registers while the kernel walks down k, one outer product a step. The outer product is a row of
//! the B panel, `NR` wide, times each of `MR` broadcast elements of the A panel. An instruction set
//! is a [`Simd`] of seven operations. `bf16` pairs fit too, because a dot product of pairs is a
//! step over two k at once.
#![allow(unsafe_code)] // Raw pointers into packed panels and C.

/// A vector instruction set, as the micro-kernel sees it.
///
/// Methods are `inline(always)` so that they become part of the `#[target_feature]` function that
/// calls [`sweep`]; elsewhere they would be calls.
pub(super) trait Simd: Copy {
    /// The unit in which A is broadcast and B is loaded: one element, or a group of consecutive k.
    type Unit: Copy;
    /// An element of C.
    type Acc: Copy + Default + std::ops::AddAssign;
    /// `LANES` units of B, or accumulators of C.
    type Vector: Copy;
    /// Columns of a vector.
    const LANES: usize;
    /// Whether panels of B begin with a vector for each of theirs that sums begin with.
    const HEAD: bool;

    unsafe fn zero() -> Self::Vector;
    unsafe fn load(from: *const Self::Unit) -> Self::Vector;
    unsafe fn splat(from: *const Self::Unit) -> Self::Vector;
    /// `acc + a * b`, per lane.
    unsafe fn fma(a: Self::Vector, b: Self::Vector, acc: Self::Vector) -> Self::Vector;
    /// Adds all lanes to memory.
    unsafe fn add_to(acc: Self::Vector, to: *mut Self::Acc);
    /// Stores all lanes.
    unsafe fn store(acc: Self::Vector, to: *mut Self::Acc);
    /// Asks for a cache line.
    unsafe fn prefetch<T>(from: *const T);
}

/// The widest vector, in accumulators.
pub(super) const MAX_LANES: usize = 16;

/// Prefetch distance from L2 to L1, in rows of a B panel. With AVX-512 on Sapphire Rapids 8 gave
/// 0.88 of the multiply-add peak, 16 gave 0.92, 32 gave 0.94, and no prefetch 0.87.
const AHEAD: usize = 32;

/// A block of C and the blocks of A and B that it takes. A's panels hold `steps x MR` units and lie
/// one after the other. So do B's with `steps x NR`, unless B is read in place.
#[derive(Clone, Copy)]
pub(super) struct PackedBlock<Acc> {
    pub a: *const u8,
    /// Bytes from one row of A to the next where a kernel reads A as the operand lies, 0 where A is
    /// packed.
    pub a_line: usize,
    pub b: *const u8,
    /// Units from one B panel to the next, and from one step of a panel to the next.
    pub b_strides: [usize; 2],
    /// The address of the block that is multiplied next, to prefetch meanwhile: any address, or
    /// null.
    pub next: *const u8,
    pub c: *mut Acc,
    pub c_stride: usize,
    /// Rows and columns of C that exist.
    pub rows: usize,
    pub cols: usize,
    /// Groups of k.
    pub steps: usize,
    /// Whether to add to what C holds, or to replace it.
    pub accumulate: bool,
}

/// Computes a block. The loop over A panels is outside, so that one stays in L1 while all of B's
/// pass by from L2. C is walked along its rows, which the CPU's own prefetchers follow.
#[inline(always)]
pub(super) unsafe fn sweep<S: Simd, const MR: usize, const NV: usize>(
    block: &PackedBlock<S::Acc>,
    tile: impl Fn(SimdTile<'_, S>),
) {
    let nr = NV * S::LANES;
    for row in (0..block.rows).step_by(MR) {
        for col in (0..block.cols).step_by(nr) {
            // SAFETY: panels follow each other; row and col are inside of C.
            unsafe {
                tile(SimdTile {
                    a: match block.a_line {
                        0 => block.a.cast::<S::Unit>().add(row * block.steps),
                        line => block.a.add(row * line).cast::<S::Unit>(),
                    },
                    b: block.b.cast::<S::Unit>().add(col / nr * block.b_strides[0]),
                    c: block.c.add(row * block.c_stride + col),
                    rows: (block.rows - row).min(MR),
                    cols: (block.cols - col).min(nr),
                    block,
                });
            }
        }
    }
}

/// One tile of a block.
pub(super) struct SimdTile<'a, S: Simd> {
    pub a: *const S::Unit,
    pub b: *const S::Unit,
    pub c: *mut S::Acc,
    pub rows: usize,
    pub cols: usize,
    pub block: &'a PackedBlock<S::Acc>,
}

/// The micro-kernel: `R <= MR` rows by `NV` vectors of C.
#[inline(always)]
pub(super) unsafe fn micro_kernel<S: Simd, const MR: usize, const R: usize, const NV: usize>(
    tile: SimdTile<'_, S>,
) {
    let (stride, b_step) = (tile.block.c_stride, tile.block.b_strides[1]);
    // SAFETY: panels hold `steps` groups; C's `rows x cols` exist, and stores are limited to them.
    unsafe {
        // C arrives while k passes.
        for r in 0..R {
            for v in 0..NV {
                S::prefetch(tile.c.wrapping_add(r * stride + v * S::LANES));
            }
        }
        let mut b = tile.b;
        let mut start = [S::zero(); NV];
        if S::HEAD {
            for (v, vector) in start.iter_mut().enumerate() {
                *vector = S::load(b.add(v * S::LANES));
            }
            b = b.wrapping_add(b_step);
        }
        let (steps, line) = (tile.block.steps, tile.block.a_line / size_of::<S::Unit>());
        // Constant distances of a packed panel cost no registers.
        let acc = match line {
            0 => products::<S, R, NV>(start, (tile.a, [1, MR]), (b, b_step), steps),
            _ => products::<S, R, NV>(start, (tile.a, [line, 1]), (b, b_step), steps),
        };
        if tile.cols == NV * S::LANES {
            for (r, acc) in acc.iter().enumerate() {
                for (v, &acc) in acc.iter().enumerate() {
                    let to = tile.c.add(r * stride + v * S::LANES);
                    if tile.block.accumulate { S::add_to(acc, to) } else { S::store(acc, to) }
                }
            }
        } else {
            store_edge::<S, R, NV>(acc, &tile);
        }
    }
}

/// Adds `steps` outer products to `start`. A's units lie so far apart from row to row and from step
/// to step.
#[inline(always)]
unsafe fn products<S: Simd, const R: usize, const NV: usize>(
    start: [S::Vector; NV],
    (mut a, [a_row, a_step]): (*const S::Unit, [usize; 2]),
    (mut b, b_step): (*const S::Unit, usize),
    steps: usize,
) -> [[S::Vector; NV]; R] {
    let mut acc = [start; R];
    for _ in 0..steps {
        // SAFETY: the panels have `steps` units for each of the tile's rows and columns, and the
        // CPU has the instructions of `S`.
        unsafe {
            let mut row = [S::zero(); NV];
            for (v, vector) in row.iter_mut().enumerate() {
                *vector = S::load(b.add(v * S::LANES));
                S::prefetch(b.wrapping_add(AHEAD * b_step + v * S::LANES));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = S::splat(a.add(r * a_row));
                for v in 0..NV {
                    acc[v] = S::fma(x, row[v], acc[v]);
                }
            }
        }
        a = a.wrapping_add(a_step);
        b = b.wrapping_add(b_step);
    }
    acc
}

/// Stores a tile that reaches over the right edge of C, by way of a row of memory.
#[inline(always)]
unsafe fn store_edge<S: Simd, const R: usize, const NV: usize>(
    acc: [[S::Vector; NV]; R],
    tile: &SimdTile<'_, S>,
) {
    for (r, acc) in acc.into_iter().enumerate() {
        let mut row = [[S::Acc::default(); MAX_LANES]; NV];
        for (row, acc) in row.iter_mut().zip(acc) {
            // SAFETY: `row` has room for the widest vector.
            unsafe { S::store(acc, row.as_mut_ptr()) }
        }
        let row = row.iter().flat_map(|row| &row[..S::LANES]);
        for (col, &value) in row.enumerate().take(tile.cols) {
            // SAFETY: C's `rows x cols` exist.
            unsafe {
                let to = tile.c.add(r * tile.block.c_stride + col);
                if tile.block.accumulate { *to += value } else { *to = value }
            }
        }
    }
}

/// Implements [`Simd`] from the names of an instruction set's intrinsics, and of the `prefetch`
/// that is in scope.
macro_rules! simd {
    ($name:ident: $unit:ty => $acc:ty, [$vector:ty; $lanes:literal],
     $zero:ident, $load:ident, $splat:ident, $fma:ident, $load_acc:ident, $add:ident, $store:ident
     $(, head: $head:literal)?) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Simd for $name {
            type Unit = $unit;
            type Acc = $acc;
            type Vector = $vector;
            const LANES: usize = $lanes;
            const HEAD: bool = false $(|| $head)?;

            #[inline(always)]
            unsafe fn zero() -> Self::Vector {
                // SAFETY: kernels run only where the instructions exist.
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn load(from: *const Self::Unit) -> Self::Vector {
                // SAFETY: a vector lies behind `from`; kernels call this only where the
                // instructions exist.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const Self::Unit) -> Self::Vector {
                // SAFETY: a unit lies behind `from`; kernels call this only where the instructions
                // exist.
                unsafe { $splat(*from) }
            }
            #[inline(always)]
            unsafe fn fma(a: Self::Vector, b: Self::Vector, acc: Self::Vector) -> Self::Vector {
                // SAFETY: kernels run only where the instructions exist.
                unsafe { $fma(a, b, acc) }
            }
            #[inline(always)]
            unsafe fn add_to(acc: Self::Vector, to: *mut Self::Acc) {
                // SAFETY: a vector of accumulators lies behind `to`; kernels call this only where
                // the instructions exist.
                unsafe { $store(to, $add($load_acc(to), acc)) }
            }
            #[inline(always)]
            unsafe fn store(acc: Self::Vector, to: *mut Self::Acc) {
                // SAFETY: `to` has room for a vector; kernels call this only where the instructions
                // exist.
                unsafe { $store(to, acc) }
            }
            #[inline(always)]
            unsafe fn prefetch<T>(from: *const T) {
                // SAFETY: a prefetch never faults.
                unsafe { prefetch(from) }
            }
        }
    };
}

/// A kernel of `MR` rows by `NV` vectors: a block, tile by tile, by the micro-kernel for as many
/// rows as a tile has.
macro_rules! kernel {
    ($(#[$attribute:meta])* $name:ident: $simd:ty, [$mr:literal, $nv:literal],
     [$($rows:literal)*]) => {
        $(#[$attribute])*
        pub(super) unsafe fn $name(block: &PackedBlock<<$simd as Simd>::Acc>) {
            // SAFETY: the block's panels have `$mr` rows and `$nv` vectors of columns, and the CPU
            // has the instructions.
            unsafe {
                sweep::<$simd, $mr, $nv>(block, |tile: SimdTile<'_, $simd>| match tile.rows {
                    $($rows => micro_kernel::<$simd, $mr, $rows, $nv>(tile),)*
                    rows => unreachable!("a tile has 1 to {} rows, not {rows}", $mr),
                });
            }
        }
    };
}

pub(super) use {kernel, simd};

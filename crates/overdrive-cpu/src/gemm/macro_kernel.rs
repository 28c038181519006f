//! The macro-kernel: the loops around the micro-kernel.
// Raw pointers into operands, scratch and C; `MacroKernel::new` checks that they fit.
#![allow(unsafe_code)]

use super::epilogue::{AccumulatorBlock, ProductOutput, ProductPart};
use super::kernel::Element;
use super::kernel::MicroKernel;
use super::pack::pack;
use super::packed::Rhs;
use super::panel::Panel;
use super::schedule::{GemmSize, Schedule, Traits, skinny_columns};
use super::simd::PackedBlock;
use super::skinny::{MOST_ROWS, Skinny, SkinnyOrder};
use super::target::SumsTarget;
use super::view::View;
use crate::threads::{PlacedParts, Pool, ScratchParts, Worker};

/// One call, cut into tiles.
pub(super) struct MacroKernel<'a, T: Element> {
    pub(super) kernel: &'static MicroKernel<T>,
    pub(super) schedule: Schedule,
    pub(super) size: GemmSize,
    pub(super) a: View<'a, T>,
    pub(super) b: Rhs<'a, T>,
    target: SumsTarget<'a, T::Acc>,
    /// The inner of the two batch axes.
    inner: usize,
}

// SAFETY: tiles write to disjoint parts of C, everything else is read.
unsafe impl<T: Element> Sync for MacroKernel<'_, T> {}

/// `C = A B` by the kernel that B is packed for, or else by the best that the CPU has; see
/// [`MicroKernel::gemm`].
///
/// # Panics
/// If the shapes do not fit each other.
pub fn gemm<'a, T: Element>(
    pool: &Pool,
    a: View<'_, T>,
    b: impl Into<Rhs<'a, T>>,
    output: ProductOutput<'_, T::Acc>,
) {
    let b = b.into();
    let kernel = match b {
        Rhs::Packed(packed) => packed.kernel(),
        Rhs::Strided(_) | Rhs::Made(_) => MicroKernel::best(),
    };
    kernel.gemm(pool, a, b, output);
}

impl<T: Element> MicroKernel<T> {
    /// `C = A B`, stored or handed to an epilogue. A batch axis of length 1 in A or B is repeated.
    ///
    /// # Panics
    /// If the shapes do not fit each other, or if B is packed for another kernel.
    pub fn gemm(
        &'static self,
        pool: &Pool,
        a: View<'_, T>,
        b: Rhs<'_, T>,
        output: ProductOutput<'_, T::Acc>,
    ) {
        let shape = output.shape();
        assert_shapes(a.shape, b.shape(), shape);
        let [outer, inner, m, n] = shape;
        let size = GemmSize { m, n, k: a.cols(), batch: outer * inner };
        let target = match SumsTarget::new(output) {
            // Tiles outrun the second-level cache, so sums that wait for the next block of k wait
            // there.
            SumsTarget::InPlace(_, epilogue) if self.has_tiles() && size.k > self.depth(size.k) => {
                SumsTarget::Epilogue(epilogue)
            }
            target => target,
        };
        let traits = Traits {
            packed_b: matches!(b, Rhs::Packed(_)),
            scratch_sums: target.memory().is_none(),
            strips: !matches!(target, SumsTarget::Rows(_)),
        };
        if let Rhs::Packed(packed) = b {
            assert!(
                std::ptr::eq(packed.kernel(), self),
                "B is packed for {}",
                packed.kernel().name()
            );
        }
        if m == 0 || n == 0 {
            return;
        }
        let threads = pool.threads();
        let schedule = Schedule::new(self, size, traits, threads);
        let call = MacroKernel { kernel: self, schedule, size, a, b, target, inner };
        if let Some(skinny) = call.skinny() {
            let cols = skinny_columns(size, threads);
            pool.run(size.batch * n.div_ceil(cols), |index, worker| {
                call.columns(skinny, [index, cols], worker)
            });
        } else {
            let tiles = size.batch * schedule.grid[0] * schedule.grid[1];
            pool.run(tiles, |index, worker| call.tile(index, worker));
        }
    }
}

fn assert_shapes(a: [usize; 4], b: [usize; 4], c: [usize; 4]) {
    let repeats = |operand: [usize; 4]| (0..2).all(|axis| [1, c[axis]].contains(&operand[axis]));
    assert!(
        a[3] == b[2] && a[2] == c[2] && b[3] == c[3] && repeats(a) && repeats(b),
        "a product of {a:?} and {b:?} does not have the shape {c:?}"
    );
}

/// The parts of a worker's scratch.
pub(super) struct GemmScratch<'a, A> {
    a: *mut u8,
    pub(super) b: *mut u8,
    /// Columns of a panel of B that are made.
    pub(super) made: *mut u8,
    sums: *mut A,
    epilogue: *mut u8,
    _placed: PlacedParts<'a, 5>,
}

impl<T: Element> MacroKernel<'_, T> {
    /// Cuts `worker`'s scratch into bytes of A and of B, and sums, of these sizes. It also cuts
    /// buffers for columns that are made and for the epilogue, which do not depend on these sizes.
    fn buffers<'w>(
        &self,
        worker: &'w mut Worker<'_>,
        [a, b, sums]: [usize; 3],
    ) -> GemmScratch<'w, T::Acc> {
        let made = match self.b {
            Rhs::Made(_) => self.kernel.b.width * self.schedule.kc * size_of::<T>(),
            Rhs::Strided(_) | Rhs::Packed(_) => 0,
        };
        let placed = worker.scratch.place(ScratchParts::new([
            ("left operand", a),
            ("right operand", b),
            ("columns that are made", made),
            ("sums", sums * size_of::<T::Acc>()),
            ("epilogue", self.target.epilogue().scratch_bytes()),
        ]));
        let [a, b, made, sums, epilogue] = placed.starts;
        GemmScratch { a, b, made, sums: sums.cast(), epilogue, _placed: placed }
    }

    /// The skinny path, if this product can take it.
    fn skinny(&self) -> Option<SkinnyPath<'_, T>> {
        let Rhs::Strided(b) = self.b else { return None };
        let order = match b.strides {
            [.., 1] => SkinnyOrder::Outer,
            [.., 1, _] => SkinnyOrder::Inner,
            _ => return None,
        };
        let compute = self.kernel.skinny.filter(|_| self.size.m <= MOST_ROWS)?;
        Some(SkinnyPath { compute, order, b })
    }

    /// All rows of some columns of C.
    fn columns(
        &self,
        SkinnyPath { compute, order, b }: SkinnyPath<'_, T>,
        [index, most]: [usize; 2],
        worker: &mut Worker<'_>,
    ) {
        let GemmSize { m, n, k, .. } = self.size;
        let parts = n.div_ceil(most);
        let (matrix, col) = (index / parts, index % parts * most);
        let batch = [matrix / self.inner, matrix % self.inner];
        let part = ProductPart { batch, row: 0, col, rows: m, cols: (n - col).min(most) };
        // Sums never stay in C: its rows may lie powers of two apart, where they would evict each
        // other.
        let c_stride = most + 16;
        let (a, b_stride, from) = match order {
            SkinnyOrder::Outer => (m, b.strides[2], col),
            SkinnyOrder::Inner => (1, b.strides[3], col * b.strides[3]),
        };
        let buffers = self.buffers(worker, [m * k * size_of::<T>(), 0, m * c_stride]);
        let c = buffers.sums;
        // SAFETY: the kernel is one that this CPU supports, and the views reach as far as the sizes
        // say. Elements have the format of sums, or this path would not have been chosen.
        unsafe {
            let whole = Panel { width: a, group: 1, k_multiple: 1, head: 0 };
            pack(self.a_block(batch, [0, 0], [m, k]), whole, buffers.a);
            compute(Skinny {
                order,
                a: buffers.a.cast(),
                b: b.matrix_at(batch).wrapping_add(from).cast(),
                b_stride,
                c,
                c_stride,
                m,
                cols: part.cols,
                k,
            });
        }
        self.finish(part, (c, c_stride), &buffers);
    }

    /// A tile of C from first to last: BLIS's loops, each a block of columns, of k, of rows.
    fn tile(&self, index: usize, worker: &mut Worker<'_>) {
        let kernel = self.kernel;
        let Schedule { mc, nc, kc, strip, tile, grid } = self.schedule;
        let GemmSize { m, n, k, .. } = self.size;
        let (matrix, within) = (index / (grid[0] * grid[1]), index % (grid[0] * grid[1]));
        let batch = [matrix / self.inner, matrix % self.inner];
        let (row0, col0) = (within / grid[1] * tile[0], within % grid[1] * tile[1]);
        let (row_end, col_end) = ((row0 + tile[0]).min(m), (col0 + tile[1]).min(n));
        let sums = match self.target.memory() {
            Some(_) => 0,
            None => self.schedule.sums::<T::Acc>(k).iter().product(),
        };
        let b_bytes = match self.b {
            Rhs::Packed(_) => 0,
            Rhs::Strided(_) if self.reads_b_in_place() => 0,
            Rhs::Strided(_) | Rhs::Made(_) => kernel.block_bytes(kernel.b, nc, kc),
        };
        let a_line = self.a_line();
        // A strip that meets all columns at once is packed when they are about to: it is in a
        // nearer cache then.
        let by_strip = col_end - col0 <= nc && self.a.strides[3] == 1;
        let packed_rows = if by_strip { strip } else { mc };
        let a_bytes = if a_line > 0 { 0 } else { kernel.block_bytes(kernel.a, packed_rows, kc) };
        let buffers = self.buffers(worker, [a_bytes, b_bytes, sums]);
        for row in (row0..row_end).step_by(mc) {
            let rows = (row_end - row).min(mc);
            // A product over no k at all is zeros: one block of depth 0.
            for k0 in (0..k.max(1)).step_by(kc) {
                let depth = (k - k0).min(kc);
                let lines = self.a_block(batch, [row, k0], [rows, depth]);
                if a_line == 0 && !by_strip {
                    // SAFETY: the view reaches all of the block, and the buffer holds a block of
                    // `mc` and `kc`.
                    unsafe { (kernel.pack)(lines, kernel.a, buffers.a) };
                }
                for col in (col0..col_end).step_by(nc) {
                    let cols = (col_end - col).min(nc);
                    let b = self.b_block(batch, [k0, col], [depth, cols], &buffers);
                    let steps = depth.div_ceil(kernel.a.k_multiple);
                    let b_strides = match self.b {
                        Rhs::Strided(b) if self.reads_b_in_place() => {
                            [kernel.b.width, b.strides[2]]
                        }
                        _ => [kernel.b.width * (steps + kernel.b.head), kernel.b.width],
                    };
                    for above in (0..rows).step_by(strip) {
                        let rows = (rows - above).min(strip);
                        let part = ProductPart { batch, row: row + above, col, rows, cols };
                        let (c, c_stride) = self.sums(&part, [above, col - col0], &buffers);
                        let a = match a_line {
                            0 if by_strip => {
                                let lines = self.a_block(batch, [row + above, k0], [rows, depth]);
                                // SAFETY: the view reaches the strip, and the buffer holds one.
                                unsafe { (kernel.pack)(lines, kernel.a, buffers.a) };
                                buffers.a.cast_const()
                            }
                            0 => buffers.a.wrapping_add(kernel.block_bytes(kernel.a, above, depth)),
                            _ => lines.at(above, 0).cast(),
                        };
                        let block = PackedBlock {
                            a,
                            a_line,
                            b,
                            next: self.after(
                                batch,
                                [k0, col, above],
                                [depth, cols],
                                [col0, col_end],
                            ),
                            b_strides,
                            c,
                            c_stride,
                            rows,
                            cols,
                            steps,
                            accumulate: k0 > 0,
                        };
                        // SAFETY: the kernel is one that this CPU supports; the block is as it
                        // wants it.
                        unsafe { (kernel.multiply)(&block) };
                        if k0 + depth == k && !matches!(self.target, SumsTarget::Rows(_)) {
                            self.finish(part, (c, c_stride), &buffers);
                        }
                    }
                }
            }
        }
    }

    /// Address of the sums of a part, and their row stride; `above` and `left` of it lie sums that
    /// wait.
    fn sums(
        &self,
        part: &ProductPart,
        [above, left]: [usize; 2],
        buffers: &GemmScratch<'_, T::Acc>,
    ) -> (*mut T::Acc, usize) {
        match self.target.memory() {
            Some(c) => (c.at(part.batch, part.row, part.col), c.strides[2]),
            None => {
                let stride = self.schedule.sums::<T::Acc>(self.size.k)[1];
                let waits = self.size.k > self.schedule.kc;
                let offset = if waits { above * stride + left } else { 0 };
                (buffers.sums.wrapping_add(offset), stride)
            }
        }
    }

    /// Hands a finished part to the epilogue.
    fn finish(
        &self,
        part: ProductPart,
        (sums, row_stride): (*mut T::Acc, usize),
        buffers: &GemmScratch<'_, T::Acc>,
    ) {
        let epilogue = self.target.epilogue();
        // SAFETY: parts are apart from each other; the buffers are this worker's, and as long as
        // `buffers` made them.
        let (block, scratch) = unsafe {
            (
                AccumulatorBlock::new(sums, row_stride, part),
                std::slice::from_raw_parts_mut(buffers.epilogue, epilogue.scratch_bytes()),
            )
        };
        epilogue.apply(block, scratch);
    }
}

/// The skinny path, and the B that it streams.
#[derive(Clone, Copy)]
struct SkinnyPath<'a, T: Element> {
    compute: unsafe fn(Skinny<T::Acc>),
    order: SkinnyOrder,
    b: View<'a, T>,
}

//! Many rows of x on tiles of bf16: x as the sum of three bf16, times codes as bf16.
//!
//! An f32 has 24 bits of significand, a bf16 has 8. Three bf16 sum up to x exactly: the upper half
//! of x, the upper half of the remainder, and the rest. The exception lies under the smallest
//! normal number, which tiles take for zero. A code is a bf16 too, so products are exact in the f32
//! that they are summed in. The only rounding is that of a sum of f32 products. Three products on
//! tiles take about half the time of one on vectors. A scale is multiplied into codes where the
//! product is still a bf16, and else into the sums of its group. After Henry, Tang and Heinecke,
//! "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations",
//! arXiv:1904.06376. Invariant: each sum runs over k in an order of its own, whatever the number of
//! rows and threads.
#![allow(unsafe_code)] // Packed panels and sums in a worker's scratch.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;
use overdrive_ir::DType;

use super::decode::{self, LANES};
use super::matrix::QuantizedMatrix;
use super::pairs::{self, MOST_GROUPS, Scaled, WIDTH};
use crate::gemm::{
    AccumulatorBlock, BlockProduct, MicroKernel, ProductOutput, ProductPart, SumsTarget,
};
use crate::threads::{Pool, ScratchParts, Worker};

/// The bf16 that an f32 is the sum of.
const PARTS: usize = 3;
/// k of a step of the tiles, and rows of a panel.
const STEP: usize = 32;
/// The most k whose parts are kept at a time.
const DEPTH: usize = 512;
/// k of a unit where nothing asks for another: its codes, once for each part, stay in the
/// first-level cache.
const UNIT: usize = 128;
/// The most rows and columns of a task: the parts of the rows and their sums stay in the
/// second-level cache.
const BLOCK: usize = 256;
/// Multiply-adds that are done before other threads could have been woken.
const WORTH_SHARING: usize = 1 << 18;

/// Weights that can go this way.
pub(super) struct Split<'a> {
    weights: &'a QuantizedMatrix<'a>,
    kernel: &'static MicroKernel<bf16>,
    scaled: Scaled,
    /// Consecutive k that are summed before a scale.
    unit: usize,
    /// Units whose parts are kept at a time.
    together: usize,
}

impl<'a> Split<'a> {
    /// The product, if the CPU has the tiles and there are kernels for the codes. Also, groups must
    /// be whole steps, or their scales need no sums of their own.
    pub(super) fn of(weights: &'a QuantizedMatrix<'a>) -> Option<Self> {
        let kernel = MicroKernel::<bf16>::best();
        let (k, group, codes) = (weights.k, weights.group, weights.codes.dtype());
        let per_lane = weights.codes_per_lane()?;
        let (scales, _) = weights.scale_format();
        let exact = scales == DType::E8M0 || (codes, scales) == (DType::F4E2M1, DType::F8E4M3);
        let scaled = if exact && weights.zeros.is_none() { Scaled::Here } else { Scaled::Later };
        let whole = k.is_multiple_of(STEP) && k > 0 && group.is_multiple_of(per_lane);
        let fits = match scaled {
            Scaled::Here => group * MOST_GROUPS >= UNIT,
            Scaled::Later => group == k || group.is_multiple_of(STEP) && group <= DEPTH,
        };
        if !(kernel.has_tiles() && decode::is_supported() && whole && fits) {
            return None;
        }
        let single = group == k || scaled == Scaled::Here;
        let unit = if single { k.div_ceil(k.div_ceil(UNIT)).next_multiple_of(STEP) } else { group };
        let together = DEPTH / unit;
        Some(Self { weights, kernel, scaled, unit, together })
    }

    /// Whether sums run over all of k before they are scaled.
    fn sums_all(&self) -> bool {
        self.weights.group == self.weights.k || self.scaled == Scaled::Here
    }

    pub(super) fn run(&self, pool: &Pool, x: &[f32], output: ProductOutput<'_, f32>) {
        let ([outer, inner, m, n], k) = (output.shape(), self.weights.k);
        let target = SumsTarget::new(output);
        let even = |len: usize, parts: usize| len.div_ceil(parts).next_multiple_of(WIDTH);
        let shares = outer * inner * m * n * k >= WORTH_SHARING;
        let tasks = if shares { pool.threads().div_ceil(outer * inner) } else { 1 };
        // Tasks side by side all split x, and tasks one above the other all unpack the codes. The
        // cheaper of the two is chosen.
        let [above, beside] = if m >= n { [tasks, 1] } else { [1, tasks] };
        let rows = even(m, m.div_ceil(BLOCK).max(above));
        let cols = even(n, n.div_ceil(BLOCK).max(beside));
        let tall = outer * inner * m.div_ceil(rows);
        pool.run(tall * n.div_ceil(cols), |task, worker| {
            let (above, left) = (task / n.div_ceil(cols), task % n.div_ceil(cols) * cols);
            let (matrix, row) = (above / m.div_ceil(rows), above % m.div_ceil(rows) * rows);
            let part = ProductPart {
                batch: [matrix / inner, matrix % inner],
                row,
                col: left,
                rows: (m - row).min(rows),
                cols: (n - left).min(cols),
            };
            let first = (matrix * m + row) * k;
            self.block(&x[first..first + part.rows * k], part, &target, worker);
        });
    }

    /// Some rows of some columns.
    fn block(
        &self,
        x: &[f32],
        part: ProductPart,
        target: &SumsTarget<'_, f32>,
        worker: &mut Worker<'_>,
    ) {
        let (weights, unit) = (self.weights, self.unit);
        let (rows, cols, groups) = (part.rows, part.cols, weights.groups());
        let tall = rows.next_multiple_of(STEP);
        let later = self.scaled == Scaled::Later;
        let floats = |wanted: bool, numbers: usize| if wanted { numbers } else { 0 };
        let bytes = |wanted: bool, numbers: usize| size_of::<f32>() * floats(wanted, numbers);
        let placed = worker.scratch.place(ScratchParts::new([
            ("parts of x", tall * self.together * unit * PARTS * size_of::<bf16>()),
            ("codes", WIDTH * unit * PARTS * size_of::<bf16>()),
            ("sums of a group", bytes(!self.sums_all(), rows * WIDTH)),
            ("sums", bytes(target.memory().is_none(), rows * cols)),
            ("scales", bytes(later, 2 * cols * groups)),
            ("sums of x", bytes(weights.zeros.is_some(), rows * groups)),
            ("epilogue", target.epilogue().scratch_bytes()),
        ]));
        let [a, b, own, kept, scales, of_x, scratch] = placed.starts;
        // SAFETY: the parts of the scratch are disjoint and have the requested lengths. The
        // result's place is the task's alone.
        unsafe {
            let numbers = |start: *mut u8, len: usize| {
                std::slice::from_raw_parts_mut(start.cast::<f32>(), len)
            };
            let (sums, stride) = match target.memory() {
                Some(c) => (c.at(part.batch, part.row, part.col), c.strides[2]),
                None => (kept.cast::<f32>(), cols),
            };
            let (scales, zeros) = numbers(scales, floats(later, 2 * cols * groups))
                .split_at_mut(floats(later, cols * groups));
            if later {
                weights.scales_of_rows(part.col..part.col + cols, [scales, zeros]);
            }
            let of_x = numbers(of_x, floats(weights.zeros.is_some(), rows * groups));
            if !of_x.is_empty() {
                sum_groups(x, weights.group, of_x);
            }
            let scales = TaskScales { scales, zeros, of_x, groups };
            let task = TaskSums { sums, stride, rows, cols, scales };
            self.sum(x, part.col, &task, [a, b, own]);
            self.scale(&task);
            if !matches!(target, SumsTarget::Rows(_)) {
                let scratch =
                    std::slice::from_raw_parts_mut(scratch, target.epilogue().scratch_bytes());
                target.epilogue().apply(AccumulatorBlock::new(sums, stride, part), scratch);
            }
        }
    }

    /// Sums the products of a task over all of k, scaled where sums of a group have scales of their
    /// own. `x` is the task's rows, `first_col` its first column.
    ///
    /// # Safety
    /// The result has the task's rows and columns. The scratch `[a, b, own]` has room for the parts
    /// of x, the codes of a unit and, where groups are scaled, their sums.
    unsafe fn sum(
        &self,
        x: &[f32],
        first_col: usize,
        task: &TaskSums<'_>,
        [a, b, own]: [*mut u8; 3],
    ) {
        let (weights, unit) = (self.weights, self.unit);
        let TaskSums { sums, stride, rows, cols, .. } = *task;
        let (tall, depth) = (rows.next_multiple_of(STEP), unit * self.together);
        for k0 in (0..weights.k).step_by(depth) {
            let k = k0..(k0 + depth).min(weights.k);
            // SAFETY: the parts of x have room for `depth` of k, the codes for a unit, and columns
            // are below the task's.
            unsafe {
                split(x, weights.k, k.clone(), unit, a.cast());
                for col in (0..cols).step_by(WIDTH) {
                    let width = (cols - col).min(WIDTH);
                    let c = sums.add(col);
                    for (index, k) in units(k.clone(), unit).enumerate() {
                        let first = k.start;
                        let a = a.add(index * tall * unit * PARTS * size_of::<bf16>());
                        pairs::write(weights, first_col + col, k.clone(), self.scaled, b.cast());
                        (1..PARTS).for_each(|i| {
                            b.copy_to_nonoverlapping(b.add(i * bytes_of(&k)), bytes_of(&k))
                        });
                        let product = BlockProduct {
                            a,
                            b,
                            c,
                            c_stride: stride,
                            rows,
                            cols: width,
                            k: PARTS * k.len(),
                            accumulate: first > 0,
                        };
                        if self.sums_all() {
                            self.kernel.multiply_block(product);
                            continue;
                        }
                        let own: *mut f32 = own.cast();
                        let of_group =
                            BlockProduct { c: own, c_stride: WIDTH, accumulate: false, ..product };
                        self.kernel.multiply_block(of_group);
                        let (from, at) = ((own.cast_const(), WIDTH), [col, first / weights.group]);
                        task.scales.add(from, (c, stride), [rows, width], at);
                    }
                }
            }
        }
    }

    /// Scales sums that ran over all of k.
    ///
    /// # Safety
    /// The result has the task's rows and columns.
    unsafe fn scale(&self, task: &TaskSums<'_>) {
        let TaskSums { sums, stride, rows, cols, .. } = *task;
        if self.sums_all() && self.scaled == Scaled::Later {
            for col in (0..cols).step_by(WIDTH) {
                let extent = [rows, (cols - col).min(WIDTH)];
                // SAFETY: the columns are below the task's.
                unsafe {
                    let to = sums.add(col);
                    task.scales.add((to.cast_const(), stride), (to, stride), extent, [col, 0]);
                }
            }
        } else if self.scaled == Scaled::Here && self.weights.scale_format().1 != 1.0 {
            let factor = self.weights.scale_format().1;
            for row in 0..rows {
                // SAFETY: the rows are below the task's, and each has its columns.
                let sums = unsafe { std::slice::from_raw_parts_mut(sums.add(row * stride), cols) };
                sums.iter_mut().for_each(|sum| *sum *= factor);
            }
        }
    }
}

/// Destination and scales of the sums of a task.
struct TaskSums<'a> {
    sums: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    scales: TaskScales<'a>,
}

/// The units of a range.
fn units(k: Range<usize>, unit: usize) -> impl Iterator<Item = Range<usize>> {
    k.clone().step_by(unit).map(move |first| first..(first + unit).min(k.end))
}

/// The scales and zeros of a task's columns, a row for each of them, and the sums of x over each
/// group.
struct TaskScales<'a> {
    scales: &'a [f32],
    zeros: &'a [f32],
    of_x: &'a [f32],
    groups: usize,
}

impl TaskScales<'_> {
    /// Adds the sums of a group, scaled, to those of the groups before. The sums of the first group
    /// replace the old values.
    ///
    /// # Safety
    /// `decode::is_supported` said yes; both have their rows and columns, at most [`WIDTH`], and
    /// are the same or apart.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add(
        &self,
        (from, from_stride): (*const f32, usize),
        (to, to_stride): (*mut f32, usize),
        [rows, cols]: [usize; 2],
        [col, group]: [usize; 2],
    ) {
        let (mut scales, mut zeros) = ([0.0_f32; WIDTH], [0.0_f32; WIDTH]);
        for i in 0..cols {
            let at = (col + i) * self.groups + group;
            (scales[i], zeros[i]) = (self.scales[at], self.zeros[at]);
        }
        for half in (0..cols).step_by(LANES) {
            let mask = u16::MAX >> (LANES - (cols - half).min(LANES));
            // SAFETY: masks leave out columns past `cols`; `scales` and `zeros` have `WIDTH`
            // numbers, whole vectors.
            unsafe {
                let [scale, zero] =
                    [&scales, &zeros].map(|of| _mm512_loadu_ps(of.as_ptr().add(half)));
                for row in 0..rows {
                    let to = to.add(row * to_stride + half);
                    let mut sums = _mm512_maskz_loadu_ps(mask, from.add(row * from_stride + half));
                    if let Some(&of_x) = self.of_x.get(row * self.groups + group) {
                        sums = _mm512_fnmadd_ps(zero, _mm512_set1_ps(of_x), sums);
                    }
                    let before = if group == 0 {
                        _mm512_setzero_ps()
                    } else {
                        _mm512_maskz_loadu_ps(mask, to)
                    };
                    _mm512_mask_storeu_ps(to, mask, _mm512_fmadd_ps(sums, scale, before));
                }
            }
        }
    }
}

/// Writes the sum of each group of each row.
fn sum_groups(x: &[f32], group: usize, to: &mut [f32]) {
    for (x, to) in x.chunks_exact(group).zip(to) {
        let (whole, rest) = x.as_chunks::<16>();
        let mut sums = [0.0_f32; 16];
        whole.iter().for_each(|x| sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x));
        *to = sums.iter().chain(rest).sum();
    }
}

/// Bytes of a panel of codes.
fn bytes_of(k: &Range<usize>) -> usize {
    WIDTH * k.len() * size_of::<bf16>()
}

/// Writes the parts of rows of x, of `stride` elements, over `k`. Each unit has panels of 32 rows.
/// A panel has the parts one after the other, the smallest first, as if each were more k. For each
/// 32 k it has these of every row.
///
/// # Safety
/// `decode::is_supported` said yes; `to` has room for `PARTS` numbers for each of whole panels.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split(x: &[f32], stride: usize, k: Range<usize>, unit: usize, to: *mut u16) {
    let rows = x.len() / stride;
    let tall = rows.next_multiple_of(STEP);
    let odd: [u16; STEP] = std::array::from_fn(|i| 2 * i as u16 + 1);
    // SAFETY: `odd` has as many bytes as a vector.
    let upper_halves = unsafe { _mm512_loadu_si512(odd.as_ptr().cast()) };
    for (row, x) in x.chunks_exact(stride).enumerate() {
        for (index, k) in units(k.clone(), unit).enumerate() {
            let steps = k.len() / STEP;
            for (step, x) in x[k.clone()].as_chunks::<STEP>().0.iter().enumerate() {
                let panel = index * tall * unit * PARTS + row / STEP * PARTS * steps * STEP * STEP;
                // SAFETY: a step of x is two vectors of numbers, and one of each part. Whole panels
                // have room for the row's.
                unsafe {
                    let halves = [0, 16].map(|i| parts(_mm512_loadu_ps(x.as_ptr().add(i))));
                    for part in 0..PARTS {
                        let [a, b] = halves.map(|of| _mm512_castps_si512(of[part]));
                        let upper = _mm512_permutex2var_epi16(a, upper_halves, b);
                        let at =
                            ((PARTS - 1 - part) * steps + step) * STEP * STEP + row % STEP * STEP;
                        _mm512_storeu_si512(to.add(panel + at).cast(), upper);
                    }
                }
            }
        }
    }
}

/// Numbers whose upper halves are all of them, and which sum up to x; an infinity is the first of
/// its parts.
#[inline]
#[target_feature(enable = "avx512f")]
fn parts(x: __m512) -> [__m512; PARTS] {
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let cut = |x: __m512| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
    let high = cut(x);
    let finite = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(_mm512_abs_ps(x), _mm512_set1_ps(f32::INFINITY));
    let left = _mm512_maskz_sub_ps(finite, x, high);
    let middle = cut(left);
    [high, middle, _mm512_sub_ps(left, middle)]
}

//! The passes of a query over a block of keys and values as they lie: products, weights, weighted
//! sums. Rows are of floats, or of codes with a scale each.
//!
//! One source serves every instruction set, in forms that vectorise. Sums run in as many lanes as
//! the widest registers have. Numbers are widened by arithmetic, not by a table.
#![allow(unsafe_code)] // Kernels on raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use half::{bf16, f16};
use overdrive_ir::DType;

use crate::loops::isa::{Ahead, Isa, LaneEntry, LaneKernel, Level, Operands, for_level};
use crate::loops::math::exp2_normal;
use crate::loops::small_floats::Small;

/// Lanes of a sum.
const LANES: usize = 16;
/// Channels whose sums stay in registers while a block of values passes.
const WIDE: usize = 4 * LANES;

/// Rows of one head.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) start: *const u8,
    /// Bytes from one row to the next.
    pub(super) row: usize,
    pub(super) channels: usize,
    /// The scale of each row of codes.
    pub(super) scales: Option<*const f32>,
    /// From one scale to the next.
    pub(super) scale_row: usize,
}

impl Rows {
    /// Multiplies a number of each row by the row's scale.
    ///
    /// # Safety
    /// There are as many rows as numbers, and nobody writes their scales meanwhile.
    pub(super) unsafe fn scale_each(&self, numbers: &mut [f32]) {
        if self.scales.is_none() {
            return;
        }
        for (row, number) in numbers.iter_mut().enumerate() {
            // SAFETY: the row exists.
            *number *= unsafe { self.scale(row) };
        }
    }

    /// The rows from one on.
    pub(super) fn from(self, row: usize) -> Self {
        let start = self.start.wrapping_add(row * self.row);
        let scales = self.scales.map(|scales| scales.wrapping_add(row * self.scale_row));
        Self { start, scales, ..self }
    }

    /// # Safety
    /// The row exists, is of these numbers, and nobody writes it meanwhile.
    #[inline(always)]
    unsafe fn numbers<'a, N: Number>(&self, row: usize) -> &'a [N] {
        // SAFETY: the row has its channels.
        unsafe { std::slice::from_raw_parts(self.start.add(row * self.row).cast(), self.channels) }
    }

    /// # Safety
    /// The row exists, and nobody writes its scale meanwhile.
    #[inline(always)]
    unsafe fn scale(&self, row: usize) -> f32 {
        // SAFETY: the row has its scale.
        self.scales.map_or(1.0, |scales| unsafe { *scales.add(row * self.scale_row) })
    }
}

/// The running softmax of a query, in powers of two.
pub(super) struct Weighing {
    /// The largest exponent so far.
    pub(super) max: f32,
    /// Sum of two to the power of the exponents, less the largest.
    pub(super) sum: f32,
    /// Factor that the last block applied to earlier sums.
    pub(super) shrink: f32,
    /// Factor that turns scores into exponents.
    factor: f32,
}

impl Weighing {
    pub(super) fn new(factor: f32) -> Self {
        Self { max: f32::NEG_INFINITY, sum: 0.0, shrink: 1.0, factor }
    }
}

/// The passes, on the best instruction set of this CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowPasses {
    products: LaneEntry,
    weigh: LaneEntry,
    sum: LaneEntry,
}

impl RowPasses {
    /// Those over numbers of a type; `None` where rows of it have no kernel.
    pub(super) fn of(numbers: DType) -> Option<Self> {
        Self::at_level(numbers, Level::best())
    }

    fn at_level(numbers: DType, level: Level) -> Option<Self> {
        fn entries<I: Isa>(numbers: DType) -> Option<RowPasses> {
            fn of<I: Isa, N: Number>() -> RowPasses {
                RowPasses {
                    products: I::entry::<Products<N>>(),
                    weigh: I::entry::<Weigh>(),
                    sum: I::entry::<WeightedSum<N>>(),
                }
            }
            match numbers {
                DType::F32 => Some(of::<I, f32>()),
                DType::F16 => Some(of::<I, f16>()),
                DType::BF16 => Some(of::<I, bf16>()),
                DType::I8 => Some(of::<I, i8>()),
                DType::F8E4M3 => Some(of::<I, E4M3>()),
                _ => None,
            }
        }
        for_level!(level, entries(numbers))
    }

    /// Writes the product of the query with each key.
    ///
    /// # Safety
    /// There are as many keys as scores, of as many channels as the query.
    pub(super) unsafe fn products(&self, keys: &Rows, query: &[f32], scores: &mut [f32]) {
        let src = [std::ptr::from_ref(keys).cast(), query.as_ptr().cast(), std::ptr::null()];
        let dst = scores.as_mut_ptr().cast();
        // SAFETY: the operands are those of `Products`; the CPU has the instructions.
        unsafe { run(self.products, scores.len(), dst, src) }
    }

    /// Makes scores weights, and moves the softmax on. Keys that are not visible weigh 0.
    ///
    /// # Safety
    /// There are as many bytes of visibility as scores.
    pub(super) unsafe fn weigh(
        &self,
        weighing: &mut Weighing,
        scores: &mut [f32],
        visible: Option<&[u8]>,
    ) {
        let visible = visible.map_or(std::ptr::null(), <[u8]>::as_ptr);
        let state = std::ptr::from_mut(weighing).cast_const().cast();
        let src = [state, visible, std::ptr::null()];
        // SAFETY: the operands are those of `Weigh`; the CPU has the instructions.
        unsafe { run(self.weigh, scores.len(), scores.as_mut_ptr().cast(), src) }
    }

    /// Shrinks the sums and adds the numbers of each value times its weight.
    ///
    /// # Safety
    /// There are as many values as weights, of as many channels as sums.
    pub(super) unsafe fn sum(
        &self,
        values: &Rows,
        (weights, shrink): (&[f32], f32),
        sums: &mut [f32],
    ) {
        let (rows, weights, shrink) =
            (std::ptr::from_ref(values), weights, std::ptr::from_ref(&shrink));
        let src = [rows.cast(), weights.as_ptr().cast(), shrink.cast()];
        // SAFETY: the operands are those of `WeightedSum`; the CPU has the instructions.
        unsafe { run(self.sum, weights.len(), sums.as_mut_ptr().cast(), src) }
    }
}

/// # Safety
/// That of the kernel behind `entry`.
unsafe fn run(entry: LaneEntry, n: usize, dst: *mut u8, src: [*const u8; 3]) {
    // SAFETY: the caller's.
    unsafe { entry(n, &Operands { dst, src, immediate: 0, ahead: Ahead::NONE }) }
}

/// A type of numbers.
trait Number: Copy {
    fn widen(self) -> f32;
}

impl Number for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Number for f16 {
    /// The exponents of f32 are larger by 112; that of infinity and NaN is all ones in both.
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let is_finite = bits & 0x7c00 != 0x7c00;
        let magnitude = if is_finite { finite.to_bits() } else { magnitude | 0x7f80_0000 };
        f32::from_bits(magnitude | (bits & 0x8000) << 16)
    }
}

impl Number for i8 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }
}

/// A code of f8e4m3.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct E4M3(u8);

impl Number for E4M3 {
    #[inline(always)]
    fn widen(self) -> f32 {
        Small::<{ DType::F8E4M3 as usize }>::decode(self.0)
    }
}

struct Products<N>(PhantomData<N>);

impl<N: Number> LaneKernel for Products<N> {
    #[inline(always)]
    unsafe fn run<I: Isa>(keys: usize, o: &Operands) {
        // SAFETY: source 0 is the rows, source 1 a query of as many channels, and the destination a
        // score for each key.
        let (rows, query, scores) = unsafe {
            let rows = &*o.src[0].cast::<Rows>();
            (rows, o.src::<f32>(1, rows.channels), o.dst::<f32>(keys))
        };
        let (query_lanes, query_rest) = query.as_chunks::<LANES>();
        for (key, score) in scores.iter_mut().enumerate() {
            // SAFETY: there are as many rows as scores.
            let (row, scale) = unsafe { (rows.numbers::<N>(key), rows.scale(key)) };
            let (row_lanes, row_rest) = row.as_chunks::<LANES>();
            let mut sums = [0.0; LANES];
            for (q, k) in query_lanes.iter().zip(row_lanes) {
                for i in 0..LANES {
                    sums[i] = I::fma(q[i], k[i].widen(), sums[i]);
                }
            }
            // By halves, which stays in registers.
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    sums[i] += sums[i + half];
                }
                half /= 2;
            }
            let rest = query_rest.iter().zip(row_rest);
            *score = rest.fold(sums[0], |sum, (&q, &k)| I::fma(q, k.widen(), sum)) * scale;
        }
    }
}

struct Weigh;

impl LaneKernel for Weigh {
    #[inline(always)]
    unsafe fn run<I: Isa>(keys: usize, o: &Operands) {
        // SAFETY: source 0 is a `Weighing` that nobody else refers to. Source 1 is null or a byte
        // for each key. The destination has a score for each key.
        let (state, visible, scores) = unsafe {
            let state = &mut *o.src[0].cast_mut().cast::<Weighing>();
            let visible = (!o.src[1].is_null()).then(|| o.src::<u8>(1, keys));
            (state, visible, o.dst::<f32>(keys))
        };
        // A finite score stays so: in base 2 the least number would overflow to one that is hidden.
        for score in scores.iter_mut() {
            let power = *score * state.factor;
            let is_finite = score.abs() <= f32::MAX;
            *score = if is_finite { power.clamp(f32::MIN, f32::MAX) } else { power };
        }
        if let Some(visible) = visible {
            for (score, &visible) in scores.iter_mut().zip(visible) {
                *score = if visible == 0 { f32::NEG_INFINITY } else { *score };
            }
        }
        let (lanes, rest) = scores.as_chunks_mut::<LANES>();
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let mut largest = [state.max; LANES];
        for scores in &*lanes {
            for i in 0..LANES {
                largest[i] = larger(scores[i], largest[i]);
            }
        }
        let max = largest.iter().chain(&*rest).fold(state.max, |max, &score| larger(score, max));
        // A query that has seen no key has maximum -inf, and -inf - -inf is NaN: any finite shift
        // will do there.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let mut sums = [0.0; LANES];
        for scores in lanes {
            for i in 0..LANES {
                scores[i] = exp2_normal::<I>(scores[i] - shift);
                sums[i] += scores[i];
            }
        }
        let mut sum: f32 = sums.iter().sum();
        for score in rest {
            *score = exp2_normal::<I>(*score - shift);
            sum += *score;
        }
        state.shrink = exp2_normal::<I>(state.max - shift);
        state.sum = state.sum * state.shrink + sum;
        state.max = max;
    }
}

struct WeightedSum<N>(PhantomData<N>);

impl<N: Number> WeightedSum<N> {
    /// The sums of `C` channels from one on.
    ///
    /// # Safety
    /// The rows have the channels, and there are as many rows as weights.
    #[inline(always)]
    unsafe fn part<I: Isa, const C: usize>(
        rows: &Rows,
        (weights, shrink): (&[f32], f32),
        (channel, sums): (usize, &mut [f32]),
    ) {
        let mut part = [0.0; C];
        for i in 0..C {
            part[i] = sums[channel + i] * shrink;
        }
        for (key, &weight) in weights.iter().enumerate() {
            // SAFETY: the row exists and has these channels.
            let row = unsafe {
                &*rows.start.add(key * rows.row).cast::<N>().add(channel).cast::<[N; C]>()
            };
            for i in 0..C {
                part[i] = I::fma(weight, row[i].widen(), part[i]);
            }
        }
        sums[channel..channel + C].copy_from_slice(&part);
    }
}

impl<N: Number> LaneKernel for WeightedSum<N> {
    #[inline(always)]
    unsafe fn run<I: Isa>(keys: usize, o: &Operands) {
        // SAFETY: source 0 is the rows, source 1 a weight for each, source 2 a factor; the
        // destination has a sum for each channel.
        let (rows, weights, shrink, sums) = unsafe {
            let rows = &*o.src[0].cast::<Rows>();
            let shrink = *o.src[2].cast::<f32>();
            (rows, o.src::<f32>(1, keys), shrink, o.dst::<f32>(rows.channels))
        };
        let (by, mut channel) = ((weights, shrink), 0);
        // SAFETY: the channels of each part are within those of the rows.
        unsafe {
            while channel + WIDE <= sums.len() {
                Self::part::<I, WIDE>(rows, by, (channel, &mut *sums));
                channel += WIDE;
            }
            while channel + LANES <= sums.len() {
                Self::part::<I, LANES>(rows, by, (channel, &mut *sums));
                channel += LANES;
            }
            while channel < sums.len() {
                Self::part::<I, 1>(rows, by, (channel, &mut *sums));
                channel += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;

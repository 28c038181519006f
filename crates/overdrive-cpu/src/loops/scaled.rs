//! Kernels of `affine`: a multiply-add of each sum, with or without a floor of 0, stored in some
//! format or added up.
#![allow(unsafe_code)] // Slices from raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use overdrive_ir::DType;

use super::half;
use super::isa::{Isa, LaneEntry, LaneKernel, Operands};
use super::reduce::{LANES, halve};

/// The dimension that coefficients belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Along {
    /// Each row has one: results of a row are neighbours.
    Rows,
    /// Each column has one: all results are neighbours, row after row.
    Columns,
}

/// A format that results are stored in.
trait StoredFormat {
    type T;
    fn round(x: f32) -> Self::T;
}

macro_rules! stored {
    ($($name:ident: $t:ty, $round:expr;)*) => {$(
        struct $name;

        impl StoredFormat for $name {
            type T = $t;
            #[inline(always)]
            fn round(x: f32) -> $t {
                $round(x)
            }
        }
    )*};
}

stored! {
    F32: f32, |x| x;
    Bf16: u16, half::to_bf16;
    F16: u16, half::to_f16;
}

/// The conversion of a number before it is stored.
trait Last {
    fn last(x: f32) -> f32;
}

/// Nothing.
struct Plain;
/// 0 where it is less; NaN stays NaN.
struct Floored;

impl Last for Plain {
    #[inline(always)]
    fn last(x: f32) -> f32 {
        x
    }
}

impl Last for Floored {
    #[inline(always)]
    fn last(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
}

/// `dst = sum * factor + summand`: sums are source 0, the others one number each.
struct Scaled<S, L>(PhantomData<(S, L)>);
/// The same for runs of columns, `immediate` of them, each with a factor and a summand.
struct ScaledColumns<S, L>(PhantomData<(S, L)>);

impl<S: StoredFormat, L: Last> LaneKernel for Scaled<S, L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: there are `n` sums and results, apart; factor and summand are one number each.
        unsafe {
            let (sums, dst) = (o.src::<f32>(0, n), o.dst::<S::T>(n));
            let (factor, summand) = (*o.src[1].cast::<f32>(), *o.src[2].cast::<f32>());
            for (&sum, to) in sums.iter().zip(dst) {
                *to = S::round(L::last(I::fma(sum, factor, summand)));
            }
        }
    }
}

impl<S: StoredFormat, L: Last> LaneKernel for ScaledColumns<S, L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: there are `n` sums and results, apart, and `m` factors and summands.
        unsafe {
            let m = o.immediate as usize;
            let (sums, dst) = (o.src::<f32>(0, n), o.dst::<S::T>(n));
            let (factors, summands) = (o.src::<f32>(1, m), o.src::<f32>(2, m));
            for (sums, dst) in sums.chunks_exact(m).zip(dst.chunks_exact_mut(m)) {
                for (((&sum, to), &factor), &summand) in
                    sums.iter().zip(dst).zip(factors).zip(summands)
                {
                    *to = S::round(L::last(I::fma(sum, factor, summand)));
                }
            }
        }
    }
}

/// `dst += sum of (source 0 * factor + summand)`, one number.
struct Summed<L>(PhantomData<L>);
/// The same for each of `immediate` columns.
struct SummedColumns<L>(PhantomData<L>);

/// Columns whose sums are in registers.
const COLUMNS: usize = 64;

impl<L: Last> LaneKernel for Summed<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: there are `n` sums; destination, factor and summand are one number each.
        unsafe {
            let (factor, summand) = (*o.src[1].cast::<f32>(), *o.src[2].cast::<f32>());
            let scaled = |sum: f32| L::last(I::fma(sum, factor, summand));
            let (whole, rest) = o.src::<f32>(0, n).as_chunks::<LANES>();
            let mut lanes = [0.0; LANES];
            for sums in whole {
                for i in 0..LANES {
                    lanes[i] += scaled(sums[i]);
                }
            }
            for (lane, &sum) in lanes.iter_mut().zip(rest) {
                *lane += scaled(sum);
            }
            halve(&mut lanes, |a, b| a + b);
            *o.dst.cast::<f32>() += lanes[0];
        }
    }
}

impl<L: Last> LaneKernel for SummedColumns<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: there are `n` sums, and `m` results, factors and summands.
        unsafe {
            let m = o.immediate as usize;
            let (sums, dst) = (o.src::<f32>(0, n), o.dst::<f32>(m));
            let (factors, summands) = (o.src::<f32>(1, m), o.src::<f32>(2, m));
            let mut first = 0;
            while let (Some(dst), Some(factors), Some(summands)) = (
                dst[first..].first_chunk_mut::<COLUMNS>(),
                factors[first..].first_chunk::<COLUMNS>(),
                summands[first..].first_chunk::<COLUMNS>(),
            ) {
                let mut lanes = [0.0; COLUMNS];
                for sums in sums.chunks_exact(m) {
                    let sums = &sums[first..][..COLUMNS];
                    for i in 0..COLUMNS {
                        lanes[i] += L::last(I::fma(sums[i], factors[i], summands[i]));
                    }
                }
                for i in 0..COLUMNS {
                    dst[i] += lanes[i];
                }
                first += COLUMNS;
            }
            for column in first..m {
                let scaled =
                    |row: &[f32]| L::last(I::fma(row[column], factors[column], summands[column]));
                dst[column] += sums.chunks_exact(m).map(scaled).sum::<f32>();
            }
        }
    }
}

/// The entry that adds up sums in f32 over the other dimension.
pub(super) fn sum_entry<I: Isa>(dtype: DType, floor: bool, along: Along) -> Option<LaneEntry> {
    let entry = match (along, floor) {
        (Along::Rows, false) => I::entry::<Summed<Plain>>(),
        (Along::Rows, true) => I::entry::<Summed<Floored>>(),
        (Along::Columns, false) => I::entry::<SummedColumns<Plain>>(),
        (Along::Columns, true) => I::entry::<SummedColumns<Floored>>(),
    };
    (dtype == DType::F32).then_some(entry)
}

/// The entry that stores.
pub(super) fn entry<I: Isa>(dtype: DType, floor: bool, along: Along) -> Option<LaneEntry> {
    Some(match dtype {
        DType::F32 => stored_as::<I, F32>(floor, along),
        DType::BF16 => stored_as::<I, Bf16>(floor, along),
        DType::F16 => stored_as::<I, F16>(floor, along),
        _ => return None,
    })
}

fn stored_as<I: Isa, S: StoredFormat + 'static>(floor: bool, along: Along) -> LaneEntry {
    match (along, floor) {
        (Along::Rows, false) => I::entry::<Scaled<S, Plain>>(),
        (Along::Rows, true) => I::entry::<Scaled<S, Floored>>(),
        (Along::Columns, false) => I::entry::<ScaledColumns<S, Plain>>(),
        (Along::Columns, true) => I::entry::<ScaledColumns<S, Floored>>(),
    }
}

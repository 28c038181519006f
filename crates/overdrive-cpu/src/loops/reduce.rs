//! Kernels of reductions: blocks folded into accumulators, and accumulators into one number.
//!
//! If rows lie across the lanes, an accumulator is as wide as a block, and a fold is an elementwise
//! kernel in place. If the lanes are of one row, an accumulator has [`LANES`] of them, which fit
//! the registers. It is folded once a row, by halves. Sums of f32 move into f64 accumulators every
//! [`FLUSH`] additions. So their error grows with the logarithm of the length and not with the
//! length.
#![allow(unsafe_code)] // Slices from raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use overdrive_ir::{DType, Reducer};

use super::isa::{Isa, LaneEntry, LaneKernel, Operands};
use super::lane::{Class, Integer, Lane, Real};
use super::nest::Lanes;

/// Additions that a lane of an f32 accumulator takes before it is emptied into its f64 one.
pub(super) const FLUSH: usize = 64;

/// Lanes of an accumulator along a row: enough vectors of any instruction set to hide the latency
/// of an addition.
pub(super) const LANES: usize = 64;

/// How two lanes combine.
trait Combine {
    type T: Lane;
    fn combine(a: Self::T, b: Self::T) -> Self::T;
}

/// `dst = combine(dst, source 0)`, lane by lane.
struct Across<C>(PhantomData<C>);
/// The same for lane `i` of source 0 and lane `i % LANES` of an accumulator.
struct Along<C>(PhantomData<C>);
/// One lane from `n` lanes of source 0, by halves, in place: source 0 is spent.
struct Gather<C>(PhantomData<C>);

impl<C: Combine> LaneKernel for Along<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: an accumulator is a unit, which has at least `LANES` lanes; source 0 has `n`,
        // apart from it.
        let (lanes, a) = unsafe { (&mut *o.dst.cast::<[C::T; LANES]>(), o.src::<C::T>(0, n)) };
        let (whole, rest) = a.as_chunks::<LANES>();
        let mut folded = *lanes;
        for chunk in whole {
            for i in 0..LANES {
                folded[i] = C::combine(folded[i], chunk[i]);
            }
        }
        *lanes = folded;
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = C::combine(*lane, x);
        }
    }
}

impl<C: Combine> LaneKernel for Across<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the accumulator and source 0 have `n` lanes each, apart.
        let (dst, a) = unsafe { (o.dst::<C::T>(n), o.src::<C::T>(0, n)) };
        for i in 0..n {
            dst[i] = C::combine(dst[i], a[i]);
        }
    }
}

/// Folds lanes by halves, into the first.
#[inline(always)]
pub(super) fn halve<T: Copy>(mut lanes: &mut [T], combine: impl Fn(T, T) -> T) {
    // The same for as many lanes as most rows have accumulators for, in registers.
    if let Ok(whole) = <&mut [T; LANES]>::try_from(&mut *lanes) {
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                whole[i] = combine(whole[i], whole[i + half]);
            }
            half /= 2;
        }
        return;
    }
    while lanes.len() > 1 {
        let (low, high) = lanes.split_at_mut(lanes.len().div_ceil(2));
        for i in 0..high.len() {
            low[i] = combine(low[i], high[i]);
        }
        lanes = low;
    }
}

impl<C: Combine> LaneKernel for Gather<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 is an accumulator, which this kernel may spend; it has at least one
        // lane.
        unsafe {
            let lanes =
                std::slice::from_raw_parts_mut(o.src[0].cast_mut().cast::<C::T>(), n.max(1));
            halve(lanes, C::combine);
            *o.dst.cast::<C::T>() = lanes[0];
        }
    }
}

/// Empties an f32 accumulator (source 0) into an f64 one.
pub(super) struct Flush;

impl LaneKernel for Flush {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: both are accumulators, apart from each other; source 0 may be spent.
        unsafe {
            let wide = o.dst::<f64>(n);
            let narrow = std::slice::from_raw_parts_mut(o.src[0].cast_mut().cast::<f32>(), n);
            for i in 0..n {
                wide[i] += f64::from(narrow[i]);
            }
            narrow.fill(0.0);
        }
    }
}

/// One f32 from `n` f64 lanes of source 0, which is spent.
pub(super) struct GatherWide;

impl LaneKernel for GatherWide {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 is an accumulator, which this kernel may spend; it has at least one
        // lane.
        unsafe {
            let lanes = std::slice::from_raw_parts_mut(o.src[0].cast_mut().cast::<f64>(), n.max(1));
            halve(lanes, |a, b| a + b);
            *o.dst.cast::<f32>() = lanes[0] as f32;
        }
    }
}

/// f32 lanes from f64 lanes.
pub(super) struct Narrow;

impl LaneKernel for Narrow {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes of f32 and source 0 `n` of f64, apart.
        let (dst, a) = unsafe { (o.dst::<f32>(n), o.src::<f64>(0, n)) };
        for i in 0..n {
            dst[i] = a[i] as f32;
        }
    }
}

/// The use of a [`Combine`]: fold blocks into it or gather its lanes.
#[derive(Copy, Clone)]
enum Use {
    Fold(Lanes),
    Gather,
}

macro_rules! combine {
    ($table:ident<$t:ident: $lane:ident> {
        $($kind:ident($x:ident, $y:ident) => $value:expr,)*
    }) => {
        fn $table<I: Isa, $t: $lane>(reducer: Reducer, usage: Use) -> Option<LaneEntry> {
            match reducer {
                $(Reducer::$kind => {
                    struct F<$t>(PhantomData<$t>);
                    impl<$t: $lane> Combine for F<$t> {
                        type T = $t;
                        #[inline(always)]
                        fn combine($x: $t, $y: $t) -> $t {
                            $value
                        }
                    }
                    Some(match usage {
                        Use::Fold(Lanes::Along) => I::entry::<Along<F<$t>>>(),
                        Use::Fold(Lanes::Across) => I::entry::<Across<F<$t>>>(),
                        Use::Gather => I::entry::<Gather<F<$t>>>(),
                    })
                })*
                #[allow(unreachable_patterns)]
                _ => None,
            }
        }
    };
}

combine! {
    real<T: Real> {
        Sum(x, y) => x + y,
        Prod(x, y) => x * y,
        Max(x, y) => x.max(y),
        Min(x, y) => x.min(y),
    }
}

combine! {
    integer<T: Integer> {
        Sum(x, y) => x.add(y),
        Prod(x, y) => x.mul(y),
        Max(x, y) => if x > y { x } else { y },
        Min(x, y) => if x < y { x } else { y },
        And(x, y) => x.and(y),
        Or(x, y) => x.or(y),
    }
}

fn entry<I: Isa>(reducer: Reducer, class: Class, usage: Use) -> Option<LaneEntry> {
    match class {
        Class::F32 => real::<I, f32>(reducer, usage),
        Class::F64 => real::<I, f64>(reducer, usage),
        Class::I32 => integer::<I, i32>(reducer, usage),
        Class::U32 => integer::<I, u32>(reducer, usage),
        Class::I64 => integer::<I, i64>(reducer, usage),
        Class::U64 => integer::<I, u64>(reducer, usage),
    }
}

/// The entry that folds lanes into an accumulator, in place; `None` where the class has no such
/// reducer.
pub(super) fn fold<I: Isa>(reducer: Reducer, class: Class, lanes: Lanes) -> Option<LaneEntry> {
    entry::<I>(reducer, class, Use::Fold(lanes))
}

/// The entry that folds an accumulator's lanes into one.
pub(super) fn gather<I: Isa>(reducer: Reducer, class: Class) -> Option<LaneEntry> {
    entry::<I>(reducer, class, Use::Gather)
}

/// The bits of the value that changes nothing.
pub(crate) fn identity(reducer: Reducer, dtype: DType) -> i64 {
    match dtype.int_range() {
        None => Class::of(dtype).bits_of(reducer.identity()),
        Some(_) if reducer == Reducer::And && dtype != DType::Bool => -1,
        Some((lo, hi)) => match reducer {
            Reducer::Max => lo as i64,
            Reducer::Min => hi as i64,
            _ => reducer.identity() as i64,
        },
    }
}

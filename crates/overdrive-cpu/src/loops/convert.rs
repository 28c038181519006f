//! Kernels that convert values between types, and keep narrow integers in their range.
//!
//! The conversions of hot programs (f32 with the narrower floats and the integers) vectorise. The
//! rest goes lane by lane through `DType::round`, the definition itself.
#![allow(unsafe_code)] // Slices from raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use overdrive_ir::{DType, Overflow};

use super::half;
use super::isa::{Isa, LaneEntry, LaneKernel, Operands};
use super::lane::{Class, Integer, Lane};
use super::math;
use super::small_floats::{Small, for_small_float, from_e8m0, to_e8m0};

/// A conversion between lanes that `as` or a rounding function does.
trait Cast {
    type A: Lane;
    type D: Lane;
    fn cast(a: Self::A) -> Self::D;
}

struct Casting<C>(PhantomData<C>);

impl<C: Cast> LaneKernel for Casting<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 and the destination have `n` lanes each, apart.
        let (dst, a) = unsafe { (o.dst::<C::D>(n), o.src::<C::A>(0, n)) };
        for i in 0..n {
            dst[i] = C::cast(a[i]);
        }
    }
}

macro_rules! entry_of_cast {
    ($I:ident, |$x:ident: $a:ty| -> $d:ty { $value:expr }) => {{
        struct C;
        impl Cast for C {
            type A = $a;
            type D = $d;
            #[inline(always)]
            fn cast($x: $a) -> $d {
                $value
            }
        }
        $I::entry::<Casting<C>>()
    }};
}

/// `x` limited to the finite values of a format whose largest is `max`; infinities and NaN stay.
#[inline(always)]
fn saturate(x: f32, max: f32) -> f32 {
    let limited = if x > max {
        max
    } else if x < -max {
        -max
    } else {
        x
    };
    if x.is_infinite() { x } else { limited }
}

/// `x` without its fraction, limited to a range; NaN is 0. That is the conversion by `as` to a
/// narrow integer, in a form that vectorises. LLVM converts vectors to integers of 32 bits and
/// takes those of 8 and 16 one by one.
#[inline(always)]
fn limited(x: f32, low: f32, high: f32) -> i32 {
    math::clamp(x, low, high) as i32
}

/// Conversions from f32 to small floats, as lanes of f32.
fn to_small<I: Isa>(to: DType, overflow: Overflow) -> Option<LaneEntry> {
    match (to, overflow) {
        (DType::E8M0, Overflow::Ieee) => {
            Some(entry_of_cast!(I, |x: f32| -> f32 { from_e8m0(to_e8m0(x, Overflow::Ieee)) }))
        }
        (DType::E8M0, Overflow::Saturate) => {
            Some(entry_of_cast!(I, |x: f32| -> f32 { from_e8m0(to_e8m0(x, Overflow::Saturate)) }))
        }
        (to, Overflow::Ieee) => for_small_float!(to, D => {
            entry_of_cast!(I, |x: f32| -> f32 { Small::<D>::round(x, Overflow::Ieee) })
        }),
        (to, Overflow::Saturate) => for_small_float!(to, D => {
            entry_of_cast!(I, |x: f32| -> f32 { Small::<D>::round(x, Overflow::Saturate) })
        }),
    }
}

/// Conversions from f32 lanes.
fn from_f32<I: Isa>(to: DType, overflow: Overflow) -> Option<LaneEntry> {
    const F16_MAX: f32 = 65504.0;
    const BF16_MAX: f32 = 3.389_531_4e38;
    Some(match (to, overflow) {
        (DType::F64, _) => entry_of_cast!(I, |x: f32| -> f64 { x.into() }),
        (DType::F32, _) => entry_of_cast!(I, |x: f32| -> f32 { x }),
        (DType::BF16, Overflow::Ieee) => {
            entry_of_cast!(I, |x: f32| -> f32 { half::from_bf16(half::to_bf16(x)) })
        }
        (DType::BF16, Overflow::Saturate) => {
            entry_of_cast!(I, |x: f32| -> f32 {
                half::from_bf16(half::to_bf16(saturate(x, BF16_MAX)))
            })
        }
        (DType::F16, Overflow::Ieee) => {
            entry_of_cast!(I, |x: f32| -> f32 { half::from_f16(half::to_f16(x)) })
        }
        (DType::F16, Overflow::Saturate) => {
            entry_of_cast!(I, |x: f32| -> f32 {
                half::from_f16(half::to_f16(saturate(x, F16_MAX)))
            })
        }
        (DType::I64, _) => entry_of_cast!(I, |x: f32| -> i64 { x as i64 }),
        (DType::I32, _) => entry_of_cast!(I, |x: f32| -> i32 { x as i32 }),
        (DType::I16, _) => entry_of_cast!(I, |x: f32| -> i32 { limited(x, -32768.0, 32767.0) }),
        (DType::I8, _) => entry_of_cast!(I, |x: f32| -> i32 { limited(x, -128.0, 127.0) }),
        (DType::I4, _) => entry_of_cast!(I, |x: f32| -> i32 { limited(x, -8.0, 7.0) }),
        (DType::U64, _) => entry_of_cast!(I, |x: f32| -> u64 { x as u64 }),
        (DType::U32, _) => entry_of_cast!(I, |x: f32| -> u32 { x as u32 }),
        (DType::U16, _) => entry_of_cast!(I, |x: f32| -> u32 { limited(x, 0.0, 65535.0) as u32 }),
        (DType::U8, _) => entry_of_cast!(I, |x: f32| -> u32 { limited(x, 0.0, 255.0) as u32 }),
        (DType::Bool, _) => entry_of_cast!(I, |x: f32| -> u32 { (x != 0.0) as u32 }),
        _ => return to_small::<I>(to, overflow),
    })
}

/// Conversions to f32, and between integers where no range is lost.
fn plain<I: Isa>(from: Class, to: DType) -> Option<LaneEntry> {
    Some(match (from, to) {
        (Class::F64, DType::F32) => entry_of_cast!(I, |x: f64| -> f32 { x as f32 }),
        (Class::I32, DType::F32) => entry_of_cast!(I, |x: i32| -> f32 { x as f32 }),
        (Class::U32, DType::F32) => entry_of_cast!(I, |x: u32| -> f32 { x as f32 }),
        (Class::I64, DType::F32) => entry_of_cast!(I, |x: i64| -> f32 { x as f32 }),
        (Class::U64, DType::F32) => entry_of_cast!(I, |x: u64| -> f32 { x as f32 }),
        (Class::I32, DType::I64) => entry_of_cast!(I, |x: i32| -> i64 { x.into() }),
        (Class::U32, DType::I64) => entry_of_cast!(I, |x: u32| -> i64 { x.into() }),
        (Class::U32, DType::U64) => entry_of_cast!(I, |x: u32| -> u64 { x.into() }),
        (Class::U32, DType::I32) => entry_of_cast!(I, |x: u32| -> i32 { x as i32 }),
        (Class::I32, DType::U32) => entry_of_cast!(I, |x: i32| -> u32 { x as u32 }),
        (Class::I64, DType::I32) => entry_of_cast!(I, |x: i64| -> i32 { x as i32 }),
        (Class::U64, DType::U32) => entry_of_cast!(I, |x: u64| -> u32 { x as u32 }),
        (Class::I32, DType::Bool) => entry_of_cast!(I, |x: i32| -> u32 { (x != 0) as u32 }),
        (Class::U32, DType::Bool) => entry_of_cast!(I, |x: u32| -> u32 { (x != 0) as u32 }),
        (Class::I64, DType::Bool) => entry_of_cast!(I, |x: i64| -> u32 { (x != 0) as u32 }),
        (Class::U64, DType::Bool) => entry_of_cast!(I, |x: u64| -> u32 { (x != 0) as u32 }),
        _ => return None,
    })
}

/// Any float to any type by the definition: through f64 and `DType::round`; and integers to floats.
struct Defined<A, D>(PhantomData<(A, D)>);
/// Integers to integers by the definition: exactly, then saturating or wrapping.
struct DefinedIntegers<A, D>(PhantomData<(A, D)>);

/// The immediate of [`convert`]: the type converted to, and what happens beyond its range.
pub(super) fn immediate(to: DType, overflow: Overflow) -> i64 {
    (to as i64) << 1 | i64::from(overflow == Overflow::Saturate)
}

fn target(immediate: i64) -> (DType, Overflow) {
    let overflow = if immediate & 1 == 1 { Overflow::Saturate } else { Overflow::Ieee };
    (DType::ALL[(immediate >> 1) as usize], overflow)
}

impl<A: Lane, D: Lane> LaneKernel for Defined<A, D> {
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 and the destination have `n` lanes each, apart.
        let (dst, a) = unsafe { (o.dst::<D>(n), o.src::<A>(0, n)) };
        let (to, overflow) = target(o.immediate);
        for (lane, x) in dst.iter_mut().zip(a) {
            *lane = D::from_f64(to.round(x.to_f64(), overflow));
        }
    }
}

impl<A: Lane, D: Lane> LaneKernel for DefinedIntegers<A, D> {
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 and the destination have `n` lanes each, apart.
        let (dst, a) = unsafe { (o.dst::<D>(n), o.src::<A>(0, n)) };
        let (to, overflow) = target(o.immediate);
        let (lo, hi) = to.int_range().expect("an integer type has a range");
        for (lane, x) in dst.iter_mut().zip(a) {
            let x = x.to_i128();
            let wrapped = (x - lo).rem_euclid(hi - lo + 1) + lo;
            *lane = D::from_i128(if overflow == Overflow::Saturate {
                x.clamp(lo, hi)
            } else {
                wrapped
            });
        }
    }
}

fn defined<I: Isa, A: Lane>(from_float: Via, to: DType) -> LaneEntry {
    fn of<I: Isa, A: Lane, D: Lane>(via: Via) -> LaneEntry {
        match via {
            Via::Float => I::entry::<Defined<A, D>>(),
            Via::Integer => I::entry::<DefinedIntegers<A, D>>(),
        }
    }
    match Class::of(to) {
        Class::F32 => of::<I, A, f32>(from_float),
        Class::F64 => of::<I, A, f64>(from_float),
        Class::I32 => of::<I, A, i32>(from_float),
        Class::U32 => of::<I, A, u32>(from_float),
        Class::I64 => of::<I, A, i64>(from_float),
        Class::U64 => of::<I, A, u64>(from_float),
    }
}

#[derive(Copy, Clone)]
enum Via {
    Float,
    Integer,
}

/// The entry that converts lanes of a type to another; its immediate is [`immediate`]'s.
pub(super) fn convert<I: Isa>(from: DType, to: DType, overflow: Overflow) -> LaneEntry {
    let class = Class::of(from);
    let fast = match class {
        Class::F32 => from_f32::<I>(to, overflow),
        // Saturation of f64 differs from `as` where a finite value would become infinite.
        Class::F64 if overflow == Overflow::Saturate => None,
        // Between integers `as` wraps.
        _ if overflow == Overflow::Saturate && to != DType::F32 && to != DType::Bool => None,
        _ => plain::<I>(class, to),
    };
    if let Some(entry) = fast {
        return entry;
    }
    let integers = !from.is_float() && !to.is_float() && to != DType::Bool;
    let via = if integers { Via::Integer } else { Via::Float };
    match class {
        Class::F32 => defined::<I, f32>(via, to),
        Class::F64 => defined::<I, f64>(via, to),
        Class::I32 => defined::<I, i32>(via, to),
        Class::U32 => defined::<I, u32>(via, to),
        Class::I64 => defined::<I, i64>(via, to),
        Class::U64 => defined::<I, u64>(via, to),
    }
}

/// Wraps lanes into a narrow integer type, in place.
struct Wrap<T, const BITS: u32>(PhantomData<T>);

impl<T: Integer, const BITS: u32> LaneKernel for Wrap<T, BITS> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes.
        let dst = unsafe { o.dst::<T>(n) };
        let shift = T::from_index(i64::from(32 - BITS));
        for lane in dst {
            *lane = lane.shl(shift).shr(shift);
        }
    }
}

/// The entry that wraps lanes in place into the range of an integer type; `None` where lanes are no
/// wider.
pub(super) fn wrap<I: Isa>(dtype: DType) -> Option<LaneEntry> {
    Some(match dtype {
        DType::I16 => I::entry::<Wrap<i32, 16>>(),
        DType::I8 => I::entry::<Wrap<i32, 8>>(),
        DType::I4 => I::entry::<Wrap<i32, 4>>(),
        DType::U16 => I::entry::<Wrap<u32, 16>>(),
        DType::U8 => I::entry::<Wrap<u32, 8>>(),
        DType::Bool => I::entry::<Wrap<u32, 1>>(),
        _ => return None,
    })
}

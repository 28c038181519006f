//! Kernels between memory and lanes: loads, stores, copies, constants, indices.
//!
//! A stored type widens to its lane and narrows from it; loads and stores take the distance between
//! lanes, in elements, as their immediate.
#![allow(unsafe_code)] // Strided access through raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use overdrive_ir::{DType, Overflow};

use super::half;
use super::isa::{Isa, LaneEntry, LaneKernel, Operands};
use super::lane::{Class, Lane};
use super::small_floats::{Small, from_e8m0, to_e8m0};
use crate::stream;

/// An element as memory holds it.
trait StoredElement: Copy {
    type Lane: Lane;
    fn widen(self) -> Self::Lane;
    fn narrow(lane: Self::Lane) -> Self;
}

macro_rules! stored {
    ($($t:ty as $lane:ty;)*) => {$(
        impl StoredElement for $t {
            type Lane = $lane;
            #[inline(always)]
            fn widen(self) -> $lane {
                self.into()
            }
            #[inline(always)]
            fn narrow(lane: $lane) -> $t {
                lane as $t
            }
        }
    )*};
}
stored! {
    f32 as f32; f64 as f64;
    i8 as i32; i16 as i32; i32 as i32; i64 as i64;
    u8 as u32; u16 as u32; u32 as u32; u64 as u64;
}

#[derive(Clone, Copy)]
struct Bf16(u16);

impl StoredElement for Bf16 {
    type Lane = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        half::from_bf16(self.0)
    }
    #[inline(always)]
    fn narrow(lane: f32) -> Self {
        Bf16(half::to_bf16(lane))
    }
}

#[derive(Clone, Copy)]
struct F16(u16);

impl StoredElement for F16 {
    type Lane = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        half::from_f16(self.0)
    }
    #[inline(always)]
    fn narrow(lane: f32) -> Self {
        F16(half::to_f16(lane))
    }
}

/// A float of 8 bits with a sign: `DType::ALL[D]`.
#[derive(Clone, Copy)]
struct Byte<const D: usize>(u8);

impl<const D: usize> StoredElement for Byte<D> {
    type Lane = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        Small::<D>::decode(self.0)
    }
    #[inline(always)]
    fn narrow(lane: f32) -> Self {
        Byte(Small::<D>::encode(lane, Overflow::Ieee))
    }
}

/// A power of two.
#[derive(Clone, Copy)]
struct Power(u8);

impl StoredElement for Power {
    type Lane = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        from_e8m0(self.0)
    }
    #[inline(always)]
    fn narrow(lane: f32) -> Self {
        Power(to_e8m0(lane, Overflow::Ieee))
    }
}

struct Load<S>(PhantomData<S>);

impl<S: StoredElement> LaneKernel for Load<S> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 has an element every `immediate` elements for each lane.
        unsafe {
            let dst = o.dst::<S::Lane>(n);
            if o.immediate == 1 {
                let src = o.src::<S>(0, n);
                for i in 0..n {
                    dst[i] = src[i].widen();
                }
            } else {
                let src = o.src[0].cast::<S>();
                for (i, lane) in dst.iter_mut().enumerate() {
                    *lane = (*src.wrapping_offset(i as isize * o.immediate as isize)).widen();
                }
            }
        }
    }
}

/// Elements of source 1 at the offsets of source 0.
struct LoadAt<S, O>(PhantomData<(S, O)>);

impl<S: StoredElement, O: Lane> LaneKernel for LoadAt<S, O> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: there are `n` results and offsets, and source 1 has an element at each offset.
        unsafe {
            let (dst, offsets) = (o.dst::<S::Lane>(n), o.src::<O>(0, n));
            let from = o.src[1].cast::<S>();
            for (lane, offset) in dst.iter_mut().zip(offsets) {
                *lane = (*from.offset(offset.to_i128() as isize)).widen();
            }
        }
    }
}

struct Store<S>(PhantomData<S>);

impl<S: StoredElement> LaneKernel for Store<S> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has an element every `immediate` elements for each lane.
        unsafe {
            let src = o.src::<S::Lane>(0, n);
            if o.immediate == 1 {
                let dst = o.dst::<S>(n);
                for i in 0..n {
                    dst[i] = S::narrow(src[i]);
                }
            } else {
                let dst = o.dst.cast::<S>();
                for (i, &lane) in src.iter().enumerate() {
                    *dst.wrapping_offset(i as isize * o.immediate as isize) = S::narrow(lane);
                }
            }
        }
    }
}

/// One number into all lanes.
struct Splat<T>(PhantomData<T>);

impl<T: Lane> LaneKernel for Splat<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes, and source 0 is one number.
        unsafe { o.dst::<T>(n).fill(*o.src[0].cast::<T>()) }
    }
}

/// The immediate's low bits into all lanes.
struct Constant<T>(PhantomData<T>);

impl LaneKernel for Constant<u32> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes.
        unsafe { o.dst::<u32>(n).fill(o.immediate as u32) }
    }
}

impl LaneKernel for Constant<u64> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes.
        unsafe { o.dst::<u64>(n).fill(o.immediate as u64) }
    }
}

/// `address of source 0 + lane * immediate`: an index is an address in a slot of one-byte elements
/// at 0.
struct Index<T>(PhantomData<T>);

impl<T: Lane> LaneKernel for Index<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes.
        let dst = unsafe { o.dst::<T>(n) };
        let first = o.src[0].addr() as i64;
        for (i, lane) in dst.iter_mut().enumerate() {
            *lane = T::from_index(first + i as i64 * o.immediate);
        }
    }
}

/// Lanes to memory that nobody reads soon: by non-temporal stores where the instruction set has
/// them.
struct NonTemporalStore<T>(PhantomData<T>);

impl<T: Lane> LaneKernel for NonTemporalStore<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        let bytes = n * size_of::<T>();
        #[cfg(target_arch = "x86_64")]
        if I::LINES {
            // SAFETY: source and destination have `n` lanes each, apart. Only AVX-512 has vectors
            // of a line.
            return unsafe { stream::store_past_caches(o.src[0], o.dst, bytes) };
        }
        // SAFETY: source and destination have `n` lanes each, apart.
        unsafe { std::ptr::copy_nonoverlapping(o.src[0], o.dst, bytes) }
    }
}

/// The entry that writes lanes of a type by non-temporal stores.
pub(super) fn stream<I: Isa>(class: Class) -> LaneEntry {
    match class.bytes() {
        4 => I::entry::<NonTemporalStore<u32>>(),
        _ => I::entry::<NonTemporalStore<u64>>(),
    }
}

/// The entry of a kernel over elements of a type; `None` for types below a byte.
macro_rules! entry_of {
    ($dtype:expr, $kernel:ident $(, $more:ty)?) => {
        Some(match $dtype {
            DType::F64 => I::entry::<$kernel<f64 $(, $more)?>>(),
            DType::F32 => I::entry::<$kernel<f32 $(, $more)?>>(),
            DType::F16 => I::entry::<$kernel<F16 $(, $more)?>>(),
            DType::BF16 => I::entry::<$kernel<Bf16 $(, $more)?>>(),
            DType::F8E4M3 => I::entry::<$kernel<Byte<{ DType::F8E4M3 as usize }> $(, $more)?>>(),
            DType::F8E5M2 => I::entry::<$kernel<Byte<{ DType::F8E5M2 as usize }> $(, $more)?>>(),
            DType::E8M0 => I::entry::<$kernel<Power $(, $more)?>>(),
            DType::I64 => I::entry::<$kernel<i64 $(, $more)?>>(),
            DType::I32 => I::entry::<$kernel<i32 $(, $more)?>>(),
            DType::I16 => I::entry::<$kernel<i16 $(, $more)?>>(),
            DType::I8 => I::entry::<$kernel<i8 $(, $more)?>>(),
            DType::U64 => I::entry::<$kernel<u64 $(, $more)?>>(),
            DType::U32 => I::entry::<$kernel<u32 $(, $more)?>>(),
            DType::U16 => I::entry::<$kernel<u16 $(, $more)?>>(),
            DType::U8 | DType::Bool => I::entry::<$kernel<u8 $(, $more)?>>(),
            below => {
                debug_assert!(below.bits() < 8, "{below} has whole bytes and no entry");
                return None;
            }
        })
    };
}

/// The entry that reads elements of a type; `None` for types below a byte.
pub(super) fn load<I: Isa>(dtype: DType) -> Option<LaneEntry> {
    entry_of!(dtype, Load)
}

/// The entry that reads elements of a type at offsets of a class; `None` where there is none.
pub(super) fn load_at<I: Isa>(dtype: DType, offsets: Class) -> Option<LaneEntry> {
    match offsets {
        Class::I32 => entry_of!(dtype, LoadAt, i32),
        Class::I64 => entry_of!(dtype, LoadAt, i64),
        _ => None,
    }
}

/// The entry that writes elements of a type; `None` for types below a byte.
pub(super) fn store<I: Isa>(dtype: DType) -> Option<LaneEntry> {
    entry_of!(dtype, Store)
}

/// The entry that repeats one number.
pub(super) fn splat<I: Isa>(class: Class) -> LaneEntry {
    match class.bytes() {
        4 => I::entry::<Splat<u32>>(),
        _ => I::entry::<Splat<u64>>(),
    }
}

/// The entry that fills lanes with its immediate.
pub(super) fn constant<I: Isa>(class: Class) -> LaneEntry {
    match class.bytes() {
        4 => I::entry::<Constant<u32>>(),
        _ => I::entry::<Constant<u64>>(),
    }
}

/// The entry that counts from its first source's address in steps of its immediate.
pub(super) fn index<I: Isa>(class: Class) -> LaneEntry {
    match class {
        Class::F32 => I::entry::<Index<f32>>(),
        Class::F64 => I::entry::<Index<f64>>(),
        Class::I32 => I::entry::<Index<i32>>(),
        Class::U32 => I::entry::<Index<u32>>(),
        Class::I64 => I::entry::<Index<i64>>(),
        Class::U64 => I::entry::<Index<u64>>(),
    }
}

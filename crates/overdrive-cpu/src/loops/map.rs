//! Kernels of the elementwise instructions: unary, binary, comparison, selection, multiply-add.
//!
//! A table maps each function to an entry for the requested instruction set. Binary and ternary
//! kernels come in several forms. The form says which operands are one number for all lanes (a
//! constant, a row's statistic). So nobody writes such a number out into lanes first.
//!
//! Long because it is tables, a line a function, and their common parts.
#![allow(unsafe_code)] // Slices from raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use overdrive_ir::{Binary, Compare, Unary};

use super::isa::{Ahead, Isa, LaneEntry, LaneKernel, Operands};
use super::lane::{Class, Integer, Lane, Real};
use super::math;

/// The operands that are one number for all lanes: bit `i` for operand `i`.
pub(super) type Uniform = u8;

/// A function of one lane.
pub(super) trait Fn1 {
    type A: Lane;
    type D: Lane;
    const PIECE: usize = PIECE;
    fn call<I: Isa>(a: Self::A) -> Self::D;
}

/// A function of two lanes of one type.
pub(super) trait Fn2 {
    type A: Lane;
    type D: Lane;
    const PIECE: usize = PIECE;
    fn call<I: Isa>(a: Self::A, b: Self::A) -> Self::D;
}

/// A function of three lanes.
trait Fn3 {
    type A: Lane;
    type D: Lane;
    fn call<I: Isa>(a: Self::A, b: Self::D, c: Self::D) -> Self::D;
}

pub(super) struct Map1<F>(PhantomData<F>);
struct Map2<F, const U: Uniform>(PhantomData<F>);
struct Map3<F, const U: Uniform>(PhantomData<F>);

/// Lanes between two prefetches, for functions that take one or two cycles.
const PIECE: usize = 64;
/// Lanes between two prefetches, for functions that take longer: no more than a cache line holds.
pub(super) const SHORT_PIECE: usize = 16;

/// Calls `each` for every lane, and prefetches a line of `ahead` with each `piece` of them. It
/// prefetches one line at a time, between vectors: a core remembers a dozen requests, and stands
/// still when it has made more.
#[inline(always)]
fn for_lanes(n: usize, piece: usize, ahead: &Ahead, mut each: impl FnMut(usize)) {
    let whole = n / piece * piece;
    for first in (0..whole).step_by(piece) {
        ahead.ask(first);
        for i in first..first + piece {
            each(i);
        }
    }
    for i in whole..n {
        each(i);
    }
}

impl<F: Fn1> LaneKernel for Map1<F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 and the destination have `n` lanes each, apart.
        let (dst, a) = unsafe { (o.dst::<F::D>(n), o.src::<F::A>(0, n)) };
        for_lanes(n, F::PIECE, &o.ahead, |i| {
            // SAFETY: `a` and `dst` have `n` lanes, and `for_lanes` gives only indices below `n`.
            // LLVM does not see that.
            unsafe { *dst.get_unchecked_mut(i) = F::call::<I>(*a.get_unchecked(i)) }
        });
    }
}

/// Source `i`: lanes, or one number where `U` says so. Index it through `at`, which needs no mask.
#[inline(always)]
unsafe fn source<'a, T, const U: Uniform>(o: &Operands, i: usize, n: usize) -> &'a [T] {
    // SAFETY: by `LaneKernel::run` a source has `n` lanes, or one where the kernel broadcasts it.
    unsafe { o.src(i, if U >> i & 1 == 1 { n.min(1) } else { n }) }
}

/// The index of lane `lane` in source `i`.
#[inline(always)]
const fn at<const U: Uniform>(i: usize, lane: usize) -> usize {
    if U >> i & 1 == 1 { 0 } else { lane }
}

impl<F: Fn2, const U: Uniform> LaneKernel for Map2<F, U> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes, and each source `n`, or one where `U` says so.
        let (dst, a, b) =
            unsafe { (o.dst::<F::D>(n), source::<F::A, U>(o, 0, n), source::<F::A, U>(o, 1, n)) };
        for_lanes(n, F::PIECE, &o.ahead, |i| {
            // SAFETY: both sources and `dst` have a lane at each index below `n`, and `for_lanes`
            // gives only those. `at` is 0 for a source of one lane.
            unsafe {
                let (a, b) = (*a.get_unchecked(at::<U>(0, i)), *b.get_unchecked(at::<U>(1, i)));
                *dst.get_unchecked_mut(i) = F::call::<I>(a, b);
            }
        });
    }
}

impl<F: Fn3, const U: Uniform> LaneKernel for Map3<F, U> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: the destination has `n` lanes, and each source `n`, or one where `U` says so.
        let (dst, a, b, c) = unsafe {
            (
                o.dst::<F::D>(n),
                source::<F::A, U>(o, 0, n),
                source::<F::D, U>(o, 1, n),
                source::<F::D, U>(o, 2, n),
            )
        };
        for_lanes(n, PIECE, &o.ahead, |i| {
            // SAFETY: the three sources and `dst` have a lane at each index below `n`, and
            // `for_lanes` gives only those. `at` is 0 for a source of one lane.
            unsafe {
                let (a, b) = (*a.get_unchecked(at::<U>(0, i)), *b.get_unchecked(at::<U>(1, i)));
                *dst.get_unchecked_mut(i) = F::call::<I>(a, b, *c.get_unchecked(at::<U>(2, i)));
            }
        });
    }
}

pub(super) fn entry2<I: Isa, F: Fn2>(uniform: Uniform) -> LaneEntry {
    match uniform {
        0 => I::entry::<Map2<F, 0>>(),
        1 => I::entry::<Map2<F, 1>>(),
        2 => I::entry::<Map2<F, 2>>(),
        _ => unreachable!("a function of two uniform operands is computed once, on one lane"),
    }
}

fn entry3<I: Isa, F: Fn3>(uniform: Uniform) -> LaneEntry {
    match uniform {
        0 => I::entry::<Map3<F, 0>>(),
        1 => I::entry::<Map3<F, 1>>(),
        2 => I::entry::<Map3<F, 2>>(),
        3 => I::entry::<Map3<F, 3>>(),
        4 => I::entry::<Map3<F, 4>>(),
        5 => I::entry::<Map3<F, 5>>(),
        6 => I::entry::<Map3<F, 6>>(),
        _ => unreachable!("a function of three uniform operands is computed once, on one lane"),
    }
}

/// Defines a function from an enum's variants to entries, for lanes of any type with the trait
/// named.
macro_rules! table1 {
    ($(#[$doc:meta])* $table:ident<$t:ident: $lane:ident>($kinds:ident) {
        $($kind:ident($x:ident) => $value:expr,)*
    }) => {
        $(#[$doc])*
        fn $table<I: Isa, $t: $lane>(kind: $kinds) -> Option<LaneEntry> {
            match kind {
                $($kinds::$kind => {
                    struct F<$t>(PhantomData<$t>);
                    impl<$t: $lane> Fn1 for F<$t> {
                        type A = $t;
                        type D = $t;
                        #[inline(always)]
                        fn call<I: Isa>($x: $t) -> $t {
                            $value
                        }
                    }
                    Some(I::entry::<Map1<F<$t>>>())
                })*
                _ => None,
            }
        }
    };
}

macro_rules! table2 {
    ($table:ident<$t:ident: $lane:ident>($kinds:ident) -> $d:ty {
        $($kind:ident($x:ident, $y:ident) => $value:expr,)*
    }) => {
        fn $table<I: Isa, $t: $lane>(kind: $kinds, uniform: Uniform) -> Option<LaneEntry> {
            match kind {
                $($kinds::$kind => {
                    struct F<$t>(PhantomData<$t>);
                    impl<$t: $lane> Fn2 for F<$t> {
                        type A = $t;
                        type D = $d;
                        #[inline(always)]
                        fn call<I: Isa>($x: $t, $y: $t) -> $d {
                            $value
                        }
                    }
                    Some(entry2::<I, F<$t>>(uniform))
                })*
                #[allow(unreachable_patterns)]
                _ => None,
            }
        }
    };
}

table1! {
    real_unary<T: Real>(Unary) {
        Neg(x) => -x,
        Abs(x) => x.abs(),
        Sign(x) => x.signum(),
        Exp(x) => x.exp::<I>(),
        Expm1(x) => x.expm1::<I>(),
        Log(x) => x.log::<I>(),
        Log1p(x) => x.log1p::<I>(),
        Sqrt(x) => x.sqrt(),
        Rsqrt(x) => T::ONE / x.sqrt(),
        Reciprocal(x) => T::ONE / x,
        Sin(x) => x.sin::<I>(),
        Cos(x) => x.cos::<I>(),
        Tanh(x) => x.tanh::<I>(),
        Erf(x) => x.erf::<I>(),
        Logistic(x) => x.logistic::<I>(),
        Floor(x) => x.floor(),
        Ceil(x) => x.ceil(),
        Round(x) => x.round(),
    }
}

table1! {
    integer_unary<T: Integer>(Unary) {
        Neg(x) => x.neg(),
        Abs(x) => x.abs(),
        Sign(x) => x.signum(),
        Not(x) => x.not(),
    }
}

table2! {
    real_binary<T: Real>(Binary) -> T {
        Add(x, y) => x + y,
        Sub(x, y) => x - y,
        Mul(x, y) => x * y,
        Div(x, y) => x / y,
        Rem(x, y) => x % y,
        Pow(x, y) => x.pow::<I>(y),
        Max(x, y) => x.max(y),
        Min(x, y) => x.min(y),
    }
}

table2! {
    integer_binary<T: Integer>(Binary) -> T {
        Add(x, y) => x.add(y),
        Sub(x, y) => x.sub(y),
        Mul(x, y) => x.mul(y),
        Div(x, y) => x.div(y),
        Rem(x, y) => x.rem(y),
        Max(x, y) => if x > y { x } else { y },
        Min(x, y) => if x < y { x } else { y },
        And(x, y) => x.and(y),
        Or(x, y) => x.or(y),
        Xor(x, y) => x.xor(y),
        Shl(x, y) => x.shl(y),
        Shr(x, y) => x.shr(y),
    }
}

table2! {
    comparison<T: Lane>(Compare) -> u32 {
        Eq(x, y) => (x == y) as u32,
        Ne(x, y) => (x != y) as u32,
        Lt(x, y) => (x < y) as u32,
        Le(x, y) => (x <= y) as u32,
        Gt(x, y) => (x > y) as u32,
        Ge(x, y) => (x >= y) as u32,
    }
}

/// Sine and cosine in f32: the vector function, and the library's where its reduction would not do.
struct Trig<const SINE: bool>;

impl<const SINE: bool> LaneKernel for Trig<SINE> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 and the destination have `n` lanes each, apart.
        let (dst, a) = unsafe { (o.dst::<f32>(n), o.src::<f32>(0, n)) };
        let mut far = false;
        for i in 0..n {
            dst[i] = if SINE { math::sin::<I>(a[i]) } else { math::cos::<I>(a[i]) };
            far |= a[i].abs() > math::TRIG_LIMIT;
        }
        if far {
            for i in 0..n {
                if a[i].abs() > math::TRIG_LIMIT {
                    let x = f64::from(a[i]);
                    dst[i] = if SINE { x.sin() } else { x.cos() } as f32;
                }
            }
        }
    }
}

/// Division of lanes by one number. A vector division takes as long as sixteen multiplications. So
/// lanes are multiplied by the reciprocal, and their remainders correct them twice. That gives each
/// bit of a division: Markstein, "Computation of elementary functions on the IBM RISC System/6000",
/// 1990. Zeros and numbers far from 1, whose remainders may not be exact, are divided.
///
/// Equal operands must give equal bits however a program is compiled. One that compares a quotient
/// with itself may compute it twice, the second time by lanes of divisors.
struct DivideByOne;

impl DivideByOne {
    /// Magnitudes of divisors that are multiplied by.
    const DIVISORS: RangeInclusive<f32> = 1.0 / (1u64 << 32) as f32..=(1u64 << 32) as f32;
    /// Bits of 2^-64, and how many numbers lie between it and 2^64.
    const LEAST: u32 = (127 - 64) << 23;
    const COUNT: u32 = 128 << 23;
}

impl LaneKernel for DivideByOne {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 and the destination have `n` lanes each, apart; source 1 is one number.
        let (dst, a, b) = unsafe { (o.dst::<f32>(n), o.src::<f32>(0, n), *o.src[1].cast::<f32>()) };
        let mut is_far = !(I::FMA && Self::DIVISORS.contains(&b.abs()));
        if !is_far {
            let (reciprocal, mut far) = (1.0 / b, 0);
            for_lanes(n, PIECE, &o.ahead, |i| {
                // SAFETY: `a` and `dst` have `n` lanes, and `for_lanes` gives only indices below
                // `n`.
                let (to, a) = unsafe { (dst.get_unchecked_mut(i), *a.get_unchecked(i)) };
                let bits = a.to_bits() & (u32::MAX >> 1);
                far |= u32::from(bits.wrapping_sub(Self::LEAST) > Self::COUNT);
                let first = a * reciprocal;
                let second = I::fma(I::fma(-first, b, a), reciprocal, first);
                *to = I::fma(I::fma(-second, b, a), reciprocal, second);
            });
            is_far = far != 0;
        }
        if is_far {
            for i in 0..n {
                dst[i] = a[i] / b;
            }
        }
    }
}

/// The signs of a multiply-add.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Signs {
    /// `a * b + c`
    Plus,
    /// `a * b - c`
    Minus,
    /// `c - a * b`
    Negated,
}

struct MulAdd<T>(PhantomData<T>);
struct MulSub<T>(PhantomData<T>);
struct NegMulAdd<T>(PhantomData<T>);

macro_rules! multiply_add {
    ($name:ident($a:ident, $b:ident, $c:ident) => $value:expr) => {
        impl<T: Real> Fn3 for $name<T> {
            type A = T;
            type D = T;
            #[inline(always)]
            fn call<I: Isa>($a: T, $b: T, $c: T) -> T {
                $value
            }
        }
    };
}
multiply_add!(MulAdd(a, b, c) => T::fma::<I>(a, b, c));
multiply_add!(MulSub(a, b, c) => T::fma::<I>(a, b, -c));
multiply_add!(NegMulAdd(a, b, c) => T::fma::<I>(-a, b, c));

struct ExpBelow<T>(PhantomData<T>);

impl<T: Real> Fn2 for ExpBelow<T> {
    type A = T;
    type D = T;
    const PIECE: usize = SHORT_PIECE;
    #[inline(always)]
    fn call<I: Isa>(a: T, b: T) -> T {
        (a - b).exp_nonpositive::<I>()
    }
}

struct Pick<T>(PhantomData<T>);

impl<T: Lane> Fn3 for Pick<T> {
    type A = u32;
    type D = T;
    #[inline(always)]
    fn call<I: Isa>(condition: u32, a: T, b: T) -> T {
        if condition != 0 { a } else { b }
    }
}

/// The entry of a function of one operand; `None` where the class has no such function.
pub(super) fn unary<I: Isa>(kind: Unary, class: Class) -> Option<LaneEntry> {
    match (class, kind) {
        (Class::F32, Unary::Sin) => Some(I::entry::<Trig<true>>()),
        (Class::F32, Unary::Cos) => Some(I::entry::<Trig<false>>()),
        (Class::F32, _) => real_unary::<I, f32>(kind),
        (Class::F64, _) => real_unary::<I, f64>(kind),
        (Class::I32, _) => integer_unary::<I, i32>(kind),
        (Class::U32, _) => integer_unary::<I, u32>(kind),
        (Class::I64, _) => integer_unary::<I, i64>(kind),
        (Class::U64, _) => integer_unary::<I, u64>(kind),
    }
}

/// The entry of a function of two operands.
pub(super) fn binary<I: Isa>(kind: Binary, class: Class, uniform: Uniform) -> Option<LaneEntry> {
    match class {
        Class::F32 if kind == Binary::Div && uniform == 2 => Some(I::entry::<DivideByOne>()),
        Class::F32 => real_binary::<I, f32>(kind, uniform),
        Class::F64 => real_binary::<I, f64>(kind, uniform),
        Class::I32 => integer_binary::<I, i32>(kind, uniform),
        Class::U32 => integer_binary::<I, u32>(kind, uniform),
        Class::I64 => integer_binary::<I, i64>(kind, uniform),
        Class::U64 => integer_binary::<I, u64>(kind, uniform),
    }
}

/// The entry of a comparison of operands of a class.
pub(super) fn compare<I: Isa>(kind: Compare, class: Class, uniform: Uniform) -> Option<LaneEntry> {
    match class {
        Class::F32 => comparison::<I, f32>(kind, uniform),
        Class::F64 => comparison::<I, f64>(kind, uniform),
        Class::I32 => comparison::<I, i32>(kind, uniform),
        Class::U32 => comparison::<I, u32>(kind, uniform),
        Class::I64 => comparison::<I, i64>(kind, uniform),
        Class::U64 => comparison::<I, u64>(kind, uniform),
    }
}

/// The entry of `if 0 then 1 else 2`: a matter of bits.
pub(super) fn select<I: Isa>(class: Class, uniform: Uniform) -> LaneEntry {
    match class.bytes() {
        4 => entry3::<I, Pick<u32>>(uniform),
        _ => entry3::<I, Pick<u64>>(uniform),
    }
}

/// The entry of `exp(0 - 1)` where 0 is at most 1, the heart of softmax; `None` for integers.
pub(super) fn exp_below<I: Isa>(class: Class, uniform: Uniform) -> Option<LaneEntry> {
    match class {
        Class::F32 => Some(entry2::<I, ExpBelow<f32>>(uniform)),
        Class::F64 => Some(entry2::<I, ExpBelow<f64>>(uniform)),
        _ => None,
    }
}

/// The entry of a multiply-add; `None` for integers.
pub(super) fn multiply_add<I: Isa>(
    signs: Signs,
    class: Class,
    uniform: Uniform,
) -> Option<LaneEntry> {
    fn of<I: Isa, T: Real>(signs: Signs, uniform: Uniform) -> LaneEntry {
        match signs {
            Signs::Plus => entry3::<I, MulAdd<T>>(uniform),
            Signs::Minus => entry3::<I, MulSub<T>>(uniform),
            Signs::Negated => entry3::<I, NegMulAdd<T>>(uniform),
        }
    }
    match class {
        Class::F32 => Some(of::<I, f32>(signs, uniform)),
        Class::F64 => Some(of::<I, f64>(signs, uniform)),
        _ => None,
    }
}

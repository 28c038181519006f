//! The inner loops of sliding windows: copies of lines that convert, and the fold of all taps of a
//! window into a run of sums.
//!
//! Both are plain Rust over arrays of [`LANES`], compiled for each instruction set. A tap adds a
//! run of memory at its own offset to neighbouring sums (`planes` sees to that). So a group of taps
//! is folded in registers: one load a tap and vector, and one store for all of the group.
#![allow(unsafe_code)] // Kernels on raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use overdrive_ir::Reducer;

use super::scalar::Scalar;
use crate::loops::isa::{Ahead, Isa, LaneEntry, LaneKernel, Operands};

/// Sums that are folded at once; runs are multiples of it.
pub(super) const LANES: usize = 16;

/// The conversion of an element that is copied.
pub(super) trait Cast: 'static {
    type From: Copy;
    type To: Copy;
    fn cast(x: Self::From) -> Self::To;
}

/// To the type that folds are kept in.
pub(super) struct Widened<T>(PhantomData<T>);
/// From it.
pub(super) struct Narrowed<T>(PhantomData<T>);

impl<T: Scalar> Cast for Widened<T> {
    type From = T;
    type To = T::Wide;
    #[inline(always)]
    fn cast(x: T) -> T::Wide {
        x.widen()
    }
}

impl<T: Scalar> Cast for Narrowed<T> {
    type From = T::Wide;
    type To = T;
    #[inline(always)]
    fn cast(x: T::Wide) -> T {
        T::narrow(x)
    }
}

/// Lines that are copied: how many, from each to the next, and from an element of a line to the
/// next; in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedLines {
    pub(super) count: usize,
    pub(super) from: [isize; 2],
    pub(super) to: [isize; 2],
}

/// A copy that converts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copying {
    entry: LaneEntry,
    /// Bytes of an element before and after.
    pub(super) widths: [usize; 2],
}

impl Copying {
    pub(super) fn new<I: Isa, C: Cast>() -> Self {
        Self { entry: I::entry::<Copied<C>>(), widths: [size_of::<C::From>(), size_of::<C::To>()] }
    }

    /// Copies lines of `n` elements.
    ///
    /// # Safety
    /// All elements exist, those of source and destination apart from each other.
    pub(super) unsafe fn run(
        &self,
        n: usize,
        lines: &CopiedLines,
        (from, to): (*const u8, *mut u8),
    ) {
        let lines = std::ptr::from_ref(lines).cast();
        let operands = Operands {
            dst: to,
            src: [from, lines, std::ptr::null()],
            immediate: 0,
            ahead: Ahead::NONE,
        };
        // SAFETY: the lines have `n` elements each at `from` and at `to`, which lie apart.
        unsafe { (self.entry)(n, &operands) }
    }
}

/// Lines of source 0, which source 1 describes.
struct Copied<C>(PhantomData<C>);

impl<C: Cast> LaneKernel for Copied<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        let (mut from, mut to) = (o.src[0].cast::<C::From>(), o.dst.cast::<C::To>());
        // SAFETY: source 1 is a `CopiedLines`, whose lines have `n` elements each at source 0 and
        // at the destination.
        unsafe {
            let CopiedLines { count, from: [from_line, from_step], to: [to_line, to_step] } =
                *o.src[1].cast();
            for _ in 0..count {
                match [from_step, to_step] {
                    [1, 1] => line::<C, 1>(n, from, to),
                    [2, 1] => line::<C, 2>(n, from, to),
                    _ => {
                        for i in 0..n as isize {
                            *to.offset(i * to_step) = C::cast(*from.offset(i * from_step));
                        }
                    }
                }
                from = from.wrapping_offset(from_line);
                to = to.wrapping_offset(to_line);
            }
        }
    }
}

#[inline(always)]
unsafe fn line<C: Cast, const STEP: usize>(n: usize, from: *const C::From, to: *mut C::To) {
    // SAFETY: `from` has `n` elements at steps of `STEP`, and `to` has room for `n`.
    unsafe {
        match n {
            16.. => pieces::<C, STEP, 16>(n, from, to),
            8.. => pieces::<C, STEP, 8>(n, from, to),
            4.. => pieces::<C, STEP, 4>(n, from, to),
            _ => (0..n).for_each(|i| *to.add(i) = C::cast(*from.add(i * STEP))),
        }
    }
}

/// Converts a line in pieces of N elements. The last piece overlaps the one before it, since lines
/// of images have no room for a tail.
#[inline(always)]
unsafe fn pieces<C: Cast, const STEP: usize, const N: usize>(
    n: usize,
    from: *const C::From,
    to: *mut C::To,
) {
    let mut at = 0;
    loop {
        // SAFETY: the piece lies within the line.
        unsafe {
            let piece: [C::To; N] = std::array::from_fn(|i| C::cast(*from.add((at + i) * STEP)));
            to.add(at).cast::<[C::To; N]>().write(piece);
        }
        if at + N >= n {
            return;
        }
        at = (at + N).min(n - N);
    }
}

/// How a tap is folded into a sum.
trait Tap: 'static {
    type Value: Copy;
    type Weight: Copy;
    /// The most taps that are folded in registers.
    const MOST: usize;
    fn first(weight: Self::Weight, x: Self::Value) -> Self::Value;
    fn fold<I: Isa>(sum: Self::Value, weight: Self::Weight, x: Self::Value) -> Self::Value;
}

/// The type that products with weights are added up in.
pub(super) trait Factor: Copy + 'static {
    fn mul(self, x: Self) -> Self;
    fn mul_add<I: Isa>(self, x: Self, sum: Self) -> Self;
}

macro_rules! factors {
    ($($t:ty: $mul:expr, $mul_add:expr;)*) => {$(
        impl Factor for $t {
            #[inline(always)]
            fn mul(self, x: $t) -> $t {
                $mul(self, x)
            }
            #[inline(always)]
            fn mul_add<I: Isa>(self, x: $t, sum: $t) -> $t {
                $mul_add(self, x, sum)
            }
        }
    )*};
}

factors! {
    f32: |w, x| w * x, I::fma;
    f64: |w, x| w * x, I::fma64;
    i32: i32::wrapping_mul, |w: i32, x: i32, sum: i32| sum.wrapping_add(w.wrapping_mul(x));
}

/// A product with the tap's weight is added.
struct Weighted<A>(PhantomData<A>);

impl<A: Factor> Tap for Weighted<A> {
    type Value = A;
    type Weight = A;
    // All of 3x3.
    const MOST: usize = 9;
    #[inline(always)]
    fn first(weight: A, x: A) -> A {
        weight.mul(x)
    }
    #[inline(always)]
    fn fold<I: Isa>(sum: A, weight: A, x: A) -> A {
        weight.mul_add::<I>(x, sum)
    }
}

/// Reducers in the order of [`Reduced`].
const REDUCERS: [Reducer; 6] =
    [Reducer::Sum, Reducer::Prod, Reducer::Max, Reducer::Min, Reducer::And, Reducer::Or];

/// Combined by the reducer of this number.
struct Reduced<W, const R: usize>(PhantomData<W>);

impl<W: Scalar<Wide = W>, const R: usize> Tap for Reduced<W, R> {
    type Value = W;
    type Weight = ();
    // A line of 3x3: there are many reducers and types, and each number of taps is a loop of its
    // own.
    const MOST: usize = 3;
    #[inline(always)]
    fn first((): (), x: W) -> W {
        x
    }
    #[inline(always)]
    fn fold<I: Isa>(sum: W, (): (), x: W) -> W {
        W::combine(REDUCERS[R], sum, x)
    }
}

/// A run of sums: `n` of them, where their taps begin, how far each tap is from there, in elements,
/// and its weight.
pub(super) struct Run<'a, V, W = ()> {
    pub(super) n: usize,
    pub(super) sums: *mut V,
    pub(super) from: *const V,
    pub(super) offsets: &'a [usize],
    pub(super) weights: *const W,
}

/// The fold of runs of `V`, with weights `W`.
#[derive(Debug)]
pub(super) struct Folding<V, W = ()>(LaneEntry, PhantomData<fn(V, W)>);

impl<A: Factor> Folding<A, A> {
    /// Products with weights, added to the values of the sums.
    pub(super) fn adding<I: Isa>() -> Self {
        Self(I::entry::<Folded<Weighted<A>, false>>(), PhantomData)
    }

    /// Products with weights, for sums that hold nothing yet.
    pub(super) fn fresh<I: Isa>() -> Self {
        Self(I::entry::<Folded<Weighted<A>, true>>(), PhantomData)
    }
}

impl<V: Scalar<Wide = V>> Folding<V> {
    /// Values, for sums that hold nothing yet.
    pub(super) fn reduced<I: Isa>(reducer: Reducer) -> Self {
        let entry = match reducer {
            Reducer::Sum => I::entry::<Folded<Reduced<V, 0>, true>>(),
            Reducer::Prod => I::entry::<Folded<Reduced<V, 1>, true>>(),
            Reducer::Max => I::entry::<Folded<Reduced<V, 2>, true>>(),
            Reducer::Min => I::entry::<Folded<Reduced<V, 3>, true>>(),
            Reducer::And => I::entry::<Folded<Reduced<V, 4>, true>>(),
            Reducer::Or => I::entry::<Folded<Reduced<V, 5>, true>>(),
        };
        Self(entry, PhantomData)
    }
}

impl<V, W> Folding<V, W> {
    /// # Safety
    /// There are `n` sums, a multiple of [`LANES`], and as many values behind each offset. There is
    /// at least one tap, and a weight for each.
    pub(super) unsafe fn run(&self, run: &Run<'_, V, W>) {
        let operands = Operands {
            dst: run.sums.cast(),
            src: [run.from.cast(), run.offsets.as_ptr().cast(), run.weights.cast()],
            immediate: run.offsets.len() as i64,
            ahead: Ahead::NONE,
        };
        // SAFETY: the operands are the run's: `n` sums, as many values behind each offset, a weight
        // a tap.
        unsafe { (self.0)(run.n, &operands) }
    }
}

struct Folded<T, const FRESH: bool>(PhantomData<T>);

impl<T: Tap, const FRESH: bool> LaneKernel for Folded<T, FRESH> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        let taps = o.immediate as usize;
        let group = |done: usize| TapGroup::<T> {
            n,
            sums: o.dst.cast(),
            from: o.src[0].cast(),
            offsets: o.src[1].cast::<usize>().wrapping_add(done),
            weights: o.src[2].cast::<T::Weight>().wrapping_add(done),
        };
        // SAFETY: there are `taps` offsets and weights, and `n` sums, as many as values behind each
        // offset.
        unsafe {
            let mut done = if FRESH { group(0).some::<I, true>(taps) } else { 0 };
            while done < taps {
                done += group(done).some::<I, false>(taps - done);
            }
        }
    }
}

/// Taps from some on.
struct TapGroup<T: Tap> {
    n: usize,
    sums: *mut T::Value,
    from: *const T::Value,
    offsets: *const usize,
    weights: *const T::Weight,
}

impl<T: Tap> TapGroup<T> {
    /// Folds the first ones of `taps`; returns how many.
    #[inline(always)]
    unsafe fn some<I: Isa, const FRESH: bool>(&self, taps: usize) -> usize {
        let most = taps.min(T::MOST);
        macro_rules! pass {
            ($($count:literal)*) => {
                match most {
                    // Numbers past the most are no code.
                    $($count if $count <= T::MOST => self.pass::<I, $count, FRESH>(),)*
                    _ => {}
                }
            };
        }
        // SAFETY: the group has `taps` offsets and weights, and `most` is no more than that.
        unsafe {
            pass!(1 2 3 4 5 6 7 8 9);
        }
        most
    }

    #[inline(always)]
    unsafe fn pass<I: Isa, const K: usize, const FRESH: bool>(&self) {
        // SAFETY: `n` is a multiple of `LANES`, there are `n` sums and as many values behind each
        // offset, and at least `K` taps.
        unsafe {
            let from: [*const T::Value; K] =
                std::array::from_fn(|k| self.from.wrapping_add(*self.offsets.add(k)));
            let weights: [T::Weight; K] = std::array::from_fn(|k| *self.weights.add(k));
            for at in (0..self.n).step_by(LANES) {
                let values = |k: usize| &*from[k].add(at).cast::<[T::Value; LANES]>();
                let to = self.sums.add(at).cast::<[T::Value; LANES]>();
                let mut sums = if FRESH { values(0).map(|x| T::first(weights[0], x)) } else { *to };
                for (k, &weight) in weights.iter().enumerate().skip(usize::from(FRESH)) {
                    for (sum, &x) in sums.iter_mut().zip(values(k)) {
                        *sum = T::fold::<I>(*sum, weight, x);
                    }
                }
                *to = sums;
            }
        }
    }
}

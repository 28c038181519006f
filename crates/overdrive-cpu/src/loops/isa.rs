//! Instruction sets, and the functions over blocks of lanes that are compiled once for each of
//! them.
//!
//! A [`LaneKernel`] is plain Rust over slices that LLVM vectorises. [`Isa::entry`] instantiates it
//! inside a `#[target_feature]` function. So one source serves AVX-512, AVX2 and the instructions
//! that every CPU of the target has. The choice is made when a loop is compiled, not when it runs.
#![allow(unsafe_code)] // Kernels take raw operands; `LaneKernel::run` says what they point to.

use crate::isa::InstructionSet;
use crate::stream::{self, Near};

/// An instruction set that loops can be compiled for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Level {
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    /// The instructions that the compilation target guarantees: SSE2 on x86-64, NEON on aarch64.
    Portable,
}

impl Level {
    /// The levels that may be executed here, the best first.
    pub fn supported() -> impl Iterator<Item = Level> {
        [Level::Avx512, Level::Avx2, Level::Portable]
            .into_iter()
            .filter(|level| level.is_supported())
    }

    /// The best level that may be executed here: that of the instruction set in force.
    pub fn best() -> Level {
        Level::supported().next().expect("the portable level runs everywhere")
    }

    fn is_supported(self) -> bool {
        match self {
            Level::Avx512 => InstructionSet::Avx512.is_usable(),
            Level::Avx2 => InstructionSet::Avx2.is_usable(),
            Level::Portable => true,
        }
    }
}

/// The operands of a kernel. Pointers that a kernel does not use hold anything.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub dst: *mut u8,
    pub src: [*const u8; 3],
    /// A number whose meaning is the kernel's: a lane stride, a site.
    pub immediate: i64,
    pub ahead: Ahead,
}

/// Memory that a later operation reads, and that a kernel prefetches while it works.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Null where there is nothing to prefetch.
    pub from: *const u8,
    /// Bytes for each 16 lanes.
    pub step: usize,
    pub near: Near,
}

impl Ahead {
    pub(crate) const NONE: Ahead = Ahead { from: std::ptr::null(), step: 0, near: Near::First };

    /// Asks for the line that belongs to lane `lane`.
    #[inline(always)]
    pub(crate) fn ask(&self, lane: usize) {
        if !self.from.is_null() {
            stream::prefetch(self.from.wrapping_add(lane / 16 * self.step), self.near);
        }
    }
}

impl Operands {
    /// The destination as `n` lanes.
    ///
    /// # Safety
    /// `dst` points to `n` lanes that nothing else refers to.
    #[inline(always)]
    pub(crate) unsafe fn dst<'a, T>(&self, n: usize) -> &'a mut [T] {
        // SAFETY: `dst` is to `n` lanes, aligned as `LaneKernel::run` has them, and nothing else
        // refers to them.
        unsafe { std::slice::from_raw_parts_mut(self.dst.cast(), n) }
    }

    /// Source `i` as `n` lanes.
    ///
    /// # Safety
    /// `src[i]` points to `n` initialised lanes that nobody writes meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn src<'a, T>(&self, i: usize, n: usize) -> &'a [T] {
        // SAFETY: `src[i]` is to `n` initialised lanes, aligned as `LaneKernel::run` has them,
        // which nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.src[i].cast(), n) }
    }
}

/// A kernel for some instruction set: applies itself to `n` lanes.
pub(crate) type LaneEntry = unsafe fn(n: usize, &Operands);

/// A function over blocks of lanes.
pub(crate) trait LaneKernel {
    /// # Safety
    /// The operands that this kernel uses point to `n` aligned lanes of its types (one lane, where
    /// the kernel broadcasts). The destination overlaps no source. The CPU has the instructions of
    /// `I`.
    unsafe fn run<I: Isa>(n: usize, operands: &Operands);
}

/// An instruction set, as a type.
pub(crate) trait Isa: Sized + 'static {
    /// Whether `mul_add` is an instruction and not a library call.
    const FMA: bool;

    /// Whether vectors are whole cache lines, so that non-temporal stores can write them.
    const LINES: bool;

    /// `K` compiled for this instruction set.
    fn entry<K: LaneKernel>() -> LaneEntry;

    /// `a * b + c`, rounded once where that is fast.
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// The same in f64.
    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }
}

macro_rules! isa {
    ($name:ident, $fma:expr, $lines:expr $(, $features:literal)?) => {
        pub(crate) struct $name;

        impl Isa for $name {
            const FMA: bool = $fma;
            const LINES: bool = $lines;

            fn entry<K: LaneKernel>() -> LaneEntry {
                /// # Safety
                /// That of `LaneKernel::run`.
                $(#[target_feature(enable = $features)])?
                unsafe fn run<K: LaneKernel>(n: usize, operands: &Operands) {
                    // SAFETY: this function has the contract of `K::run`, and is compiled for the
                    // instructions of `$name`.
                    unsafe { K::run::<$name>(n, operands) }
                }
                run::<K>
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
isa!(Avx512, true, true, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
#[cfg(target_arch = "x86_64")]
isa!(Avx2, true, false, "avx2,fma");
isa!(Portable, cfg!(target_arch = "aarch64"), false);

/// Calls `$function::<I>($args)`, or `Self::$function::<I>($args)`, for the instruction set of
/// `$level`.
macro_rules! for_level {
    ($level:expr, Self::$function:ident($($arg:expr),*)) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::loops::isa::Level::Avx512 => {
                Self::$function::<$crate::loops::isa::Avx512>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            $crate::loops::isa::Level::Avx2 => {
                Self::$function::<$crate::loops::isa::Avx2>($($arg),*)
            }
            _ => Self::$function::<$crate::loops::isa::Portable>($($arg),*),
        }
    };
    ($level:expr, $function:ident($($arg:expr),*)) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::loops::isa::Level::Avx512 => $function::<$crate::loops::isa::Avx512>($($arg),*),
            #[cfg(target_arch = "x86_64")]
            $crate::loops::isa::Level::Avx2 => $function::<$crate::loops::isa::Avx2>($($arg),*),
            _ => $function::<$crate::loops::isa::Portable>($($arg),*),
        }
    };
}
pub(crate) use for_level;

//! Element types that kernels combine and compare.

use std::cmp::Ordering;

use half::{bf16, f16};
use overdrive_ir::Reducer;

/// An element, with the type that it is combined in: f32 for the half types, itself otherwise.
pub(super) trait Scalar: Copy + Send + Sync + 'static {
    /// The type that sums and other folds are kept in.
    type Wide: Scalar<Wide = Self::Wide>;

    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// The value that changes nothing under `reducer`.
    fn identity(reducer: Reducer) -> Self::Wide;
    fn combine(reducer: Reducer, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Ascending, NaN last, -0 equal to +0.
    fn order(a: Self, b: Self) -> Ordering;
}

macro_rules! floats {
    ($($t:ty as $wide:ty: $widen:expr, $narrow:expr;)*) => {$(
        impl Scalar for $t {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            fn identity(reducer: Reducer) -> $wide {
                reducer.identity() as $wide
            }
            #[inline(always)]
            fn combine(reducer: Reducer, a: $wide, b: $wide) -> $wide {
                match reducer {
                    Reducer::Sum => a + b,
                    Reducer::Prod => a * b,
                    // NaN if either is.
                    Reducer::Max => if a > b || a.is_nan() { a } else { b },
                    Reducer::Min => if a < b || a.is_nan() { a } else { b },
                    Reducer::And | Reducer::Or => unreachable!("logical folds take no floats"),
                }
            }
            fn order(a: Self, b: Self) -> Ordering {
                a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
            }
        }
    )*};
}

floats! {
    f64 as f64: |x| x, |x| x;
    f32 as f32: |x| x, |x| x;
    f16 as f32: f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::to_f32, bf16::from_f32;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Scalar for $t {
            type Wide = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(wide: $t) -> Self {
                wide
            }
            fn identity(reducer: Reducer) -> $t {
                match reducer {
                    Reducer::Sum | Reducer::Or => 0,
                    Reducer::Prod => 1,
                    Reducer::Max => <$t>::MIN,
                    Reducer::Min => <$t>::MAX,
                    Reducer::And => !0,
                }
            }
            #[inline(always)]
            fn combine(reducer: Reducer, a: $t, b: $t) -> $t {
                match reducer {
                    Reducer::Sum => a.wrapping_add(b),
                    Reducer::Prod => a.wrapping_mul(b),
                    Reducer::Max => a.max(b),
                    Reducer::Min => a.min(b),
                    Reducer::And => a & b,
                    Reducer::Or => a | b,
                }
            }
            fn order(a: Self, b: Self) -> Ordering {
                a.cmp(&b)
            }
        }
    )*};
}

integers! { i64 i32 i16 i8 u64 u32 u16 u8 }

/// 0 or 1 in a byte: folds with `and`, `or`; all others are not defined on it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Bool(u8);

impl Scalar for Bool {
    type Wide = u8;
    fn widen(self) -> u8 {
        self.0
    }
    fn narrow(wide: u8) -> Self {
        Self(wide)
    }
    fn identity(reducer: Reducer) -> u8 {
        (reducer == Reducer::And) as u8
    }
    fn combine(reducer: Reducer, a: u8, b: u8) -> u8 {
        u8::combine(reducer, a, b)
    }
    fn order(a: Self, b: Self) -> Ordering {
        a.cmp(&b)
    }
}

/// `$this.$method::<T>` for the element type of `$dtype`.
macro_rules! for_scalar {
    ($dtype:expr, $this:ident.$method:ident($($arg:expr),*)) => {
        match $dtype {
            overdrive_ir::DType::F64 => $this.$method::<f64>($($arg),*),
            overdrive_ir::DType::F32 => $this.$method::<f32>($($arg),*),
            overdrive_ir::DType::F16 => $this.$method::<half::f16>($($arg),*),
            overdrive_ir::DType::BF16 => $this.$method::<half::bf16>($($arg),*),
            overdrive_ir::DType::I64 => $this.$method::<i64>($($arg),*),
            overdrive_ir::DType::I32 => $this.$method::<i32>($($arg),*),
            overdrive_ir::DType::I16 => $this.$method::<i16>($($arg),*),
            overdrive_ir::DType::I8 => $this.$method::<i8>($($arg),*),
            overdrive_ir::DType::U64 => $this.$method::<u64>($($arg),*),
            overdrive_ir::DType::U32 => $this.$method::<u32>($($arg),*),
            overdrive_ir::DType::U16 => $this.$method::<u16>($($arg),*),
            overdrive_ir::DType::U8 => $this.$method::<u8>($($arg),*),
            overdrive_ir::DType::Bool => $this.$method::<$crate::kernels::scalar::Bool>($($arg),*),
            other => unreachable!("{other} goes to the reference"),
        }
    };
}
pub(super) use for_scalar;

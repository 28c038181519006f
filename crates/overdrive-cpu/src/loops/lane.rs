//! Lanes: the six types that registers hold, and the arithmetic of each.
//!
//! Every logical type computes in one of them. Floats below f32 are carried as unrounded f32: the
//! reference semantics round where a program converts or stores, and nowhere else. Integers below
//! 32 bits are carried sign- or zero-extended, and wrapped after each operation that can leave
//! their range; bool is 0 or 1.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use overdrive_ir::DType;

use super::isa::Isa;
use super::math;

/// The type of a register's lanes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Class {
    F32,
    F64,
    I32,
    U32,
    I64,
    U64,
}

impl Class {
    /// The class that values of a type are carried in.
    pub(super) fn of(dtype: DType) -> Class {
        match dtype {
            DType::F64 => Class::F64,
            DType::I64 => Class::I64,
            DType::U64 => Class::U64,
            DType::I32 | DType::I16 | DType::I8 | DType::I4 => Class::I32,
            DType::U32 | DType::U16 | DType::U8 | DType::Bool => Class::U32,
            _ => Class::F32,
        }
    }

    /// Bytes of a lane.
    pub(super) fn bytes(self) -> usize {
        match self {
            Class::F32 | Class::I32 | Class::U32 => 4,
            Class::F64 | Class::I64 | Class::U64 => 8,
        }
    }

    /// The bits of a number, in the low bytes.
    pub(super) fn bits_of(self, x: f64) -> i64 {
        match self {
            Class::F32 => i64::from((x as f32).to_bits()),
            Class::F64 => x.to_bits() as i64,
            Class::I32 => i64::from(x as i32),
            Class::U32 => i64::from(x as u32),
            Class::I64 => x as i64,
            Class::U64 => x as u64 as i64,
        }
    }
}

/// A type of lanes.
pub(super) trait Lane: Copy + PartialOrd + Default + Send + Sync + 'static {
    fn to_f64(self) -> f64;
    fn from_f64(x: f64) -> Self;
    fn to_i128(self) -> i128;
    fn from_i128(x: i128) -> Self;
    /// An index, which fits every type that a program counts in.
    fn from_index(x: i64) -> Self;
}

/// Float lanes.
pub(super) trait Real:
    Lane
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
    + Neg<Output = Self>
{
    const ONE: Self;
    fn fma<I: Isa>(a: Self, b: Self, c: Self) -> Self;
    /// NaN if either is.
    fn max(self, y: Self) -> Self;
    /// NaN if either is.
    fn min(self, y: Self) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn signum(self) -> Self;
    fn exp<I: Isa>(self) -> Self;
    /// For lanes up to 0; results that would be subnormal may be 0.
    fn exp_nonpositive<I: Isa>(self) -> Self;
    fn expm1<I: Isa>(self) -> Self;
    fn log<I: Isa>(self) -> Self;
    fn log1p<I: Isa>(self) -> Self;
    fn sin<I: Isa>(self) -> Self;
    fn cos<I: Isa>(self) -> Self;
    fn tanh<I: Isa>(self) -> Self;
    fn erf<I: Isa>(self) -> Self;
    fn logistic<I: Isa>(self) -> Self;
    fn pow<I: Isa>(self, y: Self) -> Self;
}

macro_rules! float_lane {
    ($t:ident) => {
        impl Lane for $t {
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_i128(self) -> i128 {
                self as i128
            }
            #[inline(always)]
            fn from_i128(x: i128) -> Self {
                x as $t
            }
            #[inline(always)]
            fn from_index(x: i64) -> Self {
                x as $t
            }
        }
    };
}
float_lane!(f32);
float_lane!(f64);

/// The methods of [`Real`] that the standard library has for both types.
macro_rules! exact_functions {
    ($t:ident) => {
        const ONE: Self = 1.0;
        #[inline(always)]
        fn max(self, y: Self) -> Self {
            // The first line is one instruction on x86, which keeps a NaN in `y` alone.
            let larger = if self > y { self } else { y };
            if self != self { self } else { larger }
        }
        #[inline(always)]
        fn min(self, y: Self) -> Self {
            let smaller = if self < y { self } else { y };
            if self != self { self } else { smaller }
        }
        #[inline(always)]
        fn abs(self) -> Self {
            $t::abs(self)
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            $t::sqrt(self)
        }
        #[inline(always)]
        fn floor(self) -> Self {
            $t::floor(self)
        }
        #[inline(always)]
        fn ceil(self) -> Self {
            $t::ceil(self)
        }
        #[inline(always)]
        fn round(self) -> Self {
            $t::round_ties_even(self)
        }
        #[inline(always)]
        fn signum(self) -> Self {
            let one = $t::copysign(1.0, self);
            if self == 0.0 || self != self { self } else { one }
        }
    };
}

/// The methods of [`Real`] that f32 has in [`math`].
macro_rules! vector_functions {
    ($($name:ident)*) => {$(
        #[inline(always)]
        fn $name<I: Isa>(self) -> Self {
            math::$name::<I>(self)
        }
    )*};
}

impl Real for f32 {
    exact_functions!(f32);
    vector_functions!(exp exp_nonpositive expm1 log log1p sin cos tanh erf logistic);
    #[inline(always)]
    fn fma<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
        I::fma(a, b, c)
    }
    #[inline(always)]
    fn pow<I: Isa>(self, y: f32) -> f32 {
        math::pow::<I>(self, y)
    }
}

/// The methods of [`Real`] that f64 takes from a library: f64 programs are references, not hot
/// loops.
macro_rules! library_functions {
    ($($name:ident = $function:expr;)*) => {$(
        #[inline(always)]
        fn $name<I: Isa>(self) -> Self {
            $function(self)
        }
    )*};
}

impl Real for f64 {
    exact_functions!(f64);
    library_functions! {
        exp = f64::exp;
        exp_nonpositive = f64::exp;
        expm1 = f64::exp_m1;
        log = f64::ln;
        log1p = f64::ln_1p;
        sin = f64::sin;
        cos = f64::cos;
        tanh = f64::tanh;
        erf = libm::erf;
        logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    }
    #[inline(always)]
    fn fma<I: Isa>(a: f64, b: f64, c: f64) -> f64 {
        I::fma64(a, b, c)
    }
    #[inline(always)]
    fn pow<I: Isa>(self, y: f64) -> f64 {
        self.powf(y)
    }
}

/// Integer lanes. Arithmetic wraps; division by zero gives 0.
pub(super) trait Integer: Lane {
    fn add(self, y: Self) -> Self;
    fn sub(self, y: Self) -> Self;
    fn mul(self, y: Self) -> Self;
    fn div(self, y: Self) -> Self;
    fn rem(self, y: Self) -> Self;
    fn and(self, y: Self) -> Self;
    fn or(self, y: Self) -> Self;
    fn xor(self, y: Self) -> Self;
    /// A count below 0 or of the lane's width or more gives 0.
    fn shl(self, y: Self) -> Self;
    /// Signed lanes keep their sign. A count out of range gives 0, as for `shl`.
    fn shr(self, y: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn signum(self) -> Self;
    fn not(self) -> Self;
}

macro_rules! integer_lane {
    ($t:ident, $abs:expr, $signum:expr) => {
        impl Lane for $t {
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_i128(self) -> i128 {
                self.into()
            }
            #[inline(always)]
            fn from_i128(x: i128) -> Self {
                x as $t
            }
            #[inline(always)]
            fn from_index(x: i64) -> Self {
                x as $t
            }
        }
        impl Integer for $t {
            #[inline(always)]
            fn add(self, y: Self) -> Self {
                self.wrapping_add(y)
            }
            #[inline(always)]
            fn sub(self, y: Self) -> Self {
                self.wrapping_sub(y)
            }
            #[inline(always)]
            fn mul(self, y: Self) -> Self {
                self.wrapping_mul(y)
            }
            #[inline(always)]
            fn div(self, y: Self) -> Self {
                if y == 0 { 0 } else { self.wrapping_div(y) }
            }
            #[inline(always)]
            fn rem(self, y: Self) -> Self {
                if y == 0 { 0 } else { self.wrapping_rem(y) }
            }
            #[inline(always)]
            fn and(self, y: Self) -> Self {
                self & y
            }
            #[inline(always)]
            fn or(self, y: Self) -> Self {
                self | y
            }
            #[inline(always)]
            fn xor(self, y: Self) -> Self {
                self ^ y
            }
            #[inline(always)]
            fn shl(self, y: Self) -> Self {
                let within = (0..$t::BITS as $t).contains(&y);
                if within { self.wrapping_shl(y as u32) } else { 0 }
            }
            #[inline(always)]
            fn shr(self, y: Self) -> Self {
                let within = (0..$t::BITS as $t).contains(&y);
                if within { self.wrapping_shr(y as u32) } else { 0 }
            }
            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $abs(self)
            }
            #[inline(always)]
            fn signum(self) -> Self {
                $signum(self)
            }
            #[inline(always)]
            fn not(self) -> Self {
                !self
            }
        }
    };
}
integer_lane!(i32, i32::wrapping_abs, i32::signum);
integer_lane!(i64, i64::wrapping_abs, i64::signum);
integer_lane!(u32, |x| x, |x: u32| x.min(1));
integer_lane!(u64, |x| x, |x: u64| x.min(1));

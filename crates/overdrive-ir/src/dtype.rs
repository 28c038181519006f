//! Element types and their bit-exact number formats.
//!
//! What: `DType` names every logical element type; `FloatFormat` encodes and decodes all small floats by one
//! rule. Why one rule: a format is only its field widths, its bias and what its top exponent means, so every
//! micro-format is one table line. Invariant: `decode(encode(x))` is the nearest representable value of `x`,
//! ties to even.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A logical element type. Storage is bit-packed: element `i` occupies bits `[i*bits, (i+1)*bits)`, little-endian.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    E8M0,
    F6E2M3,
    F6E3M2,
    F4E2M1,
    I64,
    I32,
    I16,
    I8,
    I4,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

/// What the largest exponent field of a float format encodes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Specials {
    /// IEEE 754: infinities and NaNs.
    Ieee,
    /// Only the all-ones mantissa is NaN; there is no infinity (OCP E4M3).
    NanOnly,
    /// Every code is a finite number (OCP E2M3, E3M2, E2M1).
    None,
    /// Exponent only, no sign, no zero; code 0xFF is NaN (OCP E8M0).
    Scale,
}

/// What an encoder does with a finite value beyond the largest representable one.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// To infinity where the format has one, else to NaN, else to the largest finite value.
    #[default]
    Ieee,
    /// To the largest finite value of the same sign.
    Saturate,
}

/// Field widths and special values of a binary float of at most 16 bits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FloatFormat {
    /// Width of the exponent field in bits.
    pub exponent_bits: u32,
    /// Width of the mantissa field in bits.
    pub mantissa_bits: u32,
    /// Exponent bias.
    pub bias: i32,
    /// Meaning of the top exponent.
    pub specials: Specials,
}

impl FloatFormat {
    const fn new(exponent_bits: u32, mantissa_bits: u32, specials: Specials) -> Self {
        Self { exponent_bits, mantissa_bits, bias: (1 << (exponent_bits - 1)) - 1, specials }
    }

    fn sign_bit(&self) -> u32 {
        if self.specials == Specials::Scale { 0 } else { 1 << (self.exponent_bits + self.mantissa_bits) }
    }

    /// The code of the largest finite value, sign bit clear.
    pub fn max_code(&self) -> u32 {
        let all = (1u32 << (self.exponent_bits + self.mantissa_bits)) - 1;
        match self.specials {
            Specials::Ieee => all - (1 << self.mantissa_bits),
            Specials::NanOnly | Specials::Scale => all - 1,
            Specials::None => all,
        }
    }

    /// The largest finite value.
    pub fn max(&self) -> f64 {
        self.decode(self.max_code())
    }

    /// The value of `code`.
    pub fn decode(&self, code: u32) -> f64 {
        let m = self.mantissa_bits;
        let sign = if code & self.sign_bit() != 0 { -1.0 } else { 1.0 };
        let exponent = (code >> m) & ((1 << self.exponent_bits) - 1);
        let mantissa = code & ((1 << m) - 1);
        let magnitude = code & ((1u32 << (self.exponent_bits + m)) - 1);
        if magnitude > self.max_code() {
            let infinite = self.specials == Specials::Ieee && mantissa == 0;
            return if infinite { sign * f64::INFINITY } else { f64::NAN };
        }
        if self.specials == Specials::Scale {
            return 2f64.powi(exponent as i32 - self.bias);
        }
        let fraction = mantissa as f64 / (1u64 << m) as f64;
        match exponent {
            0 => sign * fraction * 2f64.powi(1 - self.bias),
            _ => sign * (1.0 + fraction) * 2f64.powi(exponent as i32 - self.bias),
        }
    }

    fn nan_code(&self) -> u32 {
        match self.specials {
            Specials::Ieee => self.max_code() + 1 + (1 << (self.mantissa_bits - 1)),
            Specials::NanOnly | Specials::Scale => self.max_code() + 1,
            // A format without NaN has no better answer than its largest value (OCP MX 1.0, 5.3).
            Specials::None => self.max_code(),
        }
    }

    /// The code nearest to `x`, ties to even. `Scale` formats round the exponent of a positive `x` likewise.
    pub fn encode(&self, x: f64, overflow: Overflow) -> u32 {
        let scale = self.specials == Specials::Scale;
        if x.is_nan() || (scale && x < 0.0) {
            return self.nan_code();
        }
        let sign = if x.is_sign_negative() { self.sign_bit() } else { 0 };
        let (a, max_code) = (x.abs(), self.max_code());
        if scale {
            let code = (a.log2().round_ties_even() + self.bias as f64).max(0.0);
            return if code <= max_code as f64 { code as u32 } else { self.beyond(overflow) };
        }
        // Spacing of representable numbers around `a`; dividing by a power of two is exact in f64.
        let exponent = if a == 0.0 { i32::MIN } else { exponent_of(a) }.max(1 - self.bias);
        let quantum = 2f64.powi(exponent - self.mantissa_bits as i32);
        let steps = (a / quantum).round_ties_even();
        let normal = 1u64 << self.mantissa_bits;
        // Codes of one sign are consecutive integers, so a carry into the next binade is plain addition.
        let code = if a.is_infinite() {
            u64::MAX
        } else {
            ((exponent - 1 + self.bias) as u64) * normal + steps as u64
        };
        if code <= max_code as u64 {
            sign | code as u32
        } else if a.is_infinite() && self.specials == Specials::Ieee {
            sign | (max_code + 1)
        } else {
            sign | self.beyond(overflow)
        }
    }

    fn beyond(&self, overflow: Overflow) -> u32 {
        match (overflow, self.specials) {
            (Overflow::Saturate, _) | (_, Specials::None) => self.max_code(),
            (Overflow::Ieee, Specials::Ieee) => self.max_code() + 1,
            (Overflow::Ieee, _) => self.nan_code(),
        }
    }
}

/// floor(log2(a)) for finite a > 0, exact also for subnormals.
fn exponent_of(a: f64) -> i32 {
    match (a.to_bits() >> 52) as i32 {
        0 => -1011 - a.to_bits().leading_zeros() as i32,
        e => e - 1023,
    }
}

impl DType {
    /// Every type, in declaration order.
    pub const ALL: [DType; 20] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::E8M0,
        DType::F6E2M3,
        DType::F6E3M2,
        DType::F4E2M1,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::I4,
        DType::U64,
        DType::U32,
        DType::U16,
        DType::U8,
        DType::Bool,
    ];

    /// Width of one stored element in bits.
    pub const fn bits(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 64,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 16,
            DType::F8E4M3 | DType::F8E5M2 | DType::E8M0 | DType::I8 | DType::U8 | DType::Bool => 8,
            DType::F6E2M3 | DType::F6E3M2 => 6,
            DType::F4E2M1 | DType::I4 => 4,
        }
    }

    /// Bytes that `elements` packed elements occupy.
    pub const fn bytes_for(self, elements: usize) -> usize {
        (elements * self.bits()).div_ceil(8)
    }

    /// The name in IR text, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::E8M0 => "e8m0",
            DType::F6E2M3 => "f6e2m3",
            DType::F6E3M2 => "f6e3m2",
            DType::F4E2M1 => "f4e2m1",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::I4 => "i4",
            DType::U64 => "u64",
            DType::U32 => "u32",
            DType::U16 => "u16",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// True for every floating-point type, micro-formats and e8m0 included.
    pub const fn is_float(self) -> bool {
        (self as u8) <= DType::F4E2M1 as u8
    }

    /// True for integers; `bool` is not one.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }

    /// True for the float types that arithmetic ops take (f64, f32, f16, bf16); others must be converted first.
    pub const fn is_arithmetic_float(self) -> bool {
        (self as u8) <= DType::BF16 as u8
    }

    /// Inclusive range of an integer type or `bool`.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        match self {
            DType::Bool => Some((0, 1)),
            DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::I4 => {
                let half = 1i128 << (self.bits() - 1);
                Some((-half, half - 1))
            }
            DType::U64 | DType::U32 | DType::U16 | DType::U8 => Some((0, (1i128 << self.bits()) - 1)),
            _ => None,
        }
    }

    /// The format of a float of at most 16 bits.
    pub const fn float_format(self) -> Option<FloatFormat> {
        Some(match self {
            DType::F16 => FloatFormat::new(5, 10, Specials::Ieee),
            DType::BF16 => FloatFormat::new(8, 7, Specials::Ieee),
            DType::F8E4M3 => FloatFormat::new(4, 3, Specials::NanOnly),
            DType::F8E5M2 => FloatFormat::new(5, 2, Specials::Ieee),
            DType::E8M0 => FloatFormat::new(8, 0, Specials::Scale),
            DType::F6E2M3 => FloatFormat::new(2, 3, Specials::None),
            DType::F6E3M2 => FloatFormat::new(3, 2, Specials::None),
            DType::F4E2M1 => FloatFormat::new(2, 1, Specials::None),
            _ => return None,
        })
    }

    /// Distance from 1 to the next value above: the relative rounding unit times two. Zero for integers.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON,
            DType::F32 => f32::EPSILON as f64,
            _ => self.float_format().map_or(0.0, |f| 2f64.powi(-(f.mantissa_bits as i32))),
        }
    }

    /// The largest finite value as f64.
    pub fn max_value(self) -> f64 {
        match self {
            DType::F64 => f64::MAX,
            DType::F32 => f32::MAX as f64,
            _ => match (self.float_format(), self.int_range()) {
                (Some(f), _) => f.max(),
                (_, Some((_, max))) => max as f64,
                _ => unreachable!("every type is a float or has an integer range"),
            },
        }
    }

    /// `x` rounded to this type and back; integers truncate toward zero and saturate, `bool` is `x != 0`.
    pub fn round(self, x: f64, overflow: Overflow) -> f64 {
        match self {
            DType::F64 => x,
            DType::F32 => match x as f32 as f64 {
                r if r.is_infinite() && x.is_finite() && overflow == Overflow::Saturate => {
                    (f32::MAX as f64).copysign(x)
                }
                r => r,
            },
            DType::Bool => (x != 0.0) as u8 as f64,
            _ => match (self.float_format(), self.int_range()) {
                (Some(f), _) => f.decode(f.encode(x, overflow)),
                (_, Some((lo, hi))) => (x.trunc() as i128).clamp(lo, hi) as f64,
                _ => unreachable!("every type is a float or has an integer range"),
            },
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown dtype `{0}`: expected one of f64, f32, f16, bf16, f8e4m3, f8e5m2, e8m0, f6e2m3, f6e3m2, f4e2m1, i64, i32, i16, i8, i4, u64, u32, u16, u8, bool"
)]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;
    fn from_str(s: &str) -> Result<Self, UnknownDType> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| UnknownDType(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_formats_agree_with_the_half_crate_on_every_code_and_on_random_values() {
        let (f16, bf16) = (DType::F16.float_format().unwrap(), DType::BF16.float_format().unwrap());
        for code in 0..=u16::MAX {
            for (format, reference) in
                [(f16, half::f16::from_bits(code).to_f64()), (bf16, half::bf16::from_bits(code).to_f64())]
            {
                let value = format.decode(code as u32);
                assert!(value == reference || (value.is_nan() && reference.is_nan()), "{code:#x}");
                if !value.is_nan() {
                    assert_eq!(format.encode(value, Overflow::Ieee), code as u32);
                }
            }
        }
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let x = f32::from_bits((state >> 32) as u32) as f64;
            if x.is_nan() {
                continue;
            }
            assert_eq!(
                f16.encode(x, Overflow::Ieee),
                half::f16::from_f32(x as f32).to_bits() as u32,
                "{x:e}"
            );
            assert_eq!(
                bf16.encode(x, Overflow::Ieee),
                half::bf16::from_f32(x as f32).to_bits() as u32,
                "{x:e}"
            );
        }
    }

    #[test]
    fn micro_formats_round_trip_every_code_and_have_the_published_maxima() {
        for (dtype, max) in [
            (DType::F8E4M3, 448.0),
            (DType::F8E5M2, 57344.0),
            (DType::F6E2M3, 7.5),
            (DType::F6E3M2, 28.0),
            (DType::F4E2M1, 6.0),
            (DType::E8M0, 2f64.powi(127)),
        ] {
            let format = dtype.float_format().unwrap();
            assert_eq!(format.max(), max, "{dtype}");
            for code in 0..(1u32 << dtype.bits()) {
                let value = format.decode(code);
                if !value.is_nan() {
                    assert_eq!(format.encode(value, Overflow::Ieee), code, "{dtype} {code:#x}");
                }
            }
        }
    }

    #[test]
    fn overflow_saturates_or_becomes_special_as_asked() {
        let e4m3 = DType::F8E4M3;
        assert_eq!(e4m3.round(1e9, Overflow::Saturate), 448.0);
        assert!(e4m3.round(1e9, Overflow::Ieee).is_nan());
        assert_eq!(DType::F8E5M2.round(1e9, Overflow::Ieee), f64::INFINITY);
        assert_eq!(DType::F4E2M1.round(-100.0, Overflow::Ieee), -6.0);
        assert_eq!(DType::F32.round(1e300, Overflow::Saturate), f32::MAX as f64);
        assert_eq!(DType::I8.round(-1e9, Overflow::Ieee), -128.0);
    }

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert!("float".parse::<DType>().unwrap_err().to_string().contains("`float`"));
    }
}

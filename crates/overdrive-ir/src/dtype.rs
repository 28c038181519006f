//! Element types: `DType` names every logical one, with its width, family and number format.
//!
//! Invariant: storage is bit-packed and little-endian, so that a tensor's bytes mean the same on
//! every machine.

use crate::float_format::{FloatFormat, Overflow, Specials};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A logical element type. Storage is bit-packed: element `i` occupies bits `[i*bits, (i+1)*bits)`,
/// little-endian.
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

    /// True for the float types that arithmetic ops take (f64, f32, f16, bf16); others must be
    /// converted first.
    pub const fn is_arithmetic_float(self) -> bool {
        (self as u8) <= DType::BF16 as u8
    }

    /// True for the codes of a byte that tensor cores multiply: f8e4m3 and f8e5m2.
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2)
    }

    /// The float type in which values of this type are summed: f64 for f64, f32 for everything
    /// below.
    pub const fn accumulation(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            _ => DType::F32,
        }
    }

    /// Inclusive range of an integer type or `bool`.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        match self {
            DType::Bool => Some((0, 1)),
            DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::I4 => {
                let half = 1i128 << (self.bits() - 1);
                Some((-half, half - 1))
            }
            DType::U64 | DType::U32 | DType::U16 | DType::U8 => {
                Some((0, (1i128 << self.bits()) - 1))
            }
            _ => None,
        }
    }

    /// The ends of the range of an integer type, as numbers.
    pub(crate) const fn ends(self) -> [f64; 2] {
        let signed = matches!(self, DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::I4);
        // Twice a half, since 2^64 is no u64.
        let half = (1u64 << (self.bits() - 1)) as f64;
        if signed { [-half, half - 1.0] } else { [0.0, 2.0 * half - 1.0] }
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

    /// Distance from 1 to the next value above: the relative rounding unit times two. Zero for
    /// integers.
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

    /// `x` rounded to this type and back; integers truncate toward zero and saturate, `bool` is `x
    /// != 0`.
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
                // Both ends are exact in f64, or round to what a cast of the integer would.
                _ if x.is_nan() => 0.0,
                (_, Some(_)) => {
                    let [low, high] = self.ends();
                    x.trunc().clamp(low, high) + 0.0
                }
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
    "unknown dtype `{0}`: expected one of f64, f32, f16, bf16, f8e4m3, f8e5m2, e8m0, f6e2m3, \
     f6e3m2, f4e2m1, i64, i32, i16, i8, i4, u64, u32, u16, u8, bool"
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

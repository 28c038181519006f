//! Floats of at most 8 bits and f32, by integer arithmetic that vectorises on every instruction
//! set.
//!
//! The definition is `FloatFormat`, which rounds a number at a time through f64. Here each format
//! is a few constants, and rounding is to nearest, ties to even. The mantissa is rounded by an
//! addition to the bits (Giesen, "float->half variants", 2012). Numbers that are subnormal in the
//! format are rounded by adding the power of two whose last bit is the format's smallest step.

use overdrive_ir::{DType, FloatFormat, Overflow, Specials};

/// The format `DType::ALL[D]`, which has a sign and a mantissa.
pub(crate) struct Small<const D: usize>;

/// Evaluates an expression with `$index` as the number in `DType::ALL` of the small float that
/// `$dtype` is; `None` where it is none. The one list of them here.
macro_rules! for_small_float {
    ($dtype:expr, $index:ident => $body:expr) => {
        $crate::loops::small_floats::for_small_float!(
            @of $dtype, $index => $body; F8E4M3 F8E5M2 F6E2M3 F6E3M2 F4E2M1
        )
    };
    (@of $dtype:expr, $index:ident => $body:expr; $($format:ident)*) => {
        match $dtype {
            $(overdrive_ir::DType::$format => {
                const $index: usize = overdrive_ir::DType::$format as usize;
                Some($body)
            })*
            _ => None,
        }
    };
}
pub(crate) use for_small_float;

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;

/// The power of two `2^exponent`, normal in f32.
const fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl<const D: usize> Small<D> {
    const FORMAT: FloatFormat = match DType::ALL[D].float_format() {
        Some(format) if DType::ALL[D].bits() <= 8 && format.mantissa_bits > 0 => format,
        _ => panic!("a small float with a sign and a mantissa"),
    };
    const MANTISSA: u32 = Self::FORMAT.mantissa_bits;
    /// Bits of a magnitude.
    const WIDTH: u32 = Self::FORMAT.exponent_bits + Self::MANTISSA;
    /// Bits of an f32's mantissa that the format lacks.
    const DROPPED: u32 = 23 - Self::MANTISSA;
    /// The difference between the exponents of f32 and of codes, in the place of a code's exponent.
    const REBIAS: u32 = ((127 - Self::FORMAT.bias) as u32) << Self::MANTISSA;
    /// The bits of the smallest number that is normal in the format.
    const NORMAL: u32 = power(1 - Self::FORMAT.bias).to_bits();
    const STEP: f32 = power(1 - Self::FORMAT.bias - Self::MANTISSA as i32);
    /// Its last bit is worth a step.
    const ALIGN: f32 = power(24 - Self::FORMAT.bias - Self::MANTISSA as i32);
    const MAX_CODE: u32 = match Self::FORMAT.specials {
        Specials::Ieee => (1 << Self::WIDTH) - 1 - (1 << Self::MANTISSA),
        Specials::NanOnly => (1 << Self::WIDTH) - 2,
        _ => (1 << Self::WIDTH) - 1,
    };
    /// The largest finite number.
    pub(crate) const MAX: f32 = f32::from_bits((Self::MAX_CODE + Self::REBIAS) << Self::DROPPED);
    const IEEE: bool = matches!(Self::FORMAT.specials, Specials::Ieee);
    const NAN_CODE: u32 = match Self::FORMAT.specials {
        Specials::Ieee => Self::MAX_CODE + 1 + (1 << (Self::MANTISSA - 1)),
        Specials::NanOnly => Self::MAX_CODE + 1,
        _ => Self::MAX_CODE,
    };

    /// A magnitude's bits with the mantissa rounded.
    #[inline(always)]
    fn rounded(bits: u32) -> u32 {
        let odd = bits >> Self::DROPPED & 1;
        bits + ((1 << (Self::DROPPED - 1)) - 1 + odd)
    }

    /// The number of the format nearest to `x`, as `DType::round` finds it.
    #[inline(always)]
    pub(crate) fn round(x: f32, overflow: Overflow) -> f32 {
        let bits = x.to_bits() & !SIGN;
        let normal = f32::from_bits(Self::rounded(bits) & !((1 << Self::DROPPED) - 1));
        let subnormal = (f32::from_bits(bits) + Self::ALIGN) - Self::ALIGN;
        let nearest = if bits < Self::NORMAL { subnormal } else { normal };
        let beyond = match (overflow, Self::FORMAT.specials) {
            (Overflow::Saturate, _) | (_, Specials::None) => Self::MAX,
            (Overflow::Ieee, Specials::Ieee) => f32::INFINITY,
            (Overflow::Ieee, _) => f32::NAN,
        };
        let beyond = if Self::IEEE && bits == INFINITY { f32::INFINITY } else { beyond };
        let nearest = if nearest > Self::MAX { beyond } else { nearest };
        let signed = f32::from_bits(nearest.to_bits() | x.to_bits() & SIGN);
        let of_nan = if Self::NAN_CODE == Self::MAX_CODE { Self::MAX } else { f32::NAN };
        if x.is_nan() { of_nan } else { signed }
    }

    /// The code nearest to `x`, as `FloatFormat::encode` finds it.
    #[inline(always)]
    pub(crate) fn encode(x: f32, overflow: Overflow) -> u8 {
        let bits = x.to_bits() & !SIGN;
        let normal = (Self::rounded(bits) >> Self::DROPPED).wrapping_sub(Self::REBIAS);
        let subnormal =
            (f32::from_bits(bits) + Self::ALIGN).to_bits().wrapping_sub(Self::ALIGN.to_bits());
        let nearest = if bits < Self::NORMAL { subnormal } else { normal };
        let beyond = match (overflow, Self::FORMAT.specials) {
            (Overflow::Saturate, _) | (_, Specials::None) => Self::MAX_CODE,
            (Overflow::Ieee, _) => Self::MAX_CODE + 1,
        };
        let beyond = if Self::IEEE && bits == INFINITY { Self::MAX_CODE + 1 } else { beyond };
        let nearest = if nearest > Self::MAX_CODE { beyond } else { nearest };
        let signed = nearest | x.to_bits() >> 31 << Self::WIDTH;
        (if x.is_nan() { Self::NAN_CODE } else { signed }) as u8
    }

    /// The value of a code.
    #[inline(always)]
    pub(crate) fn decode(code: u8) -> f32 {
        let code = u32::from(code);
        let magnitude = code & ((1 << Self::WIDTH) - 1);
        let normal = f32::from_bits((magnitude + Self::REBIAS) << Self::DROPPED);
        // Through an integer: an f32 that is subnormal on the way costs hundreds of cycles on some
        // CPUs.
        let subnormal = magnitude as i32 as f32 * Self::STEP;
        let finite = if magnitude < 1 << Self::MANTISSA { subnormal } else { normal };
        let special =
            if Self::IEEE && magnitude == Self::MAX_CODE + 1 { f32::INFINITY } else { f32::NAN };
        let value = if magnitude > Self::MAX_CODE { special } else { finite };
        f32::from_bits(value.to_bits() | (code >> Self::WIDTH & 1) << 31)
    }
}

/// The e8m0 code nearest to `x`: of its logarithm, so that the bound between two powers is their
/// geometric mean.
#[inline(always)]
pub(crate) fn to_e8m0(x: f32, overflow: Overflow) -> u8 {
    /// The mantissa of the largest f32 below the square root of 2, and the bits of the largest
    /// below 2^-126.5.
    const BELOW_ROOT: u32 = 0x0035_04f3;
    const BELOW_HALFWAY: u32 = 0x005a_8279;
    let bits = x.to_bits() & !SIGN;
    let normal = (bits >> 23) + u32::from(bits & 0x007f_ffff > BELOW_ROOT);
    let code = if bits < 1 << 23 { u32::from(bits > BELOW_HALFWAY) } else { normal };
    let beyond = if overflow == Overflow::Saturate { 254 } else { 255 };
    let code = if code > 254 { beyond } else { code };
    (if x.is_nan() || x < 0.0 { 255 } else { code }) as u8
}

/// The value of an e8m0 code: the exponent of an f32, whose smallest is subnormal and whose largest
/// is NaN.
#[inline(always)]
pub(crate) fn from_e8m0(code: u8) -> f32 {
    let bits = (u32::from(code) << 23).max(1 << 22);
    f32::from_bits(if code == u8::MAX { f32::NAN.to_bits() } else { bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every exponent with all kinds of low bits, and the numbers at and beside each code and each
    /// tie between two.
    fn inputs(format: FloatFormat) -> impl Iterator<Item = f32> {
        let codes = (0..=255).map(move |code| format.decode(code) as f32);
        let ties = codes.clone().zip(codes.clone().skip(1)).map(|(a, b)| (a + b) / 2.0);
        let beside = codes.chain(ties).flat_map(|x: f32| [x, x.next_up(), x.next_down(), -x]);
        let strided = (0..=u32::MAX).step_by(16_381).map(f32::from_bits);
        beside.chain(strided).chain([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, f32::MAX])
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    fn check<const D: usize>() {
        let format = Small::<D>::FORMAT;
        for overflow in [Overflow::Ieee, Overflow::Saturate] {
            for x in inputs(format) {
                let code = format.encode(x.into(), overflow);
                let found = Small::<D>::encode(x, overflow);
                assert_eq!(u32::from(found), code, "{} {x:e} {overflow:?}", DType::ALL[D]);
                let (value, found) = (format.decode(code) as f32, Small::<D>::round(x, overflow));
                assert!(
                    same(found, value),
                    "{} {x:e} {overflow:?}: {found:e} for {value:e}",
                    DType::ALL[D]
                );
            }
        }
        for code in 0..1_u32 << DType::ALL[D].bits() {
            assert!(
                same(Small::<D>::decode(code as u8), format.decode(code) as f32),
                "{} {code}",
                DType::ALL[D]
            );
        }
    }

    #[test]
    fn every_format_agrees_with_its_definition() {
        let signed = |dtype: &DType| {
            dtype.bits() <= 8 && dtype.float_format().is_some_and(|f| f.mantissa_bits > 0)
        };
        for dtype in DType::ALL.into_iter().filter(signed) {
            for_small_float!(dtype, D => check::<D>())
                .unwrap_or_else(|| panic!("{dtype} is not in the list"));
        }
    }

    #[test]
    fn powers_of_two_agree_with_their_definition() {
        let format = DType::E8M0.float_format().expect("a float");
        let halfway = [0x005a_8279, 0x005a_827a, 0x3fb5_04f3, 0x3fb5_04f4].map(f32::from_bits);
        for overflow in [Overflow::Ieee, Overflow::Saturate] {
            for x in inputs(format).chain(halfway) {
                assert_eq!(
                    u32::from(to_e8m0(x, overflow)),
                    format.encode(x.into(), overflow),
                    "{x:e}"
                );
            }
        }
        for code in 0..=255 {
            assert!(same(from_e8m0(code), format.decode(code.into()) as f32), "{code}");
        }
    }
}

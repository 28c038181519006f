//! bf16 and f16 to f32 and back by integer arithmetic that vectorises on every instruction set.
//!
//! Rounding is to nearest, ties to even. f16 follows Giesen, "float->half variants" (2012, `rtne`
//! variant).

/// Exact.
#[inline(always)]
pub(super) fn from_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// Nearest, ties to even; every NaN becomes the quiet one of its sign.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let code = if x.is_nan() { bits >> 16 | 0x40 } else { rounded };
    code as u16
}

/// Exact, subnormals included.
#[inline(always)]
pub(super) fn from_f16(code: u16) -> f32 {
    let magnitude = u32::from(code & 0x7fff);
    let sign = u32::from(code & 0x8000) << 16;
    // The bias is moved by a multiplication, which also normalises subnormals.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((254 - 15) << 23);
    let special = 0x7f80_0000 | magnitude << 13;
    let bits = if magnitude >= 0x7c00 { special } else { scaled.to_bits() };
    f32::from_bits(bits | sign)
}

/// Nearest, ties to even; too large becomes infinite.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> u16 {
    let sign = x.to_bits() & 0x8000_0000;
    let bits = x.to_bits() ^ sign;
    let magnitude = f32::from_bits(bits);
    // Adding 0.5 aligns the ten bits that a subnormal keeps at the bottom of the mantissa, rounded
    // by hardware.
    let subnormal = (magnitude + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let odd = bits >> 13 & 1;
    let normal = bits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let special = if bits > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let code = if bits < 113 << 23 { subnormal } else { normal };
    let code = if bits >= (127 + 16) << 23 { special } else { code };
    (code | sign >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_its_neighbourhood_round_like_the_half_crate() {
        for code in 0..=u16::MAX {
            let (a, b) = (half::f16::from_bits(code), half::bf16::from_bits(code));
            assert_eq!(
                from_f16(code).to_bits() << 1,
                if a.is_nan() { from_f16(code).to_bits() << 1 } else { a.to_f32().to_bits() << 1 }
            );
            assert_eq!(from_bf16(code).to_bits(), u32::from(code) << 16);
            assert!(
                from_f16(code).is_nan() == a.is_nan() && from_bf16(code).is_nan() == b.is_nan()
            );
        }
        // A stride that is odd and prime visits every exponent with all kinds of low bits.
        for bits in (0..=u32::MAX).step_by(2_039) {
            let x = f32::from_bits(bits);
            let (a, b) = (half::f16::from_f32(x), half::bf16::from_f32(x));
            assert!(
                to_f16(x) == a.to_bits() || x.is_nan() && from_f16(to_f16(x)).is_nan(),
                "f16 {x:e}"
            );
            assert!(
                to_bf16(x) == b.to_bits() || x.is_nan() && from_bf16(to_bf16(x)).is_nan(),
                "bf16 {x:e}"
            );
        }
        for tie in [
            1.0 + 1.0 / 2048.0,
            1.0 + 3.0 / 2048.0,
            65519.99,
            65520.0,
            6.0e-8,
            2.98e-8,
            2.99e-8,
            6.1e-5,
        ] {
            assert_eq!(to_f16(tie), half::f16::from_f32(tie).to_bits(), "{tie:e}");
        }
    }
}

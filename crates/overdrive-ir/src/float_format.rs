//! Bit-exact number formats of the small floats, by one rule.
//!
//! A format is only its field widths, its bias and what its top exponent means, so every
//! micro-format is one table line. Invariant: `decode(encode(x))` is the nearest representable
//! value of `x`, ties to even.

use serde::{Deserialize, Serialize};

/// The meaning of the largest exponent field of a float format.
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

/// How an encoder treats a finite value beyond the largest representable one.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// To infinity if the format has one, else to NaN if it has that, else to the largest finite
    /// value.
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
    pub(crate) const fn new(exponent_bits: u32, mantissa_bits: u32, specials: Specials) -> Self {
        Self { exponent_bits, mantissa_bits, bias: (1 << (exponent_bits - 1)) - 1, specials }
    }

    fn sign_bit(&self) -> u32 {
        if self.specials == Specials::Scale {
            0
        } else {
            1 << (self.exponent_bits + self.mantissa_bits)
        }
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

    /// The code nearest to `x`, ties to even. `Scale` formats round the exponent of a positive `x`
    /// likewise.
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
        // Codes of one sign are consecutive integers, so a carry into the next binade is plain
        // addition.
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

#[cfg(test)]
mod tests;

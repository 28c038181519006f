//! Blocks of 256 weights to codes with scales of parts, for the decoders of
//! [`k_blocks`](super::k_blocks).
//!
//! A part's scale and minimum have the least weighted square error over several first steps. Each
//! is improved in turn: codes to the nearest, then the best scale and minimum for these codes.
//! Large weights count more. The idea and the weights are those of ggml's `make_qkx2_quants`
//! and `make_qx_quants`; the search is our own, and its errors are no larger (tests/all/gguf.rs).

use half::f16;
use std::array::from_fn;

/// First steps are those of codes up to `most + t / 10` for these t.
const FIRST_STEPS: std::ops::RangeInclusive<i32> = -10..=10;
/// How often codes and scale are improved in turn.
const ROUNDS: usize = 2;
/// Share of the squares of codes below which their variance is rounding.
const ALIKE: f32 = 1e-5;
/// Largest scale or minimum of a part, of six bits.
const SIX_BITS: f32 = 63.0;

/// `scale * code - least`.
#[derive(Copy, Clone, Default)]
struct Line {
    scale: f32,
    least: f32,
}

impl Line {
    /// The nearest codes from 0 to `most`.
    fn codes(self, x: &[f32], most: f32, codes: &mut [f32]) {
        let inverse = inverse(self.scale);
        for (code, x) in codes.iter_mut().zip(x) {
            *code = whole(((x + self.least) * inverse).clamp(0.0, most));
        }
    }

    /// The best one for these codes with a minimum that is not above 0; `None` where all are 0.
    fn of(codes: &[f32], x: &[f32], weights: &[f32]) -> Option<Self> {
        let [mut w, mut wq, mut wqq, mut wx, mut wxq] = [0.0f32; 5];
        for ((q, x), weight) in codes.iter().zip(x).zip(weights) {
            w += weight;
            wq += weight * q;
            wqq += weight * q * q;
            wx += weight * x;
            wxq += weight * x * q;
        }
        if wqq == 0.0 {
            return None;
        }
        let determinant = w * wqq - wq * wq;
        let least = (wq * wxq - wqq * wx) / determinant;
        // Codes that are nearly alike tell a scale or a minimum, and not both.
        let line = match determinant > ALIKE * w * wqq && least >= 0.0 {
            true => Self { scale: (w * wxq - wx * wq) / determinant, least },
            false => Self { scale: wxq / wqq, least: 0.0 },
        };
        (line.scale > 0.0).then_some(line)
    }
}

/// 0 of 0, whose codes are all 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The nearest whole number of one from 0 to 255; `round` is a call where this is an instruction.
fn whole(x: f32) -> f32 {
    f32::from((x + 0.5) as u8)
}

/// Scale and minimum of a part, for codes from 0 to `most`.
fn line(x: &[f32], most: f32) -> Line {
    let middle = (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32).sqrt();
    let weights: Vec<f32> = x.iter().map(|x| middle + x.abs()).collect();
    let low = x.iter().fold(0.0f32, |low, x| low.min(*x));
    let high = x.iter().fold(f32::NEG_INFINITY, |high, x| high.max(*x));
    let (mut best, mut error) = (Line { scale: 0.0, least: -low }, f32::INFINITY);
    let mut codes = vec![0.0; x.len()];
    for t in FIRST_STEPS {
        let scale = (high - low) / (most + t as f32 / 10.0);
        let mut tried = Line { scale, least: -low };
        for _ in 0..ROUNDS {
            tried.codes(x, most, &mut codes);
            let Some(better) = Line::of(&codes, x, &weights) else { break };
            let off = |((q, x), weight): ((&f32, &f32), &f32)| {
                weight * (better.scale * q - better.least - x).powi(2)
            };
            let found: f32 = codes.iter().zip(x).zip(&weights).map(off).sum();
            if found < error {
                (best, error) = (better, found);
            }
            tried = better;
        }
    }
    best
}

/// A block of eight parts of 32 codes.
struct Lines {
    scale: f16,
    least: f16,
    /// Scale and minimum of each part in units of those of the block.
    parts: [[u8; 2]; 8],
    codes: [u8; 256],
}

impl Lines {
    fn of(x: &[f32], most: f32) -> Self {
        let lines: [Line; 8] = from_fn(|part| line(&x[32 * part..][..32], most));
        let unit = |of: fn(&Line) -> f32| {
            let largest = lines.iter().map(of).fold(0.0f32, f32::max);
            f16::from_f32(largest / SIX_BITS)
        };
        let (scale, least) = (unit(|line| line.scale), unit(|line| line.least));
        // If the unit is 0, the codes are 0, whatever their scale.
        let units =
            |number: f32, unit: f16| (number / unit.to_f32()).round().clamp(0.0, SIX_BITS) as u8;
        let parts = lines.map(|line| [units(line.scale, scale), units(line.least, least)]);
        let mut codes = [0.0; 256];
        for ((part, x), codes) in parts.iter().zip(x.chunks(32)).zip(codes.chunks_mut(32)) {
            let [own, lowest] = part.map(f32::from);
            let line = Line { scale: scale.to_f32() * own, least: least.to_f32() * lowest };
            line.codes(x, most, codes);
        }
        let codes = codes.map(|code| code as u8);
        Self { scale, least, parts, codes }
    }

    /// The block's own scale and minimum, and those of its parts, six bits each.
    fn head(&self) -> Vec<u8> {
        let mut packed = [0u8; 12];
        for (part, [scale, least]) in self.parts.iter().enumerate() {
            if part < 4 {
                packed[part] |= scale;
                packed[part + 4] |= least;
            } else {
                packed[part + 4] = scale & 15 | (least & 15) << 4;
                packed[part - 4] |= scale >> 4 << 6;
                packed[part] |= least >> 4 << 6;
            }
        }
        [&self.scale.to_le_bytes()[..], &self.least.to_le_bytes(), &packed].concat()
    }

    /// The low four bits of two parts beside each other.
    fn low(&self) -> impl Iterator<Item = u8> {
        let pairs = self.codes.chunks_exact(64);
        pairs.flat_map(|pair| (0..32).map(move |i| pair[i] & 15 | (pair[i + 32] & 15) << 4))
    }
}

/// Parts of 32 codes of four bits, each with a scale and a minimum.
pub(super) fn q4_k(x: &[f32], out: &mut Vec<u8>) {
    let block = Lines::of(x, 15.0);
    out.extend(block.head());
    out.extend(block.low());
}

/// The same with a fifth bit for each code.
pub(super) fn q5_k(x: &[f32], out: &mut Vec<u8>) {
    let block = Lines::of(x, 31.0);
    out.extend(block.head());
    let fifth =
        |i: usize| (0..8).fold(0, |bits, part| bits | (block.codes[32 * part + i] >> 4) << part);
    out.extend((0..32).map(fifth));
    out.extend(block.low());
}

/// The scale of a part whose codes are -32 to 31.
fn signed_scale(x: &[f32]) -> f32 {
    let most = x.iter().fold(0.0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    let (mut best, mut gain) = (0.0, 0.0);
    for t in FIRST_STEPS {
        // The largest weight gets the code that has no opposite.
        let mut scale = -most / (32.0 + t as f32 / 10.0);
        for _ in 0..ROUNDS {
            let [mut wxq, mut wqq] = [0.0f32; 2];
            let inverse = inverse(scale);
            for x in x {
                let code = signed_code(*x, inverse);
                wxq += x * x * x * code;
                wqq += x * x * code * code;
            }
            if wqq == 0.0 {
                break;
            }
            // How much less the weighted square error is than that of zeros.
            if wxq * wxq / wqq > gain {
                (best, gain) = (wxq / wqq, wxq * wxq / wqq);
            }
            scale = wxq / wqq;
        }
    }
    best
}

/// The nearest code from -32 to 31.
fn signed_code(x: f32, inverse: f32) -> f32 {
    whole((x * inverse).clamp(-32.0, 31.0) + 32.0) - 32.0
}

/// Parts of 16 codes of six bits, each with a signed scale of eight bits.
pub(super) fn q6_k(x: &[f32], out: &mut Vec<u8>) {
    let scales: [f32; 16] = from_fn(|part| signed_scale(&x[16 * part..][..16]));
    let most = scales.iter().fold(0.0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    let unit = f16::from_f32(most / -128.0);
    // If the unit is 0, the codes are 0, whatever their scale.
    let units = scales.map(|scale| (scale / unit.to_f32()).round().clamp(-128.0, 127.0) as i8);
    let codes: [u8; 256] = from_fn(|at| {
        let scale = unit.to_f32() * f32::from(units[at / 16]);
        (signed_code(x[at], inverse(scale)) + 32.0) as u8
    });
    let halves = || codes.chunks_exact(128);
    let low = |half: &[u8], i: usize| half[i] & 15 | (half[i + 64] & 15) << 4;
    let high = |half: &[u8], i: usize| {
        (0..4).fold(0, |bits, part| bits | half[32 * part + i] >> 4 << (2 * part))
    };
    out.extend(halves().flat_map(|half| (0..64).map(move |i| low(half, i))));
    out.extend(halves().flat_map(|half| (0..32).map(move |i| high(half, i))));
    out.extend(units.map(|unit| unit as u8));
    out.extend(unit.to_le_bytes());
}

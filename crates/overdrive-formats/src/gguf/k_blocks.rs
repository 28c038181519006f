//! Blocks of 256 codes with scales of parts, as `ggml-quants.c` decodes them.

use half::f16;

/// The f16 at the beginning.
pub(super) fn half(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}

/// Parts of 16 codes of two bits, each with a scale and a minimum of four bits.
pub(super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, codes) = block.split_at(16);
    let (scale, least) = (half(&block[80..]), half(&block[82..]));
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let own = scales[part];
        let (scale, least) = (scale * f32::from(own & 15), least * f32::from(own >> 4));
        for (out, code) in out.iter_mut().zip(twos(codes, part)) {
            *out = scale * f32::from(code) - least;
        }
    }
}

/// Parts of 16 codes of three bits, each with a signed scale of six bits.
pub(super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let (high, rest) = block.split_at(32);
    let (codes, scales) = rest.split_at(64);
    let scale = half(&block[108..]);
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        // Four low bits in the first eight bytes, two high ones in the last four.
        let low = scales[part % 8] >> (4 * (part / 8)) & 15;
        let own = low | (scales[8 + part % 4] >> (2 * (part / 4)) & 3) << 4;
        let scale = scale * (f32::from(own) - 32.0);
        let bit = part / 2;
        let high = &high[16 * (part % 2)..];
        for ((out, code), high) in out.iter_mut().zip(twos(codes, part)).zip(high) {
            let below = if high >> bit & 1 == 1 { 0.0 } else { 4.0 };
            *out = scale * (f32::from(code) - below);
        }
    }
}

/// The two-bit codes of a part of 16: 32 bytes hold four times two parts, one bit pair each.
fn twos(codes: &[u8], part: usize) -> impl Iterator<Item = u8> {
    let (half, within) = (part / 8, part % 8);
    let shift = 2 * (within / 2);
    codes[32 * half + 16 * (within % 2)..][..16].iter().map(move |code| code >> shift & 3)
}

/// Scale and minimum of a part of 32, of six bits each, eight of both in twelve bytes.
fn six_bits(packed: &[u8], part: usize) -> (f32, f32) {
    let (scale, least) = if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        let both = packed[part + 4];
        (both & 15 | packed[part - 4] >> 6 << 4, both >> 4 | packed[part] >> 6 << 4)
    };
    (scale.into(), least.into())
}

/// Parts of 32 codes of four bits, each with a scale and a minimum.
pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scales, codes) = (&block[4..16], &block[16..]);
    fours(block, scales, codes, |_, _| 0, out);
}

/// The same with a fifth bit for each code.
pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scales, high, codes) = (&block[4..16], &block[16..48], &block[48..]);
    fours(block, scales, codes, |part, i| (high[i] >> part & 1) << 4, out);
}

fn fours(
    block: &[u8],
    scales: &[u8],
    codes: &[u8],
    high: impl Fn(usize, usize) -> u8,
    out: &mut [f32],
) {
    let (scale, least) = (half(block), half(&block[2..]));
    for (part, out) in out.chunks_exact_mut(32).enumerate() {
        let (own, lowest) = six_bits(scales, part);
        let (scale, least) = (scale * own, least * lowest);
        let codes = &codes[32 * (part / 2)..];
        for (i, out) in out.iter_mut().enumerate() {
            let code = codes[i] >> (4 * (part % 2)) & 15 | high(part, i);
            *out = scale * f32::from(code) - least;
        }
    }
}

/// Parts of 16 codes of six bits, each with a signed scale of eight bits.
pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    let scale = half(&block[208..]);
    for (part, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, within) = (part / 4, part % 4);
        let low = &low[64 * half + 32 * (within % 2)..];
        let high = &high[32 * half..];
        for (i, out) in out.iter_mut().enumerate() {
            let four = low[i] >> (4 * (within / 2)) & 15;
            let code = four | (high[i] >> (2 * within) & 3) << 4;
            let own = scales[2 * part + i / 16] as i8;
            *out = scale * f32::from(own) * (f32::from(code) - 32.0);
        }
    }
}

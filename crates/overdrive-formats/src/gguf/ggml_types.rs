//! Types of tensors, and blocks of 32 codes with a scale, as `ggml-quants.c` decodes them.
//!
//! Each formula is computed in f32, in ggml's order, without fused steps.

use super::k_blocks::{half, q2_k, q3_k, q4_k, q5_k, q6_k};
use half::bf16;

/// A type of tensors.
#[derive(Debug)]
pub(super) struct GgmlType {
    code: u64,
    pub(super) name: &'static str,
    /// Elements of a block.
    pub(super) elements: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Decodes a block.
    pub(super) decode: fn(&[u8], &mut [f32]),
}

macro_rules! kinds {
    ($($code:literal $name:literal $elements:literal $bytes:literal $decode:expr;)*) => {
        &[$(GgmlType {
            code: $code,
            name: $name,
            elements: $elements,
            bytes: $bytes,
            decode: $decode,
        },)*]
    };
}

static KINDS: &[GgmlType] = kinds! {
    0 "F32" 1 4 |block, out| out[0] = f32::from_le_bytes(four(block));
    1 "F16" 1 2 |block, out| out[0] = half(block);
    2 "Q4_0" 32 18 q4_0;
    3 "Q4_1" 32 20 q4_1;
    6 "Q5_0" 32 22 q5_0;
    7 "Q5_1" 32 24 q5_1;
    8 "Q8_0" 32 34 q8_0;
    10 "Q2_K" 256 84 q2_k;
    11 "Q3_K" 256 110 q3_k;
    12 "Q4_K" 256 144 q4_k;
    13 "Q5_K" 256 176 q5_k;
    14 "Q6_K" 256 210 q6_k;
    28 "F64" 1 8 |block, out| out[0] = f64::from_bits(bits(block)) as f32;
    30 "BF16" 1 2 |block, out| out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32();
};

impl GgmlType {
    pub(super) fn of(code: u64) -> Option<&'static GgmlType> {
        KINDS.iter().find(|kind| kind.code == code)
    }

    pub(super) fn names() -> String {
        KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
    }

    /// The numbers of whole blocks.
    pub(super) fn decoded(&self, bytes: &[u8]) -> Vec<f32> {
        let blocks = bytes.chunks_exact(self.bytes);
        let mut numbers = vec![0.0; blocks.len() * self.elements];
        for (block, out) in blocks.zip(numbers.chunks_exact_mut(self.elements)) {
            (self.decode)(block, out);
        }
        numbers
    }
}

fn four(block: &[u8]) -> [u8; 4] {
    [block[0], block[1], block[2], block[3]]
}

fn bits(block: &[u8]) -> u64 {
    block[..8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Codes of four bits: the low halves of the bytes, then the high ones.
fn fours(codes: &[u8]) -> impl Iterator<Item = u8> {
    codes.iter().map(|code| code & 15).chain(codes.iter().map(|code| code >> 4))
}

/// The same with a fifth bit for each.
fn fives<'b>(high: &'b [u8], codes: &'b [u8]) -> impl Iterator<Item = u8> + 'b {
    let high = u32::from_le_bytes(four(high));
    fours(codes).enumerate().map(move |(i, code)| code | ((high >> i & 1) as u8) << 4)
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block);
    for (out, code) in out.iter_mut().zip(fours(&block[2..])) {
        *out = (f32::from(code) - 8.0) * scale;
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    for (out, code) in out.iter_mut().zip(fours(&block[4..])) {
        *out = f32::from(code) * scale + least;
    }
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block);
    for (out, code) in out.iter_mut().zip(fives(&block[2..6], &block[6..])) {
        *out = (f32::from(code) - 16.0) * scale;
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    for (out, code) in out.iter_mut().zip(fives(&block[4..8], &block[8..])) {
        *out = f32::from(code) * scale + least;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block);
    for (out, &code) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(code as i8) * scale;
    }
}

//! Types that weights are written in, and blocks of 32 codes of eight bits.
//!
//! The layouts are those that [`ggml_types`](super::ggml_types) decodes. Q8_0 is rounded as
//! `quantize_row_q8_0_ref` of ggml does, to the bit.

use super::k_encoded::{q4_k, q5_k, q6_k};
use half::f16;

/// A type of tensors that is written.
#[derive(Debug)]
pub(super) struct TensorEncoder {
    /// Its number in files.
    pub(super) code: u32,
    pub(super) name: &'static str,
    /// Elements of a block.
    pub(super) elements: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Adds a block.
    encode: fn(&[f32], &mut Vec<u8>),
}

macro_rules! encoders {
    ($($id:ident $code:literal $name:literal $elements:literal $bytes:literal $encode:expr;)*) => {
        $(pub(super) static $id: TensorEncoder = TensorEncoder {
            code: $code,
            name: $name,
            elements: $elements,
            bytes: $bytes,
            encode: $encode,
        };)*
    };
}

encoders! {
    F32 0 "F32" 1 4 |x, out| out.extend(x[0].to_le_bytes());
    F16 1 "F16" 1 2 |x, out| out.extend(f16::from_f32(x[0]).to_le_bytes());
    Q8_0 8 "Q8_0" 32 34 q8_0;
    Q4_K 12 "Q4_K" 256 144 q4_k;
    Q5_K 13 "Q5_K" 256 176 q5_k;
    Q6_K 14 "Q6_K" 256 210 q6_k;
}

impl TensorEncoder {
    /// The bytes of so many elements in whole blocks.
    pub(super) fn bytes_of(&self, elements: usize) -> usize {
        elements / self.elements * self.bytes
    }

    /// Whole blocks of numbers, each at most the largest f16.
    pub(super) fn encoded(&self, numbers: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes_of(numbers.len()));
        for block in numbers.chunks_exact(self.elements) {
            (self.encode)(block, &mut bytes);
        }
        bytes
    }
}

fn q8_0(x: &[f32], out: &mut Vec<u8>) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = most / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend(x.iter().map(|x| (x * inverse).round() as i8 as u8));
}

/// The type of a file: that of its matrices, where they have whole blocks of it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum GgufType {
    F16,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl GgufType {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::F16, Self::Q8_0, Self::Q4K, Self::Q5K, Self::Q6K];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
        }
    }

    /// The type of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// `general.file_type` of llama.cpp: `MOSTLY_F16` and so on, the K formats as `_S`.
    pub(super) fn number(self) -> i128 {
        match self {
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Q4K => 14,
            Self::Q5K => 16,
            Self::Q6K => 18,
        }
    }

    /// The type of a matrix whose rows have so many elements. As llama.cpp has it, the output layer
    /// of K formats is Q6_K. Rows without whole blocks of 256 are Q8_0, without those of 32 F16.
    pub(super) fn of_matrix(self, row: usize, place: MatrixPlace) -> &'static TensorEncoder {
        let meant = match (self, place) {
            (Self::F16, _) => &F16,
            (Self::Q8_0, _) => &Q8_0,
            (Self::Q6K, _) | (Self::Q4K | Self::Q5K, MatrixPlace::Output) => &Q6_K,
            (Self::Q4K, MatrixPlace::Inside) => &Q4_K,
            (Self::Q5K, MatrixPlace::Inside) => &Q5_K,
        };
        let fits = |encoder: &&&TensorEncoder| row.is_multiple_of(encoder.elements);
        [meant, &Q8_0].iter().find(fits).copied().unwrap_or(&F16)
    }
}

/// The place of a matrix in a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum MatrixPlace {
    Inside,
    /// The output layer, or the embedding that it shares.
    Output,
}

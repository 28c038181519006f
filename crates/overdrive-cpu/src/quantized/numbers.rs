//! `PackedNumbers`: a run of numbers of any narrow format, and the f32 value of each.

use std::ops::Range;
use std::sync::OnceLock;

use half::{bf16, f16};
use overdrive_ir::DType;

use crate::loops::small_floats::from_e8m0;

/// Numbers packed as tensors are: element `i` at bits `[i * bits, (i + 1) * bits)`.
#[derive(Clone, Copy, Debug)]
pub struct PackedNumbers<'a> {
    bytes: &'a [u8],
    dtype: DType,
    len: usize,
}

impl<'a> PackedNumbers<'a> {
    /// `len` numbers of a format that [`takes`](Self::takes) accepts.
    ///
    /// # Panics
    /// For any other format, or if there are fewer bytes.
    pub fn new(bytes: &'a [u8], dtype: DType, len: usize) -> Self {
        assert!(Self::takes(dtype), "no weights are kept in {dtype}");
        assert!(
            bytes.len() >= dtype.bytes_for(len),
            "{len} numbers of {dtype} in {} bytes",
            bytes.len()
        );
        Self { bytes, dtype, len }
    }

    /// Whether weights are kept in a format: all of at most 8 bits, and f32, f16, bf16, i32.
    pub fn takes(dtype: DType) -> bool {
        dtype.bits() <= 8 || matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32)
    }

    /// The format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first number.
    ///
    /// # Panics
    /// If there is none.
    pub fn first(&self) -> f32 {
        let mut first = [0.0];
        self.decode(0..1, &mut first);
        first[0]
    }

    /// The bytes from element `first` on, which begins a byte.
    pub(super) fn from(&self, first: usize) -> &'a [u8] {
        &self.bytes[first * self.dtype.bits() / 8..]
    }

    /// The bits of element `i`, of at most 8.
    fn code(&self, i: usize) -> u8 {
        let (bit, bits) = (i * self.dtype.bits(), self.dtype.bits());
        let (byte, shift) = (bit / 8, bit % 8);
        let next = if shift + bits > 8 { self.bytes[byte + 1] } else { 0 };
        let pair = u16::from_le_bytes([self.bytes[byte], next]);
        (pair >> shift) as u8 & ((1_u16 << bits) - 1) as u8
    }

    /// Writes elements `range` as f32.
    #[inline]
    pub(super) fn decode(&self, range: Range<usize>, to: &mut [f32]) {
        let width = self.dtype.bits() / 8;
        let bytes = |range: &Range<usize>| &self.bytes[width * range.start..width * range.end];
        let to = &mut to[..range.len()];
        match self.dtype {
            DType::F32 => wide(bytes(&range), to, f32::from_le_bytes),
            DType::I32 => wide(bytes(&range), to, |bytes| i32::from_le_bytes(bytes) as f32),
            DType::F16 => wide(bytes(&range), to, |bytes| f16::from_le_bytes(bytes).to_f32()),
            DType::BF16 => wide(bytes(&range), to, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            // As a loop of arithmetic, which vectorises; scales of small blocks are many.
            DType::E8M0 => wide(bytes(&range), to, |[code]| from_e8m0(code)),
            dtype if dtype.bits() == 8 => {
                let table = DecodeTable::of(dtype);
                wide(bytes(&range), to, |[code]: [u8; 1]| table.0[usize::from(code)]);
            }
            dtype => {
                let table = DecodeTable::of(dtype);
                range.zip(to).for_each(|(i, to)| *to = table.0[usize::from(self.code(i))]);
            }
        }
    }
}

#[inline(always)]
fn wide<const N: usize>(from: &[u8], to: &mut [f32], number: impl Fn([u8; N]) -> f32) {
    to.iter_mut().zip(from.as_chunks::<N>().0).for_each(|(to, &bytes)| *to = number(bytes));
}

/// The value of each code of a format of at most 8 bits; every one is a number of f32.
#[derive(Debug)]
pub(super) struct DecodeTable(pub(super) [f32; 256]);

impl DecodeTable {
    /// The table of a format; zeros for wider ones, which need none.
    pub(super) fn of(dtype: DType) -> &'static Self {
        static TABLES: OnceLock<Box<[DecodeTable]>> = OnceLock::new();
        &TABLES.get_or_init(|| DType::ALL.map(Self::new).into())[dtype as usize]
    }

    fn new(dtype: DType) -> Self {
        let bits = dtype.bits();
        let value = |code: usize| match (dtype.float_format(), dtype.int_range()) {
            _ if bits > 8 || code >> bits != 0 => 0.0,
            (Some(format), _) => format.decode(code as u32) as f32,
            (_, Some((low, _))) if low < 0 && code >> (bits - 1) != 0 => {
                (code as i32 - (1 << bits)) as f32
            }
            _ => code as f32,
        };
        Self(std::array::from_fn(value))
    }
}

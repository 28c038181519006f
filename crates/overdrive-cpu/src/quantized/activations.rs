//! Rows of activations as narrow numbers: the largest magnitude of a row or of its blocks, their
//! scales, and the nearest codes.
//!
//! One source serves every instruction set, in forms that vectorise:
//!
//! - Magnitudes are compared as integers, where a NaN is larger than every number.
//! - An integer code is the low byte of a sum that has no room for a fraction.
//! - A division by a scale is a multiplication by its reciprocal, which is exact for powers of two.
//!
//! Invariant: the codes are those of `quantize_rows`, except if a quotient is within half an ulp of
//! a tie.
#![allow(unsafe_code)] // Kernels on raw operands, as `LaneKernel::run` allows.

use std::marker::PhantomData;

use overdrive_ir::ops::QuantizeRows;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::{DType, Overflow};

use crate::loops::isa::{Ahead, Isa, LaneEntry, LaneKernel, Level, Operands, for_level};
use crate::loops::small_floats::{Small, for_small_float};

/// The smallest normal f32.
const TINY: f32 = f32::MIN_POSITIVE;
const SIGN: u32 = 1 << 31;
const EXPONENT: u32 = 0x7f80_0000;
const MANTISSA: u32 = 0x007f_ffff;
const E4M3_MAX: f32 = 448.0;
const SMALLEST_E4M3: f32 = 1.0 / 512.0;

/// `quantize_rows` for rows of f32.
#[derive(Clone, Copy)]
pub(crate) struct RowQuantizer {
    entry: LaneEntry,
    block: usize,
}

impl RowQuantizer {
    /// For the best instruction set that this CPU has; `None` where codes are not whole bytes.
    pub(crate) fn new(op: &QuantizeRows) -> Option<Self> {
        Self::with_level(op, Level::best())
    }

    fn with_level(op: &QuantizeRows, level: Level) -> Option<Self> {
        Some(Self { entry: for_level!(level, entry(op))?, block: op.block.unwrap_or(0) })
    }

    /// Writes the numbers of a row, and its scale if rows have one.
    ///
    /// # Safety
    /// `numbers` points to a number for each element of x, and `scale` to one for the row. They
    /// have the types of the op and lie apart from x.
    pub(crate) unsafe fn row(&self, x: &[f32], numbers: *mut u8, scale: *mut f32) {
        let src = [x.as_ptr().cast(), scale.cast_const().cast(), std::ptr::null()];
        let operands =
            Operands { dst: numbers, src, immediate: self.block as i64, ahead: Ahead::NONE };
        // SAFETY: numbers and scale are of the types and lengths of the op, apart from x; the CPU
        // has the instructions of `entry`.
        unsafe { (self.entry)(x.len(), &operands) }
    }
}

fn entry<I: Isa>(op: &QuantizeRows) -> Option<LaneEntry> {
    fn blocks<I: Isa, E: Element>(op: &QuantizeRows) -> Option<LaneEntry> {
        Some(match (op.scale, op.block?) {
            (ScaleFormat::Wide, _) => return None,
            (ScaleFormat::E8m0Floor, 32) => I::entry::<Blocks<E, Floor, 32>>(),
            (ScaleFormat::E8m0Floor, _) => I::entry::<Blocks<E, Floor, 0>>(),
            (ScaleFormat::E8m0Up, 32) => I::entry::<Blocks<E, Up, 32>>(),
            (ScaleFormat::E8m0Up, _) => I::entry::<Blocks<E, Up, 0>>(),
            (ScaleFormat::F8e4m3, 16) => I::entry::<Blocks<E, E4m3, 16>>(),
            (ScaleFormat::F8e4m3, _) => I::entry::<Blocks<E, E4m3, 0>>(),
        })
    }
    match (op.block, op.element) {
        (None, DType::I8) => Some(I::entry::<WholeRows<Integers>>()),
        (None, element) if element.bits() == 8 => {
            for_small_float!(element, D => I::entry::<WholeRows<Floats<D>>>())
        }
        (None, _) => None,
        (Some(_), DType::I8) => blocks::<I, Integers>(op),
        (Some(_), element) => for_small_float!(element, D => blocks::<I, Floats<D>>(op)).flatten(),
    }
}

/// A format of codes.
trait Element {
    const MAX: f32;

    /// The code nearest to a quotient of at most `MAX`.
    fn code(quotient: f32) -> u8;

    /// The value of the code nearest to any quotient.
    fn number(quotient: f32) -> f32;
}

/// i8.
struct Integers;

impl Element for Integers {
    const MAX: f32 = 127.0;

    #[inline(always)]
    fn code(quotient: f32) -> u8 {
        (quotient + ROUND).to_bits() as u8
    }

    #[inline(always)]
    fn number(quotient: f32) -> f32 {
        let limited = if quotient < -128.0 { -128.0 } else { quotient };
        let limited = if limited > 127.0 { 127.0 } else { limited };
        // A NaN has the code 0, and a scale that is NaN.
        (limited + ROUND) - ROUND
    }
}

/// Sums with it end in a whole number, in two's complement, rounded to nearest, ties to even.
const ROUND: f32 = 12_582_912.0;

/// The small float `DType::ALL[D]`.
struct Floats<const D: usize>;

impl<const D: usize> Element for Floats<D> {
    const MAX: f32 = Small::<D>::MAX;

    #[inline(always)]
    fn code(quotient: f32) -> u8 {
        Small::<D>::encode(quotient, Overflow::Saturate)
    }

    #[inline(always)]
    fn number(quotient: f32) -> f32 {
        Small::<D>::round(quotient, Overflow::Saturate)
    }
}

/// The largest magnitude, NaN where there is one.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().fold(0, |largest, x| (x.to_bits() & !SIGN).max(largest)))
}

/// At least `least`; NaN stays.
#[inline(always)]
fn at_least(x: f32, least: f32) -> f32 {
    if x < least { least } else { x }
}

/// Codes with a scale for the row.
struct WholeRows<E>(PhantomData<E>);

impl<E: Element> LaneKernel for WholeRows<E> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 has `n` elements, and the destination room for `n` codes of a byte.
        let (x, codes) = unsafe { (o.src::<f32>(0, n), o.dst::<u8>(n)) };
        let scale = at_least(largest(x) / E::MAX, TINY);
        let reciprocal = 1.0 / scale;
        for i in 0..n {
            codes[i] = E::code(x[i] * reciprocal);
        }
        // SAFETY: source 1 has room for the scale of the row.
        unsafe { *o.src[1].cast_mut().cast::<f32>() = scale }
    }
}

/// How the scale of a block follows from its largest magnitude.
trait ScaleRule {
    /// Whether rows have a wide scale, which the scales of blocks are relative to.
    const ROWS: bool;

    fn scale(largest: f32, max: f32) -> f32;
}

struct Floor;
struct Up;
struct E4m3;

#[inline(always)]
fn power(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & EXPONENT)
}

impl ScaleRule for Floor {
    const ROWS: bool = false;

    #[inline(always)]
    fn scale(largest: f32, max: f32) -> f32 {
        let of_max = power(max);
        let scale = power(at_least(largest, TINY * of_max)) * (1.0 / of_max);
        if largest <= f32::MAX { scale } else { f32::NAN }
    }
}

impl ScaleRule for Up {
    const ROWS: bool = false;

    #[inline(always)]
    fn scale(largest: f32, max: f32) -> f32 {
        let quotient = at_least(largest / max, TINY);
        let up = power(f32::from_bits(quotient.to_bits().wrapping_add(MANTISSA)));
        if largest <= f32::MAX { up } else { f32::NAN }
    }
}

impl ScaleRule for E4m3 {
    const ROWS: bool = true;

    #[inline(always)]
    fn scale(largest: f32, max: f32) -> f32 {
        type Scale = Small<{ DType::F8E4M3 as usize }>;
        Scale::round(at_least(largest / max, SMALLEST_E4M3), Overflow::Saturate)
    }
}

/// Codes times the scales of their blocks, of `BLOCK` elements or as many as the immediate says, in
/// bf16.
struct Blocks<E, R, const BLOCK: usize>(PhantomData<(E, R)>);

impl<E: Element, R: ScaleRule, const BLOCK: usize> LaneKernel for Blocks<E, R, BLOCK> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: source 0 has `n` elements, and the destination room for `n` numbers of bf16.
        let (x, numbers) = unsafe { (o.src::<f32>(0, n), o.dst::<u16>(n)) };
        let (mut up, mut of_row) = (1.0, 1.0);
        if R::ROWS {
            let row = at_least(largest(x) / E::MAX, TINY) / E4M3_MAX;
            // Its reciprocal may be beyond f32, as that of a row of zeros is.
            up = if row < TINY { 16_777_216.0 } else { 1.0 };
            of_row = 1.0 / (row * up);
            // SAFETY: source 1 is where the scale goes.
            unsafe { *o.src[1].cast_mut().cast::<f32>() = row }
        }
        let block = |x: &[f32], numbers: &mut [u16]| {
            let scale = R::scale(largest(x) * up * of_row, E::MAX);
            let reciprocal = 1.0 / scale;
            for (to, x) in numbers.iter_mut().zip(x) {
                let number = E::number(x * up * of_row * reciprocal) * scale;
                // Exact: the low half is zeros.
                *to = (number.to_bits() >> 16) as u16;
            }
        };
        if BLOCK > 0 {
            let (x, _) = x.as_chunks::<BLOCK>();
            let (numbers, _) = numbers.as_chunks_mut::<BLOCK>();
            x.iter().zip(numbers).for_each(|(x, numbers)| block(x, numbers));
        } else {
            let len = o.immediate as usize;
            x.chunks_exact(len)
                .zip(numbers.chunks_exact_mut(len))
                .for_each(|(x, numbers)| block(x, numbers));
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use overdrive_ir::{Builder, Tensor, TensorType, eval::eval_tensors};
    use proptest::prelude::*;

    use super::*;

    fn ops() -> impl Strategy<Value = QuantizeRows> {
        let is_small = |dtype: &DType| for_small_float!(*dtype, D => Small::<D>::MAX).is_some();
        let floats: Vec<DType> = DType::ALL.into_iter().filter(is_small).collect();
        let whole = prop_oneof![Just(DType::I8), Just(DType::F8E4M3), Just(DType::F8E5M2)]
            .prop_map(|element| QuantizeRows { block: None, element, scale: ScaleFormat::Wide });
        let block = prop_oneof![Just(32_usize), Just(16), 1_usize..40];
        let element = prop_oneof![Just(DType::I8), proptest::sample::select(floats)];
        let scale = prop_oneof![
            Just(ScaleFormat::E8m0Floor),
            Just(ScaleFormat::E8m0Up),
            Just(ScaleFormat::F8e4m3)
        ];
        let blocks = (block, element, scale)
            .prop_map(|(block, element, scale)| QuantizeRows { block: Some(block), element, scale })
            .prop_filter("bf16 holds it", |op| {
                QuantizeRows::is_exact(op.element, op.scale.dtype(DType::F32))
            });
        prop_oneof![whole, blocks]
    }

    /// Rows of any magnitude, a few of whose elements are zeros, and at times an infinity or a NaN.
    fn row(len: usize) -> impl Strategy<Value = Vec<f32>> {
        let element = prop_oneof![
            20 => -1.0_f32..1.0,
            2 => Just(0.0_f32),
            4 => -1e-3_f32..1e-3,
        ];
        let odd = prop_oneof![30 => Just(None), 1 => Just(Some(f32::NAN)),
            1 => Just(Some(f32::INFINITY))];
        (proptest::collection::vec(element, len), -80_i32..80, odd).prop_map(
            |(row, exponent, odd)| {
                let mut row: Vec<f32> = row.into_iter().map(|x| x * 2f32.powi(exponent)).collect();
                if let (Some(odd), Some(last)) = (odd, row.last_mut()) {
                    *last = odd;
                }
                row
            },
        )
    }

    fn defined(op: QuantizeRows, x: &[f32]) -> [Vec<f64>; 2] {
        let b = Builder::new("rows");
        let (numbers, scale) =
            b.input("x", TensorType::new(DType::F32, [x.len()])).quantize_rows(op);
        b.output("numbers", numbers);
        b.output("scale", scale.unwrap_or(numbers));
        let graph = b.finish().expect("well typed");
        let results = eval_tensors(&graph, &[Tensor::from_f32([x.len()], x)]);
        [results[0].to_f64(), results[1].to_f64()]
    }

    fn check(op: QuantizeRows, x: &[f32]) -> Result<(), TestCaseError> {
        let [numbers, scales] = defined(op, x);
        for level in Level::supported() {
            let quantizer = RowQuantizer::with_level(&op, level).expect("bytes");
            let (mut found, mut scale) = (vec![0_u8; 2 * x.len()], 0.0_f32);
            // SAFETY: there are two bytes for each number, and a scale.
            unsafe { quantizer.row(x, found.as_mut_ptr(), &raw mut scale) };
            let of_code = |code: u8| match op.element.float_format() {
                Some(format) => format.decode(code.into()),
                None => f64::from(code as i8),
            };
            let of_pair = |pair: &[u8]| f64::from(bf16::from_le_bytes([pair[0], pair[1]]).to_f32());
            let found: Vec<f64> = match op.block {
                None => found[..x.len()].iter().map(|&code| of_code(code)).collect(),
                Some(_) => found.chunks(2).map(of_pair).collect(),
            };
            if op.scales_rows() {
                let (scale, wide) = (f64::from(scale), scales[0]);
                let same = scale == wide || scale.is_nan() && wide.is_nan();
                prop_assert!(same || (scale - wide).abs() <= 1e-6 * wide, "{scale:e} {wide:e}");
            }
            for (i, (&found, &number)) in found.iter().zip(&numbers).enumerate() {
                // Beside a tie it may be either neighbour; and a scale beside a tie, which takes
                // its block along.
                let near = (found - number).abs() <= 0.26 * number.abs().max(f64::from(TINY));
                let exact = found == number || found.is_nan() && number.is_nan();
                prop_assert!(
                    exact || near && op.scales_rows(),
                    "{found:e} for {number:e} at {i}, {op:?}, {level:?}"
                );
            }
            let differ = found.iter().zip(&numbers).filter(|(a, b)| a != b && !a.is_nan()).count();
            prop_assert!(
                differ <= 1 + x.len() / 32 || op.scale == ScaleFormat::F8e4m3,
                "{differ} differ, {op:?}"
            );
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn rows_agree_with_the_definition(
            (op, x) in ops().prop_flat_map(|op| {
                let block = op.block.unwrap_or(1);
                (Just(op), (1_usize..5).prop_flat_map(move |blocks| row(blocks * block)))
            })
        ) {
            check(op, &x)?;
        }
    }
}

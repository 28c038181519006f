//! Formats that opset 23, or the engines that read it, lack: scales that are powers of two, and
//! floats of 4 and 6 bits.
//!
//! A scale of type e8m0 is written as the f32 that it is. Codes of the small floats are whole
//! multiples of their smallest one. They are written as these integers, and the step goes into
//! their scale. e2m1 and e2m3 become i8, and e3m2 becomes i16. DequantizeLinear takes these types
//! in blocks, and engines run them; no engine runs float4 on a processor. Invariant: the numbers
//! are the same to the last bit, but a code of 4 or 6 bits takes more bytes.

use super::signature::Signature;
use super::writer::{Unsaid, Writer, int};
use crate::onnx::types::theirs;
use overdrive_ir::ops::BlockScale;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::{DType, Tensor};

/// The integer type of the codes of a small float, and the number that one step of them is.
pub(super) fn steps(dtype: DType) -> Option<(DType, f64)> {
    let format = dtype.float_format().filter(|_| dtype.bits() < 8)?;
    let step = format.decode(1);
    let holds = |codes: &DType| format.max() / step <= codes.max_value();
    Some(([DType::I8, DType::I16].into_iter().find(holds)?, step))
}

/// Whether values of this type are of another one in the file.
pub(super) fn is_replaced(dtype: DType) -> bool {
    dtype == DType::E8M0 || steps(dtype).is_some()
}

/// A tensor in a type that engines have.
pub(super) fn expressible(tensor: Tensor) -> Tensor {
    let (dtype, shape) = (tensor.ty().dtype, tensor.ty().shape.clone());
    match steps(dtype) {
        Some((codes, step)) => {
            let values: Vec<f64> = tensor.to_f64().iter().map(|x| x / step).collect();
            Tensor::from_f64(codes, shape, &values)
        }
        None if dtype == DType::E8M0 => Tensor::from_f64(DType::F32, shape, &tensor.to_f64()),
        None => tensor,
    }
}

/// The numbers in f32 of a parameter whose codes are integers in the file, for whoever reads
/// numbers.
pub(super) fn numbers(w: &mut Writer, codes: &str, dtype: DType) -> Result<String, Unsaid> {
    let Some((_, step)) = steps(dtype) else { return Ok(codes.to_owned()) };
    let wide = w.cast(codes, DType::F32)?;
    let step = w.number(DType::F32, step)?;
    Ok(w.one("Mul", &[&wide, &step], vec![]))
}

/// Powers of two that f32 has, from the smallest normal one on.
const POWERS: std::ops::RangeInclusive<i32> = -126..=127;
/// The smallest of them.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// The scales of blocks as powers of two, in f32; `None` of other kinds of scales, which their
/// expansion says.
pub(super) fn block_scale(
    op: &BlockScale,
    w: &mut Writer,
    x: &str,
    types: &Signature,
) -> Option<Result<String, Unsaid>> {
    let up = match op.scale {
        ScaleFormat::E8m0Up => true,
        ScaleFormat::E8m0Floor => false,
        ScaleFormat::Wide | ScaleFormat::F8e4m3 => return None,
    };
    let known = types.operands[0].elements() > 0 && types.operands[0].dtype != DType::F64;
    known.then(|| powers(w, x, types, (up, op.element.max_value())))
}

fn powers(
    w: &mut Writer,
    x: &str,
    types: &Signature,
    (up, max): (bool, f64),
) -> Result<String, Unsaid> {
    let (sizes, counts) = (types.sizes(0), types.results[0].sizes());
    let split: Vec<usize> =
        sizes.iter().zip(&counts).flat_map(|(size, count)| [*count, size / count]).collect();
    let wide = w.cast(x, DType::F32)?;
    let magnitudes = w.one("Abs", &[&wide], vec![]);
    let magnitudes = w.reshape(&magnitudes, &split);
    let within: Vec<i64> = (0..counts.len() as i64).map(|axis| 2 * axis + 1).collect();
    let within = w.ints(&within);
    let largest = w.one(
        "ReduceMax",
        &[&magnitudes, &within],
        vec![int("keepdims", 0), int("noop_with_empty_axes", 0)],
    );
    // The scale of a block that is not finite is NaN, and no index.
    let limit = w.number(DType::F32, f64::from(f32::MAX))?;
    let finite = w.one("LessOrEqual", &[&largest, &limit], vec![]);
    let one = w.number(DType::F32, 1.0)?;
    let a = w.one("Where", &[&finite, &largest, &one], vec![]);
    let power_of_max = 2f64.powf(max.log2().floor());
    let (q, least) = if up {
        let max = w.number(DType::F32, max)?;
        (w.one("Div", &[&a, &max], vec![]), TINY)
    } else {
        (a, TINY * power_of_max)
    };
    let least = w.number(DType::F32, least)?;
    let q = w.one("Max", &[&q, &least], vec![]);
    let power = floor(w, &q)?;
    let scale = if up {
        let half = w.one("Less", &[&power, &q], vec![]);
        let double = w.one("Add", &[&power, &power], vec![]);
        w.one("Where", &[&half, &double, &power], vec![])
    } else {
        let by = w.number(DType::F32, 1.0 / power_of_max)?;
        w.one("Mul", &[&power, &by], vec![])
    };
    let none = w.number(DType::F32, f64::NAN)?;
    Ok(w.one("Where", &[&finite, &scale, &none], vec![]))
}

/// The largest power of two that is not above q, which is normal. It is guessed by a logarithm,
/// which may be one off beside a power. It is then looked up, and put right by comparing.
fn floor(w: &mut Writer, q: &str) -> Result<String, Unsaid> {
    let log = w.one("Log", &[q], vec![]);
    let per_octave = w.number(DType::F32, std::f64::consts::LOG2_E)?;
    let log = w.one("Mul", &[&log, &per_octave], vec![]);
    let exponent = w.one("Floor", &[&log], vec![]);
    let [low, high] = [*POWERS.start(), *POWERS.end()].map(|n| w.number(DType::F32, n.into()));
    let exponent = w.one("Clip", &[&exponent, &low?, &high?], vec![]);
    let first = w.number(DType::F32, f64::from(*POWERS.start()))?;
    let place = w.one("Sub", &[&exponent, &first], vec![]);
    let place =
        w.one("Cast", &[&place], vec![int("to", theirs(DType::I64).expect("ONNX has i64") as i64)]);
    let table: Vec<f64> = POWERS.map(|n| 2f64.powi(n)).collect();
    let table = w.tensor(&Tensor::from_f64(DType::F32, [table.len()], &table))?;
    let guess = w.one("Gather", &[&table, &place], vec![int("axis", 0)]);
    let above = w.one("Greater", &[&guess, q], vec![]);
    let half = w.number(DType::F32, 0.5)?;
    let lower = w.one("Mul", &[&guess, &half], vec![]);
    let guess = w.one("Where", &[&above, &lower, &guess], vec![]);
    let double = w.one("Add", &[&guess, &guess], vec![]);
    let below = w.one("LessOrEqual", &[&double, q], vec![]);
    Ok(w.one("Where", &[&below, &double, &guess], vec![]))
}

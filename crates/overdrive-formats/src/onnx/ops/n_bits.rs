//! Ops of com.microsoft with weights of 2, 4 or 8 bits in blocks. A row of codes is for an output
//! (MatMulNBits) or an entry of a table (GatherBlockQuantized).
//!
//! Codes are unsigned in the file. Codes of products become signed while the file is read, as
//! kernels take them. The highest bit flips and the zero point moves with it. The usual zero point,
//! the middle, thus becomes 0, which is none at all.

use super::indexing::wrapped;
use crate::onnx::axes::{axis, extent, pick, sizes, take};
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::coded::{Coded, Summed};
use crate::onnx::fault::{Fault, invalid, unsupported};
use crate::onnx::item::{ItemValue, KnownTensor};
use crate::onnx::rearrange::columns;
use overdrive_ir::{Binary, DType, Expr, Shape, Tensor, TensorType};

/// `[N, K]` codes of so many bits, in blocks along K.
struct NBitsLayout {
    n: usize,
    k: usize,
    bits: usize,
    block: usize,
    /// In a row.
    blocks: usize,
}

impl NBitsLayout {
    fn of(c: &Call<'_, '_>) -> Result<Self, Fault> {
        let size = |name| extent(c.int_or(name, 0));
        let (k, n, block) = (size("K")?, size("N")?, size("block_size")?);
        let bits = extent(c.int_or("bits", 4))?;
        let small = k < 1 << 31 && n < 1 << 31 && (16..=1 << 20).contains(&block);
        if !matches!(bits, 2 | 4 | 8) || !block.is_power_of_two() || !small {
            let found = format!("{bits} bits, blocks of {block}");
            return Err(invalid("bits of 2, 4 or 8 and blocks of 16 or more", found));
        }
        Ok(Self { n, k, bits, block, blocks: k.div_ceil(block) })
    }

    /// The code of zero where none is given.
    fn middle(&self) -> i128 {
        1 << (self.bits - 1)
    }

    /// The type of signed codes.
    fn dtype(&self) -> DType {
        if self.bits == 8 { DType::I8 } else { DType::I4 }
    }

    /// Signed codes `[N, blocks block]` of bytes as the file has them.
    fn signed(&self, packed: &[u8]) -> Tensor {
        let bytes: Vec<u8> = match self.bits {
            // Each code in half a byte, two less.
            2 => packed.iter().flat_map(|byte| [spread(*byte), spread(byte >> 4)]).collect(),
            4 => packed.iter().map(|pair| pair ^ 0x88).collect(),
            _ => packed.iter().map(|code| code ^ 0x80).collect(),
        };
        let ty = TensorType::new(self.dtype(), [self.n, self.blocks * self.block]);
        Tensor::sharing(ty, bytes.into()).expect("rows are whole bytes")
    }

    /// Zero points that the file packs as it packs codes, each row from a new byte on; less the
    /// middle.
    fn zeros(&self, packed: &[u8]) -> Tensor {
        let per_byte = 8 / self.bits;
        let row = self.blocks.div_ceil(per_byte);
        let code = |row_of: usize, i: usize| {
            let byte = packed[row_of * row + i / per_byte];
            i128::from(byte >> (i % per_byte * self.bits)) & ((1 << self.bits) - 1)
        };
        let all = (0..self.n).flat_map(|n| (0..self.blocks).map(move |i| (n, i)));
        let values: Vec<i128> = all.map(|(n, i)| code(n, i) - self.middle()).collect();
        Tensor::from_ints(self.dtype(), [self.n, self.blocks], &values)
    }
}

/// Two codes of 2 bits as two of 4 that are 2 less.
fn spread(codes: u8) -> u8 {
    let signed = |code: u8| (code & 3).wrapping_sub(2) & 15;
    signed(codes) | signed(codes >> 2) << 4
}

/// The parameter behind operand `index`, which must be known: codes are rearranged while the file
/// is read.
fn known<'b>(c: &Call<'_, 'b>, index: usize, bytes: usize) -> Result<KnownTensor, Fault> {
    let tensor = c.known(index)?;
    if tensor.ty().dtype != DType::U8 || tensor.ty().elements() != bytes {
        return Err(invalid(format!("{bytes} bytes of codes"), tensor.ty().to_string()));
    }
    match c.value(index)? {
        ItemValue::Known(known) => Ok(known),
        _ => unreachable!("what has a tensor is known"),
    }
}

/// x times weights.
pub(super) fn mat_mul<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    let layout = NBitsLayout::of(c)?;
    c.ignore(&["accuracy_level"]);
    let NBitsLayout { n, k, blocks, block, .. } = layout;
    if n * k == 0 || sizes(x)?.last() != Some(&k) {
        return Err(invalid(
            format!("x of [..., {k}] and weights of some size"),
            x.ty().to_string(),
        ));
    }
    let packed = known(c, 1, n * blocks * block / 8 * layout.bits)?;
    let mut codes = layout.signed(packed.tensor.bytes());
    let mut across = blocks * block;
    if blocks == 1 {
        codes = columns(&codes, [n, across], &(0..k).map(Some).collect::<Vec<_>>());
        across = k;
    }
    let x = match order(c, &layout)? {
        None => x,
        Some(order) => {
            codes =
                columns(&codes, [n, across], &order.iter().map(|&at| Some(at)).collect::<Vec<_>>());
            pick(x, order.len(), |i| order[i], x.rank() - 1)?
        }
    };
    if c.extents(2)?.iter().product::<usize>() != n * blocks {
        return Err(invalid(format!("{n} x {blocks} scales"), format!("{:?}", c.extents(2)?)));
    }
    let weights = Coded {
        codes: packed.rearranged(c.b, codes).into(),
        scale: Some(c.x(2)?.convert(x.dtype()).into()),
        zero: zero(c, &layout)?.map(ItemValue::from),
        shape: vec![n, across],
        counts: vec![n, blocks],
        kept: vec![n, k],
        dtype: x.dtype(),
    };
    let y = weights.product(x, Summed::Columns);
    let y = y.ok_or_else(|| invalid("x of a type in which sums are taken", x.ty().to_string()))?;
    one(match c.maybe(5)? {
        Some(bias) => y + bias,
        None => y,
    })
}

/// The zero points of signed codes, unless they are 0 throughout.
fn zero<'b>(c: &Call<'_, 'b>, layout: &NBitsLayout) -> Result<Option<Expr<'b>>, Fault> {
    let (n, blocks) = (layout.n, layout.blocks);
    if !c.has(3) {
        return Ok(None);
    }
    let packed =
        matches!(c.value(3)?, ItemValue::Known(known) if known.tensor.ty().dtype == DType::U8);
    if !packed && c.x(3)?.dtype() != DType::U8 {
        // Fractions, as HQQ finds them.
        let numbers = c.x(3)?;
        if sizes(numbers)?.iter().product::<usize>() != n * blocks {
            return Err(invalid(format!("{n} x {blocks} zero points"), numbers.ty().to_string()));
        }
        let numbers = numbers.convert(DType::F32);
        return Ok(Some((numbers - numbers.constant(layout.middle() as f64)).reshape([n, blocks])));
    }
    let packed = known(c, 3, n * blocks.div_ceil(8 / layout.bits))?;
    let zeros = layout.zeros(packed.tensor.bytes());
    let some = zeros.to_ints().iter().any(|&zero| zero != 0);
    Ok(some.then(|| packed.rearranged(c.b, zeros)))
}

/// The columns of codes block by block, where the file says which block each column belongs to;
/// `None` where they lie so. GPTQ orders columns by how active they are (`g_idx`).
fn order(c: &Call<'_, '_>, layout: &NBitsLayout) -> Result<Option<Vec<usize>>, Fault> {
    let Some(groups) = c.maybe_ints(4)? else { return Ok(None) };
    let NBitsLayout { k, block, blocks, .. } = *layout;
    let expected = || format!("for each of {k} columns one of {blocks} blocks");
    if groups.len() < k {
        return Err(invalid(expected(), format!("{} numbers", groups.len())));
    }
    let mut members: Vec<Vec<usize>> = vec![vec![]; blocks];
    for (column, &group) in groups[..k].iter().enumerate() {
        let members = usize::try_from(group).ok().and_then(|group| members.get_mut(group));
        members.ok_or_else(|| invalid(expected(), group.to_string()))?.push(column);
    }
    let order = members.concat();
    if order.is_sorted() {
        return Ok(None);
    }
    let even = blocks == 1
        || (k.is_multiple_of(block) && members.iter().all(|members| members.len() == block));
    if even { Ok(Some(order)) } else { Err(unsupported("blocks of different sizes (g_idx)")) }
}

/// Entries of a table of codes: rows are gathered as they are packed, and what was gathered becomes
/// numbers.
pub(super) fn gather<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let (indices, scales) = (c.x(1)?, c.x(2)?);
    let bits = extent(c.int_or("bits", 4))?;
    let block = extent(c.int_or("block_size", 128))?;
    let (packed, middle) = match c.value(0)? {
        ItemValue::Unsigned4(_) => {
            return Err(unsupported("a table of uint4; save it as uint8 of two codes"));
        }
        _ => (c.x(0)?, 1i128 << (bits.clamp(1, 8) - 1)),
    };
    if packed.dtype() != DType::U8 || !matches!(bits, 4 | 8) || packed.rank() != 2 {
        return Err(unsupported(format!("a table {} of {bits} bits", packed.ty())));
    }
    let (rows, width) = (packed.size(0), packed.size(1) * (8 / bits));
    let along = |name, default| axis(c.int_or(name, default), 2);
    if along("gather_axis", 0)? != 0 || along("quantize_axis", 1)? != 1 {
        return Err(unsupported(
            "a table that is not gathered by rows, or not in blocks along them",
        ));
    }
    let blocks = width.div_ceil(block.max(1));
    if !(1..=1 << 20).contains(&block) || rows * width == 0 || sizes(scales)? != [rows, blocks] {
        return Err(invalid(format!("scales of [{rows}, {blocks}]"), scales.ty().to_string()));
    }
    let at = wrapped(indices, rows);
    let wide = scales.dtype();
    let per_code = |x: Expr<'b>| {
        let mut shape = x.sizes();
        let last = shape.len() - 1;
        let dims: Vec<usize> = (0..=last).collect();
        shape.push(block);
        let repeated = x.broadcast_in(&Shape::from(shape.clone()), &dims);
        shape.truncate(last);
        shape.push(blocks * block);
        repeated.reshape(shape).slice_axis(last, 0, width)
    };
    let codes = unpacked(c, take(packed, at, 0)?, bits);
    let codes = codes.slice_axis(codes.rank() - 1, 0, width).convert(wide);
    let centred = match c.maybe(3)? {
        None => codes - codes.constant(middle as f64),
        Some(zeros) if zeros.dtype() == DType::U8 => {
            let zeros = unpacked(c, take(zeros, at, 0)?, bits);
            codes - per_code(zeros.slice_axis(zeros.rank() - 1, 0, blocks).convert(wide))
        }
        Some(zeros) => return Err(unsupported(format!("zero points of {}", zeros.ty()))),
    };
    one(centred * per_code(take(scales, at, 0)?))
}

/// Bytes `[..., W]` as codes `[..., W 8 / bits]`, the lower bits first.
fn unpacked<'b>(c: &Call<'_, 'b>, bytes: Expr<'b>, bits: usize) -> Expr<'b> {
    let per_byte = 8 / bits;
    if per_byte == 1 {
        return bytes;
    }
    let mut shape = bytes.sizes();
    shape.push(1);
    let shifts: Vec<i128> = (0..per_byte).map(|i| (i * bits) as i128).collect();
    let shifts = c.b.constant(Tensor::from_ints(DType::U8, [per_byte], &shifts));
    let mask = c.scalar(DType::U8, f64::from((1u16 << bits) - 1));
    let codes = bytes.reshape(shape.clone()).binary(Binary::Shr, shifts).binary(Binary::And, mask);
    shape.pop();
    let last = shape.len() - 1;
    shape[last] *= per_byte;
    codes.reshape(shape)
}

//! Layers of int4 and int8 weights in blocks as MatMulNBits of com.microsoft, whose weights engines
//! multiply as they are packed. After a DequantizeLinear, ONNX Runtime makes the numbers anew in
//! every call.
//!
//! | operand | in the file |
//! |---|---|
//! | codes `[N, K]` | u8 `[N, blocks, bytes of a block]`, the first code in the lowest bits |
//! | zero points `[N, blocks]` | u8 `[N, bytes of a row]`, packed alike, each row from a new byte |
//! | scales `[N, blocks]` | as they are, in f32 |
//!
//! Codes and zero points are unsigned there, so that their highest bit flips. Activations stay as
//! they are: `accuracy_level` is 0. Weights of int8 by channel keep their DequantizeLinear, with
//! which ONNX Runtime is the faster one. Source: `docs/ContribOperators.md` of ONNX Runtime.

use super::packing::{CODES, Packing, SCALE, ZERO, matrix};
use super::signature::Signature;
use super::writer::{Unsaid, Writer, int};
use overdrive_ir::{DType, Tensor, TensorType};

/// The node of a layer whose codes are packed; `None` of any other.
pub(super) fn write(
    w: &mut Writer,
    x: &[String],
    types: &Signature,
) -> Option<Result<String, Unsaid>> {
    let Some(Packing::Codes(block)) = w.packed.get(x.get(CODES)?).copied() else { return None };
    Some(product(w, x, types, block))
}

fn product(
    w: &mut Writer,
    x: &[String],
    types: &Signature,
    block: usize,
) -> Result<String, Unsaid> {
    let codes = &types.operands[CODES];
    let [n, k] = [0, 1].map(|axis| codes.sizes()[axis] as i64);
    let mut in_f32 = |at: usize| match types.operands[at].dtype {
        DType::F32 => Ok(x[at].clone()),
        _ => w.cast(&x[at], DType::F32),
    };
    let (left, scale) = (in_f32(0)?, in_f32(SCALE)?);
    let mut inputs = vec![left.as_str(), &x[CODES], &scale];
    inputs.extend(x.get(ZERO).map(String::as_str));
    let attributes = vec![
        int("K", k),
        int("N", n),
        int("accuracy_level", 0),
        int("bits", codes.dtype.bits() as i64),
        int("block_size", block as i64),
    ];
    let y = w.one_of_microsoft("MatMulNBits", &inputs, attributes);
    match types.results[0].dtype {
        DType::F32 => Ok(y),
        other => w.cast(&y, other),
    }
}

/// A state as the file has it.
pub(super) fn packed(tensor: &Tensor, packing: Packing) -> Tensor {
    let dtype = tensor.ty().dtype;
    let [n, across] = matrix(tensor.ty()).expect("codes and zero points are matrices");
    let middle = 1u8 << (dtype.bits() - 1);
    match packing {
        Packing::Codes(block) => {
            let flip = if dtype == DType::I4 { middle | middle << 4 } else { middle };
            let bytes: Vec<u8> = tensor.bytes().iter().map(|codes| codes ^ flip).collect();
            let sizes = [n, across / block, block * dtype.bits() / 8];
            Tensor::from_bytes(TensorType::new(DType::U8, sizes), bytes).expect("blocks are bytes")
        }
        Packing::Zeros => {
            let per_byte = 8 / dtype.bits();
            let codes: Vec<u8> =
                tensor.to_ints().iter().map(|&code| (code + i128::from(middle)) as u8).collect();
            let byte = |part: &[u8]| part.iter().rev().fold(0, |byte, code| byte << 4 | code);
            let rows = codes.chunks(across).flat_map(|row| row.chunks(per_byte).map(byte));
            let ty = TensorType::new(DType::U8, [n, across.div_ceil(per_byte)]);
            Tensor::from_bytes(ty, rows.collect::<Vec<u8>>()).expect("rows are whole bytes")
        }
    }
}

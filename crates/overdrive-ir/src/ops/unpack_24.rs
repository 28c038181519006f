//! `unpack_24(values, mask)`: the matrix of a 2:4 sparse weight. `y[n, k]` is the next of
//! `values[n, ..]` if bit `k % 8` of `mask[n, k / 8]` is set, else 0.
//!
//! Values are `[N, K/2]`, and the mask is `u8 [N, ⌈K/8⌉]` with two bits set of each four. That is
//! 17/32 of the size of a matrix of four-byte numbers, or 5/8 for one-byte codes. A group with
//! fewer bits leaves the rest of its values unread. Source: NVIDIA A100 Tensor Core GPU
//! Architecture, "fine-grained structured sparsity", 2020 (2:4). The bits are laid out, lowest
//! first, as in `sparse-24-bitmask` of compressed-tensors.

use crate::{
    Array, Binary, Builder, Compare, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Puts the values of a 2:4 matrix back in their places.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Unpack24;

/// Elements of a group; two of them are kept.
const GROUP: usize = 4;
/// Bits of an element of the mask.
const BITS: usize = 8;

impl<'b> Expr<'b> {
    /// The matrix of these values, by a mask of its places.
    pub fn unpack_24(self, mask: Expr<'b>) -> Expr<'b> {
        self.builder().op1(Unpack24, &[self, mask])
    }
}

impl Op for Unpack24 {
    const NAME: &'static str = "unpack_24";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [values, mask] = types.exactly()?;
        let wrong = || {
            let found = format!("values {values} and mask {mask}");
            let expected = "values [N, K/2] of at least 8 bits and a mask u8 [N, K/8 rounded up], \
                            K a multiple of 4";
            Mismatch::new(expected, found).remedy("make both of one matrix")
        };
        let (&[ref rows, Dim::Size(half)], &[ref masked, Dim::Size(bytes)]) =
            (&values.shape.0[..], &mask.shape.0[..])
        else {
            return Err(wrong());
        };
        let fits = half > 0
            && (2 * half).is_multiple_of(GROUP)
            && bytes == (2 * half).div_ceil(BITS)
            && rows == masked;
        if !fits
            || mask.dtype != DType::U8
            || values.dtype.bits() < 8
            || values.dtype == DType::Bool
        {
            return Err(wrong());
        }
        Ok(vec![values.with_shape(Shape(vec![rows.clone(), Dim::Size(2 * half)]))])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (values, mask) = (&args[0], &args[1]);
        let (rows, columns) = (values.shape[0], 2 * values.shape[1]);
        let set = |n: usize, k: usize| mask.at(&[n, k / BITS]) as u8 >> (k % BITS) & 1 == 1;
        vec![Array::build(values.dtype, &[rows, columns], |at| {
            let (n, k) = (at[0], at[1]);
            let first = k / GROUP * GROUP;
            let before = (first..k).filter(|&k| set(n, k)).count();
            if set(n, k) && before < GROUP / 2 { values.at(&[n, first / 2 + before]) } else { 0.0 }
        })]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (values, mask) = (args[0], args[1]);
        let [n, half] = [values.size(0), values.size(1)];
        let (groups, bytes) = (2 * half / GROUP, mask.size(1));
        let shifts = b.iota(DType::U8, [1usize, 1, BITS], 2);
        let bits = mask.reshape([n, bytes, 1]).binary(Binary::Shr, shifts);
        let bits = bits.binary(Binary::And, bits.constant(1.0)).reshape([n, bytes * BITS]);
        let set = bits.slice_axis(1, 0, 2 * half).convert(DType::I32).reshape([n, groups, GROUP]);
        let bit = |i: usize| set.slice_axis(2, i, i + 1);
        let none = b.full(DType::I32, [n, groups, 1], 0.0);
        let before = b.concat(&[none, bit(0), bit(0) + bit(1), bit(0) + bit(1) + bit(2)], 2);
        let kept = before.compare(Compare::Lt, before.constant((GROUP / 2) as f64));
        let kept = kept.binary(Binary::And, set.compare(Compare::Gt, set.constant(0.0)));
        let start = |axis: usize, stride: usize| {
            let index = b.iota(DType::I32, [n, groups, GROUP], axis);
            index * index.constant(stride as f64)
        };
        let place = start(0, half)
            + start(1, GROUP / 2)
            + before.min(before.constant((GROUP / 2 - 1) as f64));
        let flat = values.reshape([n * half]);
        let found =
            flat.gather(place.reshape([n * groups * GROUP, 1]), &[0]).reshape([n, groups, GROUP]);
        vec![kept.select(found, found.constant(0.0)).reshape([n, 2 * half])]
    }

    fn samples() -> Vec<Sample> {
        let matrix =
            |dtype, columns: usize| TensorType::new(dtype, ["N".into(), Dim::Size(columns)]);
        // Every pair of places of four, and groups with fewer and with more than two.
        let places = Fill::Values(vec![53.0, 172.0, 102.0, 16.0, 255.0, 198.0, 0.0]);
        let sample = |dtype, half: usize| {
            let values = (0..97).map(|i| f64::from(i * 29 % 113) - 56.0).collect();
            let mask = matrix(DType::U8, (2 * half).div_ceil(BITS));
            Sample::new(Unpack24)
                .operand(matrix(dtype, half), Fill::Values(values))
                .operand(mask, places.clone())
        };
        vec![sample(DType::F32, 8), sample(DType::F32, 6), sample(DType::I8, 16)]
    }
}

//! The largest elements, with error feedback.
//!
//! With `m_r = g_r + e_r` on rank r, the result is `sum over r of T(m_r)`, and `e_r' = m_r -
//! T(m_r)`. T keeps the k largest magnitudes of each block of [`BLOCK`] elements and makes all
//! others 0. Sums of results and errors are those of gradients: nothing is lost, only late.
//!
//! The k largest of each block instead of those of the whole gradient are a choice. Error feedback
//! needs `|m - T(m)|^2 <= (1 - k/n) |m|^2`, which both fulfil (Stich et al., arXiv:1809.07599). A
//! block is sorted by one core, or within the shared memory of one block of GPU threads. A whole
//! gradient takes many passes over memory. A position in a block has 16 bits.
//!
//! NaN counts as the largest magnitude, then infinities. So they are sent first, and all ranks see
//! them.

use super::wire::{Differs, Wire, keep, padded};
use overdrive_ir::{DType, Expr, Init, Prim, Reducer, SortOrder, Unary};

/// Elements of which the largest are sent.
const BLOCK: usize = 2048;

/// The sum over ranks of what each sends.
pub(super) fn sum<'b>(wire: &mut Wire<'_>, (number, x): (usize, Expr<'b>), share: f64) -> Expr<'b> {
    let (b, sizes, wide) = (x.builder(), x.sizes(), x.widen());
    let elements: usize = sizes.iter().product();
    let blocks = elements.div_ceil(BLOCK);
    let kept = ((share * BLOCK as f64).ceil() as usize).clamp(1, BLOCK);
    let name = format!("compression.{number}.error");
    let old = wire.state(b, &name, &wide.ty(), (Init::ZEROS, Differs::OnAllRanks));
    let flat = padded((wide + old).reshape([elements]), blocks * BLOCK);
    let magnitudes = flat.reshape([blocks, BLOCK]).unary(Unary::Abs);
    let order = SortOrder::Descending;
    let sorted = b.op(Prim::Sort { axis: 1, order }, &[magnitudes])[1];
    let own = sorted.slice_axis(1, 0, kept).reshape([1, blocks, kept]);
    let places = in_gradient(own);
    let values = flat.gather(places, &[0]);
    let zeros = b.full(flat.dtype(), values.shape(), 0.0);
    let rest = b.op1(Prim::Scatter { axes: vec![0], reducer: None }, &[flat, places, zeros]);
    let in_shape = |x: Expr<'b>| x.slice_axis(0, 0, elements).reshape(sizes.clone());
    keep(&name, [old, in_shape(rest)]);
    let all = wire.all_gather(values);
    let places = in_gradient(wire.all_gather(own.convert(DType::U16)));
    let nothing = b.full(flat.dtype(), [blocks * BLOCK], 0.0);
    let add = Prim::Scatter { axes: vec![0], reducer: Some(Reducer::Sum) };
    in_shape(b.op1(add, &[nothing, places, all]))
}

/// Positions in blocks `[ranks, blocks, kept]` as positions in the gradient `[..., 1]`.
fn in_gradient(within: Expr<'_>) -> Expr<'_> {
    let (b, sizes) = (within.builder(), within.sizes());
    let block = b.iota(DType::I64, sizes.clone(), 1);
    (within.convert(DType::I64) + block * BLOCK as f64).reshape([sizes, vec![1]].concat())
}

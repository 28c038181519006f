//! Codes of 8 bits, or floats, in two hops.
//!
//! The gradient is cut into a part for each rank. Hop 1: every rank quantizes all parts and sends
//! each to its rank (all-to-all), which sums them in f32. Hop 2: that rank quantizes the sum of its
//! part, and all gather it. So each element is rounded once on the way there and once on the way
//! back, however many ranks there are. A ring of codes would round at every rank. A
//! `reduce_scatter` is hop 1 alone. Source: the quantized collectives of ZeRO++ (Wang et al.,
//! arXiv:2306.10209, section 3.3).
//!
//! A scale is `max |x| / 127`, or `/ 448` for e4m3, of a block of [`BLOCK`] elements, and in the
//! type of sums. Codes are rounded to nearest, ties to even, so that the error of an element of n
//! ranks is at most
//!
//! `sum over ranks of s_r h + S h`, with `h` = 1/2 (int8), 16 (e4m3, whose largest codes lie 32
//! apart). `s_r` and `S` are the scales of the block on rank r and of its sum.
//!
//! Floats have no scales. bf16 is rounded to nearest, by at most 2^-8 of each number and of the sum;
//! f32 is not rounded.
//!
//! A block of zeros has zeros as codes. A block with a NaN or an infinity has a scale that is none,
//! and arrives as NaN in every element. So scaling of the loss and checks of gradients see it.

use super::wire::{Wire, padded};
use overdrive_ir::ops::QuantizeRows;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::{DType, Expr};

/// Elements with one scale. Its 4 bytes add 1/64 to those of the codes. One outlier costs 255
/// others their accuracy.
pub(super) const BLOCK: usize = 256;

/// What all ranks send here, of a sender's part for each, in the type of sums. `hop` sends one
/// tensor.
fn sent<'b>((x, codes): (Expr<'b>, DType), mut hop: impl FnMut(Expr<'b>) -> Expr<'b>) -> Expr<'b> {
    if matches!(codes, DType::F32 | DType::BF16) {
        return hop(x.convert(codes)).convert(x.dtype());
    }
    let op = QuantizeRows { block: None, element: codes, scale: ScaleFormat::Wide };
    let (codes, scales) = x.quantize_rows(op);
    let scales = scales.expect("wide scales are of rows");
    hop(codes).dequantize(hop(scales), None)
}

/// The sum over ranks, or this rank's part of it along a dimension.
pub(super) fn sum<'b>(
    wire: &mut Wire<'_>,
    codes: DType,
    (x, scattered): (Expr<'b>, Option<usize>),
) -> Expr<'b> {
    let (ranks, sizes) = (wire.ranks(), x.sizes());
    let elements: usize = sizes.iter().product();
    let wide = x.widen();
    // A part for each rank, of whole blocks.
    let (parts, own_sizes) = match scattered {
        Some(axis) => {
            let mut own = sizes.clone();
            own[axis] /= ranks;
            let mut cut = own.clone();
            cut.insert(axis, ranks);
            let order: Vec<usize> =
                [axis].into_iter().chain((0..cut.len()).filter(|dim| *dim != axis)).collect();
            let size = elements / ranks;
            let parts = wide.reshape(cut).transpose(&order).reshape([ranks, size]);
            let more = size.next_multiple_of(BLOCK) - size;
            (padded_rows(parts, more), own)
        }
        None => {
            let size = elements.next_multiple_of(ranks * BLOCK);
            (padded(wide.reshape([elements]), size).reshape([ranks, size / ranks]), sizes)
        }
    };
    let blocks = parts.size(1) / BLOCK;
    let parts = parts.reshape([ranks, blocks, BLOCK]);
    let own = sent((parts, codes), |x| wire.all_to_all(x)).sum(&[0]);
    let sum = match scattered {
        Some(_) => own,
        None => sent((own, codes), |x| wire.all_gather(x)),
    };
    let count = own_sizes.iter().product();
    sum.reshape([sum.sizes().iter().product::<usize>()]).slice_axis(0, 0, count).reshape(own_sizes)
}

/// Zeros after each row of `[rows, n]`.
fn padded_rows(x: Expr<'_>, more: usize) -> Expr<'_> {
    if more == 0 {
        return x;
    }
    let zeros = x.builder().full(x.dtype(), [x.size(0), more], 0.0);
    x.builder().concat(&[x, zeros], 1)
}

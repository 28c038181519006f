//! Inputs drawn from a seed, by every thread of this machine.

use std::num::NonZeroUsize;

use overdrive_ir::{DType, Graph, Tensor, TensorType, eval::philox};

/// Inputs for `graph` from `seed`: standard normal for real numbers, 0 or 1 for everything else. A
/// graph does not say how far its indices may reach.
pub fn normal_inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    graph
        .inputs()
        .iter()
        .map(|port| normal(graph.ty(port.value), seed, philox::site_of(&port.name)))
        .collect()
}

/// Elements drawn at once: a multiple of those in a block of random bits, and of those in a byte.
const DRAWN_AT_ONCE: usize = 1 << 16;

/// Elements after which a large tensor repeats itself: drawing a thousand million numbers took
/// longer than all that was done with them. Eight times a prime, so that bytes are whole and rows
/// whose length is a power of two all differ.
const DRAWN_IN_ALL: usize = 8 * 2_097_143;

/// The same numbers whatever the number of threads: each element depends on its index alone.
fn normal(ty: &TensorType, seed: u64, site: u64) -> Tensor {
    let bytes = side_by_side((ty.dtype, ty.elements().min(DRAWN_IN_ALL)), |start, length| {
        let draws = philox::normals_from(seed, site, start as u64 / 4).take(length);
        if ty.dtype.is_float() {
            return Tensor::from_f64(ty.dtype, [length], &draws.collect::<Vec<_>>());
        }
        let bits: Vec<i128> = draws.map(|draw| i128::from(draw > 0.0)).collect();
        Tensor::from_ints(ty.dtype, [length], &bits)
    });
    Tensor::sharing(ty.clone(), repeated(bytes, ty.bytes()).into())
        .expect("every element was drawn")
}

/// The bytes of `count` elements of a type, drawn in parts by all threads of this machine. `draw`
/// takes the first index and the number of elements. The index is a multiple of thousands.
fn side_by_side(
    (dtype, count): (DType, usize),
    draw: impl Fn(usize, usize) -> Tensor + Sync,
) -> Vec<u8> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let parts_of_each = count.div_ceil(DRAWN_AT_ONCE).div_ceil(threads).max(1);
    let part_bytes = dtype.bytes_for(DRAWN_AT_ONCE);
    let fill = |(first, span): (usize, &mut [u8])| {
        for (part, bytes) in span.chunks_mut(part_bytes).enumerate() {
            let start = (first * parts_of_each + part) * DRAWN_AT_ONCE;
            bytes.copy_from_slice(draw(start, DRAWN_AT_ONCE.min(count - start)).bytes());
        }
    };
    let mut bytes = vec![0; dtype.bytes_for(count)];
    std::thread::scope(|scope| {
        let mut spans = bytes.chunks_mut(parts_of_each * part_bytes).enumerate();
        let own = spans.next();
        spans.for_each(|span| drop(scope.spawn(|| fill(span))));
        own.into_iter().for_each(fill);
    });
    bytes
}

/// These bytes again and again, up to a length.
fn repeated(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    let period = bytes.len();
    bytes.reserve_exact(length.saturating_sub(period));
    while bytes.len() < length {
        bytes.extend_from_within(..period.min(length - bytes.len()));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_long_repeats_itself_and_no_two_rows_are_alike() {
        assert_eq!(repeated(vec![1, 2, 3], 8), [1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!(repeated(vec![1, 2, 3], 3), [1, 2, 3]);
        for columns in (3..18).map(|power| 1_usize << power) {
            let starts: BTreeSet<usize> =
                (0..8192).map(|row| row * columns % DRAWN_IN_ALL).collect();
            assert_eq!(starts.len(), 8192, "rows of {columns}");
        }
    }
}

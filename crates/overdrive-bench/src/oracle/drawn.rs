//! Inputs drawn from a seed, by every thread of this machine.

use std::num::NonZeroUsize;

use overdrive_ir::{Graph, Tensor, TensorType, eval::philox};

/// Inputs for `graph` from `seed`: standard normal for real numbers, 0 or 1 for everything else, since a graph
/// does not say how far its indices may reach.
pub fn normal_inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    graph
        .inputs()
        .iter()
        .map(|port| normal(graph.ty(port.value), seed, philox::site_of(&port.name)))
        .collect()
}

/// Elements that a thread draws at once; a multiple of what a block of random bits gives and of what a byte holds.
const DRAWN_AT_ONCE: usize = 1 << 20;

/// Elements after which a large tensor repeats itself: drawing a thousand million numbers took longer than all that was
/// done with them. Eight times a prime, so that bytes are whole and rows whose length is a power of two all differ.
const DRAWN_IN_ALL: usize = 8 * 2_097_143;

/// The same numbers whatever the number of threads: each element depends on its index alone.
fn normal(ty: &TensorType, seed: u64, site: u64) -> Tensor {
    let bytes = side_by_side(ty.elements().min(DRAWN_IN_ALL), |start, length| {
        let draws = philox::normals_from(seed, site, start as u64 / 4).take(length);
        if ty.dtype.is_float() {
            return Tensor::from_f64(ty.dtype, [length], &draws.collect::<Vec<_>>());
        }
        let bits: Vec<i128> = draws.map(|draw| i128::from(draw > 0.0)).collect();
        Tensor::from_ints(ty.dtype, [length], &bits)
    });
    Tensor::sharing(ty.clone(), repeated(bytes, ty.bytes()).into()).expect("every element was drawn")
}

/// The bytes of `count` elements, drawn in parts by every thread of this machine: `draw` gives those from an index on, which
/// is a multiple of a million and more, so many of them.
pub fn side_by_side(count: usize, draw: impl Fn(usize, usize) -> Tensor + Sync) -> Vec<u8> {
    let parts: Vec<usize> = (0..count.div_ceil(DRAWN_AT_ONCE)).collect();
    let part = |part: usize| {
        let start = part * DRAWN_AT_ONCE;
        draw(start, DRAWN_AT_ONCE.min(count - start))
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut bytes = Vec::new();
    for round in parts.chunks(threads) {
        let drawn: Vec<Tensor> = std::thread::scope(|scope| {
            let others: Vec<_> = round[1..].iter().map(|&at| scope.spawn(move || part(at))).collect();
            let first = part(round[0]);
            let joined = others.into_iter().map(|other| other.join().expect("drawing numbers cannot fail"));
            std::iter::once(first).chain(joined).collect()
        });
        drawn.iter().for_each(|tensor| bytes.extend_from_slice(tensor.bytes()));
    }
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
            let starts: BTreeSet<usize> = (0..8192).map(|row| row * columns % DRAWN_IN_ALL).collect();
            assert_eq!(starts.len(), 8192, "rows of {columns}");
        }
    }
}

//! Inputs of attention with a threshold, and the tiles that it skips of them.
//!
//! Random queries and keys skip nothing: each tile has scores near the largest. Here each tile of
//! keys has a channel of its own, and queries have the channels of the tiles that they attend to,
//! beside noise. So the scores of those tiles are about `SCORE`, and all others about 0, as where
//! attention is clustered. The last tile is among them, since tiles are visited from there. The
//! threshold lies in the middle, so that rounding decides nothing.

use overdrive_ir::eval::philox;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::threshold::{TILE, kept_tiles};
use overdrive_ir::{
    Backend, BackendError, Builder, DType, Graph, Mode, State, Tensor, TensorType, Tuning,
};
use std::collections::BTreeMap;

/// Scores of the tiles that queries attend to; of others they are about 0.
const SCORE: f64 = 12.0;
/// Standard deviation of the noise.
const NOISE: f64 = 0.1;
/// Scores below the largest by half of `SCORE` are skipped.
pub(super) const THRESHOLD: f64 = 0.0024787521766663585;

/// Side of a tile that queries attend to.
pub(super) const SIDE: usize = TILE[1];

/// The tiles that queries attend to, `[H][T / 128][T / 128]`: those that are visible, but one is
/// the last.
fn attended(visible: &Tensor, side: usize) -> Vec<bool> {
    let mut tiles: Vec<bool> = visible.to_ints().iter().map(|&shown| shown != 0).collect();
    for row in tiles.chunks_mut(side) {
        if !row[side - 1] {
            let first = row.iter().position(|&shown| shown).expect("each row has one");
            row.swap(first, side - 1);
        }
    }
    tiles
}

/// Queries that attend to `visible` tiles, and keys, the same for each sample of the batch. There
/// are at least as many channels as tiles of keys.
pub(super) fn queries_and_keys(visible: &Tensor, dtype: DType, sizes: [usize; 4]) -> [Tensor; 2] {
    let [batch, heads, t, d] = sizes;
    let side = t.div_ceil(SIDE);
    let tiles = attended(visible, side);
    let size = (SCORE * (d as f64).sqrt()).sqrt();
    let tensor = |site: u64, has: &dyn Fn(usize, usize, usize) -> bool| {
        let mut values: Vec<f64> = philox::normals(5, site).take(heads * t * d).collect();
        for (row, channels) in values.chunks_mut(d).enumerate() {
            let (head, tile) = (row / t, row % t / SIDE);
            for (channel, value) in channels.iter_mut().enumerate() {
                let signal = if channel < side && has(head, tile, channel) { size } else { 0.0 };
                *value = signal + NOISE * *value;
            }
        }
        Tensor::from_f64(dtype, sizes, &values.repeat(batch))
    };
    [
        tensor(0, &|head, tile, channel| tiles[(head * side + tile) * side + channel]),
        tensor(1, &|_, tile, channel| tile == channel),
    ]
}

/// The percentage of tiles that the threshold skips in the first sample, by the definition in the
/// format of queries and keys. It takes a head at a time, since all of its scores are stored.
pub(super) fn skipped_percent(
    backend: &dyn Backend,
    attention: &Attention,
    given: &BTreeMap<String, Tensor>,
) -> Result<f64, BackendError> {
    let [q, k] = ["q", "k"].map(|name| &given[name]);
    let sizes = q.ty().sizes();
    let (heads, rows) = (sizes[1], sizes[2] * sizes[3]);
    let graph = kept(attention, q.ty().dtype, &sizes);
    let mut session = backend.compile(&graph, Mode::Compile, &Tuning::default())?.session()?;
    let mut state = State::initial(&graph, backend)?;
    let given = graph.ty(graph.inputs()[0].value);
    let mut outputs = [backend.output(graph.ty(graph.outputs()[0].value))?];
    let (mut kept, mut all) = (0, 0);
    for head in 0..heads {
        let of_head = |x: &Tensor| {
            let bytes = rows * x.ty().dtype.bits() / 8;
            let own = Tensor::from_bytes(given.clone(), &x.bytes()[head * bytes..][..bytes]);
            backend.upload(&own.expect("a head has as many bytes"))
        };
        let inputs = [of_head(q)?, of_head(k)?];
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
        let found = backend.download(&outputs[0])?.to_ints();
        kept += found.iter().filter(|&&kept| kept != 0).count();
        all += found.len();
    }
    Ok(100.0 * (1.0 - kept as f64 / all as f64))
}

/// The kept tiles of one head.
fn kept(attention: &Attention, dtype: DType, sizes: &[usize]) -> Graph {
    let b = Builder::new("kept tiles");
    let pair = ["q", "k"].map(|n| b.input(n, TensorType::new(dtype, [1, 1, sizes[2], sizes[3]])));
    let scores = attention.all_scores(pair, (&[], &[]));
    b.output("kept", kept_tiles(scores, THRESHOLD));
    b.finish().expect("queries and keys have one type")
}

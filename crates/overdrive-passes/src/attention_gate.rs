//! A gate that chooses the tiles of attention before any score is known.
//!
//! A tile has `tile` queries and as many keys of one head. The gate pools both by their means and
//! projects each, per head, to a few channels:
//!
//! `score[b, h, i, j] = (q[b, h, i] Wq[h]) · (k[b, g, j] Wk[g]) / √C - slope[h] |i - j|`
//!
//! with `g = h / (H / Hkv)`. It learns by distillation: the softmax of its scores over the tiles of
//! a row follows the weight that the model's own attention has there. So it needs no labels, and
//! the model's weights stay as they are. Source: Gao et al., "SeerAttention", arXiv:2410.13276.
//!
//! [`ChosenTiles`] keeps the tiles with the highest scores of each row of tiles, the tile on the
//! diagonal always. The mask function reads the choice only at indices divided by the tile. So
//! kernels that skip hidden blocks skip the rest. Invariant: attention with a function, a threshold
//! or dropout stays as it is, and so does attention of other numbers of queries than of keys.

use crate::{dce, recognise};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::{
    Builder, DType, Expr, Graph, GraphError, Init, Node, Pad, Reducer, Tensor, TensorType,
};
use serde::{Deserialize, Serialize};

/// The form of the gates of a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttentionGate {
    /// Queries and keys of a tile.
    pub tile: usize,
    /// C: channels that pooled queries and keys are projected to.
    pub channels: usize,
}

/// The beginning of the names of all states of gates; the number of the attention follows.
const PREFIX: &str = "attention_gate.";

/// Names of Wq `[H, D, C]`, Wk `[Hkv, D, C]` and the slopes `[H]` of an attention.
pub(crate) fn states(number: usize) -> [String; 3] {
    ["query", "key", "slope"].map(|part| format!("{PREFIX}{number}.{part}"))
}

/// Shapes of these, of C channels, for queries and keys `[B, H, T, D]`.
pub(crate) fn state_types([q, k]: [Expr<'_>; 2], channels: usize) -> [TensorType; 3] {
    let weight = |x: Expr<'_>| TensorType::new(DType::F32, [x.size(1), x.size(3), channels]);
    [weight(q), weight(k), TensorType::new(DType::F32, [q.size(1)])]
}

/// The attention of a node if it has several tiles and nothing that a gate does not know.
pub(crate) fn of_tiles(node: &Node, operands: &[Expr<'_>], tile: usize) -> Option<Attention> {
    let attention = node.op.composite::<Attention>()?;
    let is_plain = attention.dropout.is_none() && attention.threshold.is_none();
    let [queries, keys] = [0, 1].map(|operand| operands[operand].size(2));
    let fits = operands.len() == 3 && node.regions.is_empty() && queries == keys && keys > tile;
    (is_plain && fits).then_some(*attention)
}

/// The error of a graph without such attention.
pub(crate) fn no_attention(graph: &Graph, tile: usize) -> GraphError {
    GraphError {
        op: "attention_gate".into(),
        scope: graph.name().to_owned(),
        expected: format!(
            "attention of more than {tile} queries and as many keys, without functions, threshold \
             or dropout"
        ),
        found: "none".into(),
        remedy: "read a longer text, or train a gate of smaller tiles".into(),
    }
}

/// Whether the first query of a tile sees the first key of another.
pub(crate) fn sees(mask: Mask, [query, key]: [usize; 2]) -> bool {
    mask == Mask::Full || key <= query
}

/// A number for each pair of tiles, `[N, N]` in f32.
pub(crate) fn of_pairs(b: &Builder, count: usize, f: impl Fn([usize; 2]) -> f64) -> Expr<'_> {
    let values: Vec<f64> = (0..count * count).map(|at| f([at / count, at % count])).collect();
    b.constant(Tensor::from_f64(DType::F32, [count, count], &values))
}

/// Sums of rows `[B, H, T, X]` over tiles of rows: `[B, H, N, X]`.
fn summed(x: Expr<'_>, tile: usize) -> Expr<'_> {
    let [batch, heads, rows, width] = [0, 1, 2, 3].map(|axis| x.size(axis));
    let count = rows.div_ceil(tile);
    let mut pads = vec![Pad::default(); 4];
    pads[2].high = (count * tile - rows) as i64;
    let whole = if pads[2].high > 0 { x.pad(pads, 0.0) } else { x };
    whole.reshape([batch, heads, count, tile, width]).sum(&[3])
}

/// Means of the same; the last tile may have fewer rows.
fn pooled(x: Expr<'_>, tile: usize) -> Expr<'_> {
    let rows = x.size(2);
    let count = rows.div_ceil(tile);
    let parts = (0..count).map(|i| 1.0 / (rows - i * tile).min(tile) as f64);
    let parts = Tensor::from_f64(DType::F32, [count, 1], &parts.collect::<Vec<_>>());
    summed(x.convert(DType::F32), tile) * x.builder().constant(parts)
}

/// Scores of all pairs of tiles `[B, H, N, N]` by the states of a gate.
pub(crate) fn gate_scores<'b>(
    [q, k]: [Expr<'b>; 2],
    [query, key, slope]: [Expr<'b>; 3],
    tile: usize,
) -> Expr<'b> {
    let project =
        |x, weight| pooled(x, tile).dot(weight, &[(1, 0)], &[(3, 1)]).transpose(&[1, 0, 2, 3]);
    let (of_queries, of_keys) = (project(q, query), project(k, key));
    let [batch, heads, count, channels] = [0, 1, 2, 3].map(|axis| of_queries.size(axis));
    let shared = of_keys.size(1);
    // The query heads of a group are more rows for their key head.
    let rows = of_queries.reshape([batch, shared, heads / shared.max(1) * count, channels]);
    let products = rows.dot(of_keys, &[(0, 0), (1, 1)], &[(3, 3)]);
    let products = products.reshape([batch, heads, count, count]);
    let distances = of_pairs(q.builder(), count, |[i, j]| i.abs_diff(j) as f64);
    products * (1.0 / (channels.max(1) as f64).sqrt()) - slope.reshape([heads, 1, 1]) * distances
}

impl AttentionGate {
    /// Whether a state of this name is a gate's.
    pub fn is_state(name: &str) -> bool {
        name.starts_with(PREFIX)
    }

    /// The graph that trains gates: a bound model with their states, and `loss` in place of its
    /// outputs. For a row of tiles it is the Kullback-Leibler divergence, in nats, of the softmax
    /// of the scores from the weight in attention. The loss is its mean over rows and layers.
    ///
    /// # Errors
    /// If no attention has several tiles, or the gate has no channel.
    pub fn distilled(self, graph: &Graph) -> Result<Graph, GraphError> {
        if self.tile == 0 || self.channels == 0 {
            return Err(GraphError {
                op: "attention_gate".into(),
                scope: graph.name().to_owned(),
                expected: "a tile and channels of at least 1".into(),
                found: format!("a tile of {} and {} channels", self.tile, self.channels),
                remedy: "choose tiles of 64 or 128 and 16 channels".into(),
            });
        }
        let graph = recognise(graph)?;
        let b = Builder::new(graph.name());
        let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
        b.declare(&graph).into_iter().for_each(|(value, new)| map[value.0 as usize] = Some(new));
        let mut losses: Vec<Expr<'_>> = vec![];
        for node in graph.nodes() {
            let known = |v: &overdrive_ir::Value| map[v.0 as usize].expect("operands come first");
            let operands: Vec<Expr<'_>> = node.operands.iter().map(known).collect();
            if let Some(attention) = of_tiles(node, &operands, self.tile) {
                let _scope = b.scope_path(&node.scope);
                losses.push(self.loss(&attention, [operands[0], operands[1]], losses.len()));
            }
            let results = b.again(node, &operands);
            node.results.iter().zip(results).for_each(|(v, new)| map[v.0 as usize] = Some(new));
        }
        let count = losses.len();
        let sum = losses.into_iter().reduce(|sum, loss| sum + loss);
        let sum = sum.ok_or_else(|| no_attention(&graph, self.tile))?;
        b.output("loss", sum * (1.0 / count as f64));
        dce(&b.finish()?)
    }

    /// The divergence of the gate of one attention.
    fn loss<'b>(self, attention: &Attention, pair: [Expr<'b>; 2], number: usize) -> Expr<'b> {
        /// Hides a tile: its share is 0, and its logarithm is finite.
        const HIDDEN: f64 = -1e9;
        /// Below every share of attention that counts.
        const LEAST: f64 = 1e-30;
        let b = pair[0].builder();
        let names = states(number);
        let types = state_types(pair, self.channels);
        let inits = types.each_ref().map(|ty| match ty.rank() {
            3 => Init::Normal { std: 1.0 / (ty.sizes()[1].max(1) as f64).sqrt(), seed: 0 },
            _ => Init::ZEROS,
        });
        let [query, key, slope] =
            [0, 1, 2].map(|i| b.state_named(&names[i], types[i].clone(), inits[i].clone()));
        let scores = gate_scores(pair, [query, key, slope], self.tile);
        let bias = |at| if sees(attention.mask, at) { 0.0 } else { HIDDEN };
        let scores = scores + of_pairs(b, scores.size(3), bias);
        let most = scores.reduce_keep(Reducer::Max, &[3]);
        let shares = scores - most - (scores - most).exp().sum(&[3]).log().reshape(most.shape());
        let mass = self.mass(attention, pair);
        let divergence = mass * (mass.max(mass.constant(LEAST)).log() - shares);
        let rows = divergence.size(0) * divergence.size(1) * divergence.size(2);
        divergence.sum(&[0, 1, 2, 3]) * (1.0 / rows as f64)
    }

    /// The weight of each tile in attention, as a mean over its queries: `[B, H, N, N]` in f32.
    fn mass<'b>(self, attention: &Attention, pair: [Expr<'b>; 2]) -> Expr<'b> {
        let scores = attention.all_scores(pair, (&[], &[])).convert(DType::F32);
        let weights = (scores - scores.reduce_keep(Reducer::Max, &[3])).exp();
        let sums = weights.reduce_keep(Reducer::Sum, &[3]);
        let by_key = summed((weights / sums).transpose(&[0, 1, 3, 2]), self.tile);
        pooled(by_key.transpose(&[0, 1, 3, 2]), self.tile)
    }
}

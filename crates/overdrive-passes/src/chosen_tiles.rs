//! Chosen tiles: attention computes a share of its tiles, chosen by a learned gate or by place.
//!
//! A tile has `tile` queries and as many keys. In each row of tiles the ones with the highest
//! scores are kept, `attention_gate` says by which scores. The tile on the diagonal is always kept,
//! so that each query sees itself. The choice is a captured tensor of booleans, which a mask
//! function reads at indices divided by the tile. Kernels skip blocks that it hides as a whole.

use crate::attention_gate::{
    gate_scores, no_attention, of_pairs, of_tiles, sees, state_types, states,
};
use crate::{KEPT_TILES, VISIBLE_TILES, dce, recognise};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::mask_region;
use overdrive_ir::{Binary, Builder, Compare, DType, Expr, Graph, GraphError, Mismatch, Tensor};
use std::collections::BTreeMap;

/// The tiles that attention keeps.
#[derive(Clone, Debug)]
pub struct ChosenTiles {
    /// Queries and keys of a tile.
    pub tile: usize,
    /// Share of the visible tiles of each row that is skipped, from 0 to below 1. It is rounded to
    /// a whole number of tiles, and one is kept at least.
    pub share: f64,
    /// The scores that tiles are chosen by.
    pub by: TileScores,
}

/// Scores that tiles are chosen by.
#[derive(Clone, Debug)]
pub enum TileScores {
    /// Those of gates, by the trained states of
    /// [`AttentionGate::distilled`](crate::AttentionGate::distilled).
    Gate(BTreeMap<String, Tensor>),
    /// By place alone, the same for all heads and texts: the first tile of keys, then the nearest.
    /// This is the fixed pattern that a gate is held against.
    Place,
    /// Drawn at random by this seed for each layer and head, the same for all texts. So a pattern
    /// that knows something has to cost less.
    Random(u64),
}

impl ChosenTiles {
    /// A bound graph whose attention skips that share of its tiles. Also says of how many ops that
    /// is. A share of 0 changes nothing.
    ///
    /// # Errors
    /// If the share is out of range, or the gate is one of another model.
    pub fn skip(&self, graph: &Graph) -> Result<(Graph, usize), GraphError> {
        self.rewritten(graph, |_, _, _| ())
    }

    /// The same with two more outputs for each of these: [`KEPT_TILES`] and [`VISIBLE_TILES`].
    ///
    /// # Errors
    /// As [`Self::skip`]; if no attention has several tiles, or an output has such a name.
    pub fn skip_and_count(&self, graph: &Graph) -> Result<Graph, GraphError> {
        let (counting, count) = self.rewritten(graph, |attention, chosen, number| {
            let b = chosen.builder();
            let kept = chosen.convert(DType::F32).sum(&[0, 1, 2, 3]);
            let pairs = of_pairs(b, chosen.size(3), |at| f64::from(sees(attention.mask, at)));
            let copies = (chosen.size(0) * chosen.size(1)) as f64;
            b.output(&format!("{KEPT_TILES}{number}"), kept);
            b.output(&format!("{VISIBLE_TILES}{number}"), pairs.sum(&[0, 1]) * copies);
        })?;
        if count == 0 { Err(no_attention(graph, self.tile)) } else { Ok(counting) }
    }

    fn rewritten(
        &self,
        graph: &Graph,
        beside: impl Fn(&Attention, Expr<'_>, usize),
    ) -> Result<(Graph, usize), GraphError> {
        if !(0.0..1.0).contains(&self.share) {
            return Err(GraphError {
                op: "attention_gate".into(),
                scope: graph.name().to_owned(),
                expected: "a share of tiles to skip, from 0 to below 1".into(),
                found: self.share.to_string(),
                remedy: "use 0.5 to skip half of the tiles".into(),
            });
        }
        let graph = recognise(graph)?;
        let mut count = 0;
        let rewritten = graph.rewrite(&mut |b, node, operands| {
            let attention = of_tiles(node, operands, self.tile)?;
            let chosen = self.chosen(&attention, [operands[0], operands[1]], count);
            beside(&attention, chosen, count);
            count += 1;
            // An inert choice is an error, which `rewrite` returns.
            if self.share == 0.0 || chosen.is_poison() {
                return None;
            }
            let mask = mask_region(&[chosen.ty()], |[batch, head, query, key], captures| {
                let tile = query.constant(self.tile as f64);
                captures[0].at(&[batch, head, query / tile, key / tile])
            });
            let mask = mask.expect("reading a table of booleans is well typed");
            Some(b.node(attention, &[operands, &[chosen]].concat(), vec![mask]))
        })?;
        // A share of 0 has asked for no choice.
        Ok((dce(&rewritten)?, count))
    }

    /// Tiles that are kept of so many.
    fn kept(&self, visible: usize) -> f64 {
        ((1.0 - self.share) * visible as f64).round().max(1.0)
    }

    /// The kept tiles of an attention: booleans `[B, H, N, N]`.
    fn chosen<'b>(&self, attention: &Attention, pair: [Expr<'b>; 2], number: usize) -> Expr<'b> {
        /// Far beyond all scores, and finite.
        const FAR: f64 = 1e30;
        let b = pair[0].builder();
        let count = pair[0].size(2).div_ceil(self.tile);
        let grid = [pair[0].size(0), pair[0].size(1), count, count];
        let scores = match &self.by {
            TileScores::Gate(trained) => {
                gate_scores(pair, self.gate(b, trained, pair, number), self.tile)
            }
            TileScores::Place => {
                let score =
                    |[i, j]: [usize; 2]| if j == 0 { -0.5 } else { -(i.abs_diff(j) as f64) };
                of_pairs(b, count, score).broadcast_to(&grid.into())
            }
            TileScores::Random(seed) => {
                let drawn: Vec<f64> =
                    philox::uniforms(*seed, number as u64).take(grid[1] * count * count).collect();
                let drawn = Tensor::from_f64(DType::F32, [grid[1], count, count], &drawn);
                b.constant(drawn).broadcast_to(&grid.into())
            }
        };
        let bias = |[i, j]: [usize; 2]| match (i == j, sees(attention.mask, [i, j])) {
            (true, _) => FAR,
            (false, true) => 0.0,
            (false, false) => -FAR,
        };
        let scores = scores + of_pairs(b, count, bias);
        // A tile's rank is the number of tiles before it. Later keys come before equal ones.
        let [batch, heads, ..] = grid;
        let other = scores.reshape([batch, heads, count, 1, count]);
        let own = scores.reshape([batch, heads, count, count, 1]);
        let later = of_pairs(b, count, |[own, other]| f64::from(other > own));
        let later = later.compare(Compare::Gt, later.constant(0.0));
        let equal = other.compare(Compare::Eq, own).binary(Binary::And, later);
        let before = other.compare(Compare::Gt, own).binary(Binary::Or, equal);
        let rank = before.convert(DType::F32).sum(&[4]);
        let kept = of_pairs(b, count, |[i, _]| {
            self.kept((0..count).filter(|&j| sees(attention.mask, [i, j])).count())
        });
        rank.compare(Compare::Lt, kept)
    }

    /// The states of the gate of one attention, as constants.
    fn gate<'b>(
        &self,
        b: &'b Builder,
        trained: &BTreeMap<String, Tensor>,
        pair: [Expr<'b>; 2],
        number: usize,
    ) -> [Expr<'b>; 3] {
        let names = states(number);
        let channels = trained.get(&names[0]).and_then(|weight| weight.ty().shape.known());
        let channels = channels.and_then(|sizes| sizes.last().copied()).unwrap_or(1);
        let types = state_types(pair, channels);
        [0, 1, 2].map(|i| match trained.get(&names[i]) {
            Some(tensor) if *tensor.ty() == types[i] => b.constant(tensor.clone()),
            other => {
                let found = other.map_or("nothing".to_owned(), |tensor| tensor.ty().to_string());
                let expected = format!("`{}` of {}", names[i], types[i]);
                let remedy = "use the gate that was trained with this model";
                b.fail("attention_gate", Mismatch::new(expected, found).remedy(remedy))
            }
        })
    }
}

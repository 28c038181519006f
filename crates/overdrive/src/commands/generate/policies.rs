//! `overdrive generate --judge FILE --attention-policies`: what sparse attention saves and costs on
//! this model, in one table.
//!
//! Policies skip tiles at random, by place, by a threshold, and by the gate of the folder. For each
//! of [`SHARES`] the text is read whole, and windows are compared in pairs with attention that
//! skips nothing. Then some windows are timed in turns with it: the whole model, and its attentions
//! alone. A threshold is chosen by what the first windows would skip, and the table has the share
//! that was measured on all.

use super::asked::{Generation, joined};
use super::perplexity::{compared, perplexity};
use super::whole::{Reader, WholeWindows, graph_of, of_graph};
use crate::asked_attention::{OtherAttention, gate_of};
use crate::failure::Failure;
use crate::terminal::{note, say, width};
use crate::text::counted;
use overdrive::bench::exit::Exit;
use overdrive::bench::statistics::Sorted;
use overdrive::bench::table::{Align, Table, terminal_table};
use overdrive::ir::Graph;
use overdrive::passes::{
    AttentionAlone, ChosenTiles, KEPT_TILES, TileScores, VISIBLE_TILES, count_at_thresholds,
};
use overdrive::studies::pretrained::Pretrained;
use overdrive_process::Stop;
use serde::Serialize;
use serde_json::json;

/// Shares of tiles that each policy is asked to skip.
const SHARES: [f64; 3] = [0.5, 0.75, 0.9];
/// Windows that are timed.
const TIMED: usize = 32;
/// Windows by which a threshold is chosen.
const CALIBRATING: usize = 4;
/// Queries and keys of a tile without a gate.
const TILE: usize = 64;
/// Tiles that a window has at least, so that there is a choice.
const TILES: usize = 8;
/// The largest threshold that is tried; the others are powers of a half of it.
const LARGEST: f64 = 0.999;
/// Thresholds that are tried.
const THRESHOLDS: i32 = 24;

/// A way to skip tiles.
struct Policy {
    name: &'static str,
    /// Share of tiles that it is asked to skip.
    share: f64,
    attention: OtherAttention,
    /// Share of the products of a skipped tile that it saves: a threshold needs its scores.
    saves: f64,
}

/// A figure with its interval at 95 % confidence; none of fewer than six windows.
#[derive(Serialize)]
struct Figure {
    value: f64,
    interval: Option<[f64; 2]>,
}

impl Figure {
    /// The mean of a number of each window.
    fn mean(values: &[f64]) -> Self {
        let interval = Sorted::new(values).and_then(|sorted| sorted.mean_interval());
        Self {
            value: mean(values),
            interval: interval.map(|interval| [interval.low, interval.high]),
        }
    }

    /// The time with all tiles over the time without some, from the seconds of each pair.
    fn speedup(pairs: &[[f64; 2]]) -> Self {
        let logarithms: Vec<f64> = pairs.iter().map(|[all, some]| (all / some).ln()).collect();
        let Self { value, interval } = Self::mean(&logarithms);
        Self { value: value.exp(), interval: interval.map(|ends| ends.map(f64::exp)) }
    }

    /// `+1.20 [+0.90, +1.50]` of a difference, or the same without signs.
    fn cell(&self, shown: impl Fn(f64) -> String) -> String {
        let interval = self
            .interval
            .map_or(String::new(), |[low, high]| format!(" [{}, {}]", shown(low), shown(high)));
        shown(self.value) + &interval
    }
}

/// A row of the table.
#[derive(Serialize)]
struct Row {
    policy: &'static str,
    asked_percent: f64,
    threshold: Option<f64>,
    /// Share of the tiles where a query sees a key.
    skipped_percent: f64,
    /// Share of the two products of attention.
    products_saved_percent: f64,
    attention_speedup: Figure,
    model_speedup: Figure,
    perplexity: f64,
    perplexity_change_percent: Figure,
    /// Tokens that are the likeliest with all tiles, less those without some.
    accuracy_lost_points: Figure,
}

fn table(rows: &[Row]) -> Table {
    let titles =
        ["asked", "skipped", "saved", "attention", "model", "perplexity, change", "accuracy lost"];
    let mut columns = vec![("policy", Align::Left)];
    columns.extend(titles.map(|title| (title, Align::Right)));
    let mut table = Table::new(&columns);
    for row in rows {
        let percent = |x: f64| format!("{x:.1} %");
        let times = |x| format!("{x:.2}x");
        table.push(vec![
            row.policy.to_owned(),
            format!("{:.0} %", row.asked_percent),
            percent(row.skipped_percent),
            percent(row.products_saved_percent),
            row.attention_speedup.cell(times),
            row.model_speedup.cell(times),
            row.perplexity_change_percent.cell(|x| format!("{x:+.2} %")),
            row.accuracy_lost_points.cell(|x| format!("{x:+.2}")),
        ]);
    }
    table
}

/// The model as it is: what others are compared with.
struct Full<'a> {
    windows: &'a [Vec<u32>],
    model: Reader<'a>,
    /// The model once more; its first outputs are the operands of attentions, so many.
    operands: Reader<'a>,
    count: usize,
    attentions: Reader<'a>,
    read: WholeWindows,
}

/// Reads windows with each policy and prints the table.
pub(super) fn judge(
    asked: &Generation<'_>,
    (model, windows): (&Pretrained, &[Vec<u32>]),
    stop: &Stop,
) -> Result<Exit, Failure> {
    let window = windows[0].len();
    let graph = graph_of(asked, (model, window))?;
    let alone = AttentionAlone::of(&graph).map_err(of_graph)?;
    let mut reader = Reader::new(asked, graph.clone(), None)?;
    let read = reader.read(windows, stop)?;
    let operands = Reader::new(asked, alone.operands.clone(), Some(&reader))?;
    let attentions = Reader::new(asked, alone.attentions.clone(), None)?;
    let count = alone.attentions.inputs().len();
    let mut full = Full { windows, model: reader, operands, count, attentions, read };
    let policies = policies(asked, (model, window), &alone.attentions, &mut full)?;
    let mut rows = Vec::with_capacity(policies.len());
    for policy in &policies {
        rows.push(row(asked, [&graph, &alone.attentions], policy, &mut full, stop)?);
    }
    let right = 100.0 * mean(&full.read.right);
    let (count, before) = (windows.len(), perplexity(&full.read.means));
    if asked.arguments.json {
        let all = json!({
            "windows": count, "window_tokens": window, "full_perplexity": before,
            "full_right_percent": right, "timed_windows": count.min(TIMED), "policies": rows,
        });
        say!("{:#}", joined(asked.facts(), all))?;
        return Ok(Exit::Fine);
    }
    say!("{}", terminal_table(&table(&rows), width()))?;
    say!(
        "perplexity {before:.4} with all tiles, {right:.2} % of tokens right, over {} of {window} \
         tokens; times are of {}, in turns with all tiles; brackets have 95 % confidence",
        counted(count, "window"),
        counted(count.min(TIMED), "window")
    )?;
    Ok(Exit::Fine)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// All policies at all shares, as far as this model has them.
fn policies(
    asked: &Generation<'_>,
    (model, window): (&Pretrained, usize),
    attentions: &Graph,
    full: &mut Full<'_>,
) -> Result<Vec<Policy>, Failure> {
    let gate = gate_of((&asked.arguments.model, asked.model))?;
    let tile = match &gate {
        Some((tile, _)) => *tile,
        None => TILE.min((window / TILES).max(1).next_power_of_two()),
    };
    let mut all = Vec::new();
    let mut choose = |name, by: &TileScores| {
        all.extend(SHARES.map(|share| {
            let chosen = ChosenTiles { tile, share, by: by.clone() };
            Policy { name, share, attention: OtherAttention::Unchosen(chosen), saves: 1.0 }
        }));
    };
    choose("block-sparse, random", &TileScores::Random(asked.arguments.machine.seed));
    choose("block-sparse, by place", &TileScores::Place);
    match &gate {
        Some((_, by)) => choose("learned gate", by),
        None => note!(
            "note: no learned gate: `{}` has none; train one: overdrive train {} --data TEXT \
             --gate {TILE} -o DIR",
            model.name,
            asked.arguments.model
        ),
    }
    let curve = curve(asked, attentions, full)?;
    if curve.is_empty() {
        note!(
            "note: no threshold: expected attention of 64 queries and 129 keys at least, found \
             windows of {window} tokens"
        );
    }
    for share in SHARES.into_iter().filter(|_| !curve.is_empty()) {
        let most = curve[0];
        let threshold = threshold(share, &curve);
        all.push(Policy {
            name: "dynamic threshold",
            share,
            attention: OtherAttention::Threshold(threshold.unwrap_or(most.0)),
            saves: 0.5,
        });
        if threshold.is_none() {
            note!(
                "note: no threshold skips {:.0} % of the tiles of this model: {LARGEST} skips \
                 {:.1} %, and the table ends there",
                100.0 * share,
                100.0 * most.1
            );
            break;
        }
    }
    Ok(all)
}

/// Thresholds, the largest first, and the share of visible tiles that each would skip in the first
/// windows. None if no attention is large enough.
fn curve(
    asked: &Generation<'_>,
    attentions: &Graph,
    full: &mut Full<'_>,
) -> Result<Vec<(f64, f64)>, Failure> {
    let thresholds: Vec<f64> = (0..THRESHOLDS).map(|i| LARGEST * 0.5f64.powi(i)).collect();
    let counting = count_at_thresholds(attentions, &thresholds).map_err(of_graph)?;
    let mut counting = Reader::new(asked, counting, None)?;
    let (mut kept, mut visible) = (vec![0.0; thresholds.len()], 0.0);
    for tokens in full.windows.iter().take(CALIBRATING) {
        full.attend(tokens)?;
        counting.call(&full.operands.outputs[..full.count])?;
        for found in counting.found() {
            let (name, values) = found?;
            if name.starts_with(KEPT_TILES) {
                kept.iter_mut().zip(values).for_each(|(sum, count)| *sum += f64::from(count));
            } else if name.starts_with(VISIBLE_TILES) {
                visible += f64::from(values[0]);
            }
        }
    }
    let of = thresholds.into_iter().zip(kept);
    Ok(of.filter(|_| visible > 0.0).map(|(t, kept)| (t, 1.0 - kept / visible)).collect())
}

/// The threshold that skips a share, interpolated in its logarithm; none if the largest skips less.
fn threshold(share: f64, curve: &[(f64, f64)]) -> Option<f64> {
    let below = curve.iter().position(|&(_, skipped)| skipped < share).unwrap_or(curve.len());
    let &(high, more) = curve.get(below.checked_sub(1)?)?;
    let Some(&(low, less)) = curve.get(below) else { return Some(high) };
    let part = (share - less) / (more - less);
    Some((low.ln() + part * (high / low).ln()).exp())
}

impl Full<'_> {
    /// Computes the operands of all attentions where the model reads a window.
    fn attend(&mut self, tokens: &[u32]) -> Result<(), Failure> {
        let input = [self.operands.input(tokens)?];
        self.operands.call(&input).map(|_| ())
    }
}

/// Judges and times a policy; the graphs are the model's and that of its attentions.
fn row(
    asked: &Generation<'_>,
    [graph, attentions]: [&Graph; 2],
    policy: &Policy,
    full: &mut Full<'_>,
    stop: &Stop,
) -> Result<Row, Failure> {
    let counted = policy.attention.counted(graph)?;
    let found = Reader::new(asked, counted, Some(&full.model))?.read(full.windows, stop)?;
    let (loss, _) = compared(&found.means, &full.read.means);
    let lost: Vec<f64> =
        full.read.right.iter().zip(&found.right).map(|(all, some)| 100.0 * (all - some)).collect();
    let other = |graph| Ok::<_, Failure>(policy.attention.of(graph).map_err(of_graph)?.0);
    let mut model = Reader::new(asked, other(graph)?, Some(&full.model))?;
    let mut alone = Reader::new(asked, other(attentions)?, None)?;
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    // The first window is read once more, since first calls are slow.
    let timed = full.windows.len().min(TIMED);
    for at in std::iter::once(0).chain(0..timed) {
        if stop.is_requested() {
            return Err(Failure::interrupted(format!("{} was not timed", policy.name)));
        }
        let tokens = &full.windows[at];
        let input = [full.model.input(tokens)?];
        whole.push([full.model.call(&input)?, model.call(&input)?]);
        full.attend(tokens)?;
        let operands = &full.operands.outputs[..full.count];
        parts.push([full.attentions.call(operands)?, alone.call(operands)?]);
    }
    let skipped_percent = found.skipped_percent.unwrap_or_default();
    Ok(Row {
        policy: policy.name,
        asked_percent: 100.0 * policy.share,
        threshold: match policy.attention {
            OtherAttention::Threshold(threshold) => Some(threshold),
            OtherAttention::Unchosen(_) | OtherAttention::Float8 => None,
        },
        skipped_percent,
        products_saved_percent: policy.saves * skipped_percent,
        attention_speedup: Figure::speedup(&parts[1..]),
        model_speedup: Figure::speedup(&whole[1..]),
        perplexity: perplexity(&found.means),
        perplexity_change_percent: Figure { value: loss.percent, interval: loss.interval_percent },
        accuracy_lost_points: Figure::mean(&lost),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_lies_between_those_that_were_tried() {
        let curve = [(0.8, 0.7), (0.4, 0.6), (0.2, 0.2), (0.1, 0.2)];
        assert_eq!(threshold(0.75, &curve), None);
        assert!((threshold(0.7, &curve).unwrap() - 0.8).abs() < 1e-12);
        // Half of the way from 0.2 to 0.4 in the logarithm.
        assert!((threshold(0.4, &curve).unwrap() - 0.08f64.sqrt()).abs() < 1e-12);
        assert_eq!(threshold(0.1, &curve), Some(0.1), "the least that was tried skips more");
    }

    #[test]
    fn speedups_are_geometric_means_of_pairs() {
        let pairs = [[2.0, 1.0], [8.0, 1.0], [4.0, 1.0], [4.0, 1.0], [2.0, 1.0], [8.0, 1.0]];
        let found = Figure::speedup(&pairs);
        assert!((found.value - 4.0).abs() < 1e-12);
        let [low, high] = found.interval.unwrap();
        assert!(low < 4.0 && (low * high - 16.0).abs() < 1e-9, "symmetric in the logarithm");
        assert_eq!(Figure::speedup(&pairs[..5]).interval, None);
    }
}

//! Gates of attention, and the tiles that they choose, against loops written from the formulas.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType};
use overdrive_passes::{AttentionGate, ChosenTiles, KEPT_TILES, TileScores, dce, recognise};
use std::collections::BTreeMap;

/// Batch, heads of queries and of keys.
const B: usize = 2;
const H: usize = 4;
const HKV: usize = 2;
/// Tokens. The last tile has one.
const T: usize = 21;
const TILE: usize = 4;
/// Channels of a head, and of the gate.
const D: usize = 6;
const C: usize = 3;
const N: usize = T.div_ceil(TILE);

fn normals(site: u64, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    let values: Vec<f64> = philox::normals(7, site).take(count).map(|x| 1.5 * x).collect();
    Tensor::from_f64(DType::F32, shape, &values)
}

fn attention(mask: Mask) -> Graph {
    let b = Builder::new("attention");
    let [q, k, v] = [("q", H), ("k", HKV), ("v", HKV)]
        .map(|(name, heads)| b.input(name, TensorType::new(DType::F32, [B, heads, T, D])));
    b.output("y", q.attention(k, v, Attention { mask, ..Attention::FULL })[0]);
    b.finish().unwrap()
}

fn inputs() -> [Tensor; 3] {
    [(0, H), (1, HKV), (2, HKV)].map(|(site, heads)| normals(site, &[B, heads, T, D]))
}

fn gate() -> BTreeMap<String, Tensor> {
    let states = [
        ("query", normals(3, &[H, D, C])),
        ("key", normals(4, &[HKV, D, C])),
        ("slope", normals(5, &[H])),
    ];
    states.into_iter().map(|(part, w)| (format!("attention_gate.0.{part}"), w)).collect()
}

fn chosen(share: f64, by: TileScores) -> ChosenTiles {
    ChosenTiles { tile: TILE, share, by }
}

/// Element `[i, j, row, column]` of a tensor of four dimensions.
fn at(x: &Tensor, [i, j, row, column]: [usize; 4]) -> f64 {
    let [_, heads, rows, columns] = x.ty().sizes()[..] else { panic!("four dimensions") };
    x.to_f64()[((i * heads + j) * rows + row) * columns + column]
}

/// The rows of a tile.
fn rows(tile: usize) -> std::ops::Range<usize> {
    tile * TILE..T.min((tile + 1) * TILE)
}

/// The score of a pair of tiles, by the formula.
fn score([q, k]: [&Tensor; 2], [b, h, i, j]: [usize; 4]) -> f64 {
    let weights = gate();
    let projected = |x: &Tensor, part: &str, head: usize, tile: usize| -> Vec<f64> {
        let weight = weights[&format!("attention_gate.0.{part}")].to_f64();
        let mean =
            |d| rows(tile).map(|t| at(x, [b, head, t, d])).sum::<f64>() / rows(tile).len() as f64;
        (0..C).map(|c| (0..D).map(|d| mean(d) * weight[(head * D + d) * C + c]).sum()).collect()
    };
    let (of_query, of_key) = (projected(q, "query", h, i), projected(k, "key", h / (H / HKV), j));
    let product: f64 = of_query.iter().zip(&of_key).map(|(x, y)| x * y).sum();
    let slope = weights["attention_gate.0.slope"].to_f64()[h];
    product / (C as f64).sqrt() - slope * (i as f64 - j as f64).abs()
}

/// Weights of attention over the keys of the tiles that are kept, for a query.
fn weights([q, k]: [&Tensor; 2], [b, h, t]: [usize; 3], mask: Mask, kept: &[usize]) -> Vec<f64> {
    let sees = |key: usize| (mask == Mask::Full || key <= t) && kept.contains(&(key / TILE));
    let product = |key| {
        let sum: f64 =
            (0..D).map(|d| at(q, [b, h, t, d]) * at(k, [b, h / (H / HKV), key, d])).sum();
        (sum / (D as f64).sqrt()).exp()
    };
    let raw: Vec<f64> = (0..T).map(|key| if sees(key) { product(key) } else { 0.0 }).collect();
    let sum: f64 = raw.iter().sum();
    raw.iter().map(|x| x / sum).collect()
}

#[test]
fn attention_computes_the_tiles_of_the_highest_scores_alone() {
    let given = inputs();
    let [q, k, v] = &given;
    for mask in [Mask::Causal, Mask::Full] {
        let tiles = chosen(0.5, TileScores::Gate(gate()));
        let (graph, count) = tiles.skip(&attention(mask)).unwrap();
        assert_eq!(count, 1);
        let found = &eval_tensors(&graph, &given)[0];
        for (b, h, i) in (0..B * H * N).map(|at| (at / (H * N), at / N % H, at % N)) {
            let visible = if mask == Mask::Full { N } else { i + 1 };
            let mut others: Vec<usize> = (0..visible).filter(|&j| j != i).collect();
            others.sort_by(|&x, &y| {
                score([q, k], [b, h, i, y]).total_cmp(&score([q, k], [b, h, i, x]))
            });
            let count = (visible as f64 / 2.0).round().max(1.0) as usize;
            let kept: Vec<usize> = std::iter::once(i).chain(others).take(count).collect();
            for t in rows(i) {
                let weights = weights([q, k], [b, h, t], mask, &kept);
                for d in 0..D {
                    let expected: f64 =
                        (0..T).map(|key| weights[key] * at(v, [b, h / (H / HKV), key, d])).sum();
                    let found = at(found, [b, h, t, d]);
                    assert!(
                        (found - expected).abs() < 1e-5,
                        "{mask:?} {b} {h} {t}: {found}, {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_gate_is_held_against_the_weight_of_tiles() {
    let given = inputs();
    let [q, k, _] = &given;
    for mask in [Mask::Causal, Mask::Full] {
        let graph = AttentionGate { tile: TILE, channels: C }.distilled(&attention(mask)).unwrap();
        let graph = graph.with_initial_values(|name, _| Init::Value(gate()[name].clone()));
        let found = eval_tensors(&graph, &given)[0].to_f64()[0];
        let all: Vec<usize> = (0..N).collect();
        let mut sum = 0.0;
        for (b, h, i) in (0..B * H * N).map(|at| (at / (H * N), at / N % H, at % N)) {
            let visible = if mask == Mask::Full { N } else { i + 1 };
            let scores: Vec<f64> =
                (0..visible).map(|j| score([q, k], [b, h, i, j]).exp()).collect();
            let total: f64 = scores.iter().sum();
            for (j, score) in scores.iter().enumerate() {
                let of_tile =
                    |t| -> f64 { weights([q, k], [b, h, t], mask, &all)[rows(j)].iter().sum() };
                let mass = rows(i).map(of_tile).sum::<f64>() / rows(i).len() as f64;
                sum += mass * (mass / (score / total)).ln();
            }
        }
        let expected = sum / (B * H * N) as f64;
        assert!((found - expected).abs() < 1e-5 * expected.abs(), "{mask:?}: {found}, {expected}");
    }
}

#[test]
fn tiles_by_place_are_the_first_and_the_nearest() {
    let graph = chosen(0.5, TileScores::Place).skip_and_count(&attention(Mask::Causal)).unwrap();
    let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
    assert!(names[0].starts_with(KEPT_TILES), "{names:?}");
    let found = eval_tensors(&graph, &inputs());
    // Rows of 1 to 6 visible tiles keep 1, 1, 2, 2, 3, 3 of them.
    let counts = [0, 1].map(|at| found[at].to_f64()[0]);
    assert_eq!(counts, [12.0, 21.0].map(|count| count * (B * H) as f64));
    let [q, k, v] = &inputs();
    let t = 4 * TILE + 1;
    let weights = weights([q, k], [1, 3, t], Mask::Causal, &[4, 0, 3]);
    let expected: f64 = (0..T).map(|key| weights[key] * at(v, [1, 1, key, 2])).sum();
    assert!((at(&found[2], [1, 3, t, 2]) - expected).abs() < 1e-5);
}

#[test]
fn random_tiles_are_of_their_seed_and_as_many() {
    let counted = |seed| {
        let by = TileScores::Random(seed);
        eval_tensors(&chosen(0.5, by).skip_and_count(&attention(Mask::Causal)).unwrap(), &inputs())
    };
    let [found, again, other] = [3, 3, 4].map(counted);
    for found in [&found, &other] {
        assert_eq!(found[0].to_f64(), [12.0 * (B * H) as f64]);
    }
    assert_eq!(found[2], again[2]);
    assert_ne!(found[2], other[2]);
    // A row of three tiles keeps the one on the diagonal and one of the two before it.
    let [q, k, v] = &inputs();
    let t = 2 * TILE + 1;
    let heads = (0..H).map(|head| {
        let at_kept = |other| {
            let weights = weights([q, k], [1, head, t], Mask::Causal, &[2, other]);
            let expected: f64 =
                (0..T).map(|key| weights[key] * at(v, [1, head / (H / HKV), key, 2])).sum();
            (at(&found[2], [1, head, t, 2]) - expected).abs() < 1e-5
        };
        [0, 1].map(at_kept)
    });
    let heads: Vec<[bool; 2]> = heads.collect();
    assert!(heads.iter().all(|[a, b]| a != b), "{heads:?}");
}

#[test]
fn a_share_of_zero_changes_nothing() {
    let graph = attention(Mask::Causal);
    let (same, _) = chosen(0.0, TileScores::Gate(gate())).skip(&graph).unwrap();
    assert_eq!(same.to_string(), dce(&recognise(&graph).unwrap()).unwrap().to_string());
}

#[test]
fn mistakes_are_errors() {
    let graph = attention(Mask::Causal);
    for share in [-0.1, 1.0, f64::NAN] {
        let error = chosen(share, TileScores::Place).skip(&graph).unwrap_err().to_string();
        assert!(error.contains("from 0 to below 1") && error.contains("use 0.5"), "{error}");
    }
    let mut of_another = gate();
    of_another.insert("attention_gate.0.slope".into(), normals(5, &[H + 1]));
    let error = chosen(0.5, TileScores::Gate(of_another)).skip(&graph).unwrap_err().to_string();
    assert!(error.contains("attention_gate.0.slope") && error.contains("trained with"), "{error}");
    let large = AttentionGate { tile: T, channels: C };
    let error = large.distilled(&graph).unwrap_err().to_string();
    assert!(error.contains("more than 21 queries") && error.contains("smaller tiles"), "{error}");
}

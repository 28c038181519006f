//! A gate finds the tiles that queries attend to.

use overdrive_cpu::CpuBackend;
use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Attention;
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType};
use overdrive_passes::{AttentionGate, ChosenTiles, TileScores};
use overdrive_train::data::{Batch, Split};
use overdrive_train::{Recipe, TrainError, distil_gate, gate_training};

const BATCH: usize = 8;
const TILE: usize = 4;
/// Six tiles.
const T: usize = 24;
const D: usize = 8;

/// Rows of queries, keys and values. A sample gives each tile of keys a channel of its own. A tile
/// of queries has the channel of one tile of keys, so that it attends to that.
struct Planted;

impl Split for Planted {
    fn len(&self) -> u64 {
        1024
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let mut x = vec![];
        for &sample in samples {
            let pick =
                |site: usize, below: usize| philox::bits(3, sample, site as u64) as usize % below;
            let first = pick(0, D);
            let channel = |tile: usize| (first + tile) % D;
            let mut noise = philox::normals(4, sample);
            for row in 0..T {
                let tile = row / TILE;
                // A row of two tiles keeps one.
                let attended = if tile < 2 { tile } else { pick(1 + tile, tile + 1) };
                for (part, of) in [channel(attended), channel(tile), D].into_iter().enumerate() {
                    let size = if part < 2 { 0.2 } else { 1.0 };
                    let signal = |d| if d == of { 5.0 } else { 0.0 };
                    x.extend((0..D).map(|d| signal(d) + size * noise.next().unwrap()));
                }
            }
        }
        let count = samples.len();
        let labels = Tensor::from_ints(DType::I32, [count], &vec![0; count]);
        let x = Tensor::from_f64(DType::F32, [count, T, 3 * D], &x);
        Ok(Batch { x, mask: None, labels, text_bytes: vec![] })
    }

    fn hash(&self) -> Result<String, TrainError> {
        Ok("planted".to_owned())
    }
}

/// Causal attention of one head; `scale` is a weight that must stay as it is.
fn model() -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [BATCH, T, 3 * D]));
    let scale = b.state_named("scale", TensorType::scalar(DType::F32), Init::Constant(1.0));
    let part =
        |at: usize| (x * scale).slice_axis(2, at * D, (at + 1) * D).reshape([BATCH, 1, T, D]);
    b.output("y", part(0).attention(part(1), part(2), Attention::CAUSAL)[0]);
    b.finish().unwrap()
}

#[test]
fn a_gate_finds_the_tiles_that_queries_attend_to() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let gate = Some(AttentionGate { tile: TILE, channels: 8 });
    let recipe = Recipe { steps: 80, batch: BATCH, gate, ..gate_training(TILE) };
    let model = model();
    let states = distil_gate((&backend, &model), &recipe, &Planted, &mut ()).unwrap().unwrap();
    let names: Vec<&str> = states.keys().map(String::as_str).collect();
    assert_eq!(names, ["key", "query", "slope"].map(|part| format!("attention_gate.0.{part}")));
    // Samples that it has not seen: 80 steps read the first 640 of a shuffle.
    let given = [Planted.batch(&(2000..2000 + BATCH as u64).collect::<Vec<_>>()).unwrap().x];
    let output = |graph: &Graph| eval_tensors(graph, &given)[0].to_f64();
    let whole = output(&model);
    let error = |by: TileScores| {
        let (graph, count) = ChosenTiles { tile: TILE, share: 0.5, by }.skip(&model).unwrap();
        assert_eq!(count, 1);
        let squares = output(&graph).into_iter().zip(&whole).map(|(x, y)| (x - y) * (x - y));
        squares.sum::<f64>()
    };
    let (learned, by_place) = (error(TileScores::Gate(states)), error(TileScores::Place));
    assert!(learned < 0.1 * by_place, "{learned} of {by_place}");
}

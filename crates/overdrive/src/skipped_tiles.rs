//! The tiles that attention skips, as the command line says it. It names a threshold, or a share
//! that the gate in the model's folder chooses. `train --gate` has left that file there.

use crate::cli::Skipping;
use crate::failure::Failure;
use overdrive::formats::{Tensors, safetensors};
use overdrive::ir::{DType, Graph, GraphError, Tensor};
use overdrive::passes::{ChosenTiles, TileScores, count_tiles, skip_tiles};
use std::path::Path;

/// The file of a gate in the folder of a model.
pub(crate) const GATE: &str = "attention_gate.safetensors";
/// The tensor of that file that holds the queries and keys of a tile.
const TILE: &str = "tile";

/// The tiles that attention skips.
pub(crate) enum SkippedTiles {
    /// Those whose weights are below this share of the largest.
    Threshold(f64),
    /// All but the chosen ones.
    Unchosen(ChosenTiles),
}

impl SkippedTiles {
    /// Those that the command line asks for, of the model that it names.
    pub(crate) fn asked(skipping: Skipping, model: &str) -> Result<Option<Self>, Failure> {
        if let Some(threshold) = skipping.threshold {
            return Ok(Some(Self::Threshold(threshold)));
        }
        let Some(share) = skipping.gate else { return Ok(None) };
        let file = Path::new(model).join(GATE);
        if !file.is_file() {
            return Err(Failure::bad_input(format!(
                "--attention-gate {share}: expected a folder with {GATE}, found none in `{model}`; \
                 make one of a folder in Hugging Face's format: overdrive train FOLDER --data TEXT \
                 --gate 64 -o DIR"
            )));
        }
        let (tile, states) = read_gate(&file)?;
        Ok(Some(Self::Unchosen(ChosenTiles { tile, share, by: TileScores::Gate(states) })))
    }

    /// As many tiles, chosen by place, where a gate has chosen.
    pub(crate) fn by_place(&self) -> Option<Self> {
        match self {
            Self::Threshold(_) => None,
            Self::Unchosen(chosen) => {
                Some(Self::Unchosen(ChosenTiles { by: TileScores::Place, ..*chosen }))
            }
        }
    }

    /// A bound graph that skips them, and of how many attentions.
    pub(crate) fn skip(&self, graph: &Graph) -> Result<(Graph, usize), GraphError> {
        match self {
            Self::Threshold(threshold) => skip_tiles(graph, *threshold),
            Self::Unchosen(chosen) => chosen.skip(graph),
        }
    }

    /// The same with the counts of kept and of visible tiles as outputs.
    pub(crate) fn skip_and_count(&self, graph: &Graph) -> Result<Graph, Failure> {
        let counting = match self {
            Self::Threshold(_) => count_tiles(&self.some(graph)?),
            Self::Unchosen(chosen) => chosen.skip_and_count(graph),
        };
        counting.map_err(Failure::bad_input)
    }

    /// A graph that skips them in one attention at least.
    fn some(&self, graph: &Graph) -> Result<Graph, Failure> {
        let (skipping, count) = self.skip(graph).map_err(Failure::bad_input)?;
        if count > 0 {
            return Ok(skipping);
        }
        let (option, expected) = match self {
            Self::Threshold(threshold) => (
                format!("--attention-threshold {threshold}"),
                "attention of 64 queries and 129 keys at least".to_owned(),
            ),
            Self::Unchosen(ChosenTiles { share, tile, .. }) => (
                format!("--attention-gate {share}"),
                format!("attention of more than {tile} queries and as many keys"),
            ),
        };
        Err(Failure::bad_input(format!(
            "{option}: expected {expected}, found none in `{}`; leave the option out",
            graph.name()
        )))
    }
}

/// The bound graph of a model, which skips what was asked for.
pub(crate) fn applied(skipping: Skipping, model: &str, graph: Graph) -> Result<Graph, Failure> {
    match SkippedTiles::asked(skipping, model)? {
        Some(tiles) => tiles.some(&graph),
        None => Ok(graph),
    }
}

/// Writes trained states of gates, and the queries and keys of their tiles.
pub(crate) fn write_gate(file: &Path, tile: usize, mut states: Tensors) -> Result<(), Failure> {
    states.insert(TILE.to_owned(), Tensor::from_ints(DType::I32, [1usize], &[tile as i128]));
    safetensors::write(file, &states).map_err(Failure::harness)
}

/// Reads them again.
fn read_gate(file: &Path) -> Result<(usize, Tensors), Failure> {
    let mut states = safetensors::read(file).map_err(Failure::bad_input)?;
    let tile = states.remove(TILE);
    let tile = tile.filter(|tile| tile.ty().dtype == DType::I32).map(|tile| tile.to_ints());
    match tile.as_deref() {
        Some([tile]) if *tile > 0 => Ok((*tile as usize, states)),
        found => Err(Failure::bad_input(format!(
            "`{}`: expected one number above 0 as `{TILE}`, found {found:?}; train the gate again",
            file.display()
        ))),
    }
}

//! Other attention than the model's own, as the command line says it. It skips tiles below a
//! threshold, or a share that the gate in the model's folder chooses; or its products are in fp8.
//! `train --gate` has left the file of a gate there.

use crate::cli::AttentionOptions;
use crate::failure::Failure;
use crate::model::Model;
use crate::terminal::note;
use overdrive::formats::{Tensors, safetensors};
use overdrive::ir::{DType, Graph, GraphError, Tensor};
use overdrive::passes::{ChosenTiles, TileScores, attend_in_float8, count_tiles, skip_tiles};
use overdrive::studies::pretrained::Pretrained;
use std::collections::BTreeMap;
use std::path::Path;

/// The file of a gate in the folder of a model.
pub(crate) const GATE: &str = "attention_gate.safetensors";
/// The tensor of that file that holds the queries and keys of a tile.
const TILE: &str = "tile";
/// Metadata of that file: the checksum of the model whose attention the gate has learnt.
const MODEL: &str = "checksum_of_model";

/// Attention that differs from the model's own.
pub(crate) enum OtherAttention {
    /// It skips tiles whose weights are below this share of the largest.
    Threshold(f64),
    /// It skips all tiles but the chosen ones.
    Unchosen(ChosenTiles),
    /// Its products are of codes of fp8.
    Float8,
}

impl OtherAttention {
    /// The one that the command line asks for, of the model that it names and that was read there.
    pub(crate) fn asked(
        options: AttentionOptions,
        (model, read): (&str, &Model),
    ) -> Result<Option<Self>, Failure> {
        if let Some(threshold) = options.threshold {
            return Ok(Some(Self::Threshold(threshold)));
        }
        if options.float8 {
            return Ok(Some(Self::Float8));
        }
        let Some(share) = options.gate else { return Ok(None) };
        let Some((tile, by)) = gate_of((model, read))? else {
            return Err(Failure::bad_input(format!(
                "--attention-gate {share}: expected a folder with {GATE}, found none in `{model}`; \
                 make one of a folder in Hugging Face's format: overdrive train FOLDER --data TEXT \
                 --gate 64 -o DIR"
            )));
        };
        Ok(Some(Self::Unchosen(ChosenTiles { tile, share, by })))
    }

    /// As many tiles, chosen by place, where a gate has chosen.
    pub(crate) fn by_place(&self) -> Option<Self> {
        match self {
            Self::Threshold(_) | Self::Float8 => None,
            Self::Unchosen(chosen) => {
                Some(Self::Unchosen(ChosenTiles { by: TileScores::Place, ..*chosen }))
            }
        }
    }

    /// A bound graph with it, and how many attentions differ.
    pub(crate) fn of(&self, graph: &Graph) -> Result<(Graph, usize), GraphError> {
        match self {
            Self::Threshold(threshold) => skip_tiles(graph, *threshold),
            Self::Unchosen(chosen) => chosen.skip(graph),
            Self::Float8 => attend_in_float8(graph),
        }
    }

    /// The same, where one attention differs at least. If it skips tiles, counts of kept and of
    /// visible ones are outputs.
    pub(crate) fn counted(&self, graph: &Graph) -> Result<Graph, Failure> {
        let counting = match self {
            Self::Threshold(_) => count_tiles(&self.some(graph)?),
            Self::Unchosen(chosen) => chosen.skip_and_count(graph),
            Self::Float8 => return self.some(graph),
        };
        counting.map_err(Failure::bad_input)
    }

    /// A graph of which one attention differs at least.
    fn some(&self, graph: &Graph) -> Result<Graph, Failure> {
        let (other, count) = self.of(graph).map_err(Failure::bad_input)?;
        if count > 0 {
            return Ok(other);
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
            Self::Float8 => (
                "--attention-float8".to_owned(),
                "attention of 128 queries and 256 keys at least".to_owned(),
            ),
        };
        Err(Failure::bad_input(format!(
            "{option}: expected {expected}, found none in `{}`; leave the option out",
            graph.name()
        )))
    }
}

/// The bound graph of a model, with the attention that was asked for.
pub(crate) fn applied(
    options: AttentionOptions,
    model: (&str, &Model),
    graph: Graph,
) -> Result<Graph, Failure> {
    match OtherAttention::asked(options, model)? {
        Some(other) => other.some(&graph),
        None => Ok(graph),
    }
}

/// A gate of a model: states, tile, and the model.
pub(crate) struct TrainedGate<'a> {
    pub(crate) states: Tensors,
    /// Queries and keys of a tile.
    pub(crate) tile: usize,
    /// The model whose attention it has learnt.
    pub(crate) model: &'a Pretrained,
}

impl TrainedGate<'_> {
    /// Writes it.
    pub(crate) fn write(self, file: &Path) -> Result<(), Failure> {
        let Self { mut states, tile, model } = self;
        states.insert(TILE.to_owned(), Tensor::from_ints(DType::I32, [1usize], &[tile as i128]));
        let facts = BTreeMap::from([(MODEL.to_owned(), model.checksum())]);
        safetensors::write_described(file, &states, facts).map_err(Failure::harness)
    }
}

/// The gate in the folder of a model, if there is one: queries and keys of a tile, and its scores.
pub(crate) fn gate_of(
    (model, read): (&str, &Model),
) -> Result<Option<(usize, TileScores)>, Failure> {
    let file = Path::new(model).join(GATE);
    if !file.is_file() {
        return Ok(None);
    }
    check_model(&file, read)?;
    let (tile, states) = read_gate(&file)?;
    Ok(Some((tile, TileScores::Gate(states))))
}

/// Errs unless the gate in a file has learnt the attention of this model.
fn check_model(file: &Path, model: &Model) -> Result<(), Failure> {
    let known = safetensors::metadata(file).map_err(Failure::bad_input)?.remove(MODEL);
    let found = match model {
        Model::Pretrained(model) => Some(model.checksum()),
        Model::Template(_) | Model::Onnx(_) => None,
    };
    if known.is_some() && known == found {
        return Ok(());
    }
    let [known, found] = [known, found].map(|sum| sum.unwrap_or_else(|| "unknown".to_owned()));
    Err(Failure::bad_input(format!(
        "`{}`: expected a gate that was trained for these weights, of checksum {found}, found one \
         for weights of checksum {known}; train it again: overdrive train FOLDER --data TEXT \
         --gate 64 -o DIR",
        file.display()
    )))
}

/// Reads its states, and the queries and keys of a tile.
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

/// How a command changes the weights of a model.
pub(crate) enum Changed<'a> {
    /// They are trained, and this folder gets them.
    Trained(&'a Path),
    /// They are rounded.
    Rounded,
}

/// Says that a command leaves the gate of a model behind, if the model has one.
pub(crate) fn note_left_behind(model: &str, changed: Changed<'_>) {
    if !Path::new(model).join(GATE).is_file() {
        return;
    }
    let again = match changed {
        Changed::Trained(out) => format!(
            "training changes them. Train a new one: overdrive train {} --data TEXT --gate 64 -o \
             DIR",
            out.display()
        ),
        Changed::Rounded => format!(
            "rounding changes them. A new one takes float weights: `overdrive train --gate` \
             refuses codes, so --attention-gate is for `{model}` and not for what is made of it"
        ),
    };
    note!(
        "note: the learned gate of attention, `{GATE}` in `{model}`, is not carried over: it was \
         trained for these weights, and {again}"
    );
}

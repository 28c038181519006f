//! Functions from graph to graph, one file each, and last `plan`.
//!
//! Passes take data and run nothing; they know a device only by its capabilities. Invariant: a pass
//! keeps what the graph means, and says in notes what it expanded, declined or cast.

mod attend;
mod attend_in_float8;
mod attention_alone;
mod attention_gate;
mod bind;
mod bucket;
mod by_rows;
mod casts;
mod chosen_tiles;
mod code_caches;
mod compress_gradients;
mod cse;
mod dce;
mod delayed;
mod differentiate;
mod draft;
mod draw;
mod elementwise;
mod float8;
mod fold;
mod fuse;
mod in_blocks;
mod in_chunks;
mod independent_rows;
mod indices;
mod legalize;
mod lora;
mod lower;
mod meeting_order;
mod multiply_codes;
mod nan_guard;
mod observe;
mod offload;
mod on_cores;
mod parts;
mod pass;
mod perturb;
mod pipeline;
mod plan;
mod precision;
mod quantize;
mod readers;
mod reassociate;
mod rebuild;
mod recognise;
mod regather;
mod region;
mod rematerialize;
mod score_function;
mod segments;
mod separate;
mod shard;
mod skip_tiles;
mod sparsify;
mod store;
mod tensor_parallel;
mod to_f64;
mod unmask;
mod widen;

pub use attend_in_float8::attend_in_float8;
pub use attention_alone::AttentionAlone;
pub use attention_gate::AttentionGate;
pub use bind::bind;
pub use chosen_tiles::{ChosenTiles, TileScores};
pub use code_caches::code_caches;
pub use compress_gradients::{BadCompression, Compression, compress_gradients};
pub use cse::cse;
pub use dce::dce;
pub use delayed::{DelayedScales, OfUpdate};
pub use differentiate::differentiate;
pub use draft::{DraftSize, Pass, PassChange};
pub use draw::draw;
pub use elementwise::elementwise;
pub use float8::{Float8, Scaling, expand_float8, float8, left_in_float};
pub use fold::fold;
pub use fuse::{groups, node_by_node};
pub use independent_rows::independent_rows;
pub use indices::{Indices, OutOfRange};
pub use legalize::{legalize, to_primitives};
pub use lora::Lora;
pub use observe::{Evidence, HISTOGRAM_BITS, Site, Statistic, histogram_value, observe, sites};
pub use overdrive_ir::gradients;
pub use pass::PASSES;
pub use perturb::perturb;
pub use pipeline::{Stages, of_batch};
pub use plan::{OR_SMALLER_BATCH, PlanError, explain, place, plan, plan_of_rank};
pub use precision::{Recipe, keep_sums, precision};
pub use quantize::{
    Additions, AutoRound, Biases, EstimatedPart, Held, KAxis, Layer, LayerGroup, LayerKind,
    LayerPart, Learning, LossEstimates, MODES, MeanErrors, OutputErrors, OutputLoss, Preparation,
    Quantization, QuantizationMode, Quantized, QuantizedLayer, RangeRule, Rounding, Scheme,
    Skipped, Tables, activation_range, auto_round, awq, awq_folded, complete, correct_biases,
    declare, equalize, estimate_losses, layers, learn, observe_beside, quantize, rescale, smooth,
    smooth_folded,
};
pub use reassociate::reassociate;
pub use recognise::{SPELLINGS, Spelling, recognise};
pub use region::{At, CaptureRead, Region, greatest_common_divisor};
pub use rematerialize::{Rematerialize, rematerialize};
pub use segments::{ModelBlock, block_ends, blocks, narrowest, segments};
pub use separate::{Piece, separate};
pub use shard::{BadContextExchange, ContextExchange, ShardError, Sharded, shard, shard_with};
pub use skip_tiles::{KEPT_TILES, VISIBLE_TILES, count_at_thresholds, count_tiles, skip_tiles};
pub use sparsify::{Pruning, Sparsified, compress, sparsify};
pub use store::{moves, store};
pub use tensor_parallel::{ResidualStream, tensor_parallel};
pub use to_f64::{compute_in_f64, to_f64};

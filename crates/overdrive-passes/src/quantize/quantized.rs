//! `Quantized`: what a pass over weights hands back.

use super::layers::Skipped;
use super::scheme::Scheme;
use overdrive_ir::Graph;

/// A quantized graph and what became of each layer.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The graph; its states begin as codes and scales.
    pub graph: Graph,
    /// Layers that were quantized.
    pub layers: Vec<QuantizedLayer>,
    /// Layers that were not, and why.
    pub skipped: Vec<Skipped>,
    /// Layers that were quantized by a simpler method than was asked for, and why.
    pub simplified: Vec<Skipped>,
}

/// The outcome for a layer.
#[derive(Clone, PartialEq, Debug)]
pub struct QuantizedLayer {
    /// Its name.
    pub name: String,
    /// Its formats; `None` where its weights are only pruned.
    pub scheme: Option<Scheme>,
    /// Bytes of its weight before.
    pub float_bytes: u64,
    /// Bytes of its codes.
    pub code_bytes: u64,
    /// Bytes of its scales and zero points, and of the mask of a pruned weight.
    pub scale_bytes: u64,
    /// Root of the mean square of the weights' error, relative to that of the weights.
    pub weight_error: f64,
}

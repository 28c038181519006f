//! Bytes of a model by part.

use overdrive_ir::Graph;
use overdrive_passes::Quantized;

/// Bytes of the states of a model, by what they are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Codes of quantized weights.
    pub codes: u64,
    /// Scales and zero points of weights.
    pub scales: u64,
    /// Everything else: biases, norms, embeddings, layers that stayed.
    pub unquantized: u64,
    /// Bytes of the quantized weights in f32.
    pub replaced: u64,
}

impl Footprint {
    /// The footprint of a graph without quantization.
    pub fn float(graph: &Graph) -> Self {
        Self { codes: 0, scales: 0, unquantized: state_bytes(graph), replaced: 0 }
    }

    /// The footprint of a result of `quantize`.
    pub fn of(quantized: &Quantized) -> Self {
        let sum =
            |f: fn(&overdrive_passes::QuantizedLayer) -> u64| quantized.layers.iter().map(f).sum();
        let (codes, scales) = (sum(|layer| layer.code_bytes), sum(|layer| layer.scale_bytes));
        let replaced = sum(|layer| layer.float_bytes);
        let unquantized = state_bytes(&quantized.graph) - codes - scales;
        Self { codes, scales, unquantized, replaced }
    }

    /// All states.
    pub fn total(&self) -> u64 {
        self.codes + self.scales + self.unquantized
    }

    /// Bytes of the quantized layers' weights over what they took in f32.
    pub fn share_of_layers(&self) -> f64 {
        (self.codes + self.scales) as f64 / self.replaced.max(1) as f64
    }
}

/// Bytes of all states of a graph.
fn state_bytes(graph: &Graph) -> u64 {
    graph.states().iter().map(|state| graph.ty(state.value).bytes() as u64).sum()
}

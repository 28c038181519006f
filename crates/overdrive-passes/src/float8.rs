//! `float8` puts linear layers of a model that is trained on codes of fp8.
//!
//! The pass runs on the forward graph: gradients of what it emits are in the recipe's format for
//! gradients (`overdrive_ir::ops::float8_linear`). Weights are rounded from their f32, so that
//! their gradients are in f32. Activations come in the format of all other contractions.
//!
//! Scales are current or [delayed](crate::delayed). Delayed ones are states, which the step updates
//! by [`DelayedScales`](crate::DelayedScales).
//!
//! A layer stays as it is in two cases:
//! - fp8 has no units for its sizes, which must be multiples of 16.
//! - Nothing after it contracts. This is the layer that the loss reads, whose errors nothing
//!   averages out (Micikevicius et al., arXiv:2209.05433, keep it wider too).
//!
//! Invariant: interfaces keep their types.

use crate::delayed::Numbers;
use crate::precision::leads_to_a_contraction;
use crate::rebuild::rebuild;
use overdrive_ir::ops::{Float8Linear, Linear};
use overdrive_ir::{DType, Graph, GraphError, Node};
use serde::{Deserialize, Serialize};

/// How linear layers are trained on codes of fp8.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Float8 {
    /// Formats by role.
    #[serde(flatten)]
    pub formats: Float8Linear,
    /// The source of scales. Older recipes lack this field.
    #[serde(default)]
    pub scaling: Scaling,
}

/// The source of the scales of tensors.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// From the tensor itself, which is read twice.
    #[default]
    Current,
    /// From the batches before: states of the step.
    Delayed,
}

impl Float8 {
    /// The name of such a recipe.
    pub fn title(&self) -> &'static str {
        match (self.formats.gradient == self.formats.forward, self.scaling) {
            (false, Scaling::Delayed) => "fp8",
            (true, Scaling::Delayed) => "fp8-e4m3",
            (false, Scaling::Current) => "fp8-current",
            (true, Scaling::Current) => "fp8-e4m3-current",
        }
    }
}

/// Extents that tensor cores of fp8 multiply.
const UNIT: usize = 16;

/// The graph with linear layers on codes as `float8` says, and activations between them in
/// `narrow`.
///
/// # Errors
/// When the graph is ill-formed.
pub fn float8(graph: &Graph, float8: Float8, narrow: DType) -> Result<Graph, GraphError> {
    let meets = leads_to_a_contraction(graph);
    let mut numbers = Numbers::default();
    rebuild(graph, &Clone::clone, &mut |place| {
        let taken = takes(graph, place.node)
            && place.node.results.iter().any(|result| meets[result.0 as usize]);
        let (x, w, bias) = match place.operands.as_slice() {
            [x, w] if taken => (*x, *w, None),
            [x, w, bias] if taken => (*x, *w, Some(*bias)),
            _ => return Ok(place.keep(place.node.regions.clone())),
        };
        let scales = (float8.scaling == Scaling::Delayed).then(|| {
            let rows = x.ty().elements() / w.size(0);
            let operands = (place.node.operands[0], place.node.operands[1], rows);
            numbers.next(place.builder, operands, float8.formats)
        });
        let y = x.convert(narrow).float8_linear(w, scales, float8.formats);
        let y = bias.map_or(y, |bias| y + bias.convert(narrow));
        Ok(vec![y.convert(x.dtype())])
    })
}

/// Whether a node is a layer in f32 whose extents the units take.
fn takes(graph: &Graph, node: &Node) -> bool {
    let (Some(Linear), [x, w, ..]) = (node.op.composite::<Linear>(), node.operands.as_slice())
    else {
        return false;
    };
    let (x, w) = (graph.ty(*x), graph.ty(*w));
    let [k, n] = [w.sizes()[0], w.sizes()[1]];
    let rows = x.elements().checked_div(k).unwrap_or(0);
    x.dtype == DType::F32 && [rows, k, n].iter().all(|&size| size > 0 && size % UNIT == 0)
}

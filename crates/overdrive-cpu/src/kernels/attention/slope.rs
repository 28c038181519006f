//! The score function of the gradients: the score, and its derivative by the product.

use overdrive_ir::ops::attention_grad::Slopes;
use overdrive_ir::{Builder, Graph, Mismatch};
use overdrive_passes::dce;

/// A score function that also gives its derivative by the product: the first two outputs of
/// [`Slopes::region`].
///
/// # Errors
/// If it reads a captured tensor of floats otherwise than element by element.
pub(super) fn with_slope(score: &Graph) -> Result<Graph, Mismatch> {
    let slopes = Slopes::of(score)?.region;
    let b = Builder::new(slopes.name());
    let inputs = slopes.inputs().iter();
    let inputs: Vec<_> =
        inputs.map(|port| b.input(&port.name, slopes.ty(port.value).clone())).collect();
    // Behind these are the derivatives by captures.
    for (port, value) in slopes.outputs()[..2].iter().zip(b.inline(&slopes, &inputs)) {
        b.output(&port.name, value);
    }
    let whole = b.finish().expect("it is a part of a graph that is well typed");
    Ok(dce(&whole).expect("a graph without what nobody needs is as well typed"))
}

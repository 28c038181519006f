//! What a model is trained to make small.

use overdrive_ir::{Builder, DType, Expr, Graph, GraphError, Shape, TensorType};

/// The graph with an input `labels` (i32, the shape of `y` without its last dimension) and a scalar output `loss`: the
/// mean over all rows of the cross entropy of `y` with them. `y` stays an output.
///
/// # Errors
/// When the graph has no output `y`, or `y` is not `[..., classes]` of a float type.
pub fn with_loss(graph: &Graph) -> Result<Graph, GraphError> {
    let Some(y) = graph.outputs().iter().find(|port| port.name == "y") else {
        let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
        return Err(GraphError {
            op: "cross_entropy".into(),
            scope: graph.name().into(),
            expected: "an output `y` of logits".into(),
            found: format!("outputs {names:?}"),
            remedy: "name the logits `y`".into(),
        });
    };
    let b = Builder::new(graph.name());
    let values = b.append(graph)?;
    b.conclude(graph, |value| values[value.0 as usize]);
    let logits = values[y.value.0 as usize];
    let mut rows = logits.shape().0;
    rows.pop();
    let labels = b.input("labels", TensorType::new(DType::I32, Shape(rows)));
    b.output("loss", mean_cross_entropy(logits, labels));
    b.finish()
}

/// Over all rows. Dimensions may still be names, so the rows are counted in the graph; the count folds once bound.
fn mean_cross_entropy<'b>(logits: Expr<'b>, labels: Expr<'b>) -> Expr<'b> {
    let b = logits.builder();
    let _scope = b.scope("loss");
    let [losses, _] = logits.cross_entropy(labels, None);
    let axes: Vec<usize> = (0..losses.rank()).collect();
    losses.sum(&axes) / b.full(losses.dtype(), losses.shape(), 1.0).sum(&axes)
}

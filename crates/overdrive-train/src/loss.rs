//! What a model is trained to make small.

use overdrive_ir::{
    Builder, Compare, DType, Expr, Graph, GraphError, Port, Reducer, Shape, TensorType,
};

/// The graph with an input `labels` (i32, the shape of `y` without its last dimension) and a scalar
/// output `loss`: the mean over all rows of the cross entropy of `y` with them. `y` stays an
/// output.
///
/// # Errors
/// When the graph has no output `y`, or `y` is not `[..., classes]` of a float type.
pub fn with_loss(graph: &Graph) -> Result<Graph, GraphError> {
    let y = logits(graph)?;
    let b = Builder::new(graph.name());
    let values = b.append(graph)?;
    b.conclude(graph, |value| values[value.0 as usize]);
    let logits = values[y.value.0 as usize];
    b.output("loss", mean_cross_entropy(logits, labels(logits)));
    b.finish()
}

/// The graph with an input `labels` as in [`with_loss`] and, instead of its outputs, two of the
/// shape of `labels`: `loss` in f64, the cross entropy of each row, and `hit`, whether the label's
/// logit is the largest (of equal ones, the first).
///
/// # Errors
/// Those of [`with_loss`].
pub(crate) fn with_judgement(graph: &Graph) -> Result<Graph, GraphError> {
    let y = logits(graph)?;
    let b = Builder::new(graph.name());
    let values = b.append(graph)?;
    let logits = values[y.value.0 as usize];
    let [losses, hits] = judgement(logits, labels(logits));
    b.output("loss", losses);
    b.output("hit", hits);
    let updates = graph.states().iter().filter_map(|state| Some((&state.name, state.update?)));
    updates.for_each(|(name, update)| b.update(name, values[update.0 as usize]));
    b.finish()
}

/// Cross entropy of each row, and whether its largest logit is the label's.
fn judgement<'b>(logits: Expr<'b>, labels: Expr<'b>) -> [Expr<'b>; 2] {
    let b = logits.builder();
    let _scope = b.scope("judgement");
    let [losses, _] = logits.convert(DType::F64).cross_entropy(labels, None);
    let last = logits.rank().saturating_sub(1);
    let classes = b.iota(DType::I32, logits.shape(), last);
    let largest = logits.reduce_keep(Reducer::Max, &[last]).broadcast_to(&logits.shape());
    // A row with a NaN has no largest logit: it is no hit.
    let none = classes.constant(f64::from(i32::MAX));
    let first =
        logits.compare(Compare::Eq, largest).select(classes, none).reduce(Reducer::Min, &[last]);
    [losses, first.compare(Compare::Eq, labels)]
}

/// The output `y`.
fn logits(graph: &Graph) -> Result<&Port, GraphError> {
    graph.outputs().iter().find(|port| port.name == "y").ok_or_else(|| {
        let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
        GraphError {
            op: "cross_entropy".into(),
            scope: graph.name().into(),
            expected: "an output `y` of logits".into(),
            found: format!("outputs {names:?}"),
            remedy: "name the logits `y`".into(),
        }
    })
}

/// The input of what each row of `logits` should be.
fn labels<'b>(logits: Expr<'b>) -> Expr<'b> {
    let mut rows = logits.shape().0;
    rows.pop();
    logits.builder().input("labels", TensorType::new(DType::I32, Shape(rows)))
}

/// Over all rows. Dimensions may still be names, so the rows are counted in the graph; the count
/// folds once bound.
fn mean_cross_entropy<'b>(logits: Expr<'b>, labels: Expr<'b>) -> Expr<'b> {
    let b = logits.builder();
    let _scope = b.scope("loss");
    let [losses, _] = logits.cross_entropy(labels, None);
    let axes: Vec<usize> = (0..losses.rank()).collect();
    losses.sum(&axes) / b.full(losses.dtype(), losses.shape(), 1.0).sum(&axes)
}

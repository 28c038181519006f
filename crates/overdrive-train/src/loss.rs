//! The quantity that training makes small, and the one that a model is judged by.

use crate::data::Target;
use overdrive_ir::{Builder, Compare, DType, Expr, Graph, GraphError, Reducer, Shape, TensorType};

/// The graph with an input `labels` and a scalar output `loss`; `y` stays an output.
///
/// For classes, `labels` are i32 of the shape of `y` without its last dimension. The loss is the
/// mean over all rows of the cross entropy of `y` with them. For a quantity, `labels` are f32 of
/// that shape, and `y` has one output a row. The loss is the mean of the squared difference.
///
/// # Errors
/// When the graph has no output `y`, `y` is not `[..., classes]` of a float type, or has several
/// outputs for a quantity.
pub fn with_loss(graph: &Graph, target: Target) -> Result<Graph, GraphError> {
    let y = output(graph, target)?;
    let b = Builder::new(graph.name());
    let values = b.append(graph)?;
    b.conclude(graph, |value| values[value.0 as usize]);
    let y = values[y];
    let labels = labels(y, target);
    let scope = b.scope("loss");
    let losses = match target {
        Target::Classes => y.cross_entropy(labels, None)[0],
        Target::Quantity => squared_error(y, labels),
    };
    let loss = mean(losses);
    drop(scope);
    b.output("loss", loss);
    b.finish()
}

/// The graph with an input `labels` as in [`with_loss`], and with outputs of the shape of `labels`
/// instead of its own. `loss`, in f64, is the cross entropy or the squared error of each row.
/// `hit`, for classes only, is whether the label's logit is the largest (of equal ones, the first).
///
/// # Errors
/// Those of [`with_loss`].
pub(crate) fn with_judgement(graph: &Graph, target: Target) -> Result<Graph, GraphError> {
    let y = output(graph, target)?;
    let b = Builder::new(graph.name());
    let values = b.append(graph)?;
    let y = values[y];
    let labels = labels(y, target);
    let scope = b.scope("judgement");
    let (losses, hits) = match target {
        Target::Classes => {
            let [losses, _] = y.convert(DType::F64).cross_entropy(labels, None);
            (losses, Some(hits(y, labels)))
        }
        Target::Quantity => {
            (squared_error(y.convert(DType::F64), labels.convert(DType::F64)), None)
        }
    };
    drop(scope);
    b.output("loss", losses);
    hits.into_iter().for_each(|hits| b.output("hit", hits));
    let updates = graph.states().iter().filter_map(|state| Some((&state.name, state.update?)));
    updates.for_each(|(name, update)| b.update(name, values[update.0 as usize]));
    b.finish()
}

/// Whether the largest logit of each row is the label's.
fn hits<'b>(logits: Expr<'b>, labels: Expr<'b>) -> Expr<'b> {
    let b = logits.builder();
    let last = logits.rank().saturating_sub(1);
    let classes = b.iota(DType::I32, logits.shape(), last);
    let largest = logits.reduce_keep(Reducer::Max, &[last]).broadcast_to(&logits.shape());
    // A row with a NaN has no largest logit: it is no hit.
    let none = classes.constant(f64::from(i32::MAX));
    let first =
        logits.compare(Compare::Eq, largest).select(classes, none).reduce(Reducer::Min, &[last]);
    first.compare(Compare::Eq, labels)
}

/// The squared difference of each row's one output from its label.
fn squared_error<'b>(y: Expr<'b>, labels: Expr<'b>) -> Expr<'b> {
    // A sum over the one output takes its dimension away.
    let difference = y.sum(&[y.rank().saturating_sub(1)]) - labels;
    difference * difference
}

/// The number of the value that is the output `y`.
fn output(graph: &Graph, target: Target) -> Result<usize, GraphError> {
    let wrong = |expected: &str, found: String, remedy: &str| GraphError {
        op: match target {
            Target::Classes => "cross_entropy".into(),
            Target::Quantity => "squared_error".into(),
        },
        scope: graph.name().into(),
        expected: expected.into(),
        found,
        remedy: remedy.into(),
    };
    let Some(y) = graph.outputs().iter().find(|port| port.name == "y") else {
        let names: Vec<&str> = graph.outputs().iter().map(|port| port.name.as_str()).collect();
        let found = format!("outputs {names:?}");
        return Err(wrong("an output `y` of logits", found, "name the logits `y`"));
    };
    let ty = graph.ty(y.value);
    let outputs = ty.shape.0.last().and_then(|dim| dim.size());
    if target == Target::Quantity && outputs != Some(1) {
        let remedy = "learn classes, or choose a model with one output";
        return Err(wrong("one output a row for a quantity", ty.to_string(), remedy));
    }
    Ok(y.value.0 as usize)
}

/// The input of what each row of `y` should be.
fn labels(y: Expr<'_>, target: Target) -> Expr<'_> {
    let mut rows = y.shape().0;
    rows.pop();
    let dtype = match target {
        Target::Classes => DType::I32,
        Target::Quantity => DType::F32,
    };
    y.builder().input("labels", TensorType::new(dtype, Shape(rows)))
}

/// Over all rows. Dimensions may still be names, so the rows are counted in the graph; the count
/// folds once bound.
fn mean(losses: Expr<'_>) -> Expr<'_> {
    let axes: Vec<usize> = (0..losses.rank()).collect();
    let ones = losses.builder().full(losses.dtype(), losses.shape(), 1.0);
    losses.sum(&axes) / ones.sum(&axes)
}

//! The training step as one graph: forward, loss, backward, clipping, the optimizer.
//!
//! Inputs are those of the model, `labels` and the learning rate `lr`; parameters, moments and the
//! count of updates are states. Outputs: `loss`, `grad_norm` before clipping, and `applied`, 1
//! where the gradients were finite and the states changed, else 0. Invariant: a step with a NaN or
//! an infinity leaves every parameter as it was, so that it can be looked into (`diagnose.rs`).
//! Delayed scales of fp8 are states too: each batch makes them new, one that is only added to
//! others as well. Those of weights are made new with the weights.

use crate::hidden::hidden_matrices;
use crate::optimizer::Shared;
use crate::{LossScaling, Optimizer, Recipe, TrainError, kept, kept_codes, kept_model, moments};
use overdrive_ir::{
    Binary, Builder, Compare, DType, Expr, Graph, GraphError, Init, Mesh, StateDecl, TensorType,
    Unary, Value, gradients,
};
use overdrive_passes::{
    DelayedScales, Float8, OfUpdate, Stages, attend_in_float8, cse, dce, float8, fold, keep_sums,
    precision, reassociate,
};
use std::collections::{BTreeMap, BTreeSet};

/// The scope of all that follows gradients.
pub(crate) const OPTIMIZER: &str = "optimizer";
/// Number of updates so far.
pub(crate) const COUNT: &str = "optimizer.count";
pub(crate) const SCALE: &str = "optimizer.loss_scale";
const SINCE: &str = "optimizer.since_scaled";
/// Begins the names of sums of gradients of earlier batches.
const SUM: &str = "optimizer.sum.";

/// Whether a checkpoint needs what a step makes of a state. Sums of gradients are zero between
/// steps, and copies and codes of parameters are made of them.
pub(crate) fn is_kept(state: &StateDecl) -> bool {
    let is_copy = kept::copied(&state.name).is_some() || kept_codes::is_code(&state.name);
    state.update.is_some() && !is_copy && !state.name.starts_with(SUM)
}

/// Keeps the quotient of a zero norm finite.
const TINY: f64 = 1e-6;

/// The parameters of a model that a training step changes: its float states that it does not update
/// itself and that the recipe trains.
pub fn parameters<'g>(
    graph: &'g Graph,
    recipe: &'g Recipe,
) -> impl Iterator<Item = (&'g str, Value)> {
    let trained = graph.states().iter().filter(|state| {
        state.update.is_none()
            && graph.ty(state.value).dtype == DType::F32
            && recipe.trains(&state.name)
    });
    trained.map(|s| (s.name.as_str(), s.value))
}

/// Errs where a state holds weights in a format that no step changes: they would stay as they are,
/// in silence. Integers as wide as an index are tables, and stay.
fn check_formats(graph: &Graph) -> Result<(), TrainError> {
    let dtype = |state: &StateDecl| graph.ty(state.value).dtype;
    let stays = |state: &&StateDecl| {
        state.update.is_some()
            || matches!(
                dtype(state),
                DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::Bool
            )
    };
    match graph.states().iter().find(|state| !stays(state)) {
        None => Ok(()),
        Some(state) => {
            let place = format!("`{}`, parameter `{}`", graph.name(), state.name);
            let remedy = "train the float model, then quantize it: `overdrive quantize MODEL \
                          --mode MODE -o DIR`";
            Err(TrainError::invalid(place, "weights in f32", dtype(state), remedy))
        }
    }
}

/// The use of gradients in the graph of one batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Adds them to the sums of earlier batches.
    Accumulate,
    /// Averages them with the sums, and updates.
    Update,
}

/// Most batches of a step in stages. Its plan has the steps of all of them, and planning takes time
/// and memory in proportion or more.
const MOST_BATCHES: usize = 256;

/// The step of a bound graph with output `loss` ([`crate::with_loss`]), for ranks of this mesh.
/// With stages along `pipeline` it takes all batches of an update at once, by the names of
/// [`overdrive_passes::of_batch`]; else it is [`training_step`].
///
/// # Errors
/// As that, and when the model or the recipe does not go in so many stages.
pub fn training_step_on(graph: &Graph, recipe: &Recipe, mesh: &Mesh) -> Result<Graph, TrainError> {
    let count = mesh.size(&Mesh::PIPELINE.into());
    if count == 1 {
        return training_step(graph, recipe);
    }
    if recipe.float8.is_some() {
        let expected = "a recipe without codes of fp8, since scales follow each batch";
        let found = recipe.formats().name().unwrap_or("fp8").to_owned();
        let remedy = "train in bf16, or leave `pipeline` out of the mesh";
        return Err(TrainError::invalid("mesh, `pipeline`", expected, found, remedy));
    }
    if recipe.accumulate > MOST_BATCHES {
        let expected = format!("at most {MOST_BATCHES} batches of an update that goes in stages");
        let remedy = "use fewer and larger batches: past eight for each stage little is idle";
        return Err(TrainError::invalid("recipe, accumulate", expected, recipe.accumulate, remedy));
    }
    let staged = Stages::divide(graph, count)?.pipeline(graph, recipe.accumulate)?;
    training_step(&staged, &Recipe { accumulate: 1, ..recipe.clone() })
}

/// The step of a bound graph with output `loss` ([`crate::with_loss`]), contractions in the
/// recipe's precision. With `accumulate` above 1, this is the last batch of each update.
///
/// # Errors
/// When the graph has no output `loss`, or its gradients do not fit together.
pub fn training_step(graph: &Graph, recipe: &Recipe) -> Result<Graph, TrainError> {
    graph_of(graph, recipe, Role::Update)
}

pub(crate) fn graph_of(graph: &Graph, recipe: &Recipe, role: Role) -> Result<Graph, TrainError> {
    if let Some(node) = graph.nodes().iter().find(|node| node.op.name() == "batch_norm") {
        let (place, expected) =
            (format!("{}, {}", graph.name(), node.scope), "layers that gradients alone train");
        let remedy = "its running statistics are no parameters; choose a model without it";
        return Err(TrainError::invalid(place, expected, "batch_norm", remedy));
    }
    check_formats(graph)?;
    let hidden = hidden(graph, recipe)?;
    let names: Vec<&str> = parameters(graph, recipe).map(|(name, _)| name).collect();
    let graph = &in_formats(graph, recipe)?;
    let Some(loss) = graph.outputs().iter().find(|port| port.name == "loss").map(|port| port.value)
    else {
        let remedy = "add it with `with_loss`";
        return Err(TrainError::invalid(graph.name(), "an output `loss`", "none", remedy));
    };
    let stages = Stages::of(graph);
    let suffix = if role == Role::Update { "step" } else { "accumulate" };
    let b = Builder::new(&format!("{}.{suffix}", graph.name()));
    let values = kept_model::append(&b, graph, &names, recipe);
    let loss_value = values[loss.0 as usize];
    let scaling = recipe.loss_scaling();
    let scale = scaling
        .map(|s| b.state_named(SCALE, TensorType::scalar(DType::F32), Init::Constant(s.initial)));
    let seed = scale.unwrap_or_else(|| loss_value.constant(1.0)).convert(loss_value.dtype());
    let state = |name: &&str| graph.states().iter().find(|state| state.name == **name);
    let trained = names.iter().map(|name| state(name).expect("passes keep states").value);
    let scales = DelayedScales::of(graph);
    let wrt: Vec<Value> = trained.chain(scales.of_gradients()).collect();
    let mut found = gradients(&b, graph, &values, &[(loss, seed)], &wrt);
    let largest = found.split_off(names.len());
    let scope = b.scope(OPTIMIZER);
    let mut trained = Vec::new();
    for (name, gradient) in names.into_iter().zip(found) {
        let p = kept::read(&b, name);
        let g = gradient.unwrap_or_else(|| b.full(DType::F32, p.shape(), 0.0));
        trained.push((name, p, if recipe.accumulate > 1 { summed(name, g, role) } else { g }));
    }
    let loss = stages.as_ref().map_or(loss_value, |stages| stages.total(loss_value));
    b.output("loss", loss);
    if role == Role::Update {
        let norm = norm(&trained, stages.as_ref()).unwrap_or_else(|| loss.constant(0.0));
        update((&b, &hidden), &trained, recipe, scale.zip(scaling), [loss, norm]);
    }
    drop(scope);
    let batch = OfUpdate { batches: recipe.accumulate, is_last: role == Role::Update };
    scales.update((&b, &values), &largest, batch);
    // The count of rows that a mean divides by, for one, is known.
    let known = fold(&b.finish()?)?;
    let step = dce(&cse(&keep_sums(&reassociate(&dce(&known)?)?)?)?)?;
    // Once gradients are those of the numbers.
    match &recipe.float8 {
        Some(Float8 { attention: true, .. }) => Ok(attend_in_float8(&step)?.0),
        _ => Ok(step),
    }
}

/// The trained matrices of hidden layers, which Muon updates; none for other rules.
fn hidden(graph: &Graph, recipe: &Recipe) -> Result<BTreeSet<String>, TrainError> {
    let Optimizer::Muon { .. } = recipe.optimizer else { return Ok(BTreeSet::new()) };
    let mut found = hidden_matrices(graph);
    found.retain(|name| recipe.trains(name));
    if found.is_empty() {
        let expected = "a matrix of a hidden layer that is trained, for `muon`";
        let remedy = "train with `adamw`, which `muon` uses for all other parameters";
        return Err(TrainError::invalid(graph.name(), expected, "none", remedy));
    }
    Ok(found)
}

/// The forward graph in the formats of the recipe. Gradients are rounded to the formats of their
/// values. So formats are settled before gradients are built.
pub(crate) fn in_formats(graph: &Graph, recipe: &Recipe) -> Result<Graph, GraphError> {
    let formats = overdrive_passes::Recipe { contractions: recipe.precision };
    match &recipe.float8 {
        Some(codes) => precision(&float8(graph, codes, recipe.precision)?, &formats),
        None => precision(graph, &formats),
    }
}

/// The gradient with the sum of earlier batches added, which lives in a state of its own.
fn summed<'b>(name: &str, g: Expr<'b>, role: Role) -> Expr<'b> {
    let (b, state) = (g.builder(), format!("{SUM}{name}"));
    let sum = b.state_named(&state, g.ty(), Init::ZEROS) + g;
    let kept = if role == Role::Accumulate { sum } else { b.full(DType::F32, g.shape(), 0.0) };
    b.update(&state, kept);
    sum
}

/// The sum of squares of all gradients. Gradients of one shape are summed to vectors, a few at a
/// time, and the vectors are added. So a model of hundreds of parameters has dozens of such sums,
/// not hundreds.
fn sum_of_squares<'b>(trained: &[(&str, Expr<'b>, Expr<'b>)]) -> Option<Expr<'b>> {
    /// As many gradients as a loop has registers to sum at once.
    const TOGETHER: usize = 8;
    let mut alike: BTreeMap<Vec<usize>, Vec<Expr<'b>>> = BTreeMap::new();
    for (_, _, g) in trained {
        alike.entry(g.sizes()).or_default().push(*g);
    }
    let sums = alike.values().flat_map(|gradients| gradients.chunks(TOGETHER)).map(|some| {
        let rows: Vec<usize> = (0..some[0].rank().saturating_sub(1)).collect();
        let squares = some.iter().map(|g| (*g * *g).sum(&rows));
        let squares = squares.reduce(|sum, square| sum + square).expect("a chunk is not empty");
        squares.sum(&(0..squares.rank()).collect::<Vec<_>>())
    });
    sums.reduce(|sum, more| sum + more)
}

/// The norm of all gradients together, those of all stages.
fn norm<'b>(trained: &[(&str, Expr<'b>, Expr<'b>)], stages: Option<&Stages>) -> Option<Expr<'b>> {
    let Some(stages) = stages else { return Some(sum_of_squares(trained)?.sqrt()) };
    let of_stage = |stage: usize| {
        let is_own = |(name, ..): &&(&str, Expr<'b>, Expr<'b>)| {
            stages.home(name).unwrap_or_default() == stage
        };
        let own: Vec<_> = trained.iter().filter(is_own).copied().collect();
        Some(stages.only(stage, sum_of_squares(&own)?))
    };
    let sum = (0..stages.count).filter_map(of_stage).reduce(|sum, more| sum + more)?;
    Some(stages.total(sum).sqrt())
}

/// Clips and applies the gradients of the parameters. They are those of the sum of all batches,
/// times the scale of the loss, and so is their norm.
fn update<'b>(
    (b, hidden): (&'b Builder, &BTreeSet<String>),
    trained: &[(&str, Expr<'b>, Expr<'b>)],
    recipe: &Recipe,
    scale: Option<(Expr<'b>, LossScaling)>,
    [loss, norm]: [Expr<'b>; 2],
) {
    // One factor undoes both. In an epilogue of each product it would cost the library's kernels.
    let weight = 1.0 / recipe.accumulate as f64;
    let undo = match scale {
        Some((scale, _)) => Some(scale.unary(Unary::Reciprocal) * weight),
        None => (recipe.accumulate > 1).then(|| norm.constant(weight)),
    };
    let norm = undo.map_or(norm, |undo| norm * undo);
    let lr = b.input("lr", TensorType::scalar(DType::F32));
    let finite = |x: Expr<'b>| x.unary(Unary::Abs).compare(Compare::Lt, x.constant(f64::INFINITY));
    let finite = finite(norm).binary(Binary::And, finite(loss));
    let count = b.state_named(COUNT, TensorType::scalar(DType::I64), Init::ZEROS);
    let next = count + finite.convert(DType::I64);
    b.update(COUNT, next);
    // An update that is not applied would count from 0, where nothing is defined.
    let count = next.max(next.constant(1.0));
    let moments = (recipe.moments, moments::of_step(count));
    let clip = recipe.clip_norm.map(|clip| (clip / (norm + TINY)).min(norm.constant(1.0)));
    let factor = match (clip, undo) {
        (Some(clip), Some(undo)) => Some(clip * undo),
        (one, other) => one.or(other),
    };
    // The range of f16 is too small for sums of products of moments.
    let products = if recipe.precision == DType::BF16 { DType::BF16 } else { DType::F32 };
    let seed = kept::seed_of_step(count, recipe.seed);
    let shared = Shared { lr, count, finite, factor, moments, seed, products };
    for &(name, p, g) in trained {
        let _scope = b.scope(name);
        recipe.optimizer.update((name, hidden.contains(name)), [p, g], shared);
    }
    if let Some((scale, scaling)) = scale {
        let since = b.state_named(SINCE, TensorType::scalar(DType::I32), Init::ZEROS);
        let grows = (since + since.constant(1.0))
            .compare(Compare::Ge, since.constant(f64::from(scaling.growth_interval)));
        b.update(SCALE, finite.select(grows.select(scale * 2.0, scale), scale * 0.5));
        let counted = grows.select(since.constant(0.0), since + since.constant(1.0));
        b.update(SINCE, finite.select(counted, since.constant(0.0)));
    }
    b.output("grad_norm", norm);
    b.output("applied", finite.convert(DType::F32));
}

//! `quantize` for files of ONNX: the model that one holds, and the one that is written.
//!
//! A file is read for given sizes, so that its quantized graph is of those sizes too. At other
//! sizes the layers are declared anew and begin as the states of the same names. Invariant: the
//! written file is read back, and computes the same as the judged model, up to rounding.

use super::chosen::{Chosen, harness};
use super::subject::Subject;
use crate::failure::Failure;
use crate::freeing::Freed;
use crate::model::{self, Model};
use overdrive::formats::onnx::{self, Binding, Dialect};
use overdrive::ir::ops::quantized_linear::Activations;
use overdrive::ir::{Backend, DType, Graph, Tensor};
use overdrive::passes::{Scheme, declare};
use overdrive::studies::Template;
use overdrive::studies::quantization::outputs;
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the file in a folder that holds the model in our format too.
pub(super) const NAME: &str = "model.onnx";

/// `export --standard-ops` makes a file without ops of ONNX Runtime.
const DIALECT: Dialect = Dialect::Microsoft;

/// Largest error of the file's outputs against ours, relative to their size. Both multiply the same
/// codes, and add in another order. If activations are rounded at run time, that order may decide a
/// rounding. The file is then no further away than the float model is. In 16 bits both round on
/// their ways, each about as far from the float model. So they are at most twice as far apart.
const NEAR: f64 = 1e-3;

/// Whether the user wants one file.
pub(super) fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "onnx")
}

/// The quantized model as a file whose dimensions are free, as far as they can be.
pub(super) fn encode(path: &Path, subject: &Subject, chosen: &Chosen) -> Result<Freed, Failure> {
    let made = &chosen.made.graph;
    let Model::Onnx(_) = subject.model else {
        let template = Template { graph: made.clone(), ..subject.template.clone() };
        let model = Model::Template(Box::new(template));
        let dimensions = model.dimensions()?;
        let given = BTreeMap::new();
        return model.built(|build| Freed::encode(path, &dimensions, &given, (build, DIALECT)))?;
    };
    let schemes: BTreeMap<String, Scheme> = chosen
        .made
        .layers
        .iter()
        .filter_map(|layer| Some((layer.name.clone(), layer.scheme?)))
        .collect();
    let dimensions: Vec<_> = subject.model.dimensions()?;
    let dimensions: Vec<_> = dimensions
        .into_iter()
        .map(|(name, usual)| (name.clone(), subject.sizes.get(&name).copied().or(usual)))
        .collect();
    let at = |sizes: &BTreeMap<String, usize>, float: Graph| match *sizes == subject.sizes {
        true => Ok(made.clone()),
        false => coded(&float, made, &schemes),
    };
    subject.model.built(|build| {
        let build = |sizes: &BTreeMap<String, usize>| at(sizes, build(sizes)?);
        Freed::encode(path, &dimensions, &BTreeMap::new(), (&build, DIALECT))
    })?
}

/// The float graph with the codes of `made`, which was made of the same model at other sizes.
fn coded(
    float: &Graph,
    made: &Graph,
    schemes: &BTreeMap<String, Scheme>,
) -> Result<Graph, Failure> {
    let graph = declare(float, schemes).map_err(Failure::bad_input)?;
    let known: BTreeMap<&str, _> = made
        .states()
        .iter()
        .map(|state| (state.name.as_str(), (made.ty(state.value), &state.init)))
        .collect();
    let lacks =
        |name: &str| Failure::bad_input(format!("`{name}` has other sizes where the model has"));
    for state in graph.states() {
        match known.get(state.name.as_str()) {
            Some((ty, _)) if *ty == graph.ty(state.value) => {}
            _ => return Err(lacks(&state.name)),
        }
    }
    if let Some(more) =
        made.states().iter().find(|s| graph.states().iter().all(|other| other.name != s.name))
    {
        return Err(lacks(&more.name));
    }
    Ok(graph.with_initial_values(|name, _| known[name].1.clone()))
}

/// Errs unless the file, read back at the sizes of these inputs, gives outputs near to those of the
/// quantized model.
pub(super) fn check(
    backend: &dyn Backend,
    (path, subject, chosen): (&Path, &Subject, &Chosen),
    held_out: &[Vec<Tensor>],
    [float, expected]: [&[Vec<Tensor>]; 2],
) -> Result<(), Failure> {
    let file = onnx::Model::open(path).map_err(Failure::harness)?;
    let known =
        |name: &String| subject.sizes.get(name).or_else(|| subject.template.dimensions.get(name));
    let names = file.dimensions().map_err(Failure::harness)?;
    let sizes = names.iter().filter_map(|name| Some((name.clone(), *known(name)?))).collect();
    let graph = file.graph(&Binding { sizes, ..Binding::default() }).map_err(Failure::harness)?;
    let found = outputs(backend, &model::raised(graph)?, held_out).map_err(harness)?;
    let away = distance(&found, expected);
    let schemes = || chosen.made.layers.iter().filter_map(|layer| layer.scheme);
    // Readers round results to 16 bits where we keep sums, or the other way round.
    let unit = schemes().filter_map(|s| s.half()).map(DType::epsilon).fold(NEAR, f64::max);
    let of_float = match (unit > NEAR, schemes().any(|s| s.activations != Activations::Float)) {
        (true, _) => 2.0 * distance(float, expected),
        (false, true) => distance(float, expected),
        (false, false) => 0.0,
    };
    let limit = unit.max(of_float);
    match away <= limit {
        true => Ok(()),
        false => Err(Failure::harness(format!(
            "the file that was written: expected outputs within {limit:.1e} of those that were \
             judged, found \
             {away:.1e}; nothing was kept; write a folder, which has the model bit for bit: -o DIR"
        ))),
    }
}

/// Errs unless these outputs are near to those that were judged, as a file's must be.
pub(in crate::commands) fn check_near(
    what: &str,
    found: &[Vec<Tensor>],
    judged: &[Vec<Tensor>],
) -> Result<(), Failure> {
    let away = distance(found, judged);
    match away <= NEAR {
        true => Ok(()),
        false => Err(Failure::harness(format!(
            "{what}: expected outputs within {NEAR:.1e} of those that were judged, found \
             {away:.1e}; `quantize --export` judges the model with the scales of this format"
        ))),
    }
}

/// How far outputs are away from others, relative to their size, where they are furthest.
fn distance(found: &[Vec<Tensor>], expected: &[Vec<Tensor>]) -> f64 {
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let of = |(found, expected): (&Tensor, &Tensor)| {
        let (found, expected) = (found.to_f64(), expected.to_f64());
        if found.len() != expected.len() {
            return f64::INFINITY;
        }
        let both = found.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits());
        let error: f64 = both.map(|(a, b)| (a - b).powi(2)).sum();
        let size: f64 = expected.iter().filter(|x| x.is_finite()).map(|x| x * x).sum();
        if error == 0.0 { 0.0 } else { (error / size).sqrt() }
    };
    // Not the largest by `max`, which passes NaN over.
    pairs.map(of).fold(0.0, |most, away| if away <= most { most } else { away })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_near_only_where_every_one_is() {
        let of = |values: [f32; 2]| vec![vec![Tensor::from_f32([2], &values)]];
        assert_eq!(distance(&of([1.0, f32::INFINITY]), &of([1.0, f32::INFINITY])), 0.0);
        assert!(distance(&of([3.0, 4.0]), &of([3.0, 4.001])) < NEAR);
        assert!(distance(&of([3.0, 4.0]), &of([3.0, 4.1])) > NEAR);
        assert!(distance(&of([3.0, f32::NAN]), &of([3.0, 4.0])).is_nan());
    }
}

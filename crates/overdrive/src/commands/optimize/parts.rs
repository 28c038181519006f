//! The cost of each layer alone: its time by shape, and the loss of the model if only that layer is
//! quantized (`losses.rs`).

use super::losses::losses;
use super::machine::OwnMachine;
use super::underway::Counted;
use overdrive::bench::failure::Failure as Unable;
use overdrive::bench::oracle::normal_inputs;
use overdrive::ir::{Builder, Graph, GraphError, Init, Value};
use overdrive::optimize::{Care, Halt, LayerFacts, Parts};
use overdrive::passes::{
    Layer, LayerKind, Quantization, QuantizationMode, Rounding, layers, quantize,
};
use overdrive::studies::quantization::{calibrate, latency};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The float form of a layer.
const FLOAT: &str = "float";

/// Every layer in every mode that it can take.
pub(super) fn parts(machine: &OwnMachine<'_>, modes: &[String]) -> Result<Parts, Halt> {
    let declined = |error: GraphError| Halt::Declined(error.to_string());
    let bound = &machine.float;
    let step = machine.step.map(|step| step.in_f32()).transpose().map_err(declined)?;
    let timed = step.as_ref().unwrap_or(bound);
    let (found, _) = layers(timed).map_err(declined)?;
    let meant: Vec<(&str, Quantization)> = modes
        .iter()
        .map(|mode| {
            let known = QuantizationMode::find(mode).expect("mixes are of modes");
            (mode.as_str(), machine.subject.quantization(known.quantization()))
        })
        .collect();
    let can = |layer: &Layer| meant.iter().any(|(_, meant)| meant.of(&layer.name).is_some());
    let names: Vec<String> = found.iter().map(|layer| layer.name.clone()).collect();
    let found: Vec<Layer> = found.into_iter().filter(can).collect();
    let mut parts = Parts { layers: facts(timed, &found), ..Parts::default() };
    losses(machine, &mut parts, (&names, &meant))?;
    let classes: BTreeSet<&str> = parts.layers.iter().map(|facts| facts.class.as_str()).collect();
    let all = classes.len();
    for (layer, facts) in found.iter().zip(parts.layers.clone()) {
        let at = parts.times_ns.len() + 1;
        let Entry::Vacant(class) = parts.times_ns.entry(facts.class) else { continue };
        machine.going()?;
        machine.underway.comes_to(Counted::Shapes, [at, all]);
        machine.tell("timing", class.key());
        let times = times(machine, (timed, layer), &meant);
        class.insert(times.map_err(|unable| machine.halt(&unable))?);
    }
    Ok(parts)
}

/// Groups are layers that read one value: engines run them as one product.
fn facts(graph: &Graph, found: &[Layer]) -> Vec<LayerFacts> {
    let mut groups: Vec<(Value, String)> = Vec::new();
    let mut all = Vec::new();
    for layer in found {
        let read = graph.node(layer.parts[0].node).operands[0];
        let group = match groups.iter().find(|(known, _)| *known == read) {
            Some((_, group)) if layer.kind == LayerKind::Linear => group.clone(),
            _ => {
                groups.push((read, layer.name.clone()));
                layer.name.clone()
            }
        };
        let node = graph.node(layer.parts[0].node);
        let types: Vec<String> =
            node.operands.iter().map(|value| graph.ty(*value).to_string()).collect();
        all.push(LayerFacts {
            name: layer.name.clone(),
            group,
            class: format!("{} x{}", types.join(" by "), layer.parts.len()),
            float_bytes: 4 * (layer.shape[0] * layer.shape[1]) as u64,
        });
    }
    all
}

/// Median nanoseconds of a layer alone, in float and in each mode that it can take.
fn times(
    machine: &OwnMachine<'_>,
    (bound, layer): (&Graph, &Layer),
    meant: &[(&str, Quantization)],
) -> Result<BTreeMap<String, f64>, Unable> {
    let failed = |error: GraphError| Unable::failed(error.to_string());
    let float = alone(bound, layer).map_err(failed)?;
    let mut graphs = vec![(FLOAT, float.clone())];
    let batches = [normal_inputs(&float, machine.seed)];
    for (mode, meant) in meant {
        let Some(mut scheme) = meant.of(&layer.name) else { continue };
        // How codes were found does not show in their time.
        scheme.rounding = Rounding::Nearest;
        let nearest = Quantization { scheme, layers: BTreeMap::new(), ..meant.clone() };
        let evidence = calibrate(machine.backend, &float, &nearest.statistics(), &batches)?;
        let made = quantize(&float, &nearest, &evidence).map_err(failed)?;
        if !made.layers.is_empty() {
            graphs.push((*mode, made.graph));
        }
    }
    let draw = |seed: u64| normal_inputs(&float, seed);
    let conditions = machine.conditions(Care::Screening);
    let subjects: Vec<&Graph> = graphs.iter().map(|(_, graph)| graph).collect();
    let timed = latency(machine.backend, &subjects, &mut [], &draw, conditions)?;
    let parts = layer.parts.len() as f64;
    let known = graphs.iter().zip(&timed).filter_map(|((name, _), timed)| {
        let latency = timed.outcome.measurement()?.latency.as_ref()?;
        Some(((*name).to_owned(), parts * latency.summary.median_ns))
    });
    Ok(known.collect())
}

/// A graph of one product of a layer: its input, a weight of normal values, its output.
fn alone(bound: &Graph, layer: &Layer) -> Result<Graph, GraphError> {
    let node = bound.node(layer.parts[0].node);
    let b = Builder::new("layer");
    let ty = |at: usize| bound.ty(node.operands[at]).clone();
    let x = b.input("x", ty(0));
    let w = b.state("layer.weight", ty(1), Init::Normal { std: 0.02, seed: 1 });
    b.output("y", b.op1(node.op.clone(), &[x, w]));
    b.finish()
}

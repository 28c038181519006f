//! `declare` writes quantized layers into a graph before there are any codes: what a file of codes
//! is loaded into.
//!
//! A published architecture is built anew for every span of tokens, and its codes are read from a
//! file. Invariant: the graph and its states are those that [`quantize`](crate::quantize) makes for
//! these schemes.

use super::Scheme;
use super::coded::Coded;
use super::halves::Halved;
use super::layers::{Layer, layers};
use super::rewrite::rebuild;
use super::tables::tables;
use overdrive_ir::{Graph, GraphError};
use std::collections::{BTreeMap, BTreeSet};

/// The graph in which layers and tables of these names have codes, and weights of these names 16
/// bits.
/// Their states begin as zeros.
///
/// # Errors
/// When there is no layer of a name, or it cannot take its scheme.
pub fn declare(graph: &Graph, schemes: &BTreeMap<String, Scheme>) -> Result<Graph, GraphError> {
    let half = |name: &str| schemes.get(name).and_then(Scheme::half);
    let codes = |name: &str| schemes.get(name).filter(|scheme| scheme.half().is_none());
    let (found, skipped) = layers(graph)?;
    let tables_of = |graph: &Graph| -> Vec<Layer> {
        let tables = tables(graph).into_iter().map(|table| table.layer);
        tables.filter(|table| codes(&table.name).is_some()).collect()
    };
    let error = |name: &str, expected: String, found: String| GraphError {
        op: "quantize".into(),
        scope: name.to_owned(),
        expected,
        found,
        remedy: "the file is of another model, or damaged: quantize the model again".into(),
    };
    let known = tables_of(graph);
    let named: BTreeSet<&str> =
        found.iter().chain(&known).map(|layer| layer.name.as_str()).collect();
    let is_lacking = |name: &&String| codes(name).is_some() && !named.contains(name.as_str());
    if let Some(name) = schemes.keys().find(is_lacking) {
        let reason = skipped.iter().find(|skipped| skipped.layer == *name);
        let found = reason.map_or("no such layer".to_owned(), |skipped| skipped.reason.clone());
        return Err(error(name, "a layer whose weight can be quantized".into(), found));
    }
    let coded_in = |graph: &Graph, found: &[Layer]| {
        let mut unloaded = Vec::new();
        for layer in found {
            let Some(scheme) = codes(&layer.name) else { continue };
            let of_layer = Coded::unloaded(layer, scheme);
            unloaded.push(of_layer.map_err(|m| error(&layer.name, m.expected, m.found))?);
        }
        let placed: Vec<_> = unloaded.iter().map(|coded| (coded.layer, coded)).collect();
        rebuild(graph, &placed, &|coded, product| coded.build(product))
    };
    let mut coded = coded_in(graph, &found)?;
    // Tables come after layers, as in the pass.
    let of_tables = tables_of(&coded);
    if !of_tables.is_empty() {
        coded = coded_in(&coded, &of_tables)?;
    }
    if schemes.values().all(|scheme| scheme.half().is_none()) {
        return Ok(coded);
    }
    let halved = Halved::of(graph, &coded, &half)?;
    let named: BTreeSet<&str> = halved.weights.iter().map(|weight| weight.name.as_str()).collect();
    match schemes.keys().find(|name| half(name).is_some() && !named.contains(name.as_str())) {
        Some(name) => Err(error(name, "a weight in f32".into(), "no such weight".into())),
        None => Ok(halved.graph),
    }
}

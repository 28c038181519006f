//! `observe_beside` observes a model beside the float model that it was made of.
//!
//! Each layer that is still in float gets its [`Statistic::Drift`] too: how far the codes before it
//! have moved its inputs. Invariant: outputs and updates are those of the quantized model.

use super::layers::layers;
use super::output_errors::Branch;
use crate::observe::{SiteInput, add_outputs};
use crate::{Statistic, sites};
use overdrive_ir::{Builder, Graph, GraphError, Value};
use std::collections::BTreeMap;

/// Like [`observe`](crate::observe), for a `graph` that has codes in some layers of `float`. Both
/// are bound to the same sizes. The inputs of the float model come after those of the graph, as
/// `float.NAME`: blocks behind others have inputs that have drifted too. At sites of no layer that
/// both models have in float, nothing has drifted.
///
/// # Errors
/// When a graph is damaged.
pub fn observe_beside(
    graph: &Graph,
    float: &Graph,
    statistics: &[Statistic],
) -> Result<Graph, GraphError> {
    let (exact, _) = layers(float)?;
    let (left, _) = layers(graph)?;
    let input = |layer: &str| -> Option<Value> {
        let same = exact.iter().find(|exact| exact.name == layer)?;
        Some(float.node(same.parts[0].node).operands[0])
    };
    let of_site: BTreeMap<&str, Value> =
        left.iter().filter_map(|layer| Some((&*layer.site, input(&layer.name)?))).collect();
    let b = Builder::new(graph.name());
    let [mut first, mut second] = [float, graph].map(Branch::new);
    for (value, expr) in b.declare(graph) {
        second.map[value.0 as usize] = Some(expr);
    }
    for port in float.inputs() {
        let ty = float.ty(port.value).clone();
        first.map[port.value.0 as usize] = Some(b.input(&format!("float.{}", port.name), ty));
    }
    first.share_states((&b, "float"), &second);
    first.compute(&b, float.nodes().len());
    second.compute(&b, graph.nodes().len());
    b.conclude(graph, |v| second.get(&v));
    for site in sites(graph) {
        let x = second.get(&graph.node(site.node).operands[0]);
        let float = of_site.get(&*site.name).map_or(x, |value| first.get(value));
        add_outputs(&b, (graph, &site), SiteInput { x, float }, statistics);
    }
    b.finish()
}

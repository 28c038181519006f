//! The f64 outputs that every variant of a workload is held against.

use super::Workload;
use crate::Context;
use crate::referee::Referee;
use crate::reference::{Reference, ReferenceRunner};
use crate::tolerance::{perturbed, rounds_to_codes, with_perturbed_states};
use overdrive_bench::oracle::Oracle;
use overdrive_ir::Tensor;
use std::rc::Rc;

/// Above this many FLOPs the reference is the graph in f64 on the CPU back end, which is itself
/// tested against the evaluator. Below it, the reference is the evaluator itself.
const EVALUATOR_FLOPS: u64 = 1_000_000_000;
/// The same as the first where codes are multiplied: the definition looks a scale up for every
/// product, and twins are evaluated too.
const EVALUATOR_FLOPS_OF_CODES: u64 = 10_000_000;
/// The same for attention with a score or mask function: the definition interprets it for every
/// pair of a query and a key.
const EVALUATOR_FLOPS_OF_FUNCTIONS: u64 = 10_000_000;

impl Workload {
    /// The oracle of this workload, by the device that is measured where its f64 is quicker than
    /// the host's.
    pub fn oracle<'a>(&'a self, context: &'a Context<'_>) -> Oracle<'a> {
        self.oracle_of_many(context, 1)
    }

    /// The same for one of several workloads, whose references share the device's memory.
    pub(crate) fn oracle_of_many<'a>(
        &'a self,
        context: &'a Context<'_>,
        workloads: usize,
    ) -> Oracle<'a> {
        let device = Some(context.device().backend);
        self.judged_by(Referee { device, workloads, ..Referee::host(context.reference) })
    }

    /// The oracle whose larger evaluations the referee sees to.
    pub(crate) fn judged_by<'a>(&'a self, referee: Referee<'a>) -> Oracle<'a> {
        let graph = self.sampled.as_ref().map_or(&self.graph, |sampled| &sampled.graph);
        let has_codes = rounds_to_codes(graph);
        let has_functions =
            graph.nodes().iter().any(|node| node.op.prim().is_none() && !node.regions.is_empty());
        let limit = match (has_codes, has_functions) {
            (true, _) => EVALUATOR_FLOPS_OF_CODES,
            (false, true) => EVALUATOR_FLOPS_OF_FUNCTIONS,
            (false, false) => EVALUATOR_FLOPS,
        };
        let is_small = self.sampled.is_none() && self.graph.cost().flops <= limit;
        let place = match is_small {
            true => ReferenceRunner::Evaluator,
            false => ReferenceRunner::On(
                referee.choosing(graph, self.probe.as_ref().filter(|_| !has_codes)),
            ),
        };
        let name = match &self.sampled {
            Some(sampled) => format!("{} rows of {place}", sampled.picked.len()),
            None => place.to_string(),
        };
        let part = |tensors: &[Tensor]| {
            let mut part = tensors.to_vec();
            if let Some(sampled) = &self.sampled {
                part[..sampled.inputs].iter_mut().for_each(|tensor| *tensor = sampled.of(tensor));
            }
            part
        };
        let reference = Rc::new(Reference::new(graph, place));
        let plain = Rc::clone(&reference);
        let oracle =
            Oracle::new(name, |seed| self.inputs(seed), move |inputs| plain.outputs(&part(inputs)));
        let oracle = if has_codes {
            oracle.with_twins(move |inputs, by| {
                reference
                    .of(&with_perturbed_states(graph, by))
                    .outputs(&perturbed(&part(inputs), by))
            })
        } else if reference.is_perturbable() {
            oracle.with_sensitivities(move |inputs, expected, draws| {
                reference.sensitivities(&part(inputs), expected, draws)
            })
        } else {
            oracle
        };
        let oracle = oracle
            .of_types(graph.outputs().iter().map(|port| graph.ty(port.value).clone()).collect());
        match &self.sampled {
            Some(sampled) => oracle.of_rows(sampled.picked.clone(), |output| sampled.of(output)),
            None => oracle,
        }
    }
}

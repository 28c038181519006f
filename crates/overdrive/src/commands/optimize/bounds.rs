//! The bound of the model on this device. Arithmetic and parameters each need a share of a call, at
//! the rates that the device reaches.

use overdrive::bench::ceilings::{Ceiling, CeilingKind};
use overdrive::bench::clock::Clock;
use overdrive::bench::digits;
use overdrive::bench::rules::Rules;
use overdrive::ir::{Backend, Graph};
use overdrive::studies::{
    Allowance, CeilingWork, Context, Device, Journal, Parties, Probes, Sampling, ceilings,
};
use overdrive_process::Stop;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// Samples of a rate; the sentence says two digits.
const SAMPLES: usize = 15;
/// A share of a call from which on one bound explains its time.
const EXPLAINS: f64 = 0.5;

/// The work of a call, and how fast the device does such work.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Bounds {
    /// Floating-point operations of a call of the float model.
    flops: u64,
    /// Products of f32, in operations a second.
    flops_per_s: f64,
    /// A copy, in bytes read and written a second.
    bytes_per_s: f64,
}

impl Bounds {
    /// Measures the device; `None` where one of its rates cannot be had.
    pub(super) fn of(
        (graph, device): (&Graph, Device<'_>),
        reference: &dyn Backend,
        clock: &dyn Clock,
        (seed, stop): (u64, &Stop),
    ) -> Option<Self> {
        let (tuning, allowance) = (RefCell::default(), Allowance::default());
        let rules = Rules::full().with_trials(3, SAMPLES);
        let devices = [device];
        let context = Context {
            parties: Parties::alone(&devices),
            reference,
            tuning: &tuning,
            sampling: Sampling {
                seed,
                stop: stop.clone(),
                ..Sampling::new(clock, rules, &allowance)
            },
            probes: Probes::default(),
            journal: Journal::silent(""),
        };
        let found = ceilings(&context, &[CeilingWork::Copy, CeilingWork::F32]);
        let first = |kind| found.iter().find(|one| one.kind == kind).map(Ceiling::per_second);
        Some(Self {
            flops: graph.cost().flops,
            flops_per_s: first(CeilingKind::Compute)?,
            bytes_per_s: first(CeilingKind::Bandwidth)?,
        })
    }

    /// In words, for a call (or what else is timed) of the float model that takes so long and has
    /// so many bytes of parameters.
    pub(super) fn said(&self, timed: &str, ns: f64, parameters: u64) -> String {
        let arithmetic = self.flops as f64 / self.flops_per_s * 1e9;
        let reading = parameters as f64 / self.bytes_per_s * 1e9;
        let percent = |part: f64| format!("{:.0} %", 100.0 * part / ns);
        let conclusion = if arithmetic.max(reading) < EXPLAINS * ns {
            "neither explains the time: the rest is memory of activations, small operations and \
             overhead, which fewer bits do not shorten"
        } else if arithmetic > reading {
            "bound by arithmetic: a format pays where its products are faster, not where its \
             weights are smaller"
        } else {
            "bound by reading parameters: a format pays by the bytes that it saves"
        };
        format!(
            "{timed} of the float model takes {}; its {} need {} of that at {}, its {} of \
             parameters {} at {}: {conclusion}",
            digits::time(ns, None),
            digits::flops(self.flops),
            percent(arithmetic),
            digits::rate(self.flops_per_s, None, "FLOP"),
            digits::bytes(parameters),
            percent(reading),
            digits::rate(self.bytes_per_s, None, "B"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bounds_a_call_is_said_with_its_shares() {
        let bounds = Bounds { flops: 1_000_000, flops_per_s: 1e9, bytes_per_s: 1e9 };
        // A million operations at 1e9 a second take a millisecond.
        let said = bounds.said("a call", 1.25e6, 100_000);
        assert!(said.contains("80 %") && said.contains("bound by arithmetic"), "{said}");
        let said = bounds.said("a call", 2.5e6, 2_000_000);
        assert!(said.contains("40 %") && said.contains("bound by reading"), "{said}");
        let said = bounds.said("a call", 4e6, 100_000);
        assert!(said.contains("25 %") && said.contains("neither explains"), "{said}");
    }
}

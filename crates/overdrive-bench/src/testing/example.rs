//! Results with one of everything, for tests: gains, a slowdown, a blocked baseline, a ladder,
//! memory and ceilings. Each kind of failure that a table must show is there too.
#![allow(clippy::unwrap_used)] // For tests alone.

use super::{conditions, record, results, samples};
use crate::case::Workload;
use crate::ceilings::{Ceiling, CeilingKind};
use crate::energy::EnergyUse;
use crate::failure::Failure;
use crate::ladder::{LadderKey, Rung};
use crate::memory::{MemoryUse, Peak};
use crate::record::Record;
use crate::results::{Note, Results};
use crate::series::Series;
use crate::work::{Items, Work};

fn spans(ns: u64) -> Vec<u64> {
    (0..20).map(|i| ns + (i * 7919) % (ns / 100)).collect()
}

/// A record of `models: NAME B=32` in `mode`.
fn model(name: &str, mode: &str, ns: u64) -> Record {
    let mut record = record(mode, &spans(ns));
    record.case.study = "models".into();
    record.case.workload = Workload::new(name, [("B", 32)]);
    record.command = "overdrive run models --seed 7".into();
    if mode != "eager" {
        let mut baseline = record.case.clone();
        baseline.configuration.mode = "eager".into();
        record.baseline = Some(baseline.id());
    }
    record
}

/// One of everything that a record can be.
pub fn example() -> Results {
    let mut found = results();
    let mlp = [
        model("mlp", "eager", 2_000_000),
        model("mlp", "compile", 1_000_000),
        model("mlp", "jit", 2_600_000),
    ];
    let mut conv = [
        model("conv", "eager", 30_000_000),
        model("conv", "compile", 25_000_000),
        model("conv", "graph", 1_000),
    ];
    conv[2].outcome = Failure::unsupported("the device has no graphs | try `compile`").into();
    let mut slow_start = spans(9_000_000);
    slow_start[10] = 700_000_000;
    let mut blocked =
        [model("transformer", "eager", 9_000_000), model("transformer", "compile", 4_000_000)];
    blocked[0].outcome = record("eager", &slow_start).outcome;
    let mut wrong = model("transformer", "jit", 1_000_000);
    wrong.outcome = Failure::incorrect("on seed 7 the output differs by 0.5").into();
    let mut compiled = mlp;
    complete(&mut compiled[0], None);
    complete(&mut compiled[1], Some(45_000_000));
    found.ladders.push(LadderKey {
        title: "mlp".into(),
        rungs: [("eager f32", 0), ("compiled", 1)]
            .map(|(change, at): (&str, usize)| Rung {
                change: change.into(),
                case: compiled[at].case.id(),
            })
            .into(),
    });
    found.records = compiled.into_iter().chain(conv).chain(blocked).chain([wrong]).collect();
    found.harness_overhead = Some(Series::new(conditions(), samples(&[2; 20])).unwrap());
    found.ceilings.push(ceiling());
    found
        .notes
        .push(Note { study: "models".into(), text: "No GPU here: `graph` was not tried.".into() });
    found
}

fn ceiling() -> Ceiling {
    Ceiling {
        name: "stream 256 MiB t2".into(),
        kind: CeilingKind::Bandwidth,
        amount_per_call: 512 << 20,
        threads: 2,
        method: "ordinary stores".into(),
        series: Series::new(conditions(), samples(&spans(25_000_000))).unwrap(),
    }
}

/// Adds all that a study may know beside the latency.
fn complete(record: &mut Record, compile_ns: Option<u64>) {
    let measurement = record.outcome.measurement_mut().unwrap();
    measurement.overhead.compile_ns = compile_ns;
    measurement.overhead.first_call_ns = Some(5_000_000);
    measurement.work = Some(Work {
        flops: 337_641_472,
        bytes: 21_000_000,
        items: Some(Items { per_call: 32, name: "samples".into() }),
    });
    let (work, series) =
        (measurement.work.as_ref().unwrap(), measurement.latency.as_ref().unwrap());
    let share = ceiling().share(work, series.summary.median_ns);
    measurement.ceiling_shares.push(share);
    let peak = |before_bytes, peak_bytes| Some(Peak { before_bytes, peak_bytes });
    measurement.memory = Some(MemoryUse {
        heap: peak(21_000_000, 21_600_000),
        allocations: Some(0),
        resident: peak(30 << 20, 31 << 20),
        planned_arena_bytes: Some(524_288),
        ..MemoryUse::default()
    });
    measurement.energy = Some(EnergyUse {
        source: "rapl".into(),
        calls: 2000,
        span_ns: 2_000_000_000,
        energy_joules: 30.5,
        idle_watts: 9.0,
    });
    measurement.quantities.insert("parameter_bytes".into(), 20_983_848.0);
}

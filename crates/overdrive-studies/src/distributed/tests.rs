//! The study on ranks that are threads and share the cores: every case agrees with its reference,
//! and records have the quantities that reports read.

use super::*;
use crate::{Allowance, Device, Journal, Parties, Probes, RankDevices, Sampling};
use overdrive_bench::clock::SystemClock;
use overdrive_bench::failure::{Failure, FailureKind};
use overdrive_bench::rules::Rules;
use overdrive_cpu::CpuBackend;
use overdrive_ir::{Backend, Communicator};
use std::cell::RefCell;
use std::sync::Arc;

fn open(rank: Arc<dyn Communicator>) -> Result<Box<dyn Backend>, Failure> {
    Ok(Box::new(CpuBackend::new(Some(1))?.on(rank)))
}

/// Results of these cases on 1, 2 and 4 ranks.
fn measured(cases: &[Box<dyn Joint>]) -> Results {
    measured_on(RankDevices { counts: &[2, 4], open: &open, meter: &|_| None }, cases)
}

fn measured_on(ranks: RankDevices<'_>, cases: &[Box<dyn Joint>]) -> Results {
    let cpu = CpuBackend::new(Some(1)).unwrap();
    let devices = [Device { backend: &cpu, threads: 1 }];
    let (clock, tuning, allowance) = (SystemClock::new(), RefCell::default(), Allowance::default());
    let context = Context {
        parties: Parties { ranks: Some(ranks), ..Parties::alone(&devices) },
        reference: &cpu,
        tuning: &tuning,
        sampling: Sampling::new(&clock, Rules::quick(), &allowance),
        probes: Probes::default(),
        journal: Journal::silent("overdrive run"),
    };
    let mut results = Results::begin("overdrive run distributed", 1);
    let peers = RankPeers::of(&context, ranks.counts.iter().copied().max().unwrap_or(1));
    let session = Session::new(&context, ranks, &peers);
    cases.iter().for_each(|case| session.take(case.as_ref(), &mut results));
    results
}

#[test]
fn every_case_agrees_and_has_what_reports_read() {
    let [ring, by_heads] = attention(AttentionPart::Both, [1, 4, 64, 16], DType::F32);
    let cases: Vec<Box<dyn Joint>> = vec![
        ring,
        by_heads,
        Box::new(Block { tokens: 32, width: 64, heads: 4, dtype: DType::F32 }),
        apart("text-transformer", 1, DType::F32),
        training("text-transformer", (1, Shards::Nothing), DType::F32),
        training("text-transformer", (1, Shards::Optimizer), DType::F32),
        staged("text-transformer", (1, 3), DType::F32),
    ];
    let results = measured(&cases);
    assert_eq!(results.records.len(), 3 * cases.len(), "{:?}", results.notes);
    for record in &results.records {
        let name = record.case.id();
        let measurement = record.outcome.measurement();
        let measurement = measurement.unwrap_or_else(|| panic!("{name}: {:?}", record.outcome));
        let quantities = &measurement.quantities;
        let ranks = quantities["ranks"];
        let is_step = record.case.workload.name.starts_with("training step");
        let agrees = measurement.agreement.as_ref().is_some_and(|agreement| agreement.holds());
        assert!(agrees || (is_step && ranks == 1.0), "{name}");
        assert_eq!(quantities.contains_key("efficiency_percent"), ranks > 1.0, "{name}");
        assert_eq!(quantities.contains_key("efficiency_percent.low"), ranks > 1.0, "{name}");
        let is = |variant| record.case.configuration.variant.as_deref() == Some(variant);
        let exchanges = ranks > 1.0 && !is("nothing exchanged");
        assert_eq!(quantities["collectives_ns"] > 0.0, exchanges, "{name}");
        assert!(quantities["planned_bytes_a_rank"] > 0.0, "{name}");
        let items = measurement.work.as_ref().and_then(|work| work.items.clone());
        let tokens = items.expect("cases count tokens").per_call as f64;
        let whole = record.case.workload.dimensions["T"] as f64;
        let windows = match is_step {
            true if is("pipeline") => 3.0,
            true => ranks,
            false => 1.0,
        };
        assert_eq!(tokens, whole * windows, "{name}");
    }
    let moments = |variant: &str, ranks: f64| {
        let of = |record: &&overdrive_bench::record::Record| {
            record.case.configuration.variant.as_deref() == Some(variant)
        };
        let mut all = results.records.iter().filter(of).filter_map(|r| r.outcome.measurement());
        let found = all.find(|m| m.quantities["ranks"] == ranks).expect("it ran");
        found.quantities["planned_bytes_a_rank"]
    };
    assert!(moments("zero-1", 4.0) < moments("data parallel", 4.0), "moments are split");
}

#[test]
fn collectives_are_exact_and_give_a_fabric() {
    let results = measured(&collectives(&[4 << 10, 64 << 10, 256 << 10]));
    assert_eq!(results.records.len(), 3 * 3 * 2, "{:?}", results.notes);
    for record in &results.records {
        let measurement = record.outcome.measurement();
        let measurement = measurement.unwrap_or_else(|| panic!("{:?}", record.outcome));
        let agreement = measurement.agreement.as_ref().expect("it was compared");
        assert!(agreement.holds() && agreement.worst.absolute == 0.0, "{:?}", record.case);
        assert!(measurement.quantities["bus_bytes_per_second"] > 0.0);
    }
    let fabric = fabric(&results);
    // Times of threads need not fit a line that rises.
    if let Some(fabric) = fabric {
        let fabric: serde_json::Value = serde_json::from_str(&fabric).unwrap();
        assert!(fabric["within"]["2"].is_object() || fabric["within"]["4"].is_object(), "{fabric}");
    }
}

#[test]
fn a_rank_without_a_device_is_a_failure_that_says_so() {
    let lacking = |rank: Arc<dyn Communicator>| match rank.rank() {
        0 => open(rank),
        _ => Err(Failure::failed("no GPU 1")),
    };
    let ranks = RankDevices { counts: &[2], open: &lacking, meter: &|_| None };
    let case = Block { tokens: 32, width: 48, heads: 3, dtype: DType::F32 };
    let results = measured_on(ranks, &[Box::new(case)]);
    let failures: Vec<_> = results.records.iter().map(|r| r.outcome.failure().cloned()).collect();
    let refused = failures[1].as_ref().expect("three heads are no multiple of two ranks");
    assert!(refused.kind == FailureKind::Unsupported && refused.reason.contains("3 heads"));
    let case = Collective { kind: CollectiveKind::Ring, bytes: 4096 };
    let results = measured_on(ranks, &[Box::new(case)]);
    let failure = results.records[0].outcome.failure().expect("a rank has no device");
    assert!(failure.reason.contains("rank 1: no GPU 1"), "{failure}");
}

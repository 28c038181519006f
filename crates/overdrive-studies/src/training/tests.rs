//! The studies on a processor: every step agrees with f64, and records have what reports read.

use super::*;
use crate::{Allowance, Device, Journal, Parties, Probes, Sampling};
use overdrive_bench::clock::SystemClock;
use overdrive_bench::record::Record;
use overdrive_bench::rules::Rules;
use overdrive_cpu::CpuBackend;
use overdrive_train::FORMATS;
use std::cell::RefCell;

/// Records of these ways.
fn measured(ways: &[Way]) -> Vec<Record> {
    let cpu = CpuBackend::new(Some(1)).unwrap();
    let devices = [Device { backend: &cpu, threads: 1 }];
    let (clock, tuning, allowance) = (SystemClock::new(), RefCell::default(), Allowance::default());
    let context = Context {
        parties: Parties::alone(&devices),
        reference: &cpu,
        tuning: &tuning,
        sampling: Sampling::new(&clock, Rules::quick(), &allowance),
        probes: Probes::default(),
        journal: Journal::silent("overdrive run"),
    };
    let mut results = Results::begin("overdrive run", 1);
    let model = Model { name: "text-transformer", batch: 2 };
    let compared = Compared { study: "training", model, ways, parts: &[] };
    take(&context, &RankPeers::of(&context, 1), &compared, &mut results);
    assert!(results.notes.is_empty(), "{:?}", results.notes);
    assert_eq!(results.records.len(), ways.len());
    results.records
}

/// Each case agrees with f64, and is compared with the first.
fn check(records: &[Record]) {
    for record in records {
        let name = record.case.id();
        let measurement = record.outcome.measurement();
        let measurement = measurement.unwrap_or_else(|| panic!("{name}: {:?}", record.outcome));
        assert!(
            measurement.agreement.as_ref().is_some_and(|agreement| agreement.holds()),
            "{name}"
        );
        let items = measurement.work.as_ref().and_then(|work| work.items.as_ref());
        let sizes = &record.case.workload.dimensions;
        assert_eq!(items.map(|items| items.per_call), Some(sizes["B"] * sizes["T"]), "{name}");
        assert!(measurement.quantities["planned_bytes"] > 0.0, "{name}");
        let first = records[0].case.id();
        assert_eq!(record.baseline, (name != first).then_some(first), "{name}");
    }
}

#[test]
fn steps_in_every_format_agree_with_f64() {
    let mut ways: Vec<Way> = FORMATS.iter().map(|formats| Way::in_formats(formats.name)).collect();
    let plain = Way::in_formats("bf16");
    let recipe = Recipe { parameters: Parameters::Masters, ..plain.recipe.clone() };
    ways.push(Way { recipe, ..plain }.named("bf16 beside masters"));
    check(&measured(&ways));
}

#[test]
fn ways_to_save_memory_agree_with_f64_and_save_it() {
    let records = measured(&savings("f32", &LIMITS[..1]));
    check(&records);
    let quantity = |name: &str, variant: Option<&str>| {
        let of = |record: &&Record| record.case.configuration.variant.as_deref() == variant;
        let record = records.iter().find(of).expect("the study has it");
        record.outcome.measurement().expect("it ran").quantities[name]
    };
    let planned = |variant| quantity("planned_bytes", variant);
    let all = planned(None);
    assert!(planned(Some("moments bf16")) < all);
    assert!(planned(Some("moments fp8")) < planned(Some("moments bf16")));
    // A processor packs weights that stay as they are, so that a small model takes no less in all.
    let states = |variant| quantity("state_bytes", variant);
    assert!(states(Some("LoRA, rank 8")) < 0.5 * states(None));
    assert!(planned(Some("75 % of the arena")) < 0.95 * all);
}

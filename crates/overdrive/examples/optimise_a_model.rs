//! Take a built-in model through passes, and say what each gained: the same sessions that
//! `overdrive run` holds.
//!
//! `cargo run --release --example optimise_a_model`

use overdrive::bench::clock::SystemClock;
use overdrive::bench::results::Results;
use overdrive::bench::rules::Rules;
use overdrive::cpu::CpuBackend;
use overdrive::ir::{DType, Mode};
use overdrive::passes::{Recipe, precision};
use overdrive::report::terminal;
use overdrive::studies::{
    Allowance, Context, Device, Entry, Journal, Parties, Probes, Sampling, Workload, measure,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let cpu = CpuBackend::new(Some(1))?;
    let devices = [Device { backend: &cpu, threads: 1 }];
    let clock = SystemClock::new();
    let (tuning, allowance) = (RefCell::default(), Allowance::default());
    let context = Context {
        parties: Parties::alone(&devices),
        reference: &cpu,
        tuning: &tuning,
        sampling: Sampling::new(&clock, Rules::quick(), &allowance),
        probes: Probes::default(),
        journal: Journal::silent("cargo run --release --example optimise_a_model"),
    };
    let model = overdrive::models::find("quick-inference")?;
    let workload = Workload::of_model(model, &BTreeMap::new())?;
    let half = precision(&workload.graph, &Recipe { contractions: DType::BF16 })?;
    let device = context.device();
    let entries = [
        Entry::plain(&workload, device, Mode::Eager),
        Entry::plain(&workload, device, Mode::Compile),
        Entry { graph: half, dtype: DType::BF16, ..Entry::plain(&workload, device, Mode::Compile) },
    ];
    let mut results = Results::begin(context.journal.command.clone(), context.sampling.seed);
    results.records = measure(&context, "example", &entries, &mut []);
    println!("{}", terminal(&results, 140));
    Ok(())
}

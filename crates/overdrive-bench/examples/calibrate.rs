//! Compares identical subjects ("twins") at several lengths of the shortest sample. Counts how
//! often they are told apart, and how often nothing can be said. The limits in docs/measurement.md
//! rest on these figures. Prints a Markdown table; takes half a minute.
//!
//! `cargo run --release -p overdrive-bench --example calibrate`

use std::hint::black_box;

use overdrive_bench::case::{Case, Configuration, Workload};
use overdrive_bench::clock::SystemClock;
use overdrive_bench::deviation::Deviation;
use overdrive_bench::failure::Failure;
use overdrive_bench::record::Record;
use overdrive_bench::rules::Rules;
use overdrive_bench::runner::Runner;
use overdrive_bench::speedup::Speedup;
use overdrive_bench::subject::{Function, Subject};
use overdrive_bench::{digits, harness};

const SESSIONS: u64 = 60;

fn main() -> Result<(), Failure> {
    let clock = SystemClock::new();
    let empty = harness::overhead(&Runner::new(&clock, Rules::full(), 0))?;
    let timer = &empty.conditions.timer;
    println!(
        "An empty closure takes {} a call; {} takes {} ns a reading.",
        digits::time(empty.summary.median_ns, None),
        timer.clock,
        timer.overhead_ns
    );
    println!("\n| shortest sample | closure | too noisy to compare | twins called different |");
    println!("| --------------- | ------- | -------------------: | ---------------------: |");
    for sample_min_ns in [100_000, 300_000, 1_000_000] {
        let rules = Rules { sample_min_ns, ..Rules::quick() };
        for (name, make) in twins() {
            let (mut silent, mut different) = (0, 0);
            for seed in 0..SESSIONS {
                let (mut first, mut second) = (make(), make());
                let runner = Runner::new(&clock, rules.clone(), seed);
                let outcomes = runner.compare(&mut [&mut *first, &mut *second]);
                let records: Vec<Record> =
                    outcomes.into_iter().map(|outcome| record(name, seed, outcome)).collect();
                match Speedup::between(&records[0], &records[1]) {
                    Ok(gain) => different += u64::from(!gain.interval().contains(1.0)),
                    Err(_) => silent += 1,
                }
            }
            let shortest = digits::time(sample_min_ns as f64, None);
            println!("| {shortest} | {name} | {silent} of {SESSIONS} | {different} |");
        }
    }
    Ok(())
}

type Make = Box<dyn Fn() -> Box<dyn Subject>>;

/// Closures of three lengths, one of them bound by the cache.
fn twins() -> [(&'static str, Make); 3] {
    [
        ("chain of 10", chain(10)),
        ("chain of 24,000", chain(24_000)),
        ("sum over 1 MiB", sum(1 << 18)),
    ]
}

/// A chain of dependent additions, which no processor can shorten.
fn chain(length: u64) -> Make {
    Box::new(move || {
        let call = move |index: u64| {
            (0..length).fold(index as f64, |sum, term| black_box(sum + term as f64))
        };
        Box::new(Function::new(call, |_| agreed()))
    })
}

fn sum(count: usize) -> Make {
    Box::new(move || {
        let values = vec![1.0_f32; count];
        Box::new(Function::new(move |_| black_box(&values).iter().sum::<f32>(), |_| agreed()))
    })
}

/// Twins need no reference: they are the same code.
fn agreed() -> Result<Option<Deviation>, Failure> {
    Ok(Some(Deviation::none()))
}

fn record(name: &str, seed: u64, outcome: overdrive_bench::outcome::Outcome) -> Record {
    let configuration = Configuration {
        backend: "closure".into(),
        device: "cpu".into(),
        mode: "twin".into(),
        dtype: "f32".into(),
        threads: 1,
        variant: None,
    };
    let case = Case { study: "calibrate".into(), workload: Workload::new(name, []), configuration };
    let command = "cargo run --release -p overdrive-bench --example calibrate".into();
    Record { case, baseline: None, seed, command, outcome }
}

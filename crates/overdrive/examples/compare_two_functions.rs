//! Compare two implementations of one's own: same warm-up, alternating samples, and no ratio
//! without proof that both are right.
//!
//! `cargo run --release --example compare_two_functions`

use overdrive::bench::case::{Case, Configuration, Workload};
use overdrive::bench::clock::SystemClock;
use overdrive::bench::deviation::Deviation;
use overdrive::bench::deviation::Tolerance;
use overdrive::bench::record::Record;
use overdrive::bench::rules::Rules;
use overdrive::bench::runner::Runner;
use overdrive::bench::speedup::Speedup;
use overdrive::bench::subject::{Function, Subject};

const N: usize = 1 << 16;

/// One accumulator: each addition waits for the one before.
fn one_sum(x: &[f32]) -> f32 {
    x.iter().sum()
}

/// Sixteen accumulators.
fn sixteen_sums(x: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for chunk in x.chunks_exact(16) {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

fn main() {
    let x: Vec<f32> = (0..N).map(|i| ((i * 2654435761) % 1000) as f32 / 1000.0).collect();
    let exact: f64 = x.iter().map(|&v| f64::from(v)).sum();
    let check = |sum: f32| {
        Deviation::between(&[f64::from(sum)], &[exact], Tolerance::of_elements(1e-3, 0.0)).map(Some)
    };
    let mut plain = Function::new(|_| one_sum(&x), |_| check(one_sum(&x)));
    let mut unrolled = Function::new(|_| sixteen_sums(&x), |_| check(sixteen_sums(&x)));

    let clock = SystemClock::new();
    let runner = Runner::new(&clock, Rules::full(), 1);
    let mut subjects: [&mut dyn Subject; 2] = [&mut plain, &mut unrolled];
    let record = |(variant, outcome): (&str, _)| Record {
        case: Case {
            study: "example".to_owned(),
            workload: Workload::new("sum", [("n", N as u64)]),
            configuration: Configuration {
                backend: "host".to_owned(),
                device: "cpu".to_owned(),
                mode: "direct".to_owned(),
                dtype: "f32".to_owned(),
                threads: 1,
                variant: Some(variant.to_owned()),
            },
        },
        baseline: None,
        seed: 1,
        command: "cargo run --release --example compare_two_functions".to_owned(),
        outcome,
    };
    let records: Vec<Record> = ["one sum", "sixteen sums"]
        .into_iter()
        .zip(runner.compare(&mut subjects))
        .map(record)
        .collect();
    match Speedup::between(&records[0], &records[1]) {
        Ok(speedup) => println!("sixteen sums over one: {}", speedup.figure()),
        Err(no_claim) => println!("no claim: {no_claim}"),
    }
}

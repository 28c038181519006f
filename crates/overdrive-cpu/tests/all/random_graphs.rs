//! Random graphs, and their gradients, on the CPU against the f64 definition. They show errors that
//! no sample of a single op shows: fusions across ops, slots that are used again, regions inside of
//! loops.

use overdrive_cpu::CpuBackend;
use overdrive_ir::{DType, Mode};
use testkit::{check_backend, derivative, random_graph, random_inputs};

const MODES: [Mode; 3] = [Mode::Eager, Mode::Jit, Mode::Compile];

/// Errs with every seed, mode and number of threads that `check` refuses.
fn check_all(
    seeds: std::ops::Range<u64>,
    check: impl Fn(u64, &CpuBackend, Mode) -> Result<(), String>,
) {
    let mut failures = Vec::new();
    for threads in [1, 2] {
        let backend = CpuBackend::new(Some(threads)).unwrap_or_else(|e| panic!("{e}"));
        for (seed, mode) in seeds.clone().flat_map(|seed| MODES.map(|mode| (seed, mode))) {
            if let Err(e) = check(seed, &backend, mode) {
                failures.push(format!("seed {seed}, {threads} threads: {e}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn random_graphs_mean_on_the_cpu_what_they_mean() {
    check_all(0..200, |seed, backend, mode| {
        let dtype = if seed % 4 == 3 { DType::F64 } else { DType::F32 };
        let graph = random_graph(seed, dtype);
        check_backend(backend, mode, &graph, &random_inputs(&graph, seed))
            .map_err(|e| e.to_string())
    });
}

#[test]
fn gradients_of_random_graphs_mean_on_the_cpu_what_they_mean() {
    check_all(100..150, |seed, backend, mode| {
        let graph = random_graph(seed, DType::F64);
        let (gradient, point) = derivative(&graph, &random_inputs(&graph, seed), seed)?;
        check_backend(backend, mode, &gradient, &point).map_err(|e| e.to_string())
    });
}

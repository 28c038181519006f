//! Random graphs, and their gradients, on CUDA against the f64 definition. They show errors that no
//! sample of a single op shows: fusions across ops, slots that are used again, regions inside of
//! loops.

use crate::support::{gpu, modes};
use overdrive_cuda::CudaBackend;
use overdrive_ir::{DType, Mode};
use testkit::{check_backend, derivative, random_graph, random_inputs};

/// Errs with every seed and mode that `check` refuses.
fn check_all(
    seeds: std::ops::Range<u64>,
    check: impl Fn(u64, &CudaBackend, Mode) -> Result<(), String>,
) {
    let Some(backend) = gpu() else { return };
    let mut failures = Vec::new();
    for (seed, mode) in seeds.flat_map(|seed| modes().into_iter().map(move |mode| (seed, mode))) {
        if let Err(e) = check(seed, &backend, mode) {
            failures.push(format!("seed {seed}: {e}"));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn random_graphs_mean_on_cuda_what_they_mean() {
    check_all(0..60, |seed, backend, mode| {
        let dtype = if seed % 4 == 3 { DType::F64 } else { DType::F32 };
        let graph = random_graph(seed, dtype);
        check_backend(backend, mode, &graph, &random_inputs(&graph, seed))
            .map_err(|e| e.to_string())
    });
}

#[test]
fn gradients_of_random_graphs_mean_on_cuda_what_they_mean() {
    check_all(100..120, |seed, backend, mode| {
        let graph = random_graph(seed, DType::F64);
        let (gradient, point) = derivative(&graph, &random_inputs(&graph, seed), seed)?;
        check_backend(backend, mode, &gradient, &point).map_err(|e| e.to_string())
    });
}

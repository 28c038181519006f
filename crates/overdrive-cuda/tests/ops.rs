//! CUDA against the f64 definition: every case of every op and primitive, and its gradient, in every mode.

mod support;

use overdrive_cuda::CudaBackend;
use overdrive_ir::{DType, Mode};
use support::{gpu, modes};
use testkit::{Case, Disagreement, check_backend, derivative};

/// Errs with every case and mode that `check` refuses. `OVERDRIVE_OPS` names a part of those to check.
fn check_all(check: impl Fn(&CudaBackend, &Case, Mode) -> Result<(), Disagreement>) {
    let Some(backend) = gpu() else { return };
    let part = std::env::var("OVERDRIVE_OPS").unwrap_or_default();
    let cases = Case::every().unwrap_or_else(|e| panic!("{e}"));
    let cases: Vec<&Case> = cases.iter().filter(|case| case.sample.op.name().contains(&part)).collect();
    let runs: Vec<(&Case, Mode)> =
        modes().into_iter().flat_map(|mode| cases.iter().map(move |&case| (case, mode))).collect();
    let failures: Vec<String> = runs
        .iter()
        .filter_map(|(case, mode)| {
            Some(format!("{}: {}", case.describe(), check(&backend, case, *mode).err()?))
        })
        .collect();
    eprintln!("{} runs, {} failures", runs.len(), failures.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_op_means_on_cuda_what_it_means() {
    check_all(|backend, case, mode| check_backend(backend, mode, &case.graph(), &case.inputs(5)));
}

#[test]
fn every_gradient_means_on_cuda_what_it_means() {
    check_all(|backend, case, mode| {
        // The narrow types round between the steps of a gradient, as often as it has steps: no bound is known here.
        if !matches!(case.dtype, DType::F32 | DType::F64) {
            return Ok(());
        }
        let (graph, point) = derivative(&case.graph(), &case.inputs(5), 11).map_err(Disagreement::Wrong)?;
        check_backend(backend, mode, &graph, &point)
    });
}

//! The CPU against the f64 definition: every case of every op and primitive, and its gradient, in every mode.

use overdrive_cpu::CpuBackend;
use overdrive_ir::{DType, Mode};
use testkit::{Case, Disagreement, check_backend, derivative};

/// What a device without graph capture can do.
const MODES: [Mode; 3] = [Mode::Eager, Mode::Jit, Mode::Compile];

/// Errs with every case and mode that `check` refuses.
fn check_all(check: impl Fn(&Case, Mode) -> Result<(), Disagreement>) {
    let cases = Case::every().unwrap_or_else(|e| panic!("{e}"));
    let runs = cases.iter().flat_map(|case| MODES.map(|mode| (case, mode)));
    let failures: Vec<String> = runs
        .filter_map(|(case, mode)| Some(format!("{}: {}", case.describe(), check(case, mode).err()?)))
        .collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn backend() -> CpuBackend {
    CpuBackend::new(Some(2)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_op_means_on_the_cpu_what_it_means() {
    let backend = backend();
    check_all(|case, mode| check_backend(&backend, mode, &case.graph(), &case.inputs(5)));
}

#[test]
fn every_gradient_means_on_the_cpu_what_it_means() {
    let backend = backend();
    check_all(|case, mode| {
        // The narrow types round between the steps of a gradient, as often as it has steps: no bound is known here.
        if !matches!(case.dtype, DType::F32 | DType::F64) {
            return Ok(());
        }
        let (graph, point) = derivative(&case.graph(), &case.inputs(5), 11).map_err(Disagreement::Wrong)?;
        check_backend(&backend, mode, &graph, &point)
    });
}

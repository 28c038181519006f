//! CUDA against the f64 definition: every case of every op and primitive, and its gradient, in
//! every mode.
//!
//! Each is in eight parts, so that the cores of a machine evaluate definitions side by side: that
//! is most of the time. Under `compute-sanitizer` the same tests look for reads and writes that
//! belong nowhere. With `--tool racecheck` they look for threads that do not wait for one another.
//! Put `CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="compute-sanitizer --require-cuda-init no
//! --log-file sanitizer.%p --error-exitcode 99"` before `OVERDRIVE_MODES=compile cargo nextest run
//! -p overdrive-cuda --test all -E 'test(/^ops::/)'`. That is sixteen processes: 38 s on an H200
//! with 16 cores, 103 s for races. Tests `gemm`, `low_precision` and `sparse_linear` reach the
//! kernels that few cases do. `fault` is the control: there errors are what must be found.

use crate::support::{gpu, modes};
use overdrive_cuda::CudaBackend;
use overdrive_ir::{DType, Mode};
use testkit::{Case, Disagreement, check_backend, derivative};

/// Parts that each test has.
const PARTS: usize = 8;

/// Errs with every case and mode of a part that `check` refuses. `OVERDRIVE_OPS` names a part of
/// the ops to check.
fn check_part(part: usize, check: impl Fn(&CudaBackend, &Case, Mode) -> Result<(), Disagreement>) {
    let Some(backend) = gpu() else { return };
    let named = std::env::var("OVERDRIVE_OPS").unwrap_or_default();
    let cases = Case::every().unwrap_or_else(|e| panic!("{e}"));
    let cases = cases.iter().filter(|case| case.sample.op.name().contains(&named));
    // Neighbours are cases of one op, which take about as long.
    let cases: Vec<&Case> = cases.skip(part).step_by(PARTS).collect();
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

fn op(backend: &CudaBackend, case: &Case, mode: Mode) -> Result<(), Disagreement> {
    check_backend(backend, mode, &case.graph(), &case.inputs(5))
}

fn gradient(backend: &CudaBackend, case: &Case, mode: Mode) -> Result<(), Disagreement> {
    // The narrow types round between the steps of a gradient, as often as it has steps: no bound is
    // known here.
    if !matches!(case.dtype, DType::F32 | DType::F64) {
        return Ok(());
    }
    let (graph, point) =
        derivative(&case.graph(), &case.inputs(5), 11).map_err(Disagreement::Wrong)?;
    check_backend(backend, mode, &graph, &point)
}

/// A module of tests, one a part.
macro_rules! in_parts {
    ($module:ident, $check:ident, $($name:ident $part:literal)*) => {
        mod $module {
            $(#[test]
            fn $name() {
                const { assert!($part < super::PARTS) };
                super::check_part($part, super::$check);
            })*
        }
    };
}

in_parts!(every_op_means_on_cuda_what_it_means, op,
    part_0 0 part_1 1 part_2 2 part_3 3 part_4 4 part_5 5 part_6 6 part_7 7);
in_parts!(every_gradient_means_on_cuda_what_it_means, gradient,
    part_0 0 part_1 1 part_2 2 part_3 3 part_4 4 part_5 5 part_6 6 part_7 7);

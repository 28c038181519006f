//! The CPU against the f64 definition: every case of every op and primitive, and its gradient, in
//! every mode. The best instruction set runs all of it, each lower one a short version.

use overdrive_cpu::{CpuBackend, InstructionSet};
use overdrive_ir::{DType, Mode};
use testkit::{Case, Disagreement, check_backend, derivative};

/// The modes of a device without graph capture.
const MODES: [Mode; 3] = [Mode::Eager, Mode::Jit, Mode::Compile];

/// Errs with every case and mode that `check` refuses.
fn check_all(
    set: InstructionSet,
    modes: &[Mode],
    check: impl Fn(&CpuBackend, &Case, Mode) -> Result<(), Disagreement>,
) {
    let backend = CpuBackend::with_instruction_set(Some(2), set).unwrap_or_else(|e| panic!("{e}"));
    let cases = Case::every().unwrap_or_else(|e| panic!("{e}"));
    let runs = cases.iter().flat_map(|case| modes.iter().map(move |&mode| (case, mode)));
    let failures: Vec<String> = runs
        .filter_map(|(case, mode)| {
            Some(format!("{}: {}", case.describe(), check(&backend, case, mode).err()?))
        })
        .collect();
    assert!(failures.is_empty(), "{set}: {} failures:\n{}", failures.len(), failures.join("\n"));
}

fn check_ops(set: InstructionSet, modes: &[Mode]) {
    check_all(set, modes, |backend, case, mode| {
        check_backend(backend, mode, &case.graph(), &case.inputs(5))
    });
}

fn check_gradients(set: InstructionSet, modes: &[Mode]) {
    check_all(set, modes, |backend, case, mode| {
        // The narrow types round between the steps of a gradient, as often as it has steps: no
        // bound is known here.
        if !matches!(case.dtype, DType::F32 | DType::F64) {
            return Ok(());
        }
        let (graph, point) =
            derivative(&case.graph(), &case.inputs(5), 11).map_err(Disagreement::Wrong)?;
        check_backend(backend, mode, &graph, &point)
    });
}

/// The sets of this machine but the best.
fn lower() -> impl Iterator<Item = InstructionSet> {
    InstructionSet::available().filter(|&set| set != InstructionSet::best())
}

#[test]
fn every_op_means_on_the_cpu_what_it_means() {
    check_ops(InstructionSet::best(), &MODES);
}

#[test]
fn every_gradient_means_on_the_cpu_what_it_means() {
    check_gradients(InstructionSet::best(), &MODES);
}

#[test]
fn every_op_means_the_same_under_each_instruction_set() {
    lower().for_each(|set| check_ops(set, &[Mode::Compile]));
}

#[test]
#[ignore = "every mode and gradient under each instruction set takes minutes: CONTRIBUTING.md"]
fn every_op_and_gradient_means_the_same_under_each_instruction_set_in_every_mode() {
    for set in lower() {
        check_ops(set, &MODES);
        check_gradients(set, &MODES);
    }
}

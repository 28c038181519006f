//! The CPU against the f64 definition: every case of every op and primitive, and its gradient, in
//! every mode. The best instruction set runs all of it, each lower one a short version.

use overdrive_cpu::{CpuBackend, InstructionSet};
use overdrive_ir::{DType, Mode};
use testkit::{Case, Disagreement, Needs, check_backend, derivative};

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

#[test]
fn every_gradient_means_on_the_cpu_what_it_means() {
    check_gradients(InstructionSet::best(), &MODES);
}

/// Every op under one instruction set, or a skip. The best set runs in every mode.
fn check_ops_under(set: InstructionSet) {
    if !InstructionSet::available().any(|has| has == set) {
        return testkit::skip(Needs::InstructionSet(set.name()), "this processor lacks it");
    }
    let is_best = set == InstructionSet::best();
    check_ops(set, if is_best { &MODES } else { &[Mode::Compile] });
}

/// A test for each instruction set. So the skips name each set whose kernels did not run here, in
/// this test or any other.
macro_rules! test_every_op_under {
    ($($test:ident: $set:ident),*) => {
        $(#[test]
        fn $test() {
            check_ops_under(InstructionSet::$set);
        })*

        #[test]
        fn every_instruction_set_has_its_test() {
            assert_eq!(InstructionSet::ALL, [$(InstructionSet::$set),*]);
        }
    };
}

test_every_op_under!(
    every_op_means_what_it_means_without_simd: Portable,
    every_op_means_what_it_means_with_neon: Neon,
    every_op_means_what_it_means_with_avx2: Avx2,
    every_op_means_what_it_means_with_avx512: Avx512,
    every_op_means_what_it_means_with_avx512_vnni: Avx512Vnni,
    every_op_means_what_it_means_with_avx512_bf16: Avx512Bf16,
    every_op_means_what_it_means_with_amx: Amx
);

#[test]
#[ignore = "every mode and gradient under each instruction set takes minutes: CONTRIBUTING.md"]
fn every_op_and_gradient_means_the_same_under_each_instruction_set_in_every_mode() {
    let best = InstructionSet::best();
    for set in InstructionSet::available().filter(|&set| set != best) {
        check_ops(set, &MODES);
        check_gradients(set, &MODES);
    }
}

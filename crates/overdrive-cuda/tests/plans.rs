//! What the built-in models plan to on a GPU that exists only as data, and what opening a GPU says where there is none.

use overdrive_cuda::compiler::Architecture;
use overdrive_cuda::device::{Device, Properties};
use overdrive_cuda::{Error, Library, caps};
use overdrive_ir::plan::StepKind;
use overdrive_ir::{Mode, Tuning};
use overdrive_models::MODELS;
use overdrive_passes::{bind, plan};
use std::fmt::Write;

/// An H200, from its data sheet.
fn h200() -> Properties {
    Properties {
        name: "NVIDIA H200".to_owned(),
        architecture: Architecture::Sm90a,
        multiprocessors: 132,
        l2_bytes: 60 << 20,
        memory_bytes: 141_000_000_000,
        clock_hertz: 1.98e9,
        bytes_per_second: 4.8e12,
        driver: None,
        cuda: (13, 0),
    }
}

#[test]
fn models_plan_to_these_steps() {
    let caps = caps(&h200());
    let mut table = String::new();
    for model in MODELS {
        let graph = (model.build)().unwrap_or_else(|e| panic!("{}: {e}", model.name));
        let sizes = model.dimensions.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        let graph = bind(&graph, &sizes).unwrap_or_else(|e| panic!("{}: {e}", model.name));
        for mode in [Mode::Jit, Mode::Compile] {
            let plan = plan(&graph, mode, &caps, &Tuning::default()).unwrap_or_else(|e| panic!("{e}"));
            let count =
                |matches: fn(&StepKind) -> bool| plan.steps.iter().filter(|step| matches(&step.kind)).count();
            let on_host = count(|kind| matches!(kind, StepKind::Host(_)));
            assert_eq!(on_host, 0, "{} in {mode} waits for the host", model.name);
            let gemms = count(|kind| matches!(kind, StepKind::Gemm(_)));
            let convolutions = count(|kind| matches!(kind, StepKind::Convolution(_)));
            let (name, steps) = (model.name, plan.steps.len());
            let arena: usize = plan.arena_bytes.iter().sum();
            writeln!(
                table,
                "{name:<18}{mode:<8} {steps:>4} steps, {gemms:>3} gemm, {convolutions} conv, {arena:>12} B"
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn the_data_sheet_of_an_h200_gives_its_peaks() {
    let peaks = caps(&h200()).peaks;
    let bf16 = peaks.flops_per_second[&overdrive_ir::DType::BF16];
    // 989 TFLOP/s at the boost clock of 1.83 GHz that the data sheet has in mind; more at the highest clock.
    assert!((1.0e15..1.1e15).contains(&bf16), "{bf16:e}");
}

#[test]
fn without_a_driver_opening_says_what_to_install() {
    if Library::Driver.is_present() {
        eprintln!("SKIPPED: this machine has a driver");
        return;
    }
    let error = Device::open(0).unwrap_err();
    assert!(matches!(error, Error::Missing { library: "libcuda.so.1", .. }), "{error}");
    assert!(error.to_string().contains("install NVIDIA's driver"), "{error}");
    assert_eq!(overdrive_cuda::gpus(), 0);
}

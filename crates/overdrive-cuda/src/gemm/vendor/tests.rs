//! The epilogues that the library takes, and those that it would compute otherwise.

use super::takes;
use crate::Gpu;
use crate::data_sheets::h200;
use overdrive_ir::plan::{GemmCall, StepKind};
use overdrive_ir::{Builder, DType, Expr, Mode, TensorType, Tuning};

/// A product of codes with this epilogue, as it is planned.
fn planned(epilogue: &str) -> GemmCall {
    let b = Builder::new("layer");
    let operand = |name| b.input(name, TensorType::new(DType::F8E4M3, [256usize, 128]));
    let sum = operand("x").dot_to(operand("w"), &[], &[(1, 1)], DType::F32);
    let matrix = |name, dtype| b.input(name, TensorType::new(dtype, [256usize, 256]));
    let vector = |name, dtype| {
        let vector = b.input(name, TensorType::new(dtype, [256usize]));
        vector.broadcast_in(&sum.shape(), &[1])
    };
    let scaled = sum * b.input("scale", TensorType::scalar(DType::F32));
    let rounded = scaled.convert(DType::BF16);
    let biased = |y: Expr<'_>| vector("bias", y.dtype());
    let y = match epilogue {
        "plain" => rounded,
        "bias" => rounded + biased(rounded),
        "bias, residual" => {
            (rounded + biased(rounded)).convert(DType::F32) + matrix("r", DType::F32)
        }
        "added" => rounded + matrix("r", DType::BF16),
        "rounded to f16" => {
            scaled.convert(DType::F16).convert(DType::F32) + matrix("r", DType::F32)
        }
        "two biases" => rounded + biased(rounded) + vector("more", DType::BF16),
        "bias of f32" => scaled + vector("bias", DType::F32),
        "scaled at last" => {
            let scale = b.input("last", TensorType::scalar(DType::F32));
            (rounded + matrix("r", DType::BF16)).convert(DType::F32) * scale
        }
        other => panic!("no epilogue `{other}`"),
    };
    b.output("y", y);
    let graph = b.finish().unwrap_or_else(|e| panic!("{e}"));
    let gpu = Gpu::new(&h200());
    let plan = overdrive_passes::plan(&graph, Mode::Compile, &gpu, &Tuning::default());
    let plan = plan.unwrap_or_else(|e| panic!("{e}"));
    match plan.steps.first().map(|step| &step.kind) {
        Some(StepKind::Gemm(call)) if plan.steps.len() == 1 => call.clone(),
        _ => panic!("{epilogue} is more than a product: {plan}"),
    }
}

#[test]
fn the_library_takes_layers_on_codes_with_their_biases_and_residuals() {
    for epilogue in ["plain", "bias", "bias, residual", "added"] {
        assert!(takes(&planned(epilogue)), "{epilogue}");
    }
}

#[test]
fn the_library_takes_nothing_that_it_would_compute_otherwise() {
    for epilogue in ["rounded to f16", "two biases", "bias of f32", "scaled at last"] {
        assert!(!takes(&planned(epilogue)), "{epilogue}");
    }
}

//! Build a model like its formula, bind its batch, and run it on the CPU.
//!
//! `cargo run --release --example build_a_model`

use overdrive::cpu::CpuBackend;
use overdrive::ir::ops::gelu::Approximation;
use overdrive::ir::{Backend, Builder, DType, Dim, Init, Mode, State, Tensor, TensorType, Tuning};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let b = Builder::new("two-layers");
    let x = b.input("x", TensorType::new(DType::F32, [Dim::from("batch"), Dim::from(64)]));
    let layer = |name: &str, [inputs, outputs]: [usize; 2]| {
        let _scope = b.scope(name);
        let std = (1.0 / inputs as f64).sqrt();
        let weight = TensorType::new(DType::F32, [inputs, outputs]);
        let bias = TensorType::new(DType::F32, [outputs]);
        (
            b.state("weight", weight, Init::Normal { std, seed: 7 }),
            b.state("bias", bias, Init::ZEROS),
        )
    };
    let (w1, b1) = layer("fc1", [64, 128]);
    let (w2, b2) = layer("fc2", [128, 10]);
    b.output("y", x.linear(w1, Some(b1)).gelu(Approximation::Tanh).linear(w2, Some(b2)).softmax(1));
    let template = b.finish()?;

    let graph = overdrive::passes::bind(&template, &[("batch".to_owned(), 2)].into())?;
    println!("{graph}");

    let cpu = CpuBackend::new(None)?;
    let mut session = cpu.compile(&graph, Mode::Compile, &Tuning::default())?.session()?;
    println!("{}", session.plan());

    let mut state = State::initial(&graph, &cpu)?;
    let values: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
    let inputs = [cpu.upload(&Tensor::from_f32([2usize, 64], &values))?];
    let mut outputs = [cpu.output(&TensorType::new(DType::F32, [2usize, 10]))?];
    session.run(state.with(&inputs, &mut outputs))?.wait()?;
    println!("{:?}", cpu.download(&outputs[0])?.to_f32());
    Ok(())
}

//! One call for each command: evaluate, bench, profile, quantize, judge, write, export.
//!
//! `cargo run --release --example one_call_each`

use overdrive::calls::Model;
use overdrive::formats::Tensors;
use overdrive::ir::{Mode, Tensor};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // ANCHOR: open
    // A built-in name, a folder of ours or in Hugging Face's format, an .onnx or a .gguf file.
    let model = Model::open("digits-mlp")?.with_size("batch", 8);
    // ANCHOR_END: open

    // ANCHOR: eval
    let x = Tensor::from_f32([8, 64], &[0.5; 8 * 64]);
    let outputs = model.eval(&Tensors::from([("x".to_owned(), x)]))?;
    for (name, tensor) in &outputs {
        println!("{name}: {}", tensor.ty());
    }
    // ANCHOR_END: eval

    // ANCHOR: bench
    let results = model.bench().modes(&[Mode::Eager, Mode::Compile]).trials(20).run()?;
    println!("{}", overdrive::report::terminal(&results, 100));
    // ANCHOR_END: bench

    // ANCHOR: profile
    println!("{}", model.profile(20)?);
    // ANCHOR_END: profile

    // ANCHOR: quantize
    let smaller = model.quantize("int8-dynamic", &[])?;
    let (before, after) = (model.score("digits")?, smaller.score("digits")?);
    println!("top1 {:.4}, quantized {:.4}", before.accuracy(), after.accuracy());
    // ANCHOR_END: quantize

    // ANCHOR: write
    let folder = std::env::temp_dir().join(format!("one-call-each-{}", std::process::id()));
    smaller.write(&folder)?;
    model.export_onnx(&folder.join("model.onnx"))?;
    // ANCHOR_END: write
    println!("written: {}", folder.display());
    Ok(())
}

//! The gain of low precision on a GPU, against bf16 in the same process: `cargo run --release
//! --example low_precision [rows] [products] [sparse] [step] [step_tuned] [adamw]`.
//!
//! The kinds of measurement:
//!
//! - `rows`: a chain of layers of 8192 x 8192 held as codes, by 1 to 32 rows. Together the weights
//!   are many times the second-level cache, so that each layer's weights come from memory.
//! - `products`: layers whose activations are quantized too.
//! - `sparse`: layers by 2:4 weights.
//! - `step`: the twelve products of a transformer block's training step in fp8, quantization in
//!   both orders included. They run by cuBLASLt's first choices, or tuned.
//! - `adamw`: the optimizer.
//!
//! Each line has the median, its 95 % interval, and the bound: bytes over the bandwidth of a copy
//! that is measured first, or FLOP/s. Every kind is checked against the f64 definition before it is
//! timed.

mod bench;
mod products;
mod rows;
mod sparse;
mod step;
mod update;

fn main() {
    let backend = match overdrive_cuda::CudaBackend::new(0) {
        Ok(backend) => backend,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    let bench = bench::Bench::new(&backend);
    println!("copy of 1 GiB: {:.2} TB/s", bench.copy_bytes_per_ns / 1e3);
    println!("device memory of the context itself: {:?} bytes", backend.device().context_bytes());
    for (name, run) in [
        ("rows", rows::run as fn(&bench::Bench<'_>)),
        ("products", products::run),
        ("sparse", sparse::run),
        ("step", step::run),
        ("step_tuned", step::run_tuned),
        ("adamw", update::run),
    ] {
        if wanted(name) {
            println!("\n{name}");
            run(&bench);
        }
    }
}

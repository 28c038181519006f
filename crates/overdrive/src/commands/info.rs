//! `overdrive info`: this machine, and the back ends that it has.

use crate::cli::Json;
use crate::failure::Failure;
use overdrive::bench::environment::{Environment, Revision};
use overdrive::bench::exit::Exit;
use overdrive::cpu::CpuBackend;
use overdrive::ir::Backend;

pub(crate) fn info(arguments: &Json) -> Result<Exit, Failure> {
    let environment = Environment::probe();
    let backend = CpuBackend::new(None).map_err(Failure::harness)?;
    let caps = backend.caps();
    let contractions: Vec<&str> = caps.contraction_dtypes.iter().map(|d| d.name()).collect();
    let kernels: Vec<&str> = caps.claims.iter().map(String::as_str).collect();
    if arguments.json {
        let json = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "revision": Revision::current(),
            "environment": environment,
            "backends": [{
                "name": backend.name(),
                "device": caps.device,
                "memory_bytes": caps.memory_bytes,
                "contractions": contractions,
                "kernels": kernels,
            }],
        });
        println!("{}", serde_json::to_string_pretty(&json).expect("plain data"));
        return Ok(Exit::Fine);
    }
    let cpu = &environment.cpu;
    println!("overdrive {}", env!("CARGO_PKG_VERSION"));
    println!("processor     {} ({} logical CPUs)", cpu.model, cpu.logical.unwrap_or(0));
    println!("features      {}", cpu.features.join(" "));
    for cache in &cpu.caches {
        println!("cache L{}      {} KiB", cache.level, cache.bytes >> 10);
    }
    if let Some(bytes) = environment.memory_bytes {
        println!("memory        {:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    }
    println!("back end      {}: {}", backend.name(), caps.device);
    println!("  products in {}", contractions.join(", "));
    println!("  kernels for {}", kernels.join(", "));
    for warning in environment.warnings() {
        println!("note          {warning}");
    }
    Ok(Exit::Fine)
}

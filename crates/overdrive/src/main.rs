//! The `overdrive` binary: parses, wires, prints. The only place that names concrete back ends and may exit.

mod cli;
mod commands;
mod devices;
mod energy;
mod engines;
mod failure;
mod model;
mod progress;
mod text;
mod training;

use clap::Parser;
use overdrive::bench::memory::CountingAllocator;
use std::process::ExitCode;

/// Counts what models allocate, for the memory columns; a relaxed counter per allocation.
#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    match commands::run(arguments.command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit.into()
        }
    }
}

//! The `overdrive` binary: parses, wires, prints. The only place that names concrete back ends and
//! may exit.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod asked_attention;
mod asked_graph;
mod cli;
mod commands;
mod devices;
mod energy;
mod engines;
mod error_channel;
mod failure;
mod freeing;
mod invoked;
mod left_in_float;
mod limit;
mod model;
mod out_of_memory;
mod progress;
mod signals;
mod terminal;
mod text;
mod training;

use overdrive::bench::exit::Exit;
use overdrive_process::Stop;
use std::process::ExitCode;

fn main() -> ExitCode {
    let stop = Stop::default();
    signals::listen(&stop);
    if let Err(error) = error_channel::end_with_command() {
        terminal::note!("note: this rank may outlive the command that started it: {error}");
    }
    let ended = match cli::Arguments::of(std::env::args_os()) {
        Ok(arguments) => {
            terminal::speak(arguments.said.into());
            commands::run(arguments.command, &stop)
        }
        Err(error) => terminal::usage(&error),
    };
    let exit = ended.unwrap_or_else(|failure| {
        if failure.exit != Exit::ClosedPipe {
            error_channel::tell(&failure);
        }
        failure.exit
    });
    // Who sent a signal hears that it was heeded, whatever was done by then.
    stop.signal().map_or(exit, Exit::from).into()
}

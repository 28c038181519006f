//! What each command does, one file each.

mod bench;
mod compare;
mod eval;
mod export;
mod generate;
mod history;
mod info;
mod models;
mod output;
mod profile;
mod quantize;
mod regress;
mod report;
mod resume;
mod run;
mod train;

pub(crate) use run::command_line;

use crate::cli::{Arguments, Command};
use crate::failure::Failure;
use clap::CommandFactory;
use overdrive::bench::exit::Exit;

/// Runs a command to its exit code.
pub(crate) fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Eval(arguments) => eval::eval(&arguments),
        Command::Export(arguments) => export::export(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments),
        Command::Generate(arguments) => generate::generate(&arguments),
        Command::Train(arguments) => train::train(&arguments),
        Command::Quantize(arguments) => quantize::quantize(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Regress(arguments) => regress::regress(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::History(arguments) => history::history(&arguments),
        Command::Models(arguments) => models::models(&arguments),
        Command::Info(arguments) => info::info(&arguments),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "overdrive", &mut std::io::stdout());
            Ok(Exit::Fine)
        }
    }
}

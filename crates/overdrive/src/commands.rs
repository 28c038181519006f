//! The work of each command, one file each.

mod bench;
mod compare;
mod eval;
mod explain;
mod export;
mod generate;
mod history;
mod info;
mod models;
mod optimize;
mod output;
mod profile;
mod quantize;
mod ranks;
mod regress;
mod report;
mod resume;
mod run;
mod texts;
mod tokens;
mod train;

use crate::cli::{Arguments, Command};
use crate::failure::Failure;
use crate::terminal;
use clap::CommandFactory;
use overdrive::bench::exit::Exit;
use overdrive_process::Stop;

/// The name of a command that measures or writes, and does so in one process. A launcher may start
/// any other one several times: ranks of `train` and `generate` join, and the rest only prints.
fn of_one_process(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Run(_) => "run",
        Command::Bench(_) => "bench",
        Command::Eval(_) => "eval",
        Command::Export(_) => "export",
        Command::Profile(_) => "profile",
        Command::Optimize(_) => "optimize",
        Command::Quantize(_) => "quantize",
        Command::Report(_) => "report",
        Command::Regress(_) => "regress",
        Command::Tokens(_) => "tokens",
        Command::Train(_)
        | Command::Generate(_)
        | Command::Explain(_)
        | Command::Compare(_)
        | Command::History(_)
        | Command::Models(_)
        | Command::Info(_)
        | Command::Completions { .. } => return None,
    })
}

/// Runs a command to its exit code; those that take long, or write, heed `stop`.
pub(crate) fn run(command: Command, stop: &Stop) -> Result<Exit, Failure> {
    of_one_process(&command).map_or(Ok(()), ranks::only_one)?;
    match command {
        Command::Run(arguments) => run::run(&arguments, stop),
        Command::Bench(arguments) => bench::bench(&arguments, stop),
        Command::Eval(arguments) => eval::eval(&arguments, stop),
        Command::Export(arguments) => export::export(&arguments, stop),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Profile(arguments) => profile::profile(&arguments, stop),
        Command::Generate(arguments) => generate::generate(&arguments, stop),
        Command::Tokens(arguments) => tokens::tokens(&arguments, stop),
        Command::Train(arguments) => train::train(&arguments, stop),
        Command::Optimize(arguments) => optimize::optimize(&arguments, stop),
        Command::Quantize(arguments) => quantize::quantize(&arguments, stop),
        Command::Report(arguments) => report::report(&arguments, stop),
        Command::Regress(arguments) => regress::regress(&arguments, stop),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::History(arguments) => history::history(&arguments, stop),
        Command::Models(arguments) => models::models(&arguments),
        Command::Info(arguments) => info::info(&arguments, stop),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "overdrive", &mut script);
            terminal::write(format_args!("{}", String::from_utf8_lossy(&script)))?;
            Ok(Exit::Fine)
        }
    }
}

//! `overdrive compare`: two files of results side by side.

use super::output;
use crate::cli::Compare;
use crate::failure::Failure;
use overdrive::bench::compare;
use overdrive::bench::exit::Exit;

pub(crate) fn compare(arguments: &Compare) -> Result<Exit, Failure> {
    let (first, second) = (output::read(&arguments.first)?, output::read(&arguments.second)?);
    let comparison = compare::compare(&first, &second);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&comparison.json()).expect("plain data"));
    } else {
        println!("A: {}\nB: {}\n", arguments.first.display(), arguments.second.display());
        print!("{}", comparison.terminal(output::width()));
    }
    if comparison.has_common_cases() {
        return Ok(Exit::Fine);
    }
    Err(Failure::harness(format!(
        "nothing was compared: no case of `{}` is in `{}`",
        arguments.first.display(),
        arguments.second.display()
    )))
}

//! `overdrive compare`: the results of two sides, of one session or several each.

use super::output;
use crate::cli::Compare;
use crate::failure::Failure;
use crate::terminal::{say, width, write};
use overdrive::bench::exit::Exit;
use overdrive::bench::results::Results;
use overdrive::gate::compare;
use std::path::Path;

pub(crate) fn compare(arguments: &Compare) -> Result<Exit, Failure> {
    let (first, second) = (sessions(&arguments.first)?, sessions(&arguments.second)?);
    let comparison = compare::compare(&first, &second);
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&comparison.json()).expect("plain data"))?;
    } else {
        say!("A: {}\nB: {}\n", arguments.first.display(), arguments.second.display())?;
        write(format_args!("{}", comparison.terminal(width())))?;
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

/// The results of one side: of a file or folder, or of several with commas between them.
fn sessions(side: &Path) -> Result<Vec<Results>, Failure> {
    let list = match side.to_str() {
        Some(list) if !side.exists() => list,
        _ => return output::read(side),
    };
    let mut sessions: Vec<Results> = Vec::new();
    for path in list.split(',') {
        for session in output::read(Path::new(path))? {
            if sessions.contains(&session) {
                return Err(Failure::bad_input(format!(
                    "expected sessions of their own in `{list}`, found that of `{path}` twice: a \
                     session counts once, so measure again"
                )));
            }
            sessions.push(session);
        }
    }
    Ok(sessions)
}

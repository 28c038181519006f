//! The Python interpreter, isolated: neither the working folder nor a variable brings in what the
//! user did not install (`-I`).

use crate::program;
use std::env;
use std::io;
use std::process::Command;

/// The interpreter's name: `python3`, or what the variable `PYTHON` names.
pub fn interpreter() -> String {
    env::var("PYTHON").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "python3".to_owned())
}

/// The interpreter of this name, to which its program is still to be given (`-c TEXT`, `-m
/// MODULE`).
///
/// # Errors
/// When there is none.
pub fn isolated(interpreter: &str) -> io::Result<Command> {
    let mut command = Command::new(program::find(interpreter)?);
    // The interpreters that it starts itself know no -I.
    command.arg("-I").env("PYTHONSAFEPATH", "1");
    Ok(command)
}

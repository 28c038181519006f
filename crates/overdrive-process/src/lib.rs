//! Processes: how ours is asked to end, and how others are found, started and ended.
//!
//! - [`Stop`]: the one request to end; every long loop looks at it, and children end with it.
//! - [`Running`]: a child in a process group of its own, which does not outlive its owner.
//! - [`end_with_reader`]: this process ends with the one that reads a pipe of it.
//! - [`program`]: finds the programs to start; none may be in the working folder.
//! - [`python`]: the interpreter, isolated from the working folder.

mod process_group;
pub mod program;
pub mod python;
#[cfg(unix)]
mod reader;
mod running;
mod stop;

#[cfg(unix)]
pub use reader::end_with_reader;
pub use running::Running;
pub use stop::{Heeded, Signal, Stop};

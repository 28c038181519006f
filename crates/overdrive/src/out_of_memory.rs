//! Memory that cannot be had: a message and the exit code of bad input, where a program would
//! abort.
//!
//! Sizes that a user gives are checked where they are known. This is for all the rest, whoever
//! allocates; it names the file that is being read, or else the model.

use crate::terminal::beside_without_memory;
use overdrive::bench::exit::Exit;
use overdrive::bench::memory::{CountingAllocator, HeapRequest};
use overdrive::cpu::memory::available_bytes;
use overdrive::files::worked_on;
use std::sync::atomic::{AtomicBool, Ordering};

/// Counts what models allocate, for the memory columns; a relaxed counter per allocation.
#[global_allocator]
pub(crate) static HEAP: CountingAllocator = CountingAllocator::guarded(guard);

/// Ends the process where a request is more than there is, or was refused.
pub(crate) fn guard(request: HeapRequest) {
    /// Asking for the free memory allocates too.
    static ASKED: AtomicBool = AtomicBool::new(false);
    let (bytes, available) = match request {
        HeapRequest::Large(bytes) => match available_bytes() {
            available if bytes <= available => return,
            available => (bytes, Some(available)),
        },
        HeapRequest::Refused(bytes) => {
            (bytes, (!ASKED.swap(true, Ordering::Relaxed)).then(available_bytes))
        }
    };
    worked_on(|name| {
        let (of, name, quote) = name.map_or(("", "", ""), |name| (" for `", name, "`"));
        match available {
            Some(available) => beside_without_memory(format_args!(
                "error: out of memory{of}{name}{quote}: needed {bytes} bytes more, found \
                 {available}{REMEDY}"
            )),
            None => beside_without_memory(format_args!(
                "error: out of memory{of}{name}{quote}: needed {bytes} bytes more, found \
                 none{REMEDY}"
            )),
        }
    });
    std::process::exit(Exit::BadInput.code().into())
}

const REMEDY: &str =
    "; use smaller sizes or a smaller model, or raise the limit (`ulimit -v`, or the container's)";

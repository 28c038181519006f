//! Calls into a library that panics on files it does not expect: the panic is an error of the file,
//! said once, in our words.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught and said by us.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`, or an error that names the file if it panics. Shared data may then be
/// half-changed, so later calls may fail in the same way.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CAUGHT.get() {
                others(info);
            }
        }));
    });
    let outer = CAUGHT.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(outer);
    outcome.map_err(|_| {
        format!(
            "parts of {} that do not fit each other: the library gives up on them",
            path.display()
        )
    })
}

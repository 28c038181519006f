//! The present work of the process, for a message where memory runs out. The code that allocates
//! does not know for which file of the user's it does so.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Begun and not ended, the latest last.
static NAMES: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());

/// Work on something that the user named, until it is dropped.
#[must_use = "the work ends where this is dropped"]
#[derive(Debug)]
pub struct About(Arc<str>);

/// Begins to work on a file, a folder, or whatever else the user named so.
pub fn about(name: impl AsRef<Path>) -> About {
    let name: Arc<str> = name.as_ref().to_string_lossy().into();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.push(Arc::clone(&name));
    About(name)
}

/// Tells `listener` what is worked on: the latest that was begun and not ended. It waits for nobody
/// and takes no memory, so that an allocator may call it.
pub fn worked_on<T>(listener: impl FnOnce(Option<&str>) -> T) -> T {
    match NAMES.try_lock() {
        Ok(names) => listener(names.last().map(AsRef::as_ref)),
        Err(TryLockError::Poisoned(names)) => {
            listener(names.into_inner().last().map(AsRef::as_ref))
        }
        Err(TryLockError::WouldBlock) => listener(None),
    }
}

impl Drop for About {
    fn drop(&mut self) {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads may end in another order than they began.
        if let Some(at) = names.iter().rposition(|name| Arc::ptr_eq(name, &self.0)) {
            names.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_that_has_not_ended_is_told() {
        let told = || worked_on(|name| name.map(str::to_owned));
        let model = about("model.onnx");
        let inputs = about("in.npz");
        assert_eq!(told().as_deref(), Some("in.npz"));
        let again = about("in.npz");
        drop(inputs);
        assert_eq!(told().as_deref(), Some("in.npz"), "the second work on it goes on");
        drop(again);
        assert_eq!(told().as_deref(), Some("model.onnx"));
        drop(model);
        assert_eq!(told(), None);
        let held = NAMES.lock().unwrap();
        assert_eq!(told(), None, "an allocation under the lock waits for nobody");
        drop(held);
    }
}

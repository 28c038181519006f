//! Process groups: a child and all that it started are told to end together.

/// How a child is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Force {
    /// It is asked to end, and may save its results first.
    Asked,
    /// It is gone.
    Killed,
}

/// Tells a whole process group; one that is gone is no error.
#[cfg(unix)]
pub(crate) fn signal(group: u32, force: Force) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = match force {
        Force::Asked => Signal::TERM,
        Force::Killed => Signal::KILL,
    };
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

/// Systems without process groups end their children through
/// [`Running::kill`](crate::Running::kill) alone.
#[cfg(not(unix))]
pub(crate) fn signal(_group: u32, _force: Force) {}

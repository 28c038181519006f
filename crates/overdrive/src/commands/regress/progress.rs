//! The progress of a session of the gate, and how long it may still take.

use crate::progress::{Looks, minutes, seen};
use indicatif::ProgressBar;
use overdrive::gate::session;
use overdrive::gate::session::SessionProgress;

/// Progress of one session.
pub(super) struct GateProgress {
    bar: ProgressBar,
}

impl GateProgress {
    /// Nothing runs yet.
    pub(super) fn start() -> Self {
        let looks = Looks {
            on_terminal: "{spinner} {elapsed_precise} {msg}",
            in_log: "{elapsed_precise} {msg}",
        };
        Self { bar: seen(ProgressBar::new_spinner(), &looks) }
    }

    /// Removes it.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl session::Progress for GateProgress {
    fn block(&self, step: &SessionProgress) {
        let left = step.budget.saturating_sub(step.elapsed);
        let left = minutes(left.as_secs_f64());
        self.bar.set_message(format!(
            "block {} of six processes, at most {left} left",
            step.blocks + 1
        ));
    }
}

//! Where a session of the gate is, and how long it may still take: on one line of a terminal, or,
//! in a log, a line every few blocks.

use crate::terminal::note;
use indicatif::{ProgressBar, ProgressStyle};
use overdrive::bench::gate::session::{self, Step};
use std::io::IsTerminal;
use std::time::Duration;

/// Progress of one session.
pub(super) struct GateProgress {
    bar: ProgressBar,
}

impl GateProgress {
    /// Nothing runs yet.
    pub(super) fn start() -> Self {
        Self { bar: bar() }
    }

    /// Removes it.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl session::Progress for GateProgress {
    fn block(&self, step: &Step) {
        let left = step.budget.saturating_sub(step.elapsed);
        let line = format!("block {} of six processes, at most {} left", step.blocks + 1, minutes(left));
        if self.bar.is_hidden() && step.blocks.is_multiple_of(10) {
            note!("{line}");
        }
        self.bar.set_message(line);
    }
}

/// `40 s`, `12 min`
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    let template = "{spinner} {elapsed_precise} {msg}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is fixed"));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

//! Where a session of the gate is, and about how long its stage will still take: on one line of a terminal, or, in
//! a log, a line a block.

use indicatif::{ProgressBar, ProgressStyle};
use overdrive::bench::gate::session::{self, Pairing, Stage, Step};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Progress of one session.
pub(super) struct GateProgress {
    bar: ProgressBar,
    stage: RefCell<Option<(Stage, Instant)>>,
}

impl GateProgress {
    /// Nothing runs yet.
    pub(super) fn start() -> Self {
        Self { bar: bar(), stage: RefCell::default() }
    }

    /// Removes it.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl session::Progress for GateProgress {
    fn step(&self, step: &Step) {
        let mut stage = self.stage.borrow_mut();
        let begun = match *stage {
            Some((known, begun)) if known == step.stage => begun,
            _ => stage.insert((step.stage, Instant::now())).1,
        };
        let what = match step.stage {
            Stage::Screening => "screening".to_owned(),
            Stage::Judging if step.cases == 1 => "judging 1 candidate".to_owned(),
            Stage::Judging => format!("judging {} candidates", step.cases),
        };
        let of_whom = if step.pairing == Pairing::Control { " (baseline against itself)" } else { "" };
        let left = match step.done {
            0 => String::new(),
            done => {
                format!(", about {} left", minutes(begun.elapsed() / done as u32 * (step.of - done) as u32))
            }
        };
        let line = format!("{what}{of_whom}: process {} of {}{left}", step.done + 1, step.of);
        if self.bar.is_hidden() && step.done.is_multiple_of(4) {
            eprintln!("{line}");
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

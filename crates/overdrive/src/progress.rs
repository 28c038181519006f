//! A spinner or a bar on long work; silent when standard error is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use overdrive::studies::Progress;
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::Duration;

/// Shows the study and the workload under way.
pub(crate) struct Spinner {
    bar: ProgressBar,
    study: RefCell<String>,
}

impl Spinner {
    /// A spinner, if somebody watches.
    pub(crate) fn start() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::silent();
        }
        let bar = {
            let bar = ProgressBar::new_spinner();
            let template = "{spinner} {elapsed_precise} {msg}";
            bar.set_style(ProgressStyle::with_template(template).expect("the template is fixed"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        };
        Self { bar, study: RefCell::default() }
    }

    /// One that nobody sees.
    pub(crate) fn silent() -> Self {
        Self { bar: ProgressBar::hidden(), study: RefCell::default() }
    }

    /// Removes it.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar over a number of things that is set later, with the time that is left.
pub(crate) fn bar(things: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_prefix(things.to_owned());
    let template = "{prefix} {pos}/{len} {wide_bar} {elapsed_precise}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is fixed"));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

impl Progress for Spinner {
    fn study(&self, name: &str) {
        *self.study.borrow_mut() = name.to_owned();
        self.bar.set_message(name.to_owned());
    }

    fn workload(&self, name: &str) {
        self.bar.set_message(format!("{}: {name}", self.study.borrow()));
    }
}

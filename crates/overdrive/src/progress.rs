//! How far long work is, and how long it may still take. It is on one line of a terminal. If
//! standard error is no terminal, it is a line every ten seconds; with `-q` nothing.

use crate::terminal::{self, Volume};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use overdrive::studies::Progress;
use std::cell::RefCell;
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two lines of a log.
const PAUSE: Duration = Duration::from_secs(10);

/// A stage that took less is not told.
const TOLD_S: f64 = 0.05;

/// Whether a spinner has the line of the terminal. A bar drawn beside it would be a second line.
static SPINS: AtomicBool = AtomicBool::new(false);

/// How a bar looks: on a terminal, and as a line of a log.
pub(crate) struct Looks {
    /// Templates of indicatif.
    pub(crate) on_terminal: &'static str,
    pub(crate) in_log: &'static str,
}

/// The bar, seen wherever standard error leads.
pub(crate) fn seen(bar: ProgressBar, looks: &Looks) -> ProgressBar {
    let is_terminal = io::stderr().is_terminal();
    let (target, template) = match terminal::volume() {
        Volume::Quiet => (ProgressDrawTarget::hidden(), looks.in_log),
        _ if is_terminal => (terminal::line(), looks.on_terminal),
        _ => (ProgressDrawTarget::term_like_with_hz(Box::new(Log::default()), 1), looks.in_log),
    };
    bar.set_draw_target(target);
    let style = ProgressStyle::with_template(template).expect("the template is fixed");
    bar.set_style(style.with_key("left", |state: &ProgressState, text: &mut dyn fmt::Write| {
        let left = left(state.elapsed(), state.pos(), state.len());
        text.write_str(&left).expect("a text takes every word");
    }));
    bar.enable_steady_tick(if is_terminal {
        Duration::from_millis(120)
    } else {
        Duration::from_secs(1)
    });
    bar
}

/// A bar over a number of things that is set later, with the time that is left.
fn bar(things: &str) -> ProgressBar {
    let looks = Looks {
        on_terminal: "{prefix} {pos}/{len} {wide_bar} {elapsed_precise}{left}",
        in_log: "{prefix} {pos}/{len}, {elapsed_precise}{left}",
    };
    seen(ProgressBar::new(0).with_prefix(things.to_owned()), &looks)
}

/// `, about 4 min left`, by how long each thing took that is done; nothing before the first.
pub(crate) fn left(elapsed: Duration, done: u64, all: Option<u64>) -> String {
    let Some(more) = all.and_then(|all| all.checked_sub(done)).filter(|_| done > 0) else {
        return String::new();
    };
    let each = elapsed.as_secs_f64() / done as f64;
    format!(", about {} left", minutes(each * more as f64))
}

/// Runs work that tells how far it is, under a bar over these things.
pub(crate) fn over<T>(things: &str, work: impl FnOnce(&mut dyn FnMut(usize, usize)) -> T) -> T {
    let bar = if SPINS.load(Ordering::Relaxed) { ProgressBar::hidden() } else { bar(things) };
    let made = work(&mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    made
}

/// The study and the workload under way.
pub(crate) struct Spinner {
    bar: ProgressBar,
    study: RefCell<String>,
    workload: RefCell<String>,
    stage: RefCell<Option<(String, Instant)>>,
}

impl Spinner {
    /// Over so many parts, each begun by [`next`](Self::next).
    pub(crate) fn over(parts: usize) -> Self {
        let looks = Looks {
            on_terminal: "{spinner} {elapsed_precise} {prefix}{wide_msg}",
            in_log: "{elapsed_precise} {prefix}{msg}",
        };
        let bar = seen(ProgressBar::new(parts as u64), &looks);
        SPINS.store(io::stderr().is_terminal(), Ordering::Relaxed);
        Self { bar, ..Self::silent() }
    }

    /// One of a single part; silent unless it is on a terminal. Lines in a log are told otherwise.
    pub(crate) fn on_terminal() -> Self {
        if io::stderr().is_terminal() { Self::over(1) } else { Self::silent() }
    }

    /// Shows this text alone.
    pub(crate) fn show(&self, text: String) {
        self.bar.set_message(text);
    }

    /// One that nobody sees.
    pub(crate) fn silent() -> Self {
        let bar = ProgressBar::hidden();
        let (study, workload) = (RefCell::default(), RefCell::default());
        Self { bar, study, workload, stage: RefCell::default() }
    }

    /// The next part begins: `3/12, 4 min left: `. How long the others take is judged by those that
    /// are done.
    pub(crate) fn next(&self) {
        self.bar.inc(1);
        let (at, all) = (self.bar.position(), self.bar.length().unwrap_or(1));
        let left = left(self.bar.elapsed(), at.saturating_sub(1), Some(all));
        self.bar.set_prefix(if all > 1 { format!("{at}/{all}{left}: ") } else { String::new() });
    }

    /// Tells something on lines of its own.
    pub(crate) fn aside(&self, tell: impl FnOnce()) {
        self.bar.suspend(tell);
    }

    /// Ends a stage: with `-v` it is told how long it took.
    fn end_stage(&self) {
        let Some((name, begun)) = self.stage.take() else { return };
        let seconds = begun.elapsed().as_secs_f64();
        if terminal::volume() == Volume::Verbose && seconds >= TOLD_S {
            let workload = self.workload.borrow();
            terminal::beside(format_args!("{workload}: {name}: {seconds:.1} s"));
        }
    }

    /// Removes it.
    pub(crate) fn finish(&self) {
        self.end_stage();
        self.bar.finish_and_clear();
        SPINS.store(false, Ordering::Relaxed);
    }
}

impl Progress for Spinner {
    fn study(&self, name: &str) {
        *self.study.borrow_mut() = name.to_owned();
        self.bar.set_message(name.to_owned());
    }

    fn workload(&self, name: &str) {
        self.end_stage();
        *self.workload.borrow_mut() = name.to_owned();
        self.bar.set_message(format!("{}: {name}", self.study.borrow()));
    }

    fn stage(&self, name: &str) {
        self.end_stage();
        self.stage.replace(Some((name.to_owned(), Instant::now())));
        let (study, workload) = (self.study.borrow(), self.workload.borrow());
        self.bar.set_message(format!("{study}: {workload}: {name}"));
    }
}

/// `40 s`, `12 min`
pub(crate) fn minutes(seconds: f64) -> String {
    if seconds < 120.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// A terminal that is a log: of all that is drawn on it, a line every ten seconds is kept.
#[derive(Debug)]
struct Log {
    last: Mutex<Instant>,
}

impl Default for Log {
    fn default() -> Self {
        Self { last: Mutex::new(Instant::now()) }
    }
}

impl TermLike for Log {
    fn width(&self) -> u16 {
        terminal::NO_TERMINAL
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.write_str(line)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let text = text.trim();
        let Ok(mut last) = self.last.lock() else { return Ok(()) };
        if !text.is_empty() && last.elapsed() >= PAUSE {
            *last = Instant::now();
            terminal::beside(format_args!("{text}"));
        }
        Ok(())
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_what_was_done() {
        let left = |done, all| left(Duration::from_secs(60), done, Some(all));
        assert_eq!(left(1, 17), ", about 16 min left");
        assert_eq!(left(6, 9), ", about 30 s left");
        assert_eq!(left(0, 17), "", "nothing is known before the first");
    }
}

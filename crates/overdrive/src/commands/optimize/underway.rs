//! How far a search is, and how long its stage may still take. It is one line of a terminal, or a
//! line of a log for each answer.
//!
//! Invariant: an answer that the record has takes no time, so that it counts in no estimate.

use crate::progress::{Spinner, minutes};
use crate::terminal::{NO_TERMINAL, note};
use overdrive::optimize::Stage;
use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Between two lines of a log within a scan, which has many short steps.
const PAUSE: Duration = Duration::from_secs(10);

/// A row of work of which each piece is counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// Formats, forms, mixes and the last forms.
    Stage(Stage),
    /// Groups of layers, each in a mode.
    Scan,
    /// Backward passes, by which losses of layers are estimated.
    Passes,
    /// Shapes of layers, which are timed alone.
    Shapes,
}

impl Counted {
    /// `timing 3 of 12 formats`
    fn said(self, [at, all]: [usize; 2]) -> String {
        match self {
            Self::Stage(Stage::Timing) => format!("timing {at} of {all} formats"),
            Self::Stage(Stage::Choosing) => format!("judging {at} of {all} forms"),
            Self::Stage(Stage::Mixing) => format!("mix {at} of at most {all}"),
            Self::Stage(Stage::Caching) => format!("cache {at} of {all}"),
            Self::Stage(Stage::Judging) if at == 0 => format!("timing the last {all} together"),
            Self::Stage(Stage::Judging) => format!("judging {at} of the last {all}"),
            Self::Scan => format!("scanning {at} of {all} groups"),
            Self::Passes => format!("pass {at} of {all} by gradients"),
            Self::Shapes => format!("timing {at} of {all} shapes of layers"),
        }
    }
}

/// The place in a row of work.
#[derive(Copy, Clone)]
struct Place {
    counted: Counted,
    at: usize,
    all: usize,
    /// When the machine was first asked, and for which piece.
    begun: Option<(Instant, usize)>,
    /// When a line of a log was last told of the row, and of which piece.
    told: Option<(Instant, usize)>,
}

impl Place {
    /// `, about 40 s left`, by the pieces that are done; before the first, the time that is
    /// allowed.
    fn left(&self, now: Instant, allowed_s: f64) -> String {
        let Some((begun, first)) = self.begun else { return String::new() };
        match self.at.saturating_sub(first) {
            0 if allowed_s.is_finite() => format!(", at most {} left", minutes(allowed_s)),
            0 => String::new(),
            done => {
                let more = (self.all + 1).saturating_sub(self.at);
                let each_s = (now - begun).as_secs_f64() / done as f64;
                let left_s = each_s * more as f64;
                format!(", about {} left", minutes(left_s.min(allowed_s)))
            }
        }
    }

    /// Whether a log is told of this piece.
    fn is_news(&self, now: Instant) -> bool {
        match self.told {
            None => true,
            Some((last, _)) if matches!(self.counted, Counted::Scan | Counted::Passes) => {
                now - last >= PAUSE
            }
            Some((_, at)) => at != self.at,
        }
    }
}

/// The search under way.
pub(super) struct Underway {
    spinner: Spinner,
    place: Cell<Option<Place>>,
    /// The last line of a log without a place.
    said: RefCell<String>,
}

impl Underway {
    pub(super) fn new() -> Self {
        let (place, said) = (Cell::default(), RefCell::default());
        Self { spinner: Spinner::on_terminal(), place, said }
    }

    /// The work comes to this piece.
    pub(super) fn comes_to(&self, counted: Counted, [at, all]: [usize; 2]) {
        let known = self.place.get().filter(|place| place.counted == counted);
        let (begun, told) = known.map_or((None, None), |place| (place.begun, place.told));
        self.place.set(Some(Place { counted, at, all, begun, told }));
    }

    /// The machine does this for the piece; `allowed_s` are the seconds until when new ones are
    /// tried.
    pub(super) fn tell(&self, doing: &str, name: &str, allowed_s: f64) {
        let Some(mut place) = self.place.get() else { return self.tell_of(doing, name) };
        let now = Instant::now();
        place.begun = place.begun.or(Some((now, place.at)));
        let head = place.counted.said([place.at, place.all]) + &place.left(now, allowed_s);
        self.spinner.show(format!("{head}: {doing} {name}"));
        if place.is_news(now) {
            place.told = Some((now, place.at));
            match place.at {
                0 => log(&head),
                _ => log(&format!("{head}: {name}")),
            }
        }
        self.place.set(Some(place));
    }

    /// The same outside of all rows.
    fn tell_of(&self, doing: &str, name: &str) {
        let text = format!("{doing} {name}");
        self.spinner.show(text.clone());
        if self.said.replace(text.clone()) != text {
            log(&text);
        }
    }

    /// The rows are done.
    pub(super) fn leaves(&self) {
        self.place.set(None);
    }

    /// Tells something on lines of its own.
    pub(super) fn aside(&self, tell: impl FnOnce()) {
        self.spinner.aside(tell);
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        self.spinner.finish();
    }
}

/// A line of at most the columns that every log has, if standard error is one.
fn log(text: &str) {
    if !io::stderr().is_terminal() {
        note!("{}", console::truncate_str(text, NO_TERMINAL.into(), "…"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_what_the_machine_did() {
        let begun = Instant::now();
        let left = |[at, first]: [usize; 2], elapsed_s, allowed_s| {
            let counted = Counted::Stage(Stage::Timing);
            let place = Place { counted, at, all: 12, begun: Some((begun, first)), told: None };
            place.left(begun + Duration::from_secs(elapsed_s), allowed_s)
        };
        assert_eq!(left([1, 1], 0, 90.0), ", at most 90 s left");
        assert_eq!(left([1, 1], 0, f64::INFINITY), "");
        // Two of twelve took a minute, and ten are left.
        assert_eq!(left([3, 1], 60, 1e9), ", about 5 min left");
        assert_eq!(left([3, 1], 60, 30.0), ", about 30 s left");
        // The first ten were in the record.
        assert_eq!(left([12, 11], 60, 1e9), ", about 60 s left");
    }

    #[test]
    fn a_log_has_a_line_for_each_piece() {
        let now = Instant::now();
        let is_news = |counted, told: Option<usize>, later_s| {
            let told = told.map(|at| (now, at));
            let place = Place { counted, at: 2, all: 12, begun: None, told };
            place.is_news(now + Duration::from_secs(later_s))
        };
        let timing = Counted::Stage(Stage::Timing);
        assert!(is_news(timing, None, 0) && is_news(timing, Some(1), 0));
        assert!(!is_news(timing, Some(2), 60));
        assert!(!is_news(Counted::Scan, Some(1), 1) && is_news(Counted::Scan, Some(1), 10));
    }
}

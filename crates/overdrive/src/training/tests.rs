//! The bar, the pace of steps, and records of runs.

use super::*;
use crate::terminal::NO_TERMINAL;
use indicatif::{ProgressDrawTarget, ProgressStyle, TermLike};
use overdrive::cpu::CpuBackend;
use overdrive::train::{Ending, Formats, Progress};
use std::io;
use std::sync::{Arc, Mutex};

/// A terminal of 80 columns that keeps what is drawn.
#[derive(Debug, Clone, Default)]
struct Drawn(Arc<Mutex<String>>);

impl TermLike for Drawn {
    fn width(&self) -> u16 {
        NO_TERMINAL
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.write_str(&format!("{line}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().push_str(text);
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
        self.write_str("\n")
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_bar_is_one_line_of_a_terminal() {
    let drawn = Drawn::default();
    let target = ProgressDrawTarget::term_like(Box::new(drawn.clone()));
    let bar = ProgressBar::with_draw_target(Some(100_000), target);
    bar.set_style(ProgressStyle::with_template(LOOKS.on_terminal).unwrap());
    bar.set_message("loss 2.1234, about 113 min left, 123456 tokens/s, 12 % of the bf16 peak");
    bar.tick();
    let lines = drawn.0.lock().unwrap().clone();
    assert!(lines.contains("loss 2.1234, about 113 min left"), "{lines}");
    assert!(lines.lines().all(|line| console::measure_text_width(line) <= 80), "{lines}");
}

#[test]
fn a_pace_counts_neither_the_first_step_nor_looks() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let mut pace = Pace::default();
    pace.stepped(at(30));
    assert_eq!(pace.seconds(), None);
    pace.stepped(at(32));
    pace.since = None;
    pace.stepped(at(90));
    pace.stepped(at(94));
    assert_eq!((pace.seconds(), pace.first), (Some(3.0), Some(at(30))));
}

/// A run of two steps a second apart, on a device of this peak in bf16, by a plan of this mode.
fn watched(mode: Mode) -> Record {
    let backend = Box::new(CpuBackend::new(Some(1)).unwrap());
    let opened = Opened { backend, threads: 1, described: None };
    let recipe = Recipe::default().in_formats(Formats::named("fp8").unwrap().clone());
    let mut watch = Watch::start((&opened, 1), &recipe, 0, Stop::default());
    watch.peak = Some(1e12);
    let plan = Plan { mode, ..Plan::default() };
    watch.planned(&plan, &MemoryReport::default(), 250_000_000_000);
    let now = Instant::now();
    (0..3).for_each(|second| watch.pace.stepped(now + Duration::from_secs(second)));
    assert_eq!(watch.told_share().as_deref(), Some("25 % of the bf16 peak"));
    assert!(watch.speed().unwrap().contains("samples/s (25 % of the bf16 peak), "));
    let fitted = Fitted {
        parameters: BTreeMap::new(),
        validation_loss: None,
        progress: Progress::default(),
        ending: Ending::Finished,
    };
    let test =
        Evaluation { losses: vec![1.0], hits: vec![1], positions: 1, ..Evaluation::default() };
    record(&opened, ("digits-mlp", &recipe, None), (&watch, &fitted, &test))
}

#[test]
fn a_record_says_how_steps_ran_and_which_peak_a_share_is_of() {
    for mode in [Mode::Compile, Mode::Graph] {
        let record = watched(mode);
        assert_eq!(record.case.configuration.mode, mode.name());
        let quantities = &record.outcome.measurement().unwrap().quantities;
        assert_eq!(quantities.get("share_of_bf16_peak_percent"), Some(&25.0), "{quantities:?}");
    }
}

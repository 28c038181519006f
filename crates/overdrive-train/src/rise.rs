//! A training loss that rises and stays finite.
//!
//! The loss of one batch is noisy. So windows of [`WINDOW`] steps are compared, by their medians. A
//! run has diverged when the medians of two windows in a row are
//! - above every loss of the best window so far: of two windows of one distribution that happens
//!   once in 800,000 times (`C(48, 16) / C(64, 32)`), whatever the distribution;
//! - and a quarter of what was learnt is lost: `best + (first - best) / 4`.
//!
//! Two in a row, since the best of many windows is one with low losses by chance. One is enough
//! where its median is twice the first loss and every loss of the best window. A run that learns
//! nothing has diverged when all losses of two windows in a row are a quarter above the first.
//!
//! Others watch single losses. `KillLossSpike` of LLM Foundry tells five in a row that are twice
//! the mean of 100 steps. The learning rate finder of fastai tells one that is four times the best.
//! Both say nothing of a language model that falls back from 2.5 to 3.5 nats.

use std::fmt;

/// Steps of a window.
pub(crate) const WINDOW: usize = 32;

/// The lost share of what was learnt, and the share above the first loss, that are a rise.
const SHARE: f64 = 0.25;

/// So many times the losses so far are a rise in one window.
const FAR: f64 = 2.0;

/// Windows in a row that tell.
const IN_A_ROW: u32 = 2;

/// Some steps in a row.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Window {
    first_step: u64,
    least: f64,
    median: f64,
    largest: f64,
}

impl Window {
    fn of(losses: &[f64], last_step: u64) -> Self {
        let mut sorted = losses.to_vec();
        sorted.sort_by(f64::total_cmp);
        let [least, median, largest] = [0, sorted.len() / 2, sorted.len() - 1].map(|at| sorted[at]);
        Self { first_step: last_step + 1 - losses.len() as u64, least, median, largest }
    }
}

/// The losses of a run so far, as far as they tell a rise. A resumed run begins anew.
#[derive(Default)]
pub(crate) struct Losses {
    first: Option<f64>,
    window: Vec<f64>,
    best: Option<Window>,
    /// Windows in a row that are too high, up to now.
    high: u32,
    is_told: bool,
}

impl Losses {
    /// Adds the loss of a step; gives the rise that it completes, once in a run.
    pub(crate) fn add(&mut self, step: u64, loss: f64) -> Option<Rise> {
        let first = *self.first.get_or_insert(loss);
        self.window.push(loss);
        if self.window.len() < WINDOW {
            return None;
        }
        let now = Window::of(&std::mem::take(&mut self.window), step);
        let best = self.best.unwrap_or(now);
        let margin = SHARE * (first - best.median).max(0.0);
        let is_lost = now.median > best.largest && now.median > best.median + margin;
        let is_above = now.least > first + SHARE * first.abs();
        if now.median <= best.median {
            self.best = Some(now);
        }
        let is_far = now.median > FAR * first.max(best.largest);
        self.high = match (is_far, is_lost || is_above) {
            (true, _) => IN_A_ROW,
            (_, true) => self.high + 1,
            _ => 0,
        };
        if self.is_told || self.high < IN_A_ROW {
            return None;
        }
        self.is_told = true;
        Some(Rise { first, best, now })
    }
}

/// A loss that has risen.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Rise {
    first: f64,
    best: Window,
    now: Window,
}

impl fmt::Display for Rise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, best, now } = self;
        let steps = |window: &Window| {
            let from = window.first_step;
            format!("steps {from} to {}", from + WINDOW as u64 - 1)
        };
        let (to, at) = (now.median, steps(now));
        if best.median < *first && now.first_step != best.first_step {
            let (from, since) = (best.median, steps(best));
            write!(f, "the training loss rose from {from:.4} ({since}) to {to:.4} ({at})")
        } else {
            write!(f, "the training loss rose from {first:.4} in the first step to {to:.4} ({at})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::philox;

    /// A number in [-1, 1).
    fn noise(seed: u64, step: u64) -> f64 {
        f64::from(philox::bits(seed, 0, step)) / f64::from(1u32 << 31) - 1.0
    }

    fn rise(steps: u64, loss: impl Fn(u64) -> f64) -> Option<(u64, String)> {
        let mut losses = Losses::default();
        let rises = (0..steps).filter_map(|step| Some((step, losses.add(step, loss(step))?)));
        let rises: Vec<(u64, String)> =
            rises.map(|(step, rise)| (step, rise.to_string())).collect();
        assert!(rises.len() <= 1, "it is told once: {rises:?}");
        rises.into_iter().next()
    }

    #[test]
    fn noise_alone_is_no_rise() {
        for seed in 0..500 {
            // A run that falls to a level, one that learns nothing, and a level close to zero.
            let falls = |step: u64| 1.5 + 4.0 * (-(step as f64) / 100.0).exp() + noise(seed, step);
            let flat = |step: u64| 5.5 + 0.5 * noise(seed, step);
            let low = |step: u64| if step < 64 { 2.3 } else { 1e-3 * (1.1 + noise(seed, step)) };
            for loss in [&falls as &dyn Fn(u64) -> f64, &flat, &low] {
                assert_eq!(rise(2_000, loss), None, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_loss_that_falls_back_is_told_within_three_windows() {
        let lost = |step: u64| {
            let level = if step < 300 { 5.5 - step as f64 / 100.0 } else { 3.8 };
            level + 0.2 * noise(7, step)
        };
        let (step, words) = rise(1_000, lost).unwrap();
        assert!((300..396).contains(&step), "{step}: {words}");
        assert!(words.starts_with("the training loss rose from 2.7"), "{words}");
        assert!(words.contains("(steps 256 to 287) to 3."), "{words}");
    }

    #[test]
    fn a_loss_that_only_rises_is_told() {
        let worse = |step: u64| if step == 0 { 2.3 } else { 3.1 + 0.1 * noise(3, step) };
        let (step, words) = rise(1_000, worse).unwrap();
        assert_eq!(step, 3 * WINDOW as u64 - 1);
        assert!(
            words.starts_with("the training loss rose from 2.3000 in the first step"),
            "{words}"
        );
    }
}

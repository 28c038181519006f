//! Learning rates over the steps, as data: the step's graph is given each one as an input.

use serde::{Deserialize, Serialize};

/// The learning rate after the warm-up, as a factor of its peak.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// It stays.
    #[default]
    Constant,
    /// Half a cosine down to this factor at the last step (Loshchilov and Hutter,
    /// arXiv:1608.03983).
    Cosine {
        /// Factor at the end.
        to: f64,
    },
    /// Times `by` after every `every` steps.
    Step {
        /// Steps between.
        every: u64,
        /// Factor.
        by: f64,
    },
}

/// Learning rate of each step.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// The learning rate after the warm-up.
    pub peak: f64,
    /// Steps over which it rises linearly to the peak.
    pub warmup: u64,
    /// The decay after the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// The learning rate of step `step`, counted from 0, of `steps`.
    pub fn at(&self, step: u64, steps: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let since = step - self.warmup;
        let factor = match self.decay {
            Decay::Constant => 1.0,
            Decay::Cosine { to } => {
                let left = steps.saturating_sub(self.warmup + 1).max(1) as f64;
                let share = (since as f64 / left).min(1.0);
                to + (1.0 - to) * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())
            }
            Decay::Step { every, by } => by.powf((since / every.max(1)) as f64),
        };
        self.peak * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_the_peak_and_falls_to_the_end() {
        let cosine = Schedule { peak: 2.0, warmup: 4, decay: Decay::Cosine { to: 0.1 } };
        let rates: Vec<f64> = (0..104).map(|step| cosine.at(step, 104)).collect();
        assert_eq!(rates[..5], [0.5, 1.0, 1.5, 2.0, 2.0]);
        assert!((rates[103] - 0.2).abs() < 1e-12, "{}", rates[103]);
        assert!(rates[4..].windows(2).all(|w| w[1] <= w[0]));
        let stairs = Schedule { peak: 1.0, warmup: 0, decay: Decay::Step { every: 10, by: 0.5 } };
        assert_eq!([0, 9, 10, 29].map(|step| stairs.at(step, 30)), [1.0, 1.0, 0.5, 0.25]);
        let constant = Schedule { peak: 1.0, warmup: 1, decay: Decay::Constant };
        assert_eq!([0, 1, 500].map(|step| constant.at(step, 10)), [1.0; 3]);
    }
}

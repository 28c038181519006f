//! Learning rates over the steps, as data: the step's graph is given each one as an input.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The learning rate after the warm-up, as a factor of its peak. As text: `constant`, `cosine:0.1`,
/// `wsd:0.2`, `wsd-sqrt:0.2`, `step:100,0.5`.
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
    /// Warm-up, stable, decay: it stays, and falls towards zero over the last steps (Hu et al.,
    /// "MiniCPM", arXiv:2404.06395). A run may be prolonged from any step before the fall.
    Wsd {
        /// Share of all steps that the fall takes, above 0 and at most 1; never the warm-up's.
        share: f64,
        /// How it falls.
        fall: Fall,
    },
    /// Times `by` after every `every` steps.
    Step {
        /// Steps between.
        every: u64,
        /// Factor.
        by: f64,
    },
}

/// How a rate falls over the last steps, where x goes from 0 to 1. Source: Hägele et al., "Scaling
/// laws and compute-optimal training beyond fixed training durations", arXiv:2405.18392.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fall {
    /// As 1 - x.
    Linear,
    /// As 1 - sqrt(x), which spends more steps at small rates.
    Sqrt,
}

/// The shares and factors of decays that are named without one.
const COSINE_TO: f64 = 0.1;
const WSD_SHARE: f64 = 0.2;

/// Why a text names no decay.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a decay: expected {expected}, found `{found}`; write it like `{example}`")]
pub struct BadDecay {
    /// The expected text.
    pub expected: &'static str,
    /// The text found.
    pub found: String,
    /// A text that is right.
    pub example: &'static str,
}

impl FromStr for Decay {
    type Err = BadDecay;

    fn from_str(text: &str) -> Result<Self, BadDecay> {
        let bad = |expected, example| BadDecay { expected, found: text.to_owned(), example };
        let (name, value) = text.split_once(':').map_or((text, None), |(n, v)| (n, Some(v)));
        let number = |unless: f64| value.map_or(Some(unless), |value| value.parse().ok());
        let wsd = |fall, example| {
            let share = number(WSD_SHARE).filter(|share| is_share(*share));
            let wrong = || bad("a share of the steps above 0 and at most 1", example);
            share.map(|share| Self::Wsd { share, fall }).ok_or_else(wrong)
        };
        match (name, value) {
            ("constant", None) => Ok(Self::Constant),
            ("cosine", _) => {
                let to = number(COSINE_TO).filter(|to| is_factor(*to));
                let wrong = || bad("a factor at the end from 0 to 1", "cosine:0.1");
                to.map(|to| Self::Cosine { to }).ok_or_else(wrong)
            }
            ("wsd", _) => wsd(Fall::Linear, "wsd:0.2"),
            ("wsd-sqrt", _) => wsd(Fall::Sqrt, "wsd-sqrt:0.2"),
            ("step", _) => {
                let parts = value.and_then(|value| value.split_once(','));
                let step = parts.and_then(|(every, by)| {
                    Some(Self::Step { every: every.parse().ok()?, by: by.parse().ok()? })
                });
                let step = step.filter(|step| step.fault().is_none());
                step.ok_or_else(|| bad("steps and a factor from 0 to 1", "step:100,0.5"))
            }
            _ => Err(bad(
                "constant, cosine[:TO], wsd[:SHARE], wsd-sqrt[:SHARE] or step:EVERY,BY",
                "cosine:0.1",
            )),
        }
    }
}

fn is_factor(x: f64) -> bool {
    (0.0..=1.0).contains(&x)
}

fn is_share(x: f64) -> bool {
    is_factor(x) && x > 0.0
}

impl Decay {
    /// The range that a value is outside of, and that value.
    pub(crate) fn fault(&self) -> Option<(&'static str, f64)> {
        let factor = |x: f64| (!is_factor(x)).then_some(("a factor from 0 to 1", x));
        match *self {
            Self::Constant => None,
            Self::Cosine { to } => factor(to),
            Self::Wsd { share, .. } => {
                (!is_share(share)).then_some(("a share above 0 and at most 1", share))
            }
            Self::Step { every: 0, .. } => Some(("at least 1 step", 0.0)),
            Self::Step { by, .. } => factor(by),
        }
    }
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
            Decay::Wsd { share, fall } => {
                let falling = (share * steps as f64).round().max(1.0) as u64;
                let start = steps.saturating_sub(falling).max(self.warmup);
                let left = steps.saturating_sub(start).max(1) as f64;
                // The last step still learns: x is 1 after it.
                let x = (step.saturating_sub(start) as f64 / left).min(1.0);
                1.0 - if fall == Fall::Sqrt { x.sqrt() } else { x }
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

    #[test]
    fn a_stable_rate_falls_over_the_last_share_of_the_steps() {
        let rates = |text: &str, warmup: u64, steps: u64| -> Vec<f64> {
            let schedule = Schedule { peak: 4.0, warmup, decay: text.parse().unwrap() };
            (0..steps).map(|step| schedule.at(step, steps)).collect()
        };
        let linear = rates("wsd:0.4", 2, 10);
        assert_eq!(linear, [2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 2.0, 1.0]);
        assert_eq!(
            rates("wsd-sqrt:0.4", 0, 10)[6..],
            [4.0, 2.0, 4.0 - 8f64.sqrt(), { 4.0 - 12f64.sqrt() }]
        );
        // The fall is no part of the warm-up, and one step at least.
        assert_eq!(rates("wsd:1", 2, 6), [2.0, 4.0, 4.0, 3.0, 2.0, 1.0]);
        assert_eq!(rates("wsd:0.001", 0, 3), [4.0; 3]);
        assert_eq!(rates("wsd", 0, 10), rates("wsd:0.2", 0, 10));
    }

    #[test]
    fn decays_are_read_from_text() {
        let read = |text: &str| text.parse::<Decay>();
        assert_eq!(read("constant"), Ok(Decay::Constant));
        assert_eq!(read("cosine"), Ok(Decay::Cosine { to: 0.1 }));
        assert_eq!(read("cosine:0"), Ok(Decay::Cosine { to: 0.0 }));
        assert_eq!(read("step:100,0.5"), Ok(Decay::Step { every: 100, by: 0.5 }));
        for text in [
            "",
            "linear",
            "constant:1",
            "cosine:",
            "cosine:1.5",
            "cosine:NaN",
            "wsd:0",
            "wsd:1.1",
            "wsd-sqrt:x",
            "step",
            "step:0,0.5",
            "step:10",
            "step:10,2",
            "step:10,-0.5",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("write it like"), "{text}: {error}");
        }
    }
}

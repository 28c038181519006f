//! Measures of quality that a study may record among its exact quantities, and how they are read.
//! `top1_percent` comes with `top1_percent.low` and `.high` (its interval) and `.n` (number of
//! items or seeds). If it was compared with the baseline sample by sample, `.change`, `.change.low`
//! and `.change.high` are there too. They say more than two intervals.
//!
//! A difference between two models is one only where an interval excludes 0: the paired one, or two
//! that lie apart.

pub mod lost;

use crate::measurement::Measurement;

/// A measure of quality.
#[derive(Debug)]
pub struct Measure {
    /// Its quantity, with unit.
    pub quantity: &'static str,
    /// Its name in a sentence.
    pub title: &'static str,
    /// The title where there is room for a word.
    pub word: &'static str,
    /// The better direction.
    pub better: Better,
    /// Whether it is likeness to the baseline, which therefore has none.
    pub is_likeness: bool,
    /// Behind a figure, with the blank before it; empty where there is none.
    pub unit: &'static str,
    decimals: usize,
}

/// The better direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Accuracies and likeness.
    Higher,
    /// Losses.
    Lower,
}

/// Agreement with the truth or the original: higher is better.
pub const ACCURACIES: [Measure; 2] = [
    Measure {
        quantity: "top1_percent",
        title: "top-1 accuracy",
        word: "top-1",
        better: Better::Higher,
        is_likeness: false,
        unit: " %",
        decimals: 2,
    },
    Measure {
        quantity: "cosine",
        title: "cosine similarity to the original",
        word: "cosine",
        better: Better::Higher,
        is_likeness: true,
        unit: "",
        decimals: 4,
    },
];

/// The share of right answers as other programs report it, mostly without saying of how many.
pub const REPORTED: Measure = Measure {
    quantity: "accuracy",
    title: "accuracy",
    word: "accuracy",
    better: Better::Higher,
    is_likeness: false,
    unit: "",
    decimals: 3,
};

/// Error: lower is better.
pub const LOSSES: [Measure; 2] = [
    Measure {
        quantity: "perplexity",
        title: "perplexity",
        word: "perplexity",
        better: Better::Lower,
        is_likeness: false,
        unit: "",
        decimals: 2,
    },
    Measure {
        quantity: "loss",
        title: "loss",
        word: "loss",
        better: Better::Lower,
        is_likeness: false,
        unit: "",
        decimals: 4,
    },
];

/// A metric of one case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// The figure, in the metric's unit.
    pub value: f64,
    /// Its interval, where one is known.
    pub interval: Option<(f64, f64)>,
    /// Over how many items or seeds.
    pub n: Option<f64>,
}

/// A drop beyond this share of the baseline's quality is told even where no interval is known.
const LARGE: f64 = 0.10;

/// The note on a drop without a known interval.
pub const FAR: &str = ", far beyond chance unless the samples were few";

/// How the quality of a model differs from that of another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Difference {
    /// An interval says so.
    Better,
    /// An interval says so.
    Worse,
    /// Nobody recorded an interval, and the figure alone is far worse.
    FarWorse,
    /// No interval tells the two apart.
    Unknown,
}

/// Every metric, the most telling first.
pub fn metrics() -> impl Iterator<Item = &'static Measure> {
    static REPORTED_ONE: [Measure; 1] = [REPORTED];
    ACCURACIES.iter().chain(&REPORTED_ONE).chain(&LOSSES)
}

impl Measure {
    /// How a reading differs from a reference that it was not compared with in pairs.
    pub fn between(&self, found: &Reading, reference: &Reading) -> Difference {
        if let (Some((a, b)), Some((c, d))) = (found.interval, reference.interval) {
            return self.excludes_zero((a - d, b - c));
        }
        let lost = self.sign() * (reference.value - found.value);
        if lost > LARGE * reference.value.abs() {
            Difference::FarWorse
        } else {
            Difference::Unknown
        }
    }

    /// The difference that the interval of a change shows.
    pub fn excludes_zero(&self, (low, high): (f64, f64)) -> Difference {
        let (low, high) = (self.sign() * low, self.sign() * high);
        match (low.min(high), low.max(high)) {
            (low, _) if low > 0.0 => Difference::Better,
            (_, high) if high < 0.0 => Difference::Worse,
            _ => Difference::Unknown,
        }
    }

    /// By which a change is to be multiplied for more to be better.
    pub fn sign(&self) -> f64 {
        if self.better == Better::Higher { 1.0 } else { -1.0 }
    }

    /// `accuracy halved: 0.750 to 0.375, no interval recorded`, of a reading that is worse than an
    /// earlier one.
    pub fn loss(&self, now: &Reading, before: &Reading) -> Option<String> {
        let doubt = match self.between(now, before) {
            Difference::Worse => "",
            Difference::FarWorse => FAR,
            Difference::Better | Difference::Unknown => return None,
        };
        Some(format!("{} {}{doubt}", self.title, self.course(now, before)))
    }

    /// `halved: 0.750 to 0.375, no interval recorded`.
    pub fn course(&self, now: &Reading, before: &Reading) -> String {
        let word = match now.value / before.value {
            ratio if (0.45..=0.55).contains(&ratio) => "halved",
            ratio if (1.8..=2.2).contains(&ratio) => "doubled",
            ratio if ratio > 1.0 => "rose",
            _ => "fell",
        };
        if self.short(before) == self.short(now) {
            let least = 0.1_f64.powi(self.decimals as i32);
            return format!("{word} by less than {least:.*}{}", self.decimals, self.unit);
        }
        if now.interval.or(before.interval).is_none() {
            return format!(
                "{word}: {} to {}, no interval recorded",
                self.short(before),
                self.short(now)
            );
        }
        format!("{word}: {} to {}", self.figure(before), self.figure(now))
    }

    /// The reading of this measure in a measurement, if it has one.
    pub fn read(&self, measurement: &Measurement) -> Option<Reading> {
        let part = |suffix: &str| {
            measurement.quantities.get(&format!("{}{suffix}", self.quantity)).copied()
        };
        let (value, n) = (part("")?, part(".n"));
        let recorded = part(".low").zip(part(".high"));
        let binomial = || (self.unit == " %").then(|| of_share(value / 100.0, n?)).flatten();
        Some(Reading { value, interval: recorded.or_else(binomial), n })
    }

    /// The change against the baseline that was measured in pairs: in the metric's unit, percent
    /// where less is better.
    pub fn change(&self, measurement: &Measurement) -> Option<Reading> {
        let part = |suffix: &str| {
            measurement.quantities.get(&format!("{}.change{suffix}", self.quantity)).copied()
        };
        Some(Reading { value: part("")?, interval: part(".low").zip(part(".high")), n: None })
    }

    /// `97.3 % [96.9, 97.6], 1797 samples`, or what is missing of it.
    pub fn figure(&self, reading: &Reading) -> String {
        let n = samples(reading).map_or(String::new(), |n| format!(", {n}"));
        format!("{}{n}", self.with_interval(reading))
    }

    /// `top-1 97.3 % [96.9, 97.6]`
    pub fn named(&self, reading: &Reading) -> String {
        format!("{} {}", self.word, self.with_interval(reading))
    }

    /// `97.3 % [96.9, 97.6]`
    pub fn with_interval(&self, reading: &Reading) -> String {
        let digits = self.digits(reading);
        let interval = match reading.interval {
            Some((low, high)) => format!(" [{low:.digits$}, {high:.digits$}]"),
            None => ", no interval recorded".to_owned(),
        };
        self.short(reading) + &interval
    }

    /// `97.3 %`
    pub fn short(&self, reading: &Reading) -> String {
        format!("{:.*}{}", self.digits(reading), reading.value, self.unit)
    }

    /// Digits after the point: two more at most where an interval's ends would look the same.
    fn digits(&self, reading: &Reading) -> usize {
        let Some((low, high)) = reading.interval.filter(|(low, high)| low < high) else {
            return self.decimals;
        };
        let differ = |digits: &usize| format!("{low:.*}", *digits) != format!("{high:.*}", *digits);
        let most = self.decimals + 2;
        (self.decimals..=most).find(differ).unwrap_or(most)
    }

    /// `top-1 accuracy · higher is better`.
    pub fn axis(&self) -> String {
        let better = if self.better == Better::Higher { "higher" } else { "lower" };
        format!("{} · {better} is better", self.title)
    }
}

/// `1797 samples`
pub fn samples(reading: &Reading) -> Option<String> {
    reading.n.map(|n| format!("{n} samples"))
}

/// Wilson's 95 % interval of a share of `n` answers, in percent (Wilson 1927).
fn of_share(share: f64, n: f64) -> Option<(f64, f64)> {
    const Z: f64 = 1.959_963_985;
    if !(n >= 1.0 && (0.0..=1.0).contains(&share)) {
        return None;
    }
    let scale = 1.0 + Z * Z / n;
    let middle = (share + Z * Z / (2.0 * n)) / scale;
    let reach = Z / scale * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    Some((100.0 * (middle - reach), 100.0 * (middle + reach)))
}

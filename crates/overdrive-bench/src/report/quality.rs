//! Measures of quality that a study may record among its exact quantities, and how they are read:
//! `top1_percent` with `top1_percent.low`, `.high` (its interval) and `.n` (over how many items or
//! seeds); `.change`, `.change.low` and `.change.high` where it was compared with the baseline
//! sample by sample, which says more than two intervals.
//!
//! A difference between two models is one only where an interval excludes 0: the paired one, or two
//! that lie apart.

use super::judged::Compared;
use crate::measurement::Measurement;

/// A measure of quality.
pub(super) struct Metric {
    /// Its quantity, with unit.
    pub(super) quantity: &'static str,
    pub(super) title: &'static str,
    /// The title where there is room for a word.
    pub(super) word: &'static str,
    pub(super) better: Better,
    /// Whether it is likeness to the baseline, which therefore has none.
    pub(super) is_likeness: bool,
    /// How `charts.js` writes it.
    pub(super) format: &'static str,
    unit: &'static str,
    decimals: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// Agreement with the truth or the original: higher is better.
pub(super) const ACCURACIES: [Metric; 2] = [
    Metric {
        quantity: "top1_percent",
        title: "top-1 accuracy",
        word: "top-1",
        better: Better::Higher,
        is_likeness: false,
        format: "percent",
        unit: " %",
        decimals: 2,
    },
    Metric {
        quantity: "cosine",
        title: "cosine similarity to the original",
        word: "cosine",
        better: Better::Higher,
        is_likeness: true,
        format: "plain",
        unit: "",
        decimals: 4,
    },
];

/// The share of right answers as other programs report it, mostly without saying of how many.
pub(super) const REPORTED: Metric = Metric {
    quantity: "accuracy",
    title: "accuracy",
    word: "accuracy",
    better: Better::Higher,
    is_likeness: false,
    format: "plain",
    unit: "",
    decimals: 3,
};

/// Error: lower is better.
pub(super) const LOSSES: [Metric; 2] = [
    Metric {
        quantity: "perplexity",
        title: "perplexity",
        word: "perplexity",
        better: Better::Lower,
        is_likeness: false,
        format: "plain",
        unit: "",
        decimals: 2,
    },
    Metric {
        quantity: "loss",
        title: "loss",
        word: "loss",
        better: Better::Lower,
        is_likeness: false,
        format: "plain",
        unit: "",
        decimals: 4,
    },
];

/// A metric of one case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Reading {
    pub(super) value: f64,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) n: Option<f64>,
}

/// A drop beyond this share of the baseline's quality is told even where no interval is known.
const LARGE: f64 = 0.10;

/// Said of a drop of which no interval is known.
pub(super) const FAR: &str = ", far beyond chance unless the samples were few";

/// How the quality of a model differs from that of another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Difference {
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
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric> {
    static REPORTED_ONE: [Metric; 1] = [REPORTED];
    ACCURACIES.iter().chain(&REPORTED_ONE).chain(&LOSSES)
}

impl Metric {
    /// How `row` differs from `other` in this metric; `None` where one of them does not have it.
    pub(super) fn difference(
        &self,
        row: &Compared<'_>,
        other: &Compared<'_>,
    ) -> Option<Difference> {
        let (mine, its) = (row.measurement()?, other.measurement()?);
        let (found, reference) = (self.read(mine)?, self.read(its)?);
        if row.record.baseline.as_ref() == Some(&other.id)
            && let Some(change) = self.change(mine).and_then(|change| change.interval)
        {
            return Some(self.excludes_zero(change));
        }
        if other.record.baseline.as_ref() == Some(&row.id)
            && let Some((low, high)) = self.change(its).and_then(|change| change.interval)
        {
            return Some(self.excludes_zero((-low, -high)));
        }
        Some(self.between(&found, &reference))
    }

    /// How a reading differs from a reference that it was not compared with in pairs.
    pub(super) fn between(&self, found: &Reading, reference: &Reading) -> Difference {
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

    /// What the interval of a change says.
    fn excludes_zero(&self, (low, high): (f64, f64)) -> Difference {
        let (low, high) = (self.sign() * low, self.sign() * high);
        match (low.min(high), low.max(high)) {
            (low, _) if low > 0.0 => Difference::Better,
            (_, high) if high < 0.0 => Difference::Worse,
            _ => Difference::Unknown,
        }
    }

    /// Less is better: the value of a row with its sign, last of all where it has none.
    pub(super) fn rank(&self, row: &Compared<'_>) -> f64 {
        let reading = row.measurement().and_then(|measurement| self.read(measurement));
        reading.map_or(f64::INFINITY, |reading| -self.sign() * reading.value)
    }

    /// By which a change is to be multiplied for more to be better.
    pub(super) fn sign(&self) -> f64 {
        if self.better == Better::Higher { 1.0 } else { -1.0 }
    }

    /// `accuracy halved: 0.750 to 0.375, no interval recorded`, of a reading that is worse than an
    /// earlier one.
    pub(super) fn loss(&self, now: &Reading, before: &Reading) -> Option<String> {
        let doubt = match self.between(now, before) {
            Difference::Worse => "",
            Difference::FarWorse => FAR,
            Difference::Better | Difference::Unknown => return None,
        };
        Some(format!("{} {}{doubt}", self.title, self.course(now, before)))
    }

    /// `rose by 0.31 % [0.21, 0.41]: 20.11 to 20.17`, where a row was compared with its baseline
    /// sample by sample; else [`course`](Self::course).
    pub(super) fn course_of(&self, row: &Compared<'_>, baseline: &Compared<'_>) -> Option<String> {
        let (now, before) = (self.read(row.measurement()?)?, self.read(baseline.measurement()?)?);
        let change =
            self.change(row.measurement()?).filter(|_| self.short(&now) != self.short(&before));
        let Some(Reading { value, interval: Some((low, high)), .. }) = change else {
            return Some(self.course(&now, &before));
        };
        let unit = match (self.better, self.unit) {
            (Better::Lower, _) => " %",
            (_, " %") => " points",
            (_, unit) => unit,
        };
        let (word, low, high) =
            if value > 0.0 { ("rose", low, high) } else { ("fell", -high, -low) };
        let [before, now] = [before, now].map(|reading| self.short(&reading));
        let by = value.abs();
        Some(format!("{word} by {by:.2}{unit} [{low:.2}, {high:.2}]: {before} to {now}"))
    }

    /// `halved: 0.750 to 0.375, no interval recorded`.
    pub(super) fn course(&self, now: &Reading, before: &Reading) -> String {
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

    pub(super) fn read(&self, measurement: &Measurement) -> Option<Reading> {
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
    pub(super) fn change(&self, measurement: &Measurement) -> Option<Reading> {
        let part = |suffix: &str| {
            measurement.quantities.get(&format!("{}.change{suffix}", self.quantity)).copied()
        };
        Some(Reading { value: part("")?, interval: part(".low").zip(part(".high")), n: None })
    }

    /// `97.3 % [96.9, 97.6], 1797 samples`, or what is missing of it.
    pub(super) fn figure(&self, reading: &Reading) -> String {
        let n = samples(reading).map_or(String::new(), |n| format!(", {n}"));
        format!("{}{n}", self.with_interval(reading))
    }

    /// `top-1 97.3 % [96.9, 97.6]`
    pub(super) fn named(&self, reading: &Reading) -> String {
        format!("{} {}", self.word, self.with_interval(reading))
    }

    pub(super) fn with_interval(&self, reading: &Reading) -> String {
        let digits = self.digits(reading);
        let interval = match reading.interval {
            Some((low, high)) => format!(" [{low:.digits$}, {high:.digits$}]"),
            None => ", no interval recorded".to_owned(),
        };
        self.short(reading) + &interval
    }

    pub(super) fn short(&self, reading: &Reading) -> String {
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
    pub(super) fn axis(&self) -> String {
        let better = if self.better == Better::Higher { "higher" } else { "lower" };
        format!("{} · {better} is better", self.title)
    }
}

/// `1797 samples`
pub(super) fn samples(reading: &Reading) -> Option<String> {
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

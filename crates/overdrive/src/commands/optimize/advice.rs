//! Says how much the samples can show: before anything is timed, after the first look at a form,
//! and at the end.
//!
//! Invariant: advice is true. More of something is advised only where more of it would be looked
//! at.

use super::evidence::Evidence;
use overdrive::bench::digits::count;
use overdrive::optimize::{Asked, FEWEST, Form, Judgement, Part, Record, sized};

/// The samples that can judge.
#[derive(Copy, Clone)]
pub(super) struct CanJudge<'a> {
    pub(super) evidence: &'a Evidence,
    /// How many judge at least and at most.
    pub(super) range: [u64; 2],
}

impl CanJudge<'_> {
    /// How many samples judge, and what they can show by their number alone; `answers` where each
    /// is an answer that is right or wrong.
    pub(super) fn before(self, answers: Answers) -> String {
        let asked = &self.evidence.asked;
        let (gate, [_, most]) = (asked.gate(), self.range);
        let judge = self.judge();
        if most < FEWEST as u64 {
            return format!(
                "{judge}, and a verdict takes at least {FEWEST}: expect UNDECIDED{}",
                self.or_else(None)
            );
        }
        if answers == Answers::None {
            return format!(
                "{judge}; the first form that is looked at shows how many {} takes",
                limit(asked)
            );
        }
        let least = rounded_up(gate.least_limit(most));
        match gate.fewest_answers() {
            Some(fewest) if fewest <= most => {
                format!("{judge}; {} takes at least {}", limit(asked), count(fewest))
            }
            Some(fewest) => format!(
                "{judge}; {} takes at least {}: expect UNDECIDED{}",
                limit(asked),
                count(fewest),
                self.or_else(Some(least))
            ),
            None => format!(
                "{judge}; no number of them passes {}: expect FAIL or UNDECIDED; give --max-loss \
                 {least}",
                limit(asked)
            ),
        }
    }

    /// The number that is needed by the first form that was looked at, in words. `None` before, and
    /// where no number would do.
    pub(super) fn after_pilot(self, record: &Record) -> Option<String> {
        let asked = &self.evidence.asked;
        let float = Form::float().name;
        let chosen = |name: &str| record.scores_of(name, Part::Choosing);
        let (name, found) = record
            .scores
            .keys()
            .filter(|name| **name != float)
            .find_map(|name| Some((name, chosen(name)?)))?;
        let needed = asked.gate().samples_to_pass(asked.metric, &chosen(&float)?, &found)?;
        let (needed, [_, most]) = (needed.max(FEWEST as u64), self.range);
        let shown = format!(
            "by the spread of {name} {} takes about {} samples for a form that loses nothing",
            limit(asked),
            count(needed)
        );
        Some(match needed > most {
            true => format!(
                "{shown}, and {} can judge: expect UNDECIDED{}",
                count(most),
                self.or_else(None)
            ),
            false => format!("{shown}; {} can judge", count(most)),
        })
    }

    fn judge(self) -> String {
        let [_, most] = self.range;
        let source = &self.evidence.about.source;
        match sized(&Record::default(), &self.evidence.asked, None, self.range) {
            least if least < most => format!("{} to {} {source} judge", count(least), count(most)),
            _ => format!("{} {source} judge", count(most)),
        }
    }

    /// The ways to a verdict, behind a colon or a number.
    fn or_else(self, limit: Option<f64>) -> String {
        let limit = match limit {
            Some(limit) => format!("--max-loss {limit}"),
            None => "another --max-loss".to_owned(),
        };
        match self.evidence.about.more {
            Some(more) => format!("; {}, or {limit}", more.advice()),
            None => format!("; give {limit}"),
        }
    }
}

/// Whether each sample is one answer.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Answers {
    OneASample,
    None,
}

/// The means to decide on a form about which the samples do not tell.
pub(super) fn undecided(evidence: &Evidence, judged: &Judgement) -> String {
    let (samples, most) = (judged.samples as u64, evidence.about.samples.judging.samples);
    let more = match evidence.about.more {
        Some(more) => format!("{}, or another --max-loss", more.advice()),
        None => "give another --max-loss".to_owned(),
    };
    match judged.needed {
        _ if samples < FEWEST as u64 => {
            format!("{samples} samples judged, and a verdict takes at least {FEWEST}: {more}")
        }
        Some(needed) if samples < most => format!(
            "about {} samples would decide, and {} of {} judged, since forms seemed to need no \
             more: give another --max-loss",
            count(needed),
            count(samples),
            count(most)
        ),
        Some(needed) => format!(
            "about {} samples would decide, {} judged: {more}",
            count(needed),
            count(samples)
        ),
        None => format!(
            "{} samples judged, and no number would tell this loss from the limit: give another \
             --max-loss",
            count(samples)
        ),
    }
}

/// The limit and its confidence.
fn limit(asked: &Asked) -> String {
    // The error is 1 less the confidence, which leaves rounding in the last digits.
    let percent = (1e9 * (1.0 - asked.error)).round() / 1e7;
    format!("--max-loss {} at {percent} %", asked.limit)
}

/// A limit with two digits that is no smaller.
fn rounded_up(limit: f64) -> f64 {
    let unit = 10f64.powf(limit.log10().floor() - 1.0);
    // The quotient of two decimals need not be one: the text has as many digits as the limit.
    let text =
        format!("{:.*}", (-unit.log10().round()).max(0.0) as usize, (limit / unit).ceil() * unit);
    text.parse().unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_rounded_up_to_two_digits() {
        for (limit, expected) in [(1.143, 1.2), (0.4991, 0.5), (0.031_2, 0.032), (12.1, 13.0)] {
            assert_eq!(rounded_up(limit), expected);
        }
    }
}

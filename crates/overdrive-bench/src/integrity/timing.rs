//! Several clocks and counters saw the same calls: their stories must be one.

use crate::measurement::Measurement;
use crate::series::{Basis, Depth, Sample, Series, Session, Settling};
use crate::statistics::Sorted;

/// Largest factor between two honest witnesses of one time. On 786 series of an H200, warm-up and
/// samples differed by 2.0 at most. The rest is room for a busy machine.
const APART: f64 = 5.0;
/// Share of the time around a sample that at least one sample takes itself. The rest goes to
/// reading clocks, and to asking another process that keeps its own time.
const INSIDE: f64 = 0.2;

/// Checks redundant statements of a series about its own samples.
pub(super) fn check(series: &Series) -> Result<(), String> {
    let conditions = &series.conditions;
    let on_device = series.samples.iter().all(|sample| sample.device_ns.is_some());
    if (conditions.basis == Basis::Device) != on_device {
        return Err("its clock is not the one that all of its samples have".to_owned());
    }
    let first = series.samples.first().map_or(0, |sample| sample.process);
    if series.samples.iter().all(|sample| sample.process == first) {
        alternation(&series.samples)?;
    }
    if conditions.settling == Settling::Settled && conditions.depth == Depth::Screening {
        return Err("a quick look does not wait for a warm-up to settle".to_owned());
    }
    let calls = conditions.calls_per_sample as f64;
    let spans: Vec<f64> =
        series.samples.iter().map(|sample| sample.host_ns as f64 / calls).collect();
    let warm: Vec<f64> =
        conditions.warmup.iter().rev().take(5).map(|span| span.mean_ns()).collect();
    // A session bounds times more closely, and no busy moment makes it wrong.
    if conditions.settling == Settling::Settled && conditions.session.is_none() {
        together("the warm-up that it settled at", median(&warm), median(&spans))?;
    }
    match &conditions.session {
        Some(session) => in_session(series, session),
        None => Ok(()),
    }
}

/// Compares the samples with other methods that timed the same calls on the same clock, where no
/// session bounds the samples. On a busy machine, honest calls back to back have taken twelve times
/// as long as the samples.
pub(super) fn witnesses(measurement: &Measurement) -> Result<(), String> {
    let is_bounded = |series: &Series| series.conditions.session.is_some();
    let on_host = |series: &Series| series.conditions.basis == Basis::Host;
    let series = measurement.latency.as_ref();
    let Some(series) = series.filter(|series| on_host(series) && !is_bounded(series)) else {
        return Ok(());
    };
    let found = Some(series.summary.median_ns);
    if let Some(span) = &measurement.sustained {
        together("calls back to back", Some(span.mean_ns()), found)?;
    }
    if let Some(energy) = &measurement.energy {
        let mean = energy.span_ns as f64 / energy.calls.max(1) as f64;
        together("the calls whose energy was read", Some(mean), found)?;
    }
    Ok(())
}

/// The places of a subject among those that alternate A B B A, in rounds of `subjects`.
pub(super) struct Turns {
    pub(super) subjects: u32,
    pub(super) place: u32,
}

impl Turns {
    /// Derived from the first two indices; a single sample tells nothing.
    pub(super) fn of(samples: &[Sample]) -> Option<Self> {
        let [first, second, ..] = samples else { return None };
        let sum = u64::from(first.index) + u64::from(second.index) + 1;
        let subjects = u32::try_from(sum / 2).ok()?;
        (sum.is_multiple_of(2) && first.index < subjects)
            .then_some(Self { subjects, place: first.index })
    }

    fn index(&self, round: u64) -> u64 {
        let turn =
            if round.is_multiple_of(2) { self.place } else { self.subjects - 1 - self.place };
        round * u64::from(self.subjects) + u64::from(turn)
    }
}

/// Every sample is at the position of its round, so that none was left out, added or duplicated.
fn alternation(samples: &[Sample]) -> Result<(), String> {
    if samples.len() < 2 {
        return Ok(());
    }
    let turns = Turns::of(samples);
    let is_in_turn = |turns: &Turns, (sample, round): (&Sample, u64)| {
        u64::from(sample.index) == turns.index(round)
    };
    let fits = |turns: &Turns| samples.iter().zip(0..).all(|entry| is_in_turn(turns, entry));
    match turns.filter(fits) {
        Some(_) => Ok(()),
        None => Err("its samples are not those of every round: some were left out, added or moved"
            .to_owned()),
    }
}

/// Samples lie in their session one after the other, and last as long as the clock around them
/// says.
fn in_session(series: &Series, session: &Session) -> Result<(), String> {
    let conditions = &series.conditions;
    if series.samples.len() != session.rounds as usize {
        let found = format!("{} samples of {} rounds", series.samples.len(), session.rounds);
        return Err(format!("{found}: some were left out or added"));
    }
    if Turns::of(&series.samples).is_some_and(|turns| turns.subjects != session.subjects) {
        return Err(format!("its samples do not alternate among {} subjects", session.subjects));
    }
    // Wide enough for whatever a file says.
    let before = 1 + conditions.warmup.iter().map(|span| u128::from(span.calls)).sum::<u128>();
    let calls = u128::from(conditions.calls_per_sample);
    let counted = |untimed: u128| before + u128::from(session.rounds) * (calls + untimed);
    if ![0, 1].map(counted).contains(&u128::from(session.calls)) {
        return Err(format!(
            "{} calls are not those of its warm-up and its samples",
            session.calls
        ));
    }
    let (mut last, mut largest) = (0, 0.0_f64);
    for sample in &series.samples {
        let (Some(start), Some(end)) = (sample.start_ns, sample.end_ns) else {
            return Err("a sample does not say when it was taken".to_owned());
        };
        let inside = sample.device_ns.map_or(sample.host_ns, |_| 0);
        if start < last || end < start || end > session.span_ns || end - start < inside {
            return Err(format!(
                "sample {} does not fit between the times around it",
                sample.index
            ));
        }
        last = end;
        largest = largest.max(sample.host_ns as f64 / (end - start).max(1) as f64);
    }
    if conditions.basis == Basis::Host && largest < INSIDE {
        let percent = 100.0 * largest;
        return Err(format!(
            "its samples take at most {percent:.0} % of the time that passed around them"
        ));
    }
    Ok(())
}

/// Two witnesses of one time.
fn together(witness: &str, told: Option<f64>, found: Option<f64>) -> Result<(), String> {
    match told.zip(found).map(|(told, found)| found / told) {
        Some(ratio) if !(1.0 / APART..=APART).contains(&ratio) => {
            Err(format!("its samples take {ratio:.2} times as long as {witness}"))
        }
        _ => Ok(()),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    Sorted::new(values).map(|sorted| sorted.median())
}

//! The decision in sentences: what to deploy, what it gains, what it loses, and what would decide.

use super::advice::undecided;
use super::evidence::Evidence;
use overdrive::bench::digits;
use overdrive::optimize::{Asked, Decision, Fate, Form, Judgement, Outcome, Target, Tried};
use std::fmt::Write;

/// The decision, in sentences.
pub(super) fn verdict(evidence: &Evidence, decision: &Decision) -> Vec<String> {
    let asked = &evidence.asked;
    let (limit, unit) = (asked.limit, asked.metric.unit_of_loss());
    let name = |form: &Option<Form>| form.as_ref().map_or(String::new(), Form::said);
    let model = &evidence.about.model;
    let until_then = format!("until then deploy `{model}` as it is, in float");
    let mut lines = Vec::new();
    match decision.outcome {
        Outcome::Taken => {
            let taken = decision.taken().expect("what is taken was tried");
            lines.push(format!("PASS: deploy {}", taken.form.said()));
            lines.extend(taken.form.cache.as_ref().map(|codes| {
                format!("the cache is an option of decoding: `generate --cache {codes}`")
            }));
            lines.push(gains(asked, taken, decision));
            lines.extend(slower(asked, taken));
            lines.extend(taken.judged.as_ref().map(|judged| lost(asked, judged)));
        }
        Outcome::KeepFloat => {
            let what = match asked.target {
                Target::Latency | Target::Throughput => "faster",
                Target::Memory | Target::Size => "smaller",
            };
            lines.push(format!(
                "keep the float model: deploy `{model}` as it is, since nothing that was tried is \
                 {what} beyond doubt"
            ));
        }
        Outcome::AllDeclined => {
            lines.push("every form was declined, so that nothing was compared".to_owned());
            lines.extend(declined(decision));
            lines.extend(would_fit(evidence));
            lines.push(until_then);
        }
        Outcome::NoneWithin => {
            lines.push(format!(
                "FAIL: no better form loses at most {limit} {unit}; nothing was written"
            ));
            if let Some(nearest) = decision.taken() {
                let lost = nearest.lost().map_or(String::new(), |lost| format!("{lost:.4} {unit}"));
                lines.push(format!("nearest: {}, which loses {lost}", nearest.form.said()));
                lines.push(gains(asked, nearest, decision));
            }
            lines.push(until_then);
        }
        Outcome::Undecided if decision.form.is_none() => {
            let undecided = "UNDECIDED: what may be better was not judged; nothing was written";
            lines.extend([undecided.to_owned(), until_then]);
        }
        Outcome::Undecided => {
            let form = name(&decision.form);
            lines.push(format!(
                "UNDECIDED: {form} may lose more than {limit} {unit}; nothing was written"
            ));
            if let Some(judged) = decision.taken().and_then(|tried| tried.judged.as_ref()) {
                lines.push(lost(asked, judged));
                lines.push(undecided(evidence, judged));
            }
            lines.push(until_then);
        }
        Outcome::Unfinished => {
            let best = decision.form.as_ref();
            let best = best.map_or(String::new(), |form| format!("; best so far: {}", form.said()));
            lines.push(format!("the search did not come to a verdict{best}"));
        }
    }
    if let Some(reference) = decision.taken().or(decision.tried.first()) {
        lines.extend(decision.tried.iter().filter_map(|other| beside(reference, other)));
    }
    if !decision.whole && decision.outcome != Outcome::Unfinished {
        lines.push(
            "the time was over before everything was tried: --resume with more --minutes goes on"
                .to_owned(),
        );
    }
    lines
}

/// Each reason with the forms that were declined for it.
fn declined(decision: &Decision) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for one in &decision.tried {
        let Fate::Declined(reason) = &one.fate else { continue };
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, forms)) => forms.push(&one.form.name),
            None => reasons.push((reason, vec![&one.form.name])),
        }
    }
    let said = |(reason, forms): (&str, Vec<&str>)| format!("{}: {reason}", forms.join(", "));
    reasons.into_iter().map(said).collect()
}

/// The sizes that a machine has to have room for, if forms were made.
fn would_fit(evidence: &Evidence) -> Option<String> {
    let bytes = &evidence.record.bytes;
    let float = Form::float().name;
    let made = bytes.iter().filter(|(name, _)| **name != float);
    let (smallest, least) = made.min_by_key(|(_, bytes)| **bytes)?;
    Some(format!(
        "if memory was short: parameters take {} in float and {} in {smallest}; a smaller --shape, \
         a smaller model or a device with more memory would fit",
        digits::bytes(*bytes.get(&float)?),
        digits::bytes(*least)
    ))
}

/// The thing that is timed, in words.
pub(super) fn timed(asked: &Asked) -> String {
    match asked.decode {
        Some(before) => format!("a token after {before}"),
        None => "a call".to_owned(),
    }
}

/// The gains of a form over the float model.
fn gains(asked: &Asked, tried: &Tried, decision: &Decision) -> String {
    let mut parts = Vec::new();
    if let (Some([value, low, high]), Some(ns)) = (tried.time, tried.time_ns) {
        let time = digits::time(ns, None);
        let timed = timed(asked);
        parts.push(format!("{timed} takes {time}, {value:.3}x [{low:.3}, {high:.3}] of float's"));
    }
    let float = decision.tried.first();
    if let (Some(bytes), Some(before)) = (tried.bytes, float.and_then(|float| float.bytes)) {
        let share = bytes as f64 / before.max(1) as f64;
        parts.push(format!("parameters {}, {share:.3}x", digits::bytes(bytes)));
    }
    if let (Some(bytes), Some(before)) = (tried.peak_bytes, float.and_then(|f| f.peak_bytes)) {
        let share = bytes as f64 / before.max(1) as f64;
        parts.push(format!("memory {}, {share:.3}x", digits::bytes(bytes)));
    }
    parts.join("; ")
}

/// The price of a target other than time: that the form is slower than the float model, if its
/// interval shows that.
fn slower(asked: &Asked, taken: &Tried) -> Option<String> {
    let [value, low, high] = taken.time.filter(|_| !asked.target.is_time())?;
    let target = format!("{:?}", asked.target).to_lowercase();
    (low > 1.0).then(|| {
        format!(
            "SLOWER: {} takes {value:.2}x [{low:.2}, {high:.2}] of the float model's time, which \
             `--target {target}` does not count; `--target latency` takes the fastest form instead",
            timed(asked)
        )
    })
}

/// The form beside the float model in another engine, timed in the same session.
fn beside(taken: &Tried, other: &Tried) -> Option<String> {
    let (Fate::Beside, Some(ours), Some(theirs)) = (&other.fate, taken.time, other.time) else {
        return None;
    };
    let (engine, time) = (&other.form.name, digits::time(other.time_ns?, None));
    let times = [theirs[0] / ours[0], theirs[1] / ours[2], theirs[2] / ours[1]];
    Some(format!(
        "{engine} takes {time} for the float model: {:.2}x [{:.2}, {:.2}] of {}",
        times[0],
        times[1],
        times[2],
        taken.form.said()
    ))
}

/// The loss of a judged form, with the flips.
fn lost(asked: &Asked, judged: &Judgement) -> String {
    let (metric, unit) = (asked.metric.name(), asked.metric.unit_of_loss());
    let [value, low, high] = judged.lost;
    let mut text = format!(
        "{metric}: loses {value:.4} {unit} [{low:.4}, {high:.4}] of at most {}, on {} samples that \
         nothing else saw",
        asked.limit, judged.samples
    );
    if let Some(flips) = judged.flips {
        let _ = write!(
            text,
            "; {} right answers turned wrong, {} wrong ones right",
            flips.lost, flips.won
        );
    }
    text
}

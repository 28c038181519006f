//! The ladder: what each step from the float model on gave. Steps are 16 bits, the best of eight,
//! fewer bits, each method that finds better codes, mixes, and caches of codes.

use super::matrix::loss;
use overdrive::bench::table::{Align, Table, cell};
use overdrive::optimize::{Asked, Decision, Tried};
use overdrive::passes::QuantizationMode;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Bits of weights from which on fewer of them are a rung of the next format. Weights of 32 bits
/// are only pruned.
const MOST: usize = 16;

/// A form, and the one that it is compared with.
struct Rung<'a> {
    form: &'a Tried,
    before: &'a Tried,
}

/// The sentences above the ladder, and the ladder; `None` where no form was judged.
pub(super) fn ladder(asked: &Asked, decision: &Decision) -> Option<(Vec<String>, Table)> {
    let rungs = rungs(decision);
    if rungs.is_empty() {
        return None;
    }
    let columns = [
        ("step", Align::Left),
        ("bits", Align::Right),
        ("over", Align::Left),
        ("time", Align::Right),
        ("time, 95 %", Align::Right),
        ("size", Align::Right),
        ("lost", Align::Right),
        ("change of loss", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let lost = |one: &Tried| one.chosen_by.as_ref().map_or(0.0, |judged| judged.lost[0]);
    for Rung { form, before } in rungs {
        let is_same = !form.format.is_empty() && form.format == before.format;
        let time = form.time.zip(before.time);
        let ends = time.map(|(one, other)| [one[1] / other[2], one[2] / other[1]]);
        let ends = ends.filter(|[low, high]| !is_same && low.is_finite() && high.is_finite());
        let time = time.map(|(one, other)| match is_same {
            true => "the same".to_owned(),
            false => format!("{:.3}x", one[0] / other[0]),
        });
        let size = form.bytes.zip(before.bytes.filter(|&bytes| bytes > 0));
        let size = size.map(|(one, other)| match one == other {
            true => "the same".to_owned(),
            false => format!("{:.3}x", one as f64 / other as f64),
        });
        table.push(vec![
            form.form.said(),
            cell(bits(form).map(|bits| bits.to_string())),
            before.form.name.clone(),
            cell(time),
            cell(ends.map(|[low, high]| format!("{low:.2} to {high:.2}"))),
            cell(size),
            format!("{:.4}", lost(form)),
            format!("{:+.4}", lost(form) - lost(before)),
        ]);
    }
    let lines = vec![
        format!(
            "each form that was judged, over the one before it, mixes over the mode of most of \
             their layers, and caches over the form that they stand beside; lost is {}, on the \
             samples that choose",
            loss(asked)
        ),
        "modes of one format have one time; a format that was left out before its quality was \
         looked at has no step"
            .to_owned(),
    ];
    Some((lines, table.without_unknown_columns()))
}

/// Formats from many bits to few, each with its methods in the order in which they were tried.
/// Mixes come last, over the mode that most of their layers have, and caches over their form.
fn rungs(decision: &Decision) -> Vec<Rung<'_>> {
    let Some(float) = decision.tried.first() else { return Vec::new() };
    let judged: Vec<&Tried> =
        decision.tried[1..].iter().filter(|one| one.chosen_by.is_some()).collect();
    let (modes, others): (Vec<&Tried>, Vec<&Tried>) =
        judged.into_iter().partition(|one| !one.format.is_empty());
    let mut formats: Vec<&[&Tried]> = modes.chunk_by(|a, b| a.format == b.format).collect();
    formats.sort_by_key(|format| Reverse(bits(format[0])));
    let lost = |one: &Tried| one.chosen_by.as_ref().map_or(f64::INFINITY, |judged| judged.lost[0]);
    // Fewer bits begin at the form of more that loses least: of codes, or else of 16 bits.
    let more = |than: usize| {
        let between = |most: usize| {
            let more = modes
                .iter()
                .copied()
                .filter(move |one| bits(one).is_some_and(|bits| bits > than && bits <= most));
            more.min_by(|a, b| lost(a).total_cmp(&lost(b)))
        };
        between(MOST / 2).or_else(|| between(MOST))
    };
    let mut rungs = Vec::new();
    for format in formats {
        let mut before = bits(format[0]).and_then(more).unwrap_or(float);
        for &form in format {
            rungs.push(Rung { form, before });
            before = form;
        }
    }
    rungs.extend(others.into_iter().map(|form| {
        let before = match form.form.cache {
            Some(_) => decision.of(&form.form.of_weights().name),
            None => most_of(form).and_then(|mode| decision.of(mode)),
        };
        Rung { form, before: before.unwrap_or(float) }
    }));
    rungs
}

/// The mode that most layers of a mix have.
fn most_of(mix: &Tried) -> Option<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    mix.form.layers.values().for_each(|mode| *counts.entry(mode).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(mode, _)| mode)
}

/// Bits of a weight's code; of a mix there is no one number.
fn bits(form: &Tried) -> Option<usize> {
    let mode = QuantizationMode::find(&form.form.name)?;
    Some(mode.quantization().scheme.weights.element.bits())
}

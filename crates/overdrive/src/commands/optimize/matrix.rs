//! The decision matrix: every form with what decided on it, by speed, size, memory and quality.

use overdrive::bench::digits;
use overdrive::bench::table::{Align, Table, cell};
use overdrive::optimize::{Asked, Decision, Fate, Tried, best_first};

/// The columns that a terminal has room for.
const FEW: [&str; 6] = ["form", "what decided", "time", "size", "memory", "lost"];

/// The sentences above the matrix, and the matrix: one row a form, the best first.
pub(super) fn matrix(asked: &Asked, decision: &Decision) -> (Vec<String>, Table) {
    let rows: Vec<Vec<&Tried>> =
        known(asked, decision).into_iter().map(|form| vec![form]).collect();
    (lines(asked, decision), table(decision, &rows).without_unknown_columns())
}

/// The same for a terminal: few columns, and forms of one format that were not judged in one row.
pub(super) fn short(asked: &Asked, decision: &Decision) -> (Vec<String>, Table) {
    let known = known(asked, decision);
    let alike = |a: &&Tried, b: &&Tried| {
        let judged = |one: &Tried| one.chosen_by.is_some() || one.format.is_empty();
        a.format == b.format && a.fate == b.fate && !judged(a) && !judged(b)
    };
    let rows: Vec<Vec<&Tried>> = known.chunk_by(alike).map(<[_]>::to_vec).collect();
    let table = table(decision, &rows).only(&FEW).without_unknown_columns();
    (lines(asked, decision), table)
}

/// The unit of a loss, in words.
pub(super) fn loss(asked: &Asked) -> String {
    let unit = asked.metric.unit_of_loss();
    match unit.strip_prefix("of ") {
        Some(metric) => metric.to_owned(),
        None => format!("{unit} of {}", asked.metric.name()),
    }
}

fn known<'a>(asked: &Asked, decision: &'a Decision) -> Vec<&'a Tried> {
    let mut all = best_first(decision, asked.target);
    all.retain(|one| is_known(one));
    all
}

fn is_known(one: &Tried) -> bool {
    one.fate != Fate::NotReached || one.time.is_some()
}

fn table(decision: &Decision, rows: &[Vec<&Tried>]) -> Table {
    let columns = [
        ("form", Align::Left),
        ("what decided", Align::Left),
        ("time", Align::Right),
        ("time, 95 %", Align::Right),
        ("size", Align::Right),
        ("memory", Align::Right),
        ("lost", Align::Right),
        ("lost, from to", Align::Right),
        ("takes", Align::Right),
        ("parameters", Align::Right),
        ("peak", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let float = decision.tried.first();
    let share = |bytes: Option<u64>, of: fn(&Tried) -> Option<u64>| {
        let share = bytes.zip(float.and_then(of).filter(|&bytes| bytes > 0));
        cell(share.map(|(bytes, float)| format!("{:.3}x", bytes as f64 / float as f64)))
    };
    for forms in rows {
        let one = forms[0];
        let more = match forms.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        // Other engines do not tell what they take.
        let peak = one.peak_bytes.filter(|&bytes| bytes > 0);
        let interval = one.time.filter(|time| time[1] < time[2]);
        let lost = one.judged.as_ref().or(one.chosen_by.as_ref()).map(|judged| judged.lost);
        let ends = lost.filter(|[_, low, high]| low.is_finite() && high.is_finite() && low < high);
        table.push(vec![
            format!("{}{}{more}", if one.on_front { "* " } else { "" }, one.form.said()),
            fate(&one.fate),
            cell(one.time.map(|time| format!("{:.3}x", time[0]))),
            cell(interval.map(|[_, low, high]| format!("{low:.2} to {high:.2}"))),
            share(one.bytes, |float| float.bytes),
            share(peak, |float| float.peak_bytes),
            cell(lost.map(|[value, ..]| format!("{value:.4}"))),
            cell(ends.map(|[_, low, high]| format!("{low:.3} to {high:.3}"))),
            cell(one.time_ns.map(|ns| digits::time(ns, None))),
            cell(one.bytes.map(digits::bytes)),
            cell(peak.map(digits::bytes)),
        ]);
    }
    table
}

fn lines(asked: &Asked, decision: &Decision) -> Vec<String> {
    let mut lines = vec![format!(
        "the best first; time, size (bytes of parameters) and memory (peak of a call) are shares \
         of the float model's; lost is {}; * nothing is as fast, as small and as good",
        loss(asked)
    )];
    let left = decision.tried.iter().filter(|one| !is_known(one));
    let left: Vec<&str> = left.map(|one| one.form.name.as_str()).collect();
    if !left.is_empty() {
        lines.push(format!("not reached: {}", left.join(", ")));
    }
    lines
}

fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Brought => "as brought".to_owned(),
        Fate::Beside => "float, in another engine".to_owned(),
        Fate::Taken => "PASS, taken".to_owned(),
        Fate::NoBetterThanFloat => "no better than float".to_owned(),
        Fate::NoBetterThan(other) => format!("no better than {other}"),
        Fate::Beaten(by) => format!("beaten by {by}, not judged"),
        Fate::Kept => "keeps the limit, others are better".to_owned(),
        Fate::LosesTooMuch => "loses too much".to_owned(),
        Fate::Judged(verdict) => verdict.name().to_owned(),
        Fate::Declined(reason) => reason.clone(),
        Fate::NotReached => "not judged in time".to_owned(),
    }
}

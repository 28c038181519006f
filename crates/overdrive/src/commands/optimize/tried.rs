//! The table of everything that was tried, with its fate, for the page of a decision.

use overdrive::bench::table::{Align, Table, cell};
use overdrive::optimize::{Asked, Decision, Fate, Tried};

/// The table, and the lines below it. Modes of one format that were not judged have one row.
pub(super) fn tried(asked: &Asked, decision: &Decision) -> (Vec<String>, Table) {
    let columns = [
        ("form", Align::Left),
        ("time", Align::Right),
        ("95 %", Align::Right),
        ("size", Align::Right),
        ("lost", Align::Right),
        ("fate", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let float_bytes = decision.tried.first().and_then(|float| float.bytes);
    let is_known = |one: &&Tried| one.fate != Fate::NotReached || one.time.is_some();
    let known: Vec<&Tried> = decision.tried.iter().filter(is_known).collect();
    let alike = |a: &&Tried, b: &&Tried| {
        let judged = |one: &Tried| one.chosen_by.is_some() || one.format.is_empty();
        a.format == b.format && a.fate == b.fate && !judged(a) && !judged(b)
    };
    for rows in known.chunk_by(alike) {
        let one = rows[0];
        let share = one.bytes.zip(float_bytes);
        let share = share.map(|(bytes, float)| format!("{:.3}x", bytes as f64 / float as f64));
        let more = match rows.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let interval = one.time.filter(|time| time[1] < time[2]);
        table.push(vec![
            format!("{}{}{more}", if one.on_front { "* " } else { "" }, one.form.said()),
            cell(one.time.map(|time| format!("{:.3}x", time[0]))),
            cell(interval.map(|[_, low, high]| format!("{low:.2} to {high:.2}"))),
            cell(share),
            cell(one.lost().map(|lost| format!("{lost:.4}"))),
            fate(&one.fate),
        ]);
    }
    let unit = asked.metric.unit_of_loss();
    let lost = match unit.strip_prefix("of ") {
        Some(metric) => metric.to_owned(),
        None => format!("{unit} of {}", asked.metric.name()),
    };
    let mut lines = vec![format!(
        "time and size (bytes of parameters) as shares of the float model's; lost is {lost}; * \
         nothing is as fast, as small and as good",
    )];
    let left: Vec<&str> = decision
        .tried
        .iter()
        .filter(|one| !is_known(one))
        .map(|one| one.form.name.as_str())
        .collect();
    if !left.is_empty() {
        lines.push(format!("not reached: {}", left.join(", ")));
    }
    (lines, table.without_unknown_columns())
}

fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Brought => "as brought".to_owned(),
        Fate::Beside => "float, in another engine".to_owned(),
        Fate::Taken => "PASS, taken".to_owned(),
        Fate::NoBetterThanFloat => "no better than float".to_owned(),
        Fate::Beaten(by) => format!("beaten by {by}, not judged"),
        Fate::Kept => "keeps the limit".to_owned(),
        Fate::LosesTooMuch => "loses too much".to_owned(),
        Fate::Judged(verdict) => verdict.name().to_owned(),
        Fate::Declined(reason) => reason.clone(),
        Fate::NotReached => "not reached".to_owned(),
    }
}

//! The tables beside a study's main table: costs paid once, memory, copies, energy, exact
//! quantities.

use super::captioned::Captioned;
use super::judged::{JudgedResults, JudgedRow};
use overdrive_bench::digits;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::memory::Peak;
use overdrive_bench::table::{Align, Table, cell};

/// The caption of what is paid once.
pub(super) const PAID_ONCE: &str = "Paid once, never part of a latency.";

/// Descriptions of the variants, each once.
pub(super) fn variants(
    judged: &JudgedResults<'_>,
    compared: &[&JudgedRow<'_>],
) -> Option<Captioned> {
    let mut table = Table::new(&[("Variant", Align::Left), ("What it is", Align::Left)]);
    for variant in &judged.results.variants {
        let is_it = |row: &&&JudgedRow<'_>| judged.variant(row) == Some(variant);
        if compared.iter().any(|row| is_it(&row)) {
            table.push(vec![variant.name.clone(), variant.about.clone()]);
        }
    }
    let caption = "What the variants are.".to_owned();
    (!table.rows.is_empty()).then_some(Captioned { caption, table })
}

/// Costs that are paid once, and the number of calls after which they are paid back.
pub(super) fn overhead(compared: &[&JudgedRow<'_>]) -> Option<Captioned> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("Load", Right),
        ("Compile", Right),
        ("Autotune", Right),
        ("Capture", Right),
        ("First call", Right),
        ("Pays back after", Right),
    ]);
    for row in compared {
        let Some(measurement) = row.record.outcome.measurement() else { continue };
        let overhead = &measurement.overhead;
        if overhead.is_empty() {
            continue;
        }
        let stages = [
            overhead.load_ns,
            overhead.compile_ns,
            overhead.autotune_ns,
            overhead.capture_ns,
            overhead.first_call_ns,
        ];
        let case = &row.record.case;
        let mut cells = vec![case.workload.to_string(), row.label.clone()];
        cells.extend(stages.map(|stage| cell(stage.map(|ns| digits::time(ns as f64, None)))));
        cells.push(cell(pays_back(row).map(|calls| format!("{calls} calls"))));
        table.push(cells);
    }
    (!table.rows.is_empty()).then(|| Captioned {
        caption: PAID_ONCE.to_owned(),
        table: table.without_unknown_columns(),
    })
}

/// Number of calls after which the variant has saved its higher cost at the start. `None` unless it
/// is shown to be faster.
pub(super) fn pays_back(row: &JudgedRow<'_>) -> Option<u64> {
    row.speedup().filter(|gain| gain.interval().low > 1.0)?;
    break_even(row.baseline?.outcome.measurement()?, row.measurement()?)
}

/// Calls after which what the variant costs more at the start is saved.
fn break_even(baseline: &Measurement, variant: &Measurement) -> Option<u64> {
    let steady = |measurement: &Measurement| Some(measurement.latency.as_ref()?.summary.median_ns);
    let start = |measurement: &Measurement| {
        measurement.overhead.stages().map(|(_, ns)| ns as f64).sum::<f64>()
    };
    let saving = steady(baseline)? - steady(variant)?;
    let extra = (start(variant) - steady(variant)?) - (start(baseline) - steady(baseline)?);
    (saving > 0.0).then(|| (extra.max(0.0) / saving).ceil() as u64)
}

pub(super) fn memory(compared: &[&JudgedRow<'_>]) -> Option<Captioned> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("Planned arena", Right),
        ("Heap added / before", Right),
        ("Allocations", Right),
        ("Resident added / before", Right),
        ("Device added / before", Right),
    ]);
    let peak = |peak: Option<Peak>| {
        peak.map(|p| {
            format!("{} / {}", digits::bytes(p.added_bytes()), digits::bytes(p.before_bytes))
        })
    };
    for JudgedRow { record, label, .. } in compared {
        let Some(memory) = record.outcome.measurement().and_then(|m| m.memory.as_ref()) else {
            continue;
        };
        table.push(vec![
            record.case.workload.to_string(),
            label.clone(),
            cell(memory.planned_arena_bytes.map(digits::bytes)),
            cell(peak(memory.heap)),
            cell(memory.allocations.map(|count| count.to_string())),
            cell(peak(memory.resident)),
            cell(peak(memory.device)),
        ]);
    }
    (!table.rows.is_empty()).then(|| Captioned {
        caption:
            "Memory of one call, in a pass that was not timed: what it added, and what was there \
             before."
                .to_owned(),
        table: table.without_unknown_columns(),
    })
}

/// Costs of a caller on the host in addition to a call.
pub(super) fn copies(compared: &[&JudgedRow<'_>]) -> Option<Captioned> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("To the device", Right),
        ("Back", Right),
    ]);
    for JudgedRow { record, label, .. } in compared {
        let Some(copies) = record.outcome.measurement().and_then(|m| m.copies) else { continue };
        let way =
            |bytes, ns| format!("{} in {}", digits::bytes(bytes), digits::time(ns as f64, None));
        table.push(vec![
            record.case.workload.to_string(),
            label.clone(),
            way(copies.in_bytes, copies.in_ns),
            way(copies.out_bytes, copies.out_ns),
        ]);
    }
    (!table.rows.is_empty()).then(|| Captioned {
        caption: "Copies of inputs to the device and of outputs back, in a pass of their own: no \
                  part of a latency."
            .to_owned(),
        table,
    })
}

pub(super) fn energy(compared: &[&JudgedRow<'_>]) -> Option<Captioned> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("Energy per call", Right),
        ("Calls", Right),
        ("Idle power", Right),
        ("Counter", Left),
    ]);
    for JudgedRow { record, label, .. } in compared {
        let Some(energy) = record.outcome.measurement().and_then(|m| m.energy.as_ref()) else {
            continue;
        };
        table.push(vec![
            record.case.workload.to_string(),
            label.clone(),
            format!("{:.3e} J", energy.joules_per_call()),
            energy.calls.to_string(),
            format!("{:.1} W", energy.idle_watts),
            energy.source.clone(),
        ]);
    }
    (!table.rows.is_empty()).then(|| Captioned {
        caption: "Energy, the idle machine's included; its power stands beside it.".to_owned(),
        table,
    })
}

/// Significant digits of a quantity that is no whole number.
const DIGITS: i32 = 6;

/// A whole number as it is, any other rounded.
fn rounded(value: f64) -> String {
    let before = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    match before as i32 {
        _ if value.fract() == 0.0 => value.to_string(),
        -4..DIGITS => {
            let decimals = (DIGITS - 1 - before as i32) as usize;
            let text = format!("{value:.decimals$}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        DIGITS.. => format!("{value:.0}"),
        _ => format!("{value:.5e}"),
    }
}

/// The study's own quantities, a row for each.
pub(super) fn quantities(compared: &[&JudgedRow<'_>]) -> Option<Captioned> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("Workload", Left),
        ("Configuration", Left),
        ("Quantity", Left),
        ("Value", Right),
    ]);
    for JudgedRow { record, label, .. } in compared {
        let quantities = record.outcome.measurement().map(|m| &m.quantities);
        for (name, value) in quantities.into_iter().flatten() {
            table.push(vec![
                record.case.workload.to_string(),
                label.clone(),
                name.clone(),
                rounded(*value),
            ]);
        }
    }
    (!table.rows.is_empty()).then(|| Captioned {
        caption: format!(
            "Quantities of the study: whole numbers are exact, others have {DIGITS} digits."
        ),
        table,
    })
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn whole_numbers_are_exact_and_others_have_six_digits() {
        let shown = [
            (133_174.662_228_946_34, "133175"),
            (0.041_574_182, "0.0415742"),
            (82.222_222_222_222_21, "82.2222"),
            (0.5, "0.5"),
            (-1.250_000_04, "-1.25"),
            (99.999_999_9, "100"),
            (12_345_678.9, "12345679"),
            (1.234_567_89e-9, "1.23457e-9"),
            (0.0, "0"),
            (30.0, "30"),
            (123_456_789.0, "123456789"),
        ];
        for (value, text) in shown {
            assert_eq!(rounded(value), text);
        }
    }
}

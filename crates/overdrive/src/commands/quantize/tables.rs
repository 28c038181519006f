//! What `quantize` prints.

use comfy_table::{Cell, CellAlignment, Table, presets};
use overdrive::bench::digits;
use overdrive::bench::outcome::Outcome;
use overdrive::ir::Graph;
use overdrive::studies::quantization::{Agreement, Footprint};

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Where the bytes are, before and after.
pub(super) fn bytes(float: &Graph, after: &Footprint, folder_bytes: u64) -> Table {
    let before: u64 = float.states().iter().map(|state| float.ty(state.value).bytes() as u64).sum();
    let share = |part: u64, whole: u64| format!("{:.3}", part as f64 / whole.max(1) as f64);
    let mut table = table(["bytes", "float", "quantized", "share"]);
    let quantized = after.codes + after.scales;
    let rows = [
        ("weights of quantized layers", after.replaced, after.codes, share(after.codes, after.replaced)),
        ("their scales", 0, after.scales, share(after.scales, after.replaced)),
        ("both", after.replaced, quantized, share(quantized, after.replaced)),
        ("unquantized", before - after.replaced, after.unquantized, String::new()),
        ("all parameters", before, after.total(), share(after.total(), before)),
        ("metadata", 0, folder_bytes - after.total(), String::new()),
    ];
    for (name, float, quantized, share) in rows {
        table.add_row([
            Cell::new(name),
            right(digits::bytes(float)),
            right(digits::bytes(quantized)),
            right(share),
        ]);
    }
    table
}

/// How near the outputs are.
pub(super) fn likeness(agreement: &Agreement, source: &str) -> Table {
    let mut table = table(["outputs against the float model's", "mean", "95 %"]);
    let rows = [
        ("cosine", agreement.cosine, agreement.cosine_half_width),
        ("error relative to their size", agreement.relative_error, agreement.relative_error_half_width),
    ];
    for (name, mean, half) in rows {
        table.add_row([Cell::new(name), right(format!("{mean:.6}")), right(format!("± {half:.1e}"))]);
    }
    table.add_row([Cell::new(format!("over {} rows of {source}", agreement.samples))]);
    table
}

/// Median latencies with their intervals, float first.
pub(super) fn times(outcomes: &[Outcome]) -> Table {
    let mut table = table(["latency", "median", "interval", "share"]);
    let series = |outcome: &Outcome| outcome.measurement().and_then(|m| m.latency.clone());
    let float = outcomes.first().and_then(series).map(|series| series.summary.median_ns);
    for (name, outcome) in ["float", "quantized"].iter().zip(outcomes) {
        let row = match (series(outcome), outcome.failure()) {
            (Some(series), _) => {
                let summary = &series.summary;
                let interval =
                    summary.median_interval.as_ref().map_or("too few samples".to_owned(), |interval| {
                        format!(
                            "{} to {}",
                            digits::time(interval.low_ns, None),
                            digits::time(interval.high_ns, None)
                        )
                    });
                let share = float.map_or(String::new(), |float| format!("{:.3}", summary.median_ns / float));
                [digits::time(summary.median_ns, None), interval, share]
            }
            (None, Some(failure)) => [failure.reason.clone(), String::new(), String::new()],
            (None, None) => ["not measured".to_owned(), String::new(), String::new()],
        };
        table.add_row(std::iter::once(Cell::new(name)).chain(row.map(right)));
    }
    table
}

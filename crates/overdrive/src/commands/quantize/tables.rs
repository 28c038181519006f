//! Tables and lines that `quantize` prints, in the terminal's width.

use super::times::{slowdown, sum_of_blocks};
use crate::terminal::width;
use overdrive::bench::digits;
use overdrive::bench::outcome::Outcome;
use overdrive::bench::table::{Align, Table, terminal_table};
use overdrive::ir::Graph;
use overdrive::studies::quantization::{
    Agreement, BlockTimes, Candidate, Estimate, Footprint, Metric, Rival, Scores, Sensitivity,
    Timed,
};
use std::collections::BTreeMap;
use std::slice;

/// A table whose first columns, so many, are words and the others numbers.
fn table<const N: usize>(header: [&str; N], words: usize) -> Table {
    let align = |column: usize| if column < words { Align::Left } else { Align::Right };
    let columns = header.iter().enumerate().map(|(at, title)| ((*title).to_owned(), align(at)));
    Table::new(&columns.collect::<Vec<_>>())
}

fn drawn(table: &Table) -> String {
    terminal_table(table, width())
}

/// Bytes by part, before and after. The last row is the written bytes and their kind.
pub(super) fn bytes(float: &Graph, after: &Footprint, (written, what): (u64, &str)) -> String {
    let before: u64 = float.states().iter().map(|state| float.ty(state.value).bytes() as u64).sum();
    let share = |part: u64, whole: u64| format!("{:.3}", part as f64 / whole.max(1) as f64);
    let mut table = table(["bytes", "float", "quantized", "share"], 1);
    let quantized = after.codes + after.scales;
    let known = |before: u64, after: u64| (digits::bytes(before), share(after, before));
    let nothing = || (String::new(), String::new());
    let rows = [
        ("weights of quantized layers", known(after.replaced, after.codes), after.codes),
        ("their scales", nothing(), after.scales),
        ("both", known(after.replaced, quantized), quantized),
        ("unquantized", (digits::bytes(before - after.replaced), String::new()), after.unquantized),
        ("all parameters", known(before, after.total()), after.total()),
        // Less than the parameters take where 16-bit weights are kept as such in the file.
        (what, nothing(), written),
    ];
    for (name, (float, share), quantized) in rows {
        table.push(vec![name.to_owned(), float, digits::bytes(quantized), share]);
    }
    drawn(&table)
}

/// How near the outputs are.
pub(super) fn likeness(agreement: &Agreement) -> String {
    let mut table = table(["outputs against the float model's", "mean", "95 %"], 1);
    let rows =
        [("cosine", agreement.cosine), ("error relative to their size", agreement.relative_error)];
    for (name, Estimate { value, low, high }) in rows {
        table.push(vec![name.to_owned(), format!("{value:.6}"), format!("{low:.6} to {high:.6}")]);
    }
    format!("{}\nover {} rows", drawn(&table), agreement.samples)
}

/// The figures that are compared sample by sample.
pub(super) struct Judged<'a> {
    /// The float model as it was given.
    pub(super) given: &'a [Scores],
    /// The float model after the further training of a mode that learns.
    pub(super) trained_as_long: Option<&'a [Scores]>,
    /// The quantized model.
    pub(super) quantized: &'a [Scores],
}

impl Judged<'_> {
    /// The losses of quantization, against the float model that was trained as long, where training
    /// is part of the mode.
    pub(super) fn lost(&self, metric: Metric) -> Estimate {
        metric.loss(self.trained_as_long.unwrap_or(self.given), self.quantized)
    }
}

/// The measure before and after, and what was lost, paired.
pub(super) fn quality(metric: Metric, judged: &Judged<'_>, source: &str) -> String {
    let mut table = table([metric.quantity(), "", "95 %"], 1);
    let unit = metric.unit_of_loss();
    let name = |text: &str| text.to_owned();
    let mut rows = match judged.trained_as_long {
        Some(long) => vec![
            (name("float, as given"), metric.of(judged.given)),
            (name("float, trained as long"), metric.of(long)),
        ],
        None => vec![(name("float"), metric.of(judged.given))],
    };
    rows.push((name("quantized"), metric.of(judged.quantized)));
    rows.push((format!("lost, paired ({unit})"), judged.lost(metric)));
    if judged.trained_as_long.is_some() {
        let lost = metric.loss(judged.given, judged.quantized);
        rows.push((format!("lost against the one given ({unit})"), lost));
    }
    for (name, Estimate { value, low, high }) in rows {
        table.push(vec![name, format!("{value:.4}"), format!("{low:.4} to {high:.4}")]);
    }
    let samples: usize = judged.quantized.iter().map(|scores| scores.samples.len()).sum();
    format!("{}\nover {samples} {source}", drawn(&table))
}

/// The loss by each layer alone, largest first.
pub(super) fn sensitivities(metric: Metric, scanned: &[Sensitivity]) -> String {
    let mut table = table(["layer", "mode", "lost", "95 %", "bytes", "of"], 2);
    let mut rows: Vec<&Sensitivity> = scanned.iter().collect();
    rows.sort_by(|a, b| b.lost.value.total_cmp(&a.lost.value));
    for row in rows {
        let Estimate { value, low, high } = row.lost;
        table.push(vec![
            row.layer.clone(),
            row.mode.to_owned(),
            format!("{value:.3}"),
            format!("{low:.3} to {high:.3}"),
            digits::bytes(row.bytes),
            digits::bytes(row.float_bytes),
        ]);
    }
    let (name, unit) = (metric.name(), metric.unit_of_loss());
    format!("{name} lost ({unit}) by each layer, alone:\n{}", drawn(&table))
}

/// The models of a search, largest first. The title stands above, since paragraphs have no header.
pub(super) fn front(metric: Metric, float: &Graph, found: &[Candidate]) -> String {
    let header = ["", "layers", "parameters", "share", "lost", "95 %", "latency", "95 %"];
    let mut table = table(header, 2);
    let whole: u64 = float.states().iter().map(|state| float.ty(state.value).bytes() as u64).sum();
    for candidate in found {
        let Estimate { value, low, high } = candidate.lost;
        let time = |ns: f64| digits::time(ns, None);
        let [median, interval] = match candidate.time_ns {
            Some(ns) => [time(ns.value), format!("{} to {}", time(ns.low), time(ns.high))],
            None => ["not measured".to_owned(), String::new()],
        };
        table.push(vec![
            if candidate.on_front { "*" } else { "" }.to_owned(),
            assignment(candidate),
            digits::bytes(candidate.bytes),
            format!("{:.3}", candidate.bytes as f64 / whole.max(1) as f64),
            format!("{value:.4}"),
            format!("{low:.4} to {high:.4}"),
            median,
            interval,
        ]);
    }
    let (name, unit) = (metric.name(), metric.unit_of_loss());
    format!("mixtures, with {name} lost ({unit}); * is on the front:\n{}", drawn(&table))
}

/// How many layers have which mode.
pub(super) fn assignment(candidate: &Candidate) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    candidate.assignment.values().for_each(|mode| *counts.entry(mode).or_default() += 1);
    let parts: Vec<String> = counts.iter().map(|(mode, count)| format!("{count} {mode}")).collect();
    if parts.is_empty() { "all float".to_owned() } else { parts.join(", ") }
}

/// Median latencies with their intervals, float first.
pub(super) fn times(timed: &[Timed]) -> String {
    let mut table = table(["latency", "median", "interval", "share"], 1);
    for (name, one) in ["float", "quantized"].iter().zip(timed) {
        table.push([vec![(*name).to_owned()], time(one, timed).to_vec()].concat());
    }
    drawn(&table)
}

/// The same for each distinct block, and the estimate for the whole model.
pub(super) fn blocks(blocks: &[BlockTimes]) -> String {
    let mut table = table(["latency of a block", "count", "float", "quantized", "share"], 1);
    let mut row = |name: &str, count: usize, times: [Option<Estimate>; 2]| {
        let cell = |time: Option<Estimate>| {
            time.map_or("not measured".to_owned(), |time| digits::time(time.value, None))
        };
        let share = slowdown(times[0], times[1]).map_or(String::new(), |share| share.to_string());
        table.push(vec![name.to_owned(), count.to_string(), cell(times[0]), cell(times[1]), share]);
    };
    for block in blocks {
        let one = slice::from_ref(block);
        let per = |graph| {
            let times = block.times as f64;
            sum_of_blocks(one, graph).map(|sum| Estimate {
                value: sum.value / times,
                low: sum.low / times,
                high: sum.high / times,
            })
        };
        row(&block.name, block.times, [0, 1].map(per));
    }
    row("all, as their sum", 1, [0, 1].map(|graph| sum_of_blocks(blocks, graph)));
    let reason = "both models would take over a third of the memory: a block of each kind is timed";
    format!("{}\n{reason}", drawn(&table).trim_end())
}

/// The same of other frameworks' models, with how near their outputs are to those of our float
/// model. Those that gave no time have no row.
pub(super) fn rivals(rivals: &[Rival<'_>], timed: &[Timed]) -> String {
    let mut table = table(["beside", "median", "interval", "share", "cosine", "parameters"], 1);
    let pairs = rivals.iter().zip(&timed[timed.len() - rivals.len()..]);
    for (rival, one) in pairs.filter(|(_, one)| one.outcome.measurement().is_some()) {
        let cosine =
            rival.agreement.map_or(String::new(), |found| format!("{:.6}", found.cosine.value));
        let bytes = rival.weight_bytes().map_or(String::new(), digits::bytes);
        let name = vec![rival.name.clone()];
        table.push([name, time(one, timed).to_vec(), vec![cosine, bytes]].concat());
    }
    drawn(&table)
}

/// Median, interval and share of the float model's time, which is the first; or why there is none.
fn time(timed: &Timed, all: &[Timed]) -> [String; 3] {
    let series = |outcome: &Outcome| outcome.measurement().and_then(|m| m.latency.clone());
    let float =
        all.first().and_then(|timed| series(&timed.outcome)).map(|series| series.summary.median_ns);
    match (series(&timed.outcome), timed.outcome.failure()) {
        (Some(series), _) => {
            let summary = &series.summary;
            let ends =
                |low, high| format!("{} to {}", digits::time(low, None), digits::time(high, None));
            let interval = summary.median_interval.as_ref();
            let interval =
                interval.map_or("too few samples".to_owned(), |i| ends(i.low_ns, i.high_ns));
            let share =
                float.map_or(String::new(), |float| format!("{:.3}", summary.median_ns / float));
            [digits::time(summary.median_ns, None), interval, share]
        }
        (None, Some(failure)) => [failure.reason.clone(), String::new(), String::new()],
        (None, None) => ["not measured".to_owned(), String::new(), String::new()],
    }
}

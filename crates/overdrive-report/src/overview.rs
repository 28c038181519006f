//! The first screen: how many cases ran, the gains, and the machine of the measurements.

use std::collections::BTreeMap;

use super::judged::JudgedResults;
use overdrive_bench::date::utc;
use overdrive_bench::digits;
use overdrive_bench::environment::{Cpu, Environment};
use overdrive_bench::results::Results;
use overdrive_bench::series::{Depth, Series};
use overdrive_bench::speedup::Verdict;

/// `cpu, 2 threads: 21 of 24 cases ran; 9 excellent, 2 not comparable; 2 failed.`
pub(super) fn verdict(judged: &JudgedResults<'_>) -> String {
    let results = judged.results;
    if results.records.is_empty() {
        return "Nothing was measured.".to_owned();
    }
    let mut line = match judged.common.to_string() {
        none if none.is_empty() => ran(results),
        common => format!("{common}: {}", ran(results)),
    };
    let gains = gains(judged);
    if !gains.is_empty() {
        let words =
            gains.into_iter().map(|(word, n)| (word.map_or("not comparable", self::word), n));
        line += &format!("; {}", counted(words));
    }
    let mut failures = BTreeMap::new();
    for failure in results.records.iter().filter_map(|record| record.outcome.failure()) {
        *failures.entry(failure.kind).or_default() += 1;
    }
    if !failures.is_empty() {
        line += &format!("; {}", counted(failures));
    }
    line + "."
}

/// `21 of 24 cases ran`
pub(super) fn ran(results: &Results) -> String {
    let ran =
        results.records.iter().filter(|record| record.outcome.measurement().is_some()).count();
    let done = if results.imported.is_some() { "imported" } else { "ran" };
    format!("{ran} of {} cases {done}", results.records.len())
}

/// Counts of comparisons by their verdict; those without one come last. A quick look judges none,
/// which is said above.
fn gains(judged: &JudgedResults<'_>) -> BTreeMap<Result<Verdict, ()>, usize> {
    let mut counts = BTreeMap::new();
    for row in judged.rows.iter().filter(|row| row.measurement().is_some()) {
        if let Some(gain) = &row.gain {
            let verdict = gain.as_ref().map(|gain| gain.verdict()).map_err(|_| ());
            if verdict != Ok(Verdict::Screening) {
                *counts.entry(verdict).or_default() += 1;
            }
        }
    }
    counts
}

/// The word for a table, where the caption says that everything is measured.
pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Excellent => "excellent",
        Verdict::Good => "good",
        Verdict::Measured => "measured",
        Verdict::Investigate => "investigate",
        Verdict::Undecided => "no difference shown",
        Verdict::Screening => "not judged",
    }
}

fn counted<W: std::fmt::Display>(counts: impl IntoIterator<Item = (W, usize)>) -> String {
    counts.into_iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Said above everything else when some series is a screening.
pub(super) fn screening(results: &Results) -> Option<&'static str> {
    let mut series =
        results.records.iter().filter_map(|record| record.outcome.measurement()?.latency.as_ref());
    series.any(|series| series.conditions.depth == Depth::Screening).then_some(
        "A quick look, no verdict: each time is of 20 calls in one process, after 5 to warm up. \
         Run without `--quick` for figures to quote.",
    )
}

/// The environment, a line for each of its parts.
pub(super) fn strip(results: &Results) -> Vec<(&'static str, String)> {
    let environment = &results.environment;
    let mut lines = vec![("Processor", processor(environment)), ("System", system(environment))];
    for device in &environment.devices {
        let properties: Vec<String> =
            device.properties.iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines
            .push(("Device", format!("{} {}, {}", device.key, device.name, properties.join(", "))));
    }
    if let Some(origin) = &results.imported {
        lines.push(("Imported", format!("{origin}; what it does not tell is not recorded")));
        return lines;
    }
    let toolchain = &environment.toolchain;
    let flags =
        if toolchain.flags.is_empty() { String::new() } else { format!(", {}", toolchain.flags) };
    lines.push((
        "Build",
        format!("{}, {}, {}{flags}", toolchain.rustc, toolchain.target, toolchain.profile),
    ));
    lines.push(("Revision", revision(results)));
    lines.extend(results.harness_overhead.as_ref().map(|series| ("Harness", harness(series))));
    lines.push((
        "Run",
        format!(
            "{} UTC, seed {}, `{}`",
            utc(results.started_unix_s),
            results.seed,
            results.command
        ),
    ));
    if let (unverifiable @ 1.., all) = results.unverifiable() {
        let text = format!(
            "{unverifiable} of {all} series do not record their session: edits of their samples \
             may not be seen"
        );
        lines.push(("Unverified", text));
    }
    lines
}

/// Caveats on the figures, each a sentence.
pub(super) fn warnings(results: &Results) -> Vec<String> {
    let of_machine =
        if results.imported.is_some() { Vec::new() } else { results.environment.warnings() };
    of_machine.into_iter().map(|warning| format!("Warning: {warning}")).collect()
}

fn processor(environment: &Environment) -> String {
    let Cpu {
        model, logical, physical, smt, governor, turbo, max_mhz, virtualised, caches, ..
    } = &environment.cpu;
    let Cpu { features, instruction_set, .. } = &environment.cpu;
    let yes_no = |name: &str, known: Option<bool>| {
        known.map(|on| format!("{name} {}", if on { "on" } else { "off" }))
    };
    let cache = |c: &overdrive_bench::environment::Cache| {
        format!("L{} {}", c.level, digits::bytes(c.bytes))
    };
    let parts = [
        Some(model.clone()),
        logical.map(|count| format!("{count} CPUs")),
        physical.map(|count| format!("{count} cores")),
        yes_no("SMT", *smt),
        yes_no("turbo", *turbo),
        governor.as_ref().map(|governor| format!("governor {governor}")),
        max_mhz.map(|mhz| format!("at most {mhz} MHz")),
        virtualised.filter(|&virtualised| virtualised).map(|_| "virtualised".to_owned()),
        Some(caches.iter().map(cache).collect::<Vec<_>>().join(", ")),
        Some(features.join(" ")),
        instruction_set.as_ref().map(|set| format!("limited to {set} by --isa")),
    ];
    joined(parts)
}

fn system(environment: &Environment) -> String {
    joined([
        Some(environment.os.clone()),
        environment.kernel.clone(),
        environment.memory_bytes.map(digits::bytes),
        environment.allowed_cpus.map(|count| format!("{count} CPUs allowed")),
        environment.quota_cpus.map(|quota| format!("quota {quota:.1} CPUs")),
        environment.load_average.map(|load| format!("load {load:.2}")),
    ])
}

fn joined<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn revision(results: &Results) -> String {
    let commit = results
        .revision
        .commit
        .as_deref()
        .map_or("unknown commit", |commit| &commit[..commit.len().min(12)]);
    let dirty = match results.revision.dirty {
        Some(true) => ", with changes that are not committed",
        Some(false) => ", clean",
        None => "",
    };
    format!("{} ({commit}{dirty})", results.revision.version)
}

fn harness(series: &Series) -> String {
    let timer = &series.conditions.timer;
    format!(
        "{} for an empty call, {} ns for a reading of {}",
        digits::time(series.summary.median_ns, None),
        timer.overhead_ns,
        timer.clock
    )
}

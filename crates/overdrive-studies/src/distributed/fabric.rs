//! The links between the ranks, by a fit to the collectives of all sizes. It finds the cost of a
//! call, the latency of a step, and the bandwidths of a ring and between pairs.
//!
//! A collective takes `call + steps * latency + bytes / bandwidth`, with the bytes that each rank
//! sends and the steps of a ring. The fit minimises relative differences, so that messages of 4 KiB
//! and of 1 GiB count alike. The result has the form in which the simulator reads a fabric.

use super::collective::CollectiveKind;
use super::efficiency::RANKS;
use super::name::STUDY;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use serde_json::{Map, Value, json};

/// Call, latency of a step, seconds per byte of a ring, and of a send.
const UNKNOWNS: usize = 4;

/// One collective: the coefficients of the unknowns, and its seconds.
type Equation = ([f64; UNKNOWNS], f64);

/// The fabric that records of collectives show, as JSON; none where there are too few.
pub fn fabric(results: &Results) -> Option<String> {
    let mut by_ranks: std::collections::BTreeMap<u64, Vec<Equation>> = Default::default();
    let ours = results.records.iter().filter(|record| {
        record.case.study == STUDY && record.case.configuration.backend != "pytorch"
    });
    for (ranks, equation) in ours.filter_map(equation) {
        by_ranks.entry(ranks).or_default().push(equation);
    }
    let fits: Vec<(u64, [f64; UNKNOWNS])> =
        by_ranks.iter().filter_map(|(ranks, all)| Some((*ranks, fit(all)?))).collect();
    let (most, _) = fits.last()?;
    let calls: f64 = fits.iter().map(|(_, [call, ..])| call).sum();
    let link = |(ranks, [_, latency, ring, send]): &(u64, [f64; UNKNOWNS])| {
        let link = json!({
            "latency_seconds": latency, "ring_bytes_per_second": 1.0 / ring,
            "send_bytes_per_second": 1.0 / send,
        });
        (ranks.to_string(), link)
    };
    let device = &results.records.iter().find(|r| r.case.study == STUDY)?.case.configuration.device;
    let fabric = json!({
        "name": device,
        "source": format!("measured by `{}`; `work_beside` was not measured", results.command),
        "ranks_a_host": most,
        "call_seconds": calls / fits.len() as f64,
        "within": Value::Object(fits.iter().map(link).collect::<Map<_, _>>()),
        "work_beside": 1.0,
    });
    Some(serde_json::to_string_pretty(&fabric).expect("numbers and names are JSON") + "\n")
}

/// A collective of ours as an equation, with its ranks.
fn equation(record: &Record) -> Option<(u64, Equation)> {
    let name = &record.case.workload.name;
    let kind = CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name)?;
    let measurement = record.outcome.measurement()?;
    let ranks = *measurement.quantities.get(RANKS)? as u64;
    let bytes = *record.case.workload.dimensions.get("bytes")?;
    let wire = kind.wire_bytes(bytes, ranks) as f64;
    let others = (ranks - 1) as f64;
    let coefficients = match kind {
        CollectiveKind::AllReduce => [1.0, 2.0 * others, wire, 0.0],
        CollectiveKind::AllGather => [1.0, others, wire, 0.0],
        CollectiveKind::Ring => [1.0, 1.0, 0.0, wire],
    };
    let seconds = measurement.latency.as_ref()?.summary.median_ns * 1e-9;
    Some((ranks, (coefficients, seconds)))
}

/// The unknowns by least squares of relative differences. An unknown that would be negative is 0,
/// and the others are found again. None where bandwidths cannot be told.
fn fit(equations: &[Equation]) -> Option<[f64; UNKNOWNS]> {
    let mut kept = [true; UNKNOWNS];
    loop {
        let found = solved(equations, kept)?;
        match (0..2).find(|&at| kept[at] && found[at] < 0.0) {
            Some(negative) => kept[negative] = false,
            None => return found[2..].iter().all(|&per_byte| per_byte > 0.0).then_some(found),
        }
    }
}

/// The normal equations of the unknowns that are kept, by elimination with pivots.
fn solved(equations: &[Equation], kept: [bool; UNKNOWNS]) -> Option<[f64; UNKNOWNS]> {
    let places: Vec<usize> = (0..UNKNOWNS).filter(|&at| kept[at]).collect();
    // Columns of one size, so that pivots compare.
    let scaled = |(coefficients, seconds): &Equation, at: usize| coefficients[at] / seconds;
    let largest = |at| equations.iter().map(|e| scaled(e, at)).fold(0.0, f64::max);
    let scales: Vec<f64> = places.iter().map(|&at| largest(at)).collect();
    let count = places.len();
    let row = |e: &Equation| -> Vec<f64> {
        places.iter().zip(&scales).map(|(&at, scale)| scaled(e, at) / scale).collect()
    };
    let mut matrix = vec![vec![0.0; count + 1]; count];
    for row in equations.iter().map(row) {
        for i in 0..count {
            (0..count).for_each(|j| matrix[i][j] += row[i] * row[j]);
            matrix[i][count] += row[i];
        }
    }
    for at in 0..count {
        let pivot =
            (at..count).max_by(|&a, &b| matrix[a][at].abs().total_cmp(&matrix[b][at].abs()))?;
        matrix.swap(at, pivot);
        let own = matrix[at].clone();
        if !own[at].is_finite() || own[at].abs() < 1e-12 {
            return None;
        }
        for (_, other) in matrix.iter_mut().enumerate().filter(|(row, _)| *row != at) {
            let factor = other[at] / own[at];
            other.iter_mut().zip(&own).for_each(|(x, own)| *x -= factor * own);
        }
    }
    let mut found = [0.0; UNKNOWNS];
    for (row, (&at, scale)) in places.iter().zip(&scales).enumerate() {
        found[at] = matrix[row][count] / matrix[row][row] / scale;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of a fabric with these figures, over four ranks.
    fn equations([call, latency, ring, send]: [f64; UNKNOWNS]) -> Vec<Equation> {
        let sizes = [4096.0, 1e6, 6.4e7, 1e9];
        let of = |steps: f64, share: f64, is_send: bool| {
            sizes.map(move |bytes| {
                let wire = share * bytes;
                let (ring_bytes, send_bytes) = if is_send { (0.0, wire) } else { (wire, 0.0) };
                let seconds = call + steps * latency + ring_bytes * ring + send_bytes * send;
                ([1.0, steps, ring_bytes, send_bytes], seconds)
            })
        };
        [of(6.0, 1.5, false), of(3.0, 0.75, false), of(1.0, 1.0, true)].concat()
    }

    #[test]
    fn the_fit_finds_the_figures_that_made_the_times() {
        for figures in [[1e-5, 2e-6, 1.0 / 3e11, 1.0 / 2e11], [0.0, 3e-6, 1e-10, 2e-10]] {
            let found = fit(&equations(figures)).expect("all sizes are there");
            for (found, figure) in found.iter().zip(figures) {
                assert!((found - figure).abs() <= 1e-6 * figure + 1e-9, "{found} for {figure}");
            }
        }
    }

    #[test]
    fn a_figure_that_would_be_negative_is_zero_and_too_few_sizes_say_nothing() {
        let mut all = equations([0.0, 3e-6, 1e-10, 2e-10]);
        all.iter_mut().filter(|(c, _)| c[1] == 1.0).for_each(|(_, seconds)| *seconds *= 0.8);
        let found = fit(&all).expect("all sizes are there");
        assert!(found[0] == 0.0 && found[1] > 0.0, "{found:?}");
        assert_eq!(fit(&all[..2]), None);
    }
}

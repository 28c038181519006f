//! How long a large report takes: `cargo run --release -p overdrive-report --features plots
//! --example large_report -- RESULTS OUT`.
//!
//! The example takes the cases of RESULTS, copies them until there are 2,000, and gives each a
//! hundred of its own samples. It writes the report to the folder OUT and prints the time of each
//! step.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use overdrive_bench::json::{from_json, to_json};
use overdrive_bench::measurement::Measurement;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::series::Series;
use overdrive_report::Report;
use overdrive_report::html::{Stills, html};

const RECORDS: usize = 2_000;
const SAMPLES: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, source, folder] = arguments.as_slice() else {
        return Err("usage: large_report RESULTS OUT".into());
    };
    let large = enlarged(from_json(&std::fs::read_to_string(source)?)?)?;
    let text = to_json(&large);
    let start = Instant::now();
    let step = |what: &str| println!("{:8.0} ms  {what}", start.elapsed().as_secs_f64() * 1e3);
    let read = [from_json(&text)?];
    step("JSON read and checked");
    let report = Report::new(&read);
    step("every comparison and chart");
    let stills = stills(&report)?;
    step("pictures drawn");
    let page = html(&report, &stills);
    step("page written");
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("report.html"), &page)?;
    println!(
        "{} records, {} charts, {:.1} MB",
        read[0].records.len(),
        report.charts().count(),
        page.len() as f64 * 1e-6
    );
    Ok(())
}

fn stills(report: &Report<'_>) -> Result<Stills, Box<dyn Error>> {
    #[cfg(feature = "plots")]
    {
        let charts: Vec<_> = report.charts().cloned().collect();
        let pictures = overdrive_report::drawing::draw(&charts)?;
        Ok(pictures.into_iter().map(|picture| (picture.id, picture.svg)).collect())
    }
    #[cfg(not(feature = "plots"))]
    {
        let _ = report;
        Ok(Stills::new())
    }
}

/// Copies of every timed case under names of their own, baselines among them.
fn enlarged(mut results: Results) -> Result<Results, Box<dyn Error>> {
    let timed: Vec<Record> =
        results.records.iter().filter(|record| series(record).is_some()).cloned().collect();
    if timed.is_empty() {
        return Err("no record of these results has samples".into());
    }
    results.records.clear();
    results.ladders.clear();
    for copy in 0.. {
        for record in &timed {
            if results.records.len() == RECORDS {
                let ids: BTreeSet<String> = results.records.iter().map(|r| r.case.id()).collect();
                results
                    .records
                    .iter_mut()
                    .for_each(|r| r.baseline = r.baseline.take().filter(|id| ids.contains(id)));
                return Ok(results);
            }
            let mut record = record.clone();
            let name = record.case.workload.name.clone();
            record.case.workload.name = format!("{name} {copy}");
            record.baseline =
                record.baseline.map(|id| id.replacen(&name, &format!("{name} {copy}"), 1));
            let Some(Ok(series)) = series(&record).map(lengthened) else { continue };
            if let Some(measurement) = record.outcome.measurement_mut() {
                let again = Measurement::timed(series);
                measurement.latency = again.latency;
                measurement.statuses = again.statuses;
            }
            results.records.push(record);
        }
    }
    unreachable!("the copies do not end")
}

fn series(record: &Record) -> Option<&Series> {
    record.outcome.measurement()?.latency.as_ref()
}

fn lengthened(series: &Series) -> Result<Series, overdrive_bench::failure::Failure> {
    let samples = series.samples.iter().cycle().take(SAMPLES).cloned().collect();
    Series::new(series.conditions.clone(), samples)
}

//! The folder of a report: made before anything is measured, its files by atomic rename.

use crate::failure::Failure;
use crate::terminal::width;
use overdrive::bench::report::html::{Stills, html};
use overdrive::bench::report::{Report, from_json, terminal, to_json, utc, write_atomically};
use overdrive::bench::results::Results;
use std::path::{Path, PathBuf};

/// The file that everything else in the folder is drawn from.
pub(crate) const RESULTS: &str = "results.json";
/// The report to open.
pub(crate) const PAGE: &str = "report.html";

/// A folder that was made for results: it goes again when this is dropped and nothing came, as after bad input.
#[must_use = "a folder without results goes when this does"]
pub(crate) struct Prepared(Option<PathBuf>);

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // Refused where it holds something, which is what is wanted.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Makes the folder now, so that an unwritable one is known before the work and not after it.
pub(crate) fn prepare(folder: &Path) -> Result<Prepared, Failure> {
    let unwritable = |e: std::io::Error| {
        let place = folder.display();
        Failure::bad_input(format!("cannot write to `{place}`: {e}; name another folder with --out"))
    };
    let is_new = !folder.exists();
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    let prepared = Prepared(is_new.then(|| folder.to_owned()));
    let probe = folder.join(".writable.tmp");
    std::fs::write(&probe, b"").map_err(unwritable)?;
    std::fs::remove_file(&probe).map_err(unwritable)?;
    Ok(prepared)
}

/// Results from a file, or from the folder of a report.
pub(crate) fn read(path: &Path) -> Result<Results, Failure> {
    let file = if path.is_dir() { path.join(RESULTS) } else { path.to_owned() };
    let text = std::fs::read_to_string(&file).map_err(|error| {
        let place = file.display();
        Failure::bad_input(format!(
            "cannot read results from `{place}`: {error}; expected a {RESULTS} or its folder"
        ))
    })?;
    from_json(&text).map_err(|error| Failure::bad_input(format!("`{}`: {error}", file.display())))
}

/// `reports/<date-time>`.
pub(crate) fn default_folder(results: &Results) -> PathBuf {
    let stamp: String = utc(results.started_unix_s)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Path::new("reports").join(stamp.trim_matches('-'))
}

/// Whether anything was measured: results of nothing are not worth a folder.
pub(crate) fn has_measurements(results: &Results) -> bool {
    results.records.iter().any(|record| record.outcome.measurement().is_some())
}

/// Writes results.json and what is drawn from it.
pub(crate) fn write(folder: &Path, results: &Results) -> Result<(), Failure> {
    write_results(folder, results)?;
    write_report(folder, std::slice::from_ref(results))
}

/// Writes report.html, report.md and plots/ of one results file or several.
pub(crate) fn write_report(folder: &Path, files: &[Results]) -> Result<(), Failure> {
    let report = Report::new(files);
    let write = |path: PathBuf, content: &[u8]| write_atomically(&path, content).map_err(Failure::harness);
    write(folder.join("report.md"), report.markdown().as_bytes())?;
    let stills = write_plots(&folder.join("plots"), &report)?;
    write(folder.join(PAGE), html(&report, &stills).as_bytes())
}

/// Writes every chart as SVG and PNG, and hands back the SVG for the page.
#[cfg(feature = "plots")]
fn write_plots(plots: &Path, report: &Report<'_>) -> Result<Stills, Failure> {
    let charts: Vec<_> = report.charts().cloned().collect();
    let pictures = overdrive::bench::drawing::draw(&charts).map_err(Failure::harness)?;
    std::fs::create_dir_all(plots).map_err(Failure::harness)?;
    let mut stills = Stills::new();
    for picture in pictures {
        for (extension, content) in [("svg", picture.svg.as_bytes()), ("png", &picture.png)] {
            let path = plots.join(format!("{}.{extension}", picture.id));
            write_atomically(&path, content).map_err(Failure::harness)?;
        }
        stills.insert(picture.id, picture.svg);
    }
    Ok(stills)
}

/// A build without an engine for charts: the page draws them itself.
#[cfg(not(feature = "plots"))]
fn write_plots(_plots: &Path, _report: &Report<'_>) -> Result<Stills, Failure> {
    Ok(Stills::new())
}

/// Writes results.json.
pub(crate) fn write_results(folder: &Path, results: &Results) -> Result<(), Failure> {
    write_atomically(&folder.join(RESULTS), to_json(results).as_bytes()).map_err(Failure::harness)
}

/// The summary for the terminal.
pub(crate) fn summary(results: &Results) -> String {
    terminal(results, width())
}

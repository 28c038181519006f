//! The folder of a report: made before anything is measured, its files by atomic rename.

use crate::failure::Failure;
use overdrive::bench::report::{markdown, terminal, to_json, utc, write_atomically};
use overdrive::bench::results::Results;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// The file that everything else in the folder is drawn from.
pub(crate) const RESULTS: &str = "results.json";

/// Makes the folder now, so that an unwritable one is known before the work and not after it.
pub(crate) fn prepare(folder: &Path) -> Result<(), Failure> {
    let unwritable = |e: std::io::Error| {
        let place = folder.display();
        Failure::bad_input(format!("cannot write to `{place}`: {e}; name another folder with --out"))
    };
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    let probe = folder.join(".writable.tmp");
    std::fs::write(&probe, b"").map_err(unwritable)?;
    std::fs::remove_file(&probe).map_err(unwritable)
}

/// `reports/<date-time>`.
pub(crate) fn default_folder(results: &Results) -> PathBuf {
    let stamp: String = utc(results.started_unix_s)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Path::new("reports").join(stamp.trim_matches('-'))
}

/// Writes results.json and what is drawn from it.
pub(crate) fn write(folder: &Path, results: &Results) -> Result<(), Failure> {
    write_results(folder, results)?;
    write_atomically(&folder.join("report.md"), markdown(results).as_bytes()).map_err(Failure::harness)
}

/// Writes results.json.
pub(crate) fn write_results(folder: &Path, results: &Results) -> Result<(), Failure> {
    write_atomically(&folder.join(RESULTS), to_json(results).as_bytes()).map_err(Failure::harness)
}

/// The summary for the terminal.
pub(crate) fn summary(results: &Results) -> String {
    let width = if std::io::stdout().is_terminal() { 120 } else { 160 };
    terminal(results, width)
}

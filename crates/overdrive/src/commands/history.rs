//! `overdrive history`: appends results to a history, prints its series and where they changed.

use super::output;
use crate::cli::History;
use crate::failure::Failure;
use crate::terminal::{note, say, width, write};
use overdrive::bench::exit::Exit;
use overdrive::gate::history::{HistoryEntry, HistorySeries, append, history_table, read, series};
use overdrive_process::Stop;
use std::path::Path;
use std::time::UNIX_EPOCH;

pub(crate) fn history(arguments: &History, stop: &Stop) -> Result<Exit, Failure> {
    if !arguments.add.is_empty() {
        let _whole = stop.heed();
        add(arguments)?;
    }
    let mut entries = Vec::new();
    for file in &arguments.files {
        entries.extend(read(file).map_err(|error| {
            let remedy = if file.exists() {
                ""
            } else {
                "; begin one with `overdrive history --add RESULTS`"
            };
            Failure::bad_input(format!("{error}{remedy}"))
        })?);
    }
    let wanted =
        |entry: &HistoryEntry| arguments.case.as_ref().is_none_or(|text| entry.case.contains(text));
    entries.retain(wanted);
    let found: Vec<HistorySeries> = series(&entries);
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&found).expect("plain data"))?;
    } else {
        write(format_args!("{}", history_table(&found, width())))?;
    }
    if found.is_empty() {
        let of = arguments
            .case
            .as_ref()
            .map_or(String::new(), |text| format!(" of a case with `{text}`"));
        return Err(Failure::harness(format!("the history holds no figure{of}")));
    }
    Ok(Exit::Fine)
}

/// Reads all results before anything is written, so that a damaged file leaves the history as it
/// was.
fn add(arguments: &History) -> Result<(), Failure> {
    let [file] = &arguments.files[..] else {
        return Err(Failure::bad_input("--add appends to one history: name one FILE"));
    };
    let mut entries: Vec<HistoryEntry> = Vec::new();
    for path in &arguments.add {
        for mut results in output::read(path)? {
            if results.started_unix_s == 0 {
                results.started_unix_s = modified(path)?;
                note!(
                    "{} does not say when it was measured; the date of the file is used",
                    path.display()
                );
            }
            entries.extend(HistoryEntry::of(&results));
        }
    }
    let added = append(file, &entries).map_err(Failure::bad_input)?;
    let known = entries.len() - added;
    let rest = if known > 0 { format!(", {known} were there already") } else { String::new() };
    note!("{added} figures added to {}{rest}", file.display());
    Ok(())
}

/// When a file was last written, in seconds since 1970 UTC.
fn modified(path: &Path) -> Result<u64, Failure> {
    let time = std::fs::metadata(path).and_then(|about| about.modified());
    let time =
        time.map_err(|error| Failure::bad_input(format!("`{}`: {error}", path.display())))?;
    Ok(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

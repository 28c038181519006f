//! `overdrive history`: appends results to a history, prints its series and where they changed.

use super::output;
use crate::cli::History;
use crate::failure::Failure;
use crate::terminal::{note, say, width, write};
use overdrive::bench::exit::Exit;
use overdrive::bench::history::{Entry, HistorySeries, append, history_table, read, series};
use overdrive_process::Stop;

pub(crate) fn history(arguments: &History, stop: &Stop) -> Result<Exit, Failure> {
    if !arguments.add.is_empty() {
        let _whole = stop.heed();
        add(arguments)?;
    }
    let mut entries = Vec::new();
    for file in &arguments.files {
        entries.extend(read(file).map_err(|error| {
            let remedy =
                if file.exists() { "" } else { "; begin one with `overdrive history --add RESULTS`" };
            Failure::bad_input(format!("{error}{remedy}"))
        })?);
    }
    let wanted = |entry: &Entry| arguments.case.as_ref().is_none_or(|text| entry.case.contains(text));
    entries.retain(wanted);
    let found: Vec<HistorySeries> = series(&entries);
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&found).expect("plain data"))?;
    } else {
        write(format_args!("{}", history_table(&found, width())))?;
    }
    if found.is_empty() {
        let of = arguments.case.as_ref().map_or(String::new(), |text| format!(" of a case with `{text}`"));
        return Err(Failure::harness(format!("the history holds no figure{of}")));
    }
    Ok(Exit::Fine)
}

/// Reads all results before anything is written, so that a damaged file leaves the history as it was.
fn add(arguments: &History) -> Result<(), Failure> {
    let [file] = &arguments.files[..] else {
        return Err(Failure::bad_input("--add appends to one history: name one FILE"));
    };
    let results = arguments.add.iter().map(|path| output::read(path)).collect::<Result<Vec<_>, Failure>>()?;
    let entries: Vec<Entry> = results.iter().flat_map(Entry::of).collect();
    let added = append(file, &entries).map_err(Failure::bad_input)?;
    let known = entries.len() - added;
    let rest = if known > 0 { format!(", {known} were there already") } else { String::new() };
    note!("{added} figures added to {}{rest}", file.display());
    Ok(())
}

//! Quality that fell from one results file to the next.

use super::machines;
use overdrive_bench::quality::lost::lost;
use overdrive_bench::results::Results;

/// Every loss from a file to the next that holds the same case, oldest first. A file that does not
/// say when it was measured counts as older than those that do.
pub(super) fn between(files: &[Results]) -> Vec<String> {
    let mut named: Vec<(&Results, String)> = files.iter().zip(machines::names(files)).collect();
    named.sort_by_key(|(results, _)| results.started_unix_s);
    let mut said = Vec::new();
    for (at, (newer, name)) in named.iter().enumerate() {
        for now in &newer.records {
            let id = now.case.id();
            let earlier = named[..at].iter().rev();
            let found = earlier.filter_map(|(older, from)| Some((older.record(&id)?, from))).next();
            let Some((before, from)) = found else { continue };
            said.extend(
                lost(before, now)
                    .into_iter()
                    .map(|loss| format!("`{id}`: {loss} ({from}; {name})")),
            );
        }
    }
    said
}

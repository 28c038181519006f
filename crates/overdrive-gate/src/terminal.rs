//! Verdicts for a terminal.

use super::table::table;
use overdrive_bench::table::terminal_table;
use overdrive_bench::verdicts::Verdicts;

/// The summary, in lines of at most `width` characters where the cells can be wrapped so far.
pub fn terminal(verdicts: &Verdicts, width: u16) -> String {
    let mut text = String::new();
    if !verdicts.cases.is_empty() {
        text += &format!(
            "{}\n",
            terminal_table(&table(&verdicts.cases.iter().collect::<Vec<_>>()), width)
        );
    }
    for case in &verdicts.cases {
        for reason in case.reasons() {
            text += &format!("  {}: {}\n", case.case, reason.replace('`', ""));
        }
    }
    for flagged in &verdicts.control.flagged {
        text += &format!(
            "  the baseline against itself: {}: {} {}\n",
            flagged.case, flagged.figure, flagged.change
        );
    }
    for (side, failure) in &verdicts.evidence.lost {
        text += &format!("  without results: {side}: {failure}\n");
    }
    text += &format!("\n{}\n", verdicts.headline());
    for note in &verdicts.notes {
        text += &format!("Warning: {note}\n");
    }
    text
}

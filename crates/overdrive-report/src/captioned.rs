//! A table of a report and the line above it.

use overdrive_bench::table::Table;

/// A table and the line above it.
pub(super) struct Captioned {
    pub(super) caption: String,
    pub(super) table: Table,
}

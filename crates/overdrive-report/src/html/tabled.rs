//! A table as the template is given it.

use overdrive_bench::table::{Align, Column, Table};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct TableView {
    columns: Vec<ColumnView>,
    rows: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct ColumnView {
    title: String,
    right: bool,
}

pub(super) fn table(table: &Table) -> TableView {
    let column = |column: &Column| ColumnView {
        title: column.title.to_string(),
        right: column.align == Align::Right,
    };
    TableView { columns: table.columns.iter().map(column).collect(), rows: table.rows.clone() }
}

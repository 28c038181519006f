//! A table of texts, and its two forms: lines of a terminal, and Markdown.

mod markdown;
mod width;

use std::borrow::Cow;

pub use markdown::markdown_table;
pub use width::{indented, terminal_table};

/// Columns with titles, and rows of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Heads of the columns.
    pub columns: Vec<Column>,
    /// Rows, each with one cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// A column's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Words above the column.
    pub title: Cow<'static, str>,
    /// Alignment of its cells.
    pub align: Align,
}

/// Numbers are aligned right, words left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// The text of a cell for an unknown value. Never a number.
pub const UNKNOWN: &str = "—";

impl Table {
    /// A table with these columns and no rows.
    pub fn new<T: Clone + Into<Cow<'static, str>>>(columns: &[(T, Align)]) -> Self {
        let column =
            |(title, align): &(T, Align)| Column { title: title.clone().into(), align: *align };
        Self { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row, which has one cell for each column.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "a row has one cell for each column");
        self.rows.push(row);
    }

    /// Without the columns in which nothing is known.
    #[must_use]
    pub fn without_unknown_columns(self) -> Self {
        let known: Vec<bool> = (0..self.columns.len())
            .map(|column| self.rows.iter().any(|row| row[column] != UNKNOWN))
            .collect();
        self.keep(&known)
    }

    /// Only the columns with these titles.
    #[must_use]
    pub fn only(&self, titles: &[&str]) -> Self {
        let asked: Vec<bool> =
            self.columns.iter().map(|column| titles.contains(&column.title.as_ref())).collect();
        self.clone().keep(&asked)
    }

    /// The columns whose flag is set.
    fn keep(mut self, flags: &[bool]) -> Self {
        retain(&mut self.columns, flags);
        self.rows.iter_mut().for_each(|row| retain(row, flags));
        self
    }
}

fn retain<T>(items: &mut Vec<T>, flags: &[bool]) {
    let mut flags = flags.iter();
    items.retain(|_| *flags.next().expect("there is one flag for each column"));
}

/// A cell for something that may not be known.
pub fn cell(text: Option<String>) -> String {
    text.unwrap_or_else(|| UNKNOWN.to_owned())
}

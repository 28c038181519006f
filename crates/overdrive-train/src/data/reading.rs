//! Statements of a user and a model about the columns of a table before it is read.

use super::Target;
use overdrive_formats::TableColumns;

/// How a table is read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    /// The column of labels, by its name or its number from 0; else the model's, else the last.
    pub label: Option<String>,
    /// The kind of labels; else the model's, else the one that their nature suggests.
    pub target: Option<Target>,
    /// The columns that a model has learnt from, whose names and classes these must have.
    pub like: Option<TableColumns>,
}

//! `ColumnRange`: the numbers of a column of a table, and how much of them f32 keeps.

use std::fmt;

/// The numbers of a column as they are in the file.
#[derive(Copy, Clone, Debug)]
pub(super) struct ColumnRange {
    least: f64,
    most: f64,
    /// The most by which f32 changes one of them.
    lost: f64,
}

impl Default for ColumnRange {
    fn default() -> Self {
        Self { least: f64::INFINITY, most: f64::NEG_INFINITY, lost: 0.0 }
    }
}

impl ColumnRange {
    /// The part of the range that f32 may lose. A model could not learn from what is left.
    const TOO_MUCH: f64 = 0.01;

    /// Notes a field, of which f32 keeps this.
    pub(super) fn see(&mut self, field: &str, kept: f32) {
        let Ok(value) = field.parse::<f64>() else { return };
        (self.least, self.most) = (self.least.min(value), self.most.max(value));
        self.lost = self.lost.max((value - f64::from(kept)).abs());
    }

    /// Whether f32 does not tell the numbers apart. One number alone tells nothing anyway.
    pub(super) fn is_lost(&self) -> bool {
        self.most > self.least && self.lost > Self::TOO_MUCH * (self.most - self.least)
    }
}

impl fmt::Display for ColumnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most, lost } = self;
        write!(f, "{least} to {most}, of which f32 changes some by {lost}")
    }
}

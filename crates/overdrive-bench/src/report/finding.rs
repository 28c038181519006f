//! A sentence of a report and the records that it stands on. There is no sentence without a record: one that names none,
//! or one that the results do not hold, is a fault of whoever made it.

use super::judged::Judged;

/// What follows from records, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// One sentence.
    pub sentence: String,
    /// [Ids](crate::case::Case::id) of the cases behind it, at least one.
    pub records: Vec<String>,
}

impl Finding {
    /// The anchors of its records.
    ///
    /// # Panics
    /// When there is no record behind the sentence.
    pub(super) fn anchors(&self, judged: &Judged<'_>) -> Vec<String> {
        assert!(!self.records.is_empty(), "no record stands behind `{}`", self.sentence);
        let anchor = |id: &String| match judged.find(id) {
            Some(row) => row.anchor.clone(),
            None => panic!("`{}` stands on `{id}`, which is not in the results", self.sentence),
        };
        self.records.iter().map(anchor).collect()
    }
}

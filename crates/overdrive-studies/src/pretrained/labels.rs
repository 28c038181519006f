//! The meaning of the outputs of a head: classes by their names, or a quantity.
//!
//! config.json says it as `transformers` reads it: names in `id2label`, else `num_labels` without
//! names, and `problem_type`, whose default follows from their number.

use super::fields::classes;
use overdrive_formats::FormatError;
use overdrive_formats::huggingface::Config;

/// The outputs of a head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Labels {
    /// A name for each output, in their order.
    pub names: Vec<String>,
    /// The kind of a sample's label.
    pub problem: Problem,
}

/// The kind of a sample's label.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// One of the classes.
    OneClass,
    /// Any number of the classes.
    SeveralClasses,
    /// A number for each output: regression.
    Quantity,
}

/// End of the class names of text classifiers, after the family.
const CLASSIFIER: &str = "ForSequenceClassification";

/// Names that a note lists at most.
const LISTED: usize = 4;

impl Labels {
    /// The labels of a classifier of text; none where `architectures` names no such class.
    pub(super) fn read(config: &Config) -> Result<Option<Self>, FormatError> {
        const FIELD: &str = "problem_type";
        let named = config.find_texts("architectures")?.unwrap_or_default();
        if !named.iter().any(|name| name.ends_with(CLASSIFIER)) {
            return Ok(None);
        }
        let names = classes(config)?;
        let problem = match config.find_text(&[FIELD])? {
            None if names.len() == 1 => Problem::Quantity,
            None | Some("single_label_classification") => Problem::OneClass,
            Some("multi_label_classification") => Problem::SeveralClasses,
            Some("regression") => Problem::Quantity,
            Some(other) => {
                let expected =
                    "single_label_classification, multi_label_classification or regression";
                return Err(config.wrong(FIELD, expected, &format!("`{other}`")));
            }
        };
        if problem == Problem::OneClass && names.len() < 2 {
            let expected = "regression, since there is one label";
            return Err(config.wrong(FIELD, expected, "single_label_classification"));
        }
        Ok(Some(Self { names, problem }))
    }

    /// Describes y to a user.
    pub(super) fn said(&self) -> String {
        match (self.problem, self.names.len()) {
            (Problem::Quantity, 1) => "y is a quantity (regression)".to_owned(),
            (Problem::Quantity, count) => format!("y is {count} quantities (regression)"),
            (Problem::OneClass, _) => logits(&self.names),
            (Problem::SeveralClasses, _) => {
                format!("{}, any number of which may hold", logits(&self.names))
            }
        }
    }
}

/// Describes the logits of classes with these names to a user.
pub(super) fn logits(names: &[String]) -> String {
    let (count, more) = (names.len(), if names.len() > LISTED { ", ..." } else { "" });
    format!("y is the logits of {count} classes: {}{more}", names[..count.min(LISTED)].join(", "))
}

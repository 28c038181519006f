//! The keys of a header about its architecture: `llama.context_length` by `context_length`.

use super::layout::{File, HeaderValue};
use crate::FormatError;

/// Keys of an architecture.
pub(super) struct Keys<'f> {
    pub(super) file: &'f File,
    pub(super) prefix: &'static str,
}

impl<'f> Keys<'f> {
    pub(super) fn find(&self, name: &str) -> Option<&'f HeaderValue> {
        self.file.find(&format!("{}.{name}", self.prefix))
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<u64>, FormatError> {
        match self.find(name) {
            None => Ok(None),
            Some(HeaderValue::Integer(n)) if (0..=i128::from(u32::MAX)).contains(n) => {
                Ok(Some(*n as u64))
            }
            // One for each block, all alike.
            Some(HeaderValue::Integers(all))
                if all.first().is_some_and(|n| *n >= 0 && all.iter().all(|m| m == n)) =>
            {
                Ok(Some(all[0] as u64))
            }
            Some(found) => {
                let place = format!("{}.{name}", self.prefix);
                Err(self.file.wrong(&place, "one count for all blocks", shown(found)))
            }
        }
    }

    pub(super) fn needed(&self, name: &str) -> Result<u64, FormatError> {
        let place = format!("{}.{name}", self.prefix);
        self.count(name)?.ok_or_else(|| self.file.wrong(&place, "a count", "no such key"))
    }

    pub(super) fn find_positive(&self, name: &str) -> Result<Option<f64>, FormatError> {
        match self.find(name) {
            None => Ok(None),
            Some(HeaderValue::Float(x)) if x.is_finite() && *x > 0.0 => Ok(Some(*x)),
            Some(found) => {
                let place = format!("{}.{name}", self.prefix);
                Err(self.file.wrong(&place, "a number above 0", shown(found)))
            }
        }
    }

    pub(super) fn positive(&self, name: &str) -> Result<f64, FormatError> {
        let place = format!("{}.{name}", self.prefix);
        let found = self.find_positive(name)?;
        found.ok_or_else(|| self.file.wrong(&place, "a number above 0", "no such key"))
    }
}

/// A value as an error shows it.
fn shown(value: &HeaderValue) -> String {
    const LONGEST: usize = 60;
    format!("{value:?}").chars().take(LONGEST).collect()
}

//! A JSON object of such a folder, read field by field. Every error names the file, the field, the
//! expected and the found value.
//!
//! There is no serde struct per architecture. One field has had several names over the years, and a
//! message such as "missing field" at line 1 helps nobody. Invariant: a count that is returned is
//! within its limit, so that a product of a few counts does not overflow.

use crate::FormatError;
use overdrive_files::{SETTINGS, read_text};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Largest extent of a dimension in a config.
const MAX_COUNT: u64 = 1 << 24;

/// The fields of a JSON object, and where it stands.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    /// Names of the objects around it, with a dot behind each.
    place: String,
    fields: Map<String, Value>,
    /// Names of the fields that were read, with their places; one set for a file.
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is absent, no JSON, or no object.
    pub fn read(path: &Path) -> Result<Self, FormatError> {
        Self::parse(path, &read_text(path, SETTINGS)?)
    }

    /// Reads a file that is a list of objects.
    ///
    /// # Errors
    /// When it is absent, no JSON, or something else.
    pub fn read_list(path: &Path) -> Result<Vec<Self>, FormatError> {
        let text = read_text(path, SETTINGS)?;
        let wrong =
            |found: String| FormatError::damaged(path, "the file", "a JSON list of objects", found);
        let items: Vec<Value> =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let item = |(index, item)| match item {
            Value::Object(fields) => Ok(Self::of(path, format!("{index}."), fields)),
            other => Err(wrong(shown(&other))),
        };
        items.into_iter().enumerate().map(item).collect()
    }

    /// Reads the text of a file; `path` is what errors call it.
    ///
    /// # Errors
    /// When it is no JSON, or no object.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FormatError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Ok(Self::of(path, String::new(), fields)),
            Ok(other) => {
                Err(FormatError::damaged(path, "the file", "a JSON object", shown(&other)))
            }
            Err(error) => Err(FormatError::damaged(path, "the file", "a JSON object", error)),
        }
    }

    fn of(path: &Path, place: String, fields: Map<String, Value>) -> Self {
        Self { path: path.to_owned(), place, fields, asked: Arc::default() }
    }

    /// All of it, for whoever reads such a config by rules of their own.
    pub fn to_json(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// The value of the first of these names that has one; `null` is none.
    fn find<'c>(&'c self, names: &[&'static str]) -> Option<(&'static str, &'c Value)> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.extend(names.iter().map(|name| format!("{}{name}", self.place)));
        drop(asked);
        let found = |&name: &&'static str| {
            Some((name, self.fields.get(name).filter(|value| !value.is_null())?))
        };
        names.iter().find_map(found)
    }

    /// An error about a field.
    pub fn wrong(&self, field: &str, expected: &str, found: &str) -> FormatError {
        let place = format!("{}{field}", self.place);
        FormatError::damaged(&self.path, &place, expected, found)
            .remedy("the file is damaged, or of a model that is not known here")
    }

    fn read_as<'c, T>(
        &'c self,
        names: &[&'static str],
        expected: &str,
        read: impl FnOnce(&'c Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some((name, value)) = self.find(names) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, expected, &shown(value)))
    }

    fn present<T>(
        &self,
        names: &[&'static str],
        expected: &str,
        value: Option<T>,
    ) -> Result<T, FormatError> {
        value.ok_or_else(|| self.wrong(&names.join(" or "), expected, "no such field"))
    }

    /// A whole number of at least 1, under the first of these names that exists; `None` if none
    /// exists.
    ///
    /// # Errors
    /// When it is something else, or larger than any dimension may be.
    pub fn find_count(&self, names: &[&'static str]) -> Result<Option<usize>, FormatError> {
        let within = |value: &Value| {
            value.as_u64().filter(|n| (1..=MAX_COUNT).contains(n)).map(|n| n as usize)
        };
        self.read_as(names, &format!("a whole number from 1 to {MAX_COUNT}"), within)
    }

    /// The same, which must be there.
    ///
    /// # Errors
    /// As `find_count`, and when the field is absent.
    pub fn count(&self, names: &[&'static str]) -> Result<usize, FormatError> {
        self.present(names, "a whole number of at least 1", self.find_count(names)?)
    }

    /// Two whole numbers of at least 1, if the field is there: a list of them, or one that is both.
    ///
    /// # Errors
    /// As `find_count`.
    pub fn find_pair(&self, name: &'static str) -> Result<Option<[usize; 2]>, FormatError> {
        let within = |value: &Value| {
            value.as_u64().filter(|n| (1..=MAX_COUNT).contains(n)).map(|n| n as usize)
        };
        self.read_as(&[name], "a whole number of at least 1, or two", |value| {
            match value.as_array() {
                None => within(value).map(|both| [both; 2]),
                Some(list) => match &list[..] {
                    [first, second] => Some([within(first)?, within(second)?]),
                    _ => None,
                },
            }
        })
    }

    /// A whole number, which may be 0, if the field is there.
    ///
    /// # Errors
    /// When it is something else, or larger than any dimension may be.
    pub fn find_number(&self, name: &'static str) -> Result<Option<usize>, FormatError> {
        let within = |value: &Value| value.as_u64().filter(|n| *n <= MAX_COUNT).map(|n| n as usize);
        self.read_as(&[name], &format!("a whole number from 0 to {MAX_COUNT}"), within)
    }

    /// A finite number above 0, if the field is there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn find_positive(&self, names: &[&'static str]) -> Result<Option<f64>, FormatError> {
        self.read_as(names, "a number above 0", |value| {
            value.as_f64().filter(|x| x.is_finite() && *x > 0.0)
        })
    }

    /// The same, which must be there.
    ///
    /// # Errors
    /// As `find_positive`, and when the field is absent.
    pub fn positive(&self, names: &[&'static str]) -> Result<f64, FormatError> {
        self.present(names, "a number above 0", self.find_positive(names)?)
    }

    /// A boolean; `otherwise` where the field is absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, name: &'static str, otherwise: Otherwise) -> Result<bool, FormatError> {
        let found = self.read_as(&[name], "true or false", Value::as_bool)?;
        Ok(found.unwrap_or(otherwise == Otherwise::True))
    }

    /// A string, if the field is there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn find_text(&self, names: &[&'static str]) -> Result<Option<&str>, FormatError> {
        self.read_as(names, "a string", Value::as_str)
    }

    /// The same, which must be there.
    ///
    /// # Errors
    /// As `find_text`, and when the field is absent.
    pub fn text(&self, names: &[&'static str]) -> Result<&str, FormatError> {
        self.present(names, "a string", self.find_text(names)?)
    }

    /// A list of strings, if the field is there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn find_texts(&self, name: &'static str) -> Result<Option<Vec<&str>>, FormatError> {
        self.read_as(&[name], "a list of strings", |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    /// A list of finite numbers, if the field is there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn find_reals(&self, name: &'static str) -> Result<Option<Vec<f64>>, FormatError> {
        let real = |value: &Value| value.as_f64().filter(|x| x.is_finite());
        self.read_as(&[name], "a list of numbers", |value| {
            value.as_array()?.iter().map(real).collect()
        })
    }

    /// A list of whole numbers from 0 on; empty where the field is absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn numbers(&self, name: &'static str) -> Result<Vec<usize>, FormatError> {
        let number = |value: &Value| value.as_u64().filter(|n| *n <= MAX_COUNT).map(|n| n as usize);
        let found = self.read_as(&[name], "a list of whole numbers", |value| {
            value.as_array()?.iter().map(number).collect()
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Token ids: one, or a list of them; empty where the field is absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn ids(&self, name: &'static str) -> Result<Vec<u32>, FormatError> {
        let id = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let all = |value: &Value| match value {
            Value::Array(items) => items.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        Ok(self.read_as(&[name], "token ids", all)?.unwrap_or_default())
    }

    /// An object inside of this one, if it is there.
    ///
    /// # Errors
    /// When it is something else.
    pub fn section(&self, names: &[&'static str]) -> Result<Option<Config>, FormatError> {
        let Some((name, _)) = self.find(names) else { return Ok(None) };
        let fields =
            self.read_as(names, "an object", Value::as_object)?.cloned().unwrap_or_default();
        let (place, asked) = (format!("{}{name}.", self.place), Arc::clone(&self.asked));
        Ok(Some(Self { path: self.path.clone(), place, fields, asked }))
    }

    /// Whether a field is there, even if it is `null`.
    pub fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Fields with a value that nobody read, with their places. `null`, false, 0 and what is empty
    /// say nothing.
    pub fn unasked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = Vec::new();
        let mut objects = vec![(self.place.clone(), &self.fields)];
        while let Some((place, fields)) = objects.pop() {
            for (name, value) in fields {
                let name = format!("{place}{name}");
                let inside = format!("{name}.");
                match value {
                    _ if says_nothing(value) => {}
                    Value::Object(fields) if asked.iter().any(|name| name.starts_with(&inside)) => {
                        objects.push((inside, fields));
                    }
                    _ if !asked.contains(&name) => left.push(name),
                    _ => {}
                }
            }
        }
        left
    }

    /// The names of all fields that hold a string, with it.
    pub fn texts(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The meaning of an absent flag.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Otherwise {
    True,
    False,
}

/// A value as an error shows it.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("`{}...`", &text[..at]),
        None => format!("`{text}`"),
    }
}

//! A cursor over text that knows where it is, and the error that says so.

use super::printer::is_word;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// IR text that cannot be read, with the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: expected {expected}, found {found}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// A description of the text expected there.
    pub expected: String,
    /// The text that was found there.
    pub found: String,
}

/// Longest piece of the text that an error quotes, in characters.
const QUOTE: usize = 24;

#[derive(Copy, Clone)]
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Skips white space and returns what follows.
    fn next(&mut self) -> &'t str {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest()
    }

    /// The error that `expected` is missing at the next word.
    pub(super) fn expected(&self, expected: impl Display) -> ParseError {
        let mut here = *self;
        let line = here.next().lines().next().unwrap_or_default();
        let found = match line.chars().count() {
            0 => "the end of the text".to_owned(),
            n if n > QUOTE => format!("`{}…`", line.chars().take(QUOTE).collect::<String>()),
            _ => format!("`{line}`"),
        };
        here.error(expected, found)
    }

    /// An error at the next word.
    pub(super) fn error(&self, expected: impl Display, found: impl Display) -> ParseError {
        let mut here = *self;
        here.next();
        let before = &self.text[..here.at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ParseError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Takes `symbol` if it comes next.
    pub(super) fn accept(&mut self, symbol: &str) -> bool {
        let found = self.next().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    /// Takes `symbol`, which must come next.
    pub(super) fn expect(&mut self, symbol: &str) -> Result<(), ParseError> {
        if self.accept(symbol) { Ok(()) } else { Err(self.expected(format!("`{symbol}`"))) }
    }

    /// The word that comes next, without taking it: letters, digits and underscores.
    pub(super) fn peek_word(&mut self) -> &'t str {
        let rest = self.next();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    }

    /// Takes `word` if it comes next as a whole word.
    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    /// Takes a word; `what` says what it would name.
    pub(super) fn word(&mut self, what: &str) -> Result<&'t str, ParseError> {
        let word = self.peek_word();
        if !is_word(word) {
            return Err(self.expected(what));
        }
        self.at += word.len();
        Ok(word)
    }

    /// Takes a decimal number; `what` says what it counts.
    pub(super) fn number<N: std::str::FromStr>(&mut self, what: &str) -> Result<N, ParseError> {
        let word = self.peek_word();
        let number = word.parse().map_err(|_| self.expected(what))?;
        self.at += word.len();
        Ok(number)
    }

    /// Takes one JSON value; `what` names it in errors.
    pub(super) fn json<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, ParseError> {
        let mut stream = serde_json::Deserializer::from_str(self.next()).into_iter::<T>();
        match stream.next() {
            Some(Ok(value)) => {
                self.at += stream.byte_offset();
                Ok(value)
            }
            Some(Err(e)) if e.is_data() => Err(self.error(what, e)),
            _ => Err(self.expected(what)),
        }
    }

    /// True before a JSON object with a key; regions open with the same brace but no quote.
    pub(super) fn at_object(&self) -> bool {
        let mut ahead = *self;
        ahead.accept("{") && ahead.accept("\"")
    }

    /// Takes items until `close`, separated by commas.
    pub(super) fn list<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        let mut items = vec![];
        if self.accept(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.accept(close) {
                return Ok(items);
            }
            if !self.accept(",") {
                return Err(self.expected(format!("`,` or `{close}`")));
            }
        }
    }

    /// True when only white space is left.
    pub(super) fn at_end(&mut self) -> bool {
        self.next().is_empty()
    }
}

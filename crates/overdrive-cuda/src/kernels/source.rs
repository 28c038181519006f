//! `Source`s of the kernels in this folder.

use std::borrow::Cow;

use crate::compiler::Source;

/// A source that is text of this crate alone.
pub(super) fn source(
    name: &'static str,
    text: &'static str,
    defines: Vec<(&'static str, String)>,
) -> Source {
    Source { name: Cow::Borrowed(name), text: Cow::Borrowed(text), defines }
}

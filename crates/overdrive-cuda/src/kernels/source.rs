//! `KernelSource`s of the kernels in this folder.

use std::borrow::Cow;

use crate::compiler::KernelSource;

/// A source that is text of this crate alone.
pub(super) fn source(
    name: &'static str,
    text: &'static str,
    defines: Vec<(&'static str, String)>,
) -> KernelSource {
    KernelSource { name: Cow::Borrowed(name), text: Cow::Borrowed(text), defines }
}

//! Small files of the system.

use std::fs;
use std::path::Path;

/// The content of a file, without its last line break; `None` where it cannot be read or is empty.
pub(super) fn read(root: &Path, path: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(path)).ok()?;
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

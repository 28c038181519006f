//! Finds the folders of Python packages, since vendors ship their libraries in them. They are those
//! of `python3`, or of the interpreter that the variable `PYTHON` names.

use overdrive_process::python::{interpreter, isolated};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

/// The folders that the interpreter looks for packages in; none where there is no interpreter.
/// Asked once.
pub(crate) fn packages() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        let program = "import sys\nfor folder in sys.path:\n    print(folder)";
        let output = isolated(&interpreter()).and_then(|mut command| {
            command.args(["-c", program]).stdin(Stdio::null()).stderr(Stdio::null()).output()
        });
        let text = output.map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines()
            .filter(|line| !line.is_empty())
            .map(PathBuf::from)
            .filter(|folder| folder.is_dir())
            .collect()
    })
}

//! Nothing that lies in the working folder is run or imported.

#![cfg(unix)]

use crate::invocation::Folder;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A folder full of traps: modules and programs that leave a file `ran` when they run.
fn trapped() -> Folder {
    let folder = Folder::new();
    let ran = folder.path("ran").to_str().unwrap().to_owned();
    for module in ["pip", "torch", "openvino", "json", "ctypes", "site", "numpy", "sitecustomize"] {
        let text =
            format!("open({ran:?}, 'a').write(__name__ + '\\n')\nraise ImportError(__name__)\n");
        std::fs::write(folder.path(&format!("{module}.py")), text).unwrap();
    }
    for program in ["python3", "pip", "git", "sh", "cargo", "rustup"] {
        let file = folder.path(program);
        std::fs::write(&file, format!("#!/bin/sh\necho {program} >> {ran}\nexit 1\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

#[test]
fn the_working_folder_runs_no_code() {
    let folder = trapped();
    let path = format!(":.:nowhere:{}", std::env::var("PATH").unwrap());
    for line in [
        "info",
        "info --install onnxruntime",
        "bench digits-mlp --backends cpu --peers --trials 5",
        "bench digits-mlp --backends cpu --peers=openvino --trials 5",
        "regress --baseline-cmd true --current-cmd true --out gate",
        "regress --baseline HEAD",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overdrive"));
        command.args(line.split(' ')).current_dir(folder.path("")).env("PATH", &path);
        // Without an index nothing is fetched; with this variable Python would look in the working
        // folder too.
        command.env_remove("PYTHON").env("PYTHONPATH", ":.").env("PIP_NO_INDEX", "1");
        command.env("OVERDRIVE_CACHE", folder.path("cache"));
        let ended = command.output().unwrap();
        let ran = std::fs::read_to_string(folder.path("ran")).unwrap_or_default();
        assert_eq!(ran, "", "{line}: {ended:?}");
    }
}

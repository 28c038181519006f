//! Other libraries that quantize the same model. Libraries that take part are in the table, and
//! those that cannot say why. Those that are not installed are named with how to get them.
#![cfg(unix)]

use crate::invocation::Folder;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Stands where the interpreter does, and answers as a program of `peers/` would, without any
/// package.
const FAKE: &str = r#"#!/usr/bin/env python3
import json, struct, sys

def sizes(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return next(entry["shape"] for name, entry in header.items() if name != "__metadata__")

def write(path, shape):
    count = 1
    for size in shape:
        count *= size
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}
    header = json.dumps({"0": entry}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.0) * count)

hello = {"version": "fake 1", "device": "cpu", "threads": 1, "modes": ["compile"]}
print(json.dumps(hello), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {}
    if asked["do"] == "knows":
        variants = ["int8-weights", "int8-dynamic", "int4-weights"]
        answer = {"known": asked["config"] is not None, "variants": variants}
    elif asked["do"] == "open" and asked["variant"] == "int8-dynamic":
        answer = {"unsupported": "no such device"}
    elif asked["do"] == "open":
        layers = asked["layers"]
        fits = "model.layers.0.mlp.down_proj" in layers and "lm_head" not in layers
        answer = {"failed": str(layers)}
        if asked["mode"] == "compile" and fits:
            answer = {"id": 1, "compile_ns": 1, "first_call_ns": 1, "weight_bytes": 4096}
    elif asked["do"] == "run":
        write(asked["outputs"], sizes(asked["inputs"]) + [270])
    elif asked["do"] == "sample":
        answer = {"host_ns": 1000000 * asked["calls"]}
    print(json.dumps(answer), flush=True)
"#;

fn prepared() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained/llama");
    fs::create_dir(folder.path("llama")).unwrap();
    for file in fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&file, folder.path("llama").join(file.file_name().unwrap())).unwrap();
    }
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("text.txt"), text).unwrap();
    let fake = folder.path("fake");
    fs::write(&fake, FAKE).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    (folder, fake)
}

const MODEL: &str = "overdrive quantize llama --mode int8-dynamic --data text.txt --trials 5 \
                     --batches 2 --device cpu";

#[test]
fn a_library_takes_part_mode_by_mode_with_the_layers_that_ours_quantized() {
    let (folder, fake) = prepared();
    let line = format!("PYTHON={} {MODEL} -o small --peers=torchao", fake.display());
    let outcome = folder.shell(&line);
    outcome.ends(0, &["torchao int8-weights", "1.00 ms", "torchao int8-dynamic", "no such device"]);
    assert!(!outcome.stdout.contains("int4"), "{}", outcome.stdout);
    let line = format!(
        "PYTHON={} overdrive quantize digits-mlp --mode int8-dynamic --data digits --trials 5 -o \
         other --peers",
        fake.display()
    );
    folder.shell(&line).ends(0, &["torchao", "expected a published architecture"]);
}

#[test]
fn a_library_that_is_not_there_is_named_with_how_to_get_it() {
    let (folder, _) = prepared();
    for (peers, words) in [
        ("torchao", "pip install torch transformers torchao"),
        ("bitsandbytes", "pip install torch transformers bitsandbytes"),
        ("pytorch", "expected one of torchao, bitsandbytes"),
    ] {
        let line = format!("PYTHON=no-such-python {MODEL} -o small --peers={peers}");
        folder.shell(&line).ends(2, &[words]);
        assert!(!folder.path("small").exists(), "{peers}: something was written");
    }
}

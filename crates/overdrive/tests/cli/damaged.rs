//! Files that are cut short, inflated or not what their names say: refused by name, nothing
//! written.

use crate::invocation::Folder;
use overdrive::ir::Tensor;
use std::fs;

/// One tensor that `digits-mlp` takes as `x` and one that it gives as `y`.
fn tensors() -> [(&'static str, Tensor); 2] {
    [("x", Tensor::from_f32([1, 64], &[0.5; 64])), ("y", Tensor::from_f32([1, 10], &[0.0; 10]))]
}

/// Runs `eval` with the file in each of its three places; each must refuse it by name.
#[track_caller]
fn refused_everywhere(name: &str, bytes: &[u8]) {
    let folder = Folder::new();
    folder.tensors("good.npz", &tensors());
    fs::write(folder.path(name), bytes).unwrap();
    let before = folder.files();
    for places in [
        format!("--inputs {name}"),
        format!("--inputs good.npz --expect {name}"),
        format!("--inputs good.npz --parameters {name}"),
    ] {
        folder.line(&format!("eval digits-mlp --output out.npz {places}")).ends(2, &[name]);
        assert_eq!(folder.files(), before, "{places}");
    }
}

/// The bytes of a good file of this name.
fn good(name: &str) -> Vec<u8> {
    fs::read(Folder::new().tensors(name, &tensors())).unwrap()
}

#[test]
fn files_that_are_cut_short_are_refused() {
    for name in ["cut.npz", "cut.safetensors"] {
        let bytes = good(name);
        for keep in [0, 1, 8, bytes.len() / 2, bytes.len() - 1] {
            refused_everywhere(name, &bytes[..keep]);
        }
    }
}

#[test]
fn garbage_is_refused() {
    for name in ["garbage.npz", "garbage.safetensors"] {
        refused_everywhere(name, b"not a file of tensors at all, only words");
        refused_everywhere(name, &[0xFF; 4096]);
    }
    refused_everywhere("swapped.npz", &good("swapped.safetensors"));
    refused_everywhere("swapped.safetensors", &good("swapped.npz"));
    refused_everywhere("table.csv", b"1,2,3\n");
}

#[test]
fn a_header_that_claims_more_than_there_is_is_refused() {
    let claim = |header: &str| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 64]].concat()
    };
    let sizes = [
        "[1,64]",
        "[4294967295,4294967295,4294967295]",
        "[18446744073709551615]",
        "[1e30]",
        "[-1]",
    ];
    for size in sizes {
        let header = format!(r#"{{"x":{{"dtype":"F32","shape":{size},"data_offsets":[0,64]}}}}"#);
        refused_everywhere("huge.safetensors", &claim(&header));
    }
    refused_everywhere("long.safetensors", &[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    let mut bytes = good("huge.npz");
    let at = bytes.windows(3).position(|w| w == b"(1,").unwrap();
    bytes[at + 1] = b'9';
    refused_everywhere("huge.npz", &bytes);
}

#[test]
fn paths_that_are_no_files_are_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path("folder.npz")).unwrap();
    for place in ["absent.npz", "folder.npz", "folder.npz/x.safetensors"] {
        folder.line(&format!("eval digits-mlp --inputs {place}")).ends(2, &[place]);
    }
}

#[test]
fn a_folder_for_results_that_never_came_goes_again() {
    let folder = Folder::new();
    folder.line("bench mlp --shape nope=3 --out report").ends(2, &["nope"]);
    assert!(folder.files().is_empty());
    // One that was there is the user's.
    fs::create_dir(folder.path("report")).unwrap();
    folder.line("bench mlp --shape nope=3 --out report").ends(2, &["nope"]);
    assert_eq!(folder.files(), ["report"]);
}

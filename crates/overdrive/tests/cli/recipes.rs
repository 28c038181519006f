//! Number formats of training: those that have a name, and those of a file.

use crate::invocation::Folder;
use serde_json::Value;
use std::fs;

const TRAIN: &str = "train digits-mlp --data digits --steps 2 --device cpu --threads 1";

/// A recipe of codes with more fields.
fn recipe(more: &str) -> String {
    let codes = r#""forward": "f8e4m3", "gradient": "f8e5m2""#;
    format!(r#"{{"precision": "bf16", "float8": {{{codes}{more}}}}}"#)
}

#[test]
fn a_recipe_of_a_file_trains_says_what_it_leaves_out_and_is_kept() {
    let folder = Folder::new();
    let more = r#", "granularity": "block", "except": ["fc2"]"#;
    fs::write(folder.path("own.json"), recipe(more)).unwrap();
    let left = "not on codes of fp8, since the recipe leaves out `fc2`: fc2";
    let head = "since rows, K and N are [64, 128, 10], not multiples of 16: fc3";
    folder.line(&format!("{TRAIN} --recipe own.json -o own")).ends(0, &[left, head]);
    let kept = fs::read_to_string(folder.path("own/config.json")).unwrap();
    assert!(kept.contains(r#""block""#) && kept.contains(r#""fc2""#), "{kept}");
    for name in ["fp8-rows", "fp8-blocks", "fp8-mx"] {
        folder.line(&format!("{TRAIN} --precision {name} -o {name}")).ends(0, &["fc3"]);
        let results = fs::read_to_string(folder.path(&format!("{name}/results.json"))).unwrap();
        assert!(results.contains(&format!(r#""variant":"{name}""#)), "{results}");
    }
}

#[test]
fn the_plan_says_that_no_device_multiplies_blocks_of_codes() {
    let folder = Folder::new();
    let explain = "explain digits-mlp --batch 16 --training --device cpu --threads 1 --dtype";
    let told = "the numbers of codes are multiplied in bf16";
    for (name, is_told) in [("fp8-mx", true), ("fp8-blocks", true), ("fp8-rows", false)] {
        let outcome = folder.line(&format!("{explain} {name} --json"));
        let json: Value = serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap();
        let notes = json["notes"].as_array().unwrap().iter();
        let of_layers = |note: &&Value| note["what"] == "float8_linear";
        let reasons: Vec<&str> =
            notes.filter(of_layers).map(|note| note["reason"].as_str().unwrap()).collect();
        assert_eq!(reasons.iter().any(|why| why.contains(told)), is_told, "{name}: {reasons:?}");
    }
}

#[test]
fn layers_that_codes_would_slow_are_told() {
    let folder = Folder::new();
    // A layer of K x N has 6 K N FLOPs a row of x, and 4 (K + N) bytes.
    let [narrow, square] = ["7.42 times what its products save, at 64", "4.95"];
    let explain = "explain digits-mlp --batch 16 --training --device cpu --threads 1 --dtype";
    folder.line(&format!("{explain} fp8-auto")).ends(0, &[narrow, square, "break even: fc2"]);
    folder.line(&format!("{TRAIN} --precision fp8-auto -o auto")).ends(0, &[narrow, square]);
    let own = recipe(r#", "scaling": "delayed", "break_even": 80"#);
    fs::write(folder.path("own.json"), own).unwrap();
    let outcome = folder.line(&format!("{TRAIN} --recipe own.json -o own"));
    let told = &outcome.ends(0, &["1.25 times"]).stderr;
    assert!(!told.contains("fc2"), "{told}");
}

#[test]
fn what_is_wrong_in_a_recipe_is_said_before_the_work() {
    let folder = Folder::new();
    for (file, text, words) in [
        ("field.json", recipe(r#", "scale": "row""#), ["field.json: expected", "field `scale`"]),
        ("format.json", r#"{"precision": "f4"}"#.to_owned(), ["variant `f4`", "`bf16`"]),
        (
            "delayed.json",
            recipe(r#", "granularity": "row", "scaling": "delayed""#),
            ["float8.scaling: expected", "`delayed`"],
        ),
        ("layer.json", recipe(r#", "except": ["fc9"]"#), ["found `fc9`", "such as `fc1`"]),
    ] {
        fs::write(folder.path(file), text).unwrap();
        folder.line(&format!("{TRAIN} --recipe {file} -o m")).ends(2, &words);
    }
    folder.line(&format!("{TRAIN} --recipe absent.json -o m")).ends(2, &["absent.json"]);
    let both = format!("{TRAIN} --recipe field.json --precision fp8 -o m");
    folder.line(&both).ends(2, &["--recipe", "--precision", "cannot be used with"]);
    folder.line(&format!("{TRAIN} --precision fp9 -o m")).ends(2, &["fp9", "fp8-blocks"]);
    assert!(!folder.path("m").exists());
}

#[test]
fn moments_are_named_kept_in_the_recipe_and_explained() {
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --moments fp8 -o small")).ends(0, &[]);
    let kept = fs::read_to_string(folder.path("small/config.json")).unwrap();
    assert!(kept.contains(r#""moments""#) && kept.contains(r#""fp8""#), "{kept}");
    folder.line(&format!("{TRAIN} --moments int4 -o m")).ends(2, &["int4", "f32, bf16, fp8"]);
    assert!(!folder.path("m").exists());
    let explain = "explain digits-mlp --training --device cpu --threads 1 --json --moments";
    let states = |moments: &str| {
        let outcome = folder.line(&format!("{explain} {moments}"));
        let json: Value = serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap();
        json["memory"]["state_bytes"][0].as_u64().unwrap()
    };
    // Moments of the two large matrices: codes, and a scale for each 256. All else is in f32.
    let large = 64 * 128 + 128 * 128;
    assert_eq!(states("f32") - states("bf16"), 2 * 2 * large);
    assert_eq!(states("f32") - states("fp8"), 2 * (3 * large - 4 * large / 256));
    folder.line("explain digits-mlp --moments fp8").ends(2, &["--training"]);
}

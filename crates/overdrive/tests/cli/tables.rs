//! `train` on tables of the user's own: any columns, and a model that knows what they mean.

use crate::invocation::Folder;
use overdrive::formats;
use overdrive::ir::Tensor;
use serde_json::Value;
use std::fs;

const ROWS: usize = 240;

/// Three kinds of flower that two of their four measures tell apart.
fn flowers(folder: &Folder, name: &str, head: &str) {
    let row = |i: usize| {
        let (kind, noise) = (i % 3, ((i * 7919) % 97) as f64 / 97.0);
        let name = ["rose", "tulip", "lily"][kind];
        format!(
            "{:.3},{:.2},{name},{},{:.4}\n",
            300.0 * kind as f64 + 90.0 * noise,
            noise,
            i % 7,
            noise - kind as f64
        )
    };
    let rows: String = (0..ROWS).map(row).collect();
    fs::write(folder.path(name), format!("{head}{rows}")).unwrap();
}

const HEAD: &str = "height,width,kind,leaves,depth\n";
const REST: &str = "--steps 150 --device cpu --threads 1";

#[test]
fn a_table_of_any_columns_trains_a_model_of_its_size() {
    let folder = Folder::new();
    flowers(&folder, "flowers.csv", HEAD);
    let made = folder.line(&format!("train --data flowers.csv --label kind -o model {REST}"));
    made.ends(
        0,
        &["a line of names, 240 samples", "label `kind` of 3 classes (lily, rose, tulip)"],
    );
    made.ends(0, &["4 features, standardised by the training part", "4 -> 128 -> 128 -> 3"]);
    made.ends(0, &["100.00 % of 48 test samples"]);
    let config: Value =
        serde_json::from_str(&fs::read_to_string(folder.path("model/config.json")).unwrap())
            .unwrap();
    assert_eq!(config["columns"]["classes"], serde_json::json!(["lily", "rose", "tulip"]));
    assert_eq!(
        config["columns"]["features"],
        serde_json::json!(["height", "width", "leaves", "depth"])
    );
    // Features as they are in the file: a tulip, which is class 2, by its height and depth.
    folder.tensors("x.npz", &[("x", Tensor::from_f32([1, 4], &[345.0, 0.5, 3.0, -0.5]))]);
    folder.line("eval model --inputs x.npz -o y.npz --device cpu --threads 1").ends(0, &[]);
    let logits = formats::read(&folder.path("y.npz")).unwrap()["y"].to_f64();
    assert!(logits[2] > logits[0] && logits[2] > logits[1], "{logits:?}");
    // Other commands know the column, and other rows the classes.
    let small =
        "quantize model --mode int8-dynamic --data flowers.csv --trials 5 --batches 1 -o small";
    folder.line(&format!("{small} --device cpu --threads 1")).ends(0, &["top1", "is a model"]);
    fs::write(folder.path("roses.csv"), format!("{HEAD}{}", "30.0,0.5,rose,3,0.5\n".repeat(80)))
        .unwrap();
    let further = folder.line(&format!("train model --data roses.csv -o more {REST}"));
    further
        .ends(0, &["3 classes (lily, rose, tulip)", "as the model has learnt", "100.00 % of 16"]);
}

#[test]
fn a_table_without_names_is_said_to_have_none() {
    let folder = Folder::new();
    flowers(&folder, "flowers.csv", "");
    let made = folder.line(&format!("train --data flowers.csv --label 2 -o model {REST}"));
    made.ends(0, &["no line of names, 240 samples", "3 classes (lily, rose, tulip)"]);
}

/// A quantity that follows from two features.
fn prices() -> String {
    (0..160).map(|i| format!("{i},{},{}.5\n", i % 7, 20 * i + 3000 * (i % 7))).collect()
}

#[test]
fn a_quantity_is_predicted_in_its_own_units() {
    let folder = Folder::new();
    fs::write(folder.path("prices.csv"), format!("size,rooms,price\n{}", prices())).unwrap();
    let made = folder.line("train --data prices.csv -o model --device cpu --threads 1 --steps 600");
    made.ends(
        0,
        &[
            "label `price` is a quantity from 0.5 to 21060.5 (regression)",
            "--target classes",
            "2 -> 128 -> 128 -> 1",
            "root mean square",
            "R² ",
            "of 32 test samples",
        ],
    );
    folder.tensors("x.npz", &[("x", Tensor::from_f32([2, 2], &[80.0, 3.0, 80.0, 6.0]))]);
    folder.line("eval model --inputs x.npz -o y.npz --device cpu --threads 1").ends(0, &[]);
    let found = formats::read(&folder.path("y.npz")).unwrap()["y"].to_f64();
    for (found, expected) in found.iter().zip([10_600.5, 19_600.5]) {
        assert!((found - expected).abs() < 1000.0, "{found}, not {expected}");
    }
    let config: Value =
        serde_json::from_str(&fs::read_to_string(folder.path("model/config.json")).unwrap())
            .unwrap();
    assert_eq!(config["columns"]["is_quantity"], true);
    assert!(config["recipe"]["test_r_squared"].as_f64().unwrap() > 0.99, "{config}");
    // Other commands know that labels are quantities, whole ones too.
    let whole = format!("size,rooms,price\n{}", prices().replace(".5", ""));
    fs::write(folder.path("whole.csv"), whole).unwrap();
    let small =
        "quantize model --mode int8-dynamic --data whole.csv --trials 5 --batches 1 -o small";
    folder
        .line(&format!("{small} --device cpu --threads 1"))
        .ends(0, &["mean_squared_error", "is a model"]);
    let further = format!("train model --data whole.csv -o more {REST}");
    folder.line(&further).ends(0, &["as the model has learnt", "R² "]);
    folder
        .line(&format!("{further} --target classes --force"))
        .ends(2, &["a quantity, as the model has learnt", "--target classes"]);
    // Numbers without a fraction are classes unless the user says otherwise.
    let asked = format!("train --data whole.csv --target quantity -o asked {REST}");
    folder.line(&asked).ends(0, &["(regression)", "root mean square"]);
    folder
        .line(&format!("train digits-mlp --data prices.csv -o x {REST}"))
        .ends(2, &["one output, for a quantity", "10 outputs"]);
}

#[test]
fn numbers_that_could_be_quantities_are_said_to_be_classes() {
    let folder = Folder::new();
    let rows = (0..120).map(|i| format!("{},{},{}\n", i % 3, i % 7, i % 3)).collect::<String>();
    fs::write(folder.path("counts.csv"), rows).unwrap();
    let made = folder.line(&format!("train --data counts.csv -o model {REST}"));
    made.ends(0, &["3 classes", "--target quantity takes the labels as a quantity"]);
}

#[test]
fn tables_that_no_model_can_learn_are_refused() {
    let folder = Folder::new();
    flowers(&folder, "flowers.csv", HEAD);
    fs::write(folder.path("numbers.csv"), prices().replace(".5", "")).unwrap();
    fs::write(folder.path("infinite.csv"), prices().replacen("0,0,0.5", "0,0,inf", 1)).unwrap();
    fs::write(folder.path("text.txt"), "words and words. ".repeat(99)).unwrap();
    for (arguments, words) in [
        ("--data flowers.csv", ["line 2, column `kind`", "found `rose`"]),
        (
            "--data flowers.csv --label colour",
            ["height, width, kind, leaves, depth", "found `colour`"],
        ),
        ("--data numbers.csv", ["two classes with several samples", "--target quantity"]),
        ("--data infinite.csv", ["labels that are finite, found inf", "--target classes"]),
        ("--data infinite.csv --target quantity", ["line 1, column 2", "a number, found `inf`"]),
        ("--data flowers.csv --label kind --target quantity", ["column `kind`", "found `rose`"]),
        ("digits-mlp --data digits --target classes", ["--target", "a .csv file"]),
        ("--data text.txt", ["MODEL: expected a model of text", "Hugging Face"]),
        ("digits-mlp --data digits --label 3", ["--label", "a .csv file"]),
        ("digits-mlp --data flowers.csv --label kind", ["expected 64 features", "found 4"]),
    ] {
        folder.line(&format!("train {arguments} -o x --device cpu")).ends(2, &words);
    }
    assert!(!folder.path("x").exists());
}

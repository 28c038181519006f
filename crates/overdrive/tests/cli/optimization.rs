//! Update rules, rates and looks that a user of `train` asks for.

use crate::invocation::Folder;
use serde_json::{Value, json};
use std::fs;

const TRAIN: &str = "train digits-mlp --data digits --device cpu --threads 1";

/// The recipe of the model in a folder.
fn recipe(folder: &Folder, model: &str) -> Value {
    let text = fs::read_to_string(folder.path(&format!("{model}/config.json"))).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    config["recipe"]["training"].clone()
}

#[test]
fn options_are_the_recipe_and_the_rest_of_it_is_the_models() {
    let folder = Folder::new();
    let line = "--steps 20 --optimizer adamw --lr 0.004 --warmup 4 --decay wsd-sqrt:0.5 --clip off \
                --weight-decay 0.2 --betas 0.8,0.95 --eval-every 5 -o asked";
    let log = folder.line(&format!("{TRAIN} {line}"));
    let looks = [5, 10, 15, 20].map(|step| format!("step {step}: validation loss"));
    log.ends(0, &looks.each_ref().map(String::as_str));
    let found = recipe(&folder, "asked");
    let betas = json!({"betas": [0.8, 0.95], "eps": 1e-8, "weight_decay": 0.2});
    assert_eq!(found["optimizer"], json!({ "adamw": betas }));
    let wsd = json!({"share": 0.5, "fall": "sqrt"});
    let schedule = json!({"peak": 0.004, "warmup": 4, "decay": { "wsd": wsd }});
    assert_eq!(found["schedule"], schedule);
    assert_eq!((&found["clip_norm"], &found["evaluate_every"]), (&Value::Null, &json!(5)));
    folder.line(&format!("{TRAIN} --steps 20 --clip 0.5 -o own")).ends(0, &[]);
    let own = recipe(&folder, "own");
    assert_eq!((&own["clip_norm"], &own["schedule"]["warmup"]), (&json!(0.5), &json!(2)));
    assert_eq!(own["optimizer"]["adamw"]["weight_decay"], json!(0.1));
    let sgd = "--steps 4 --optimizer sgd --lr 0.1 --momentum 0.5 -o sgd";
    folder.line(&format!("{TRAIN} {sgd}")).ends(0, &[]);
    let rule = json!({"momentum": 0.5, "weight_decay": 0.1});
    assert_eq!(recipe(&folder, "sgd")["optimizer"], json!({ "sgd": rule }));
    folder.line(&format!("{TRAIN} --steps 4 --optimizer muon -o muon")).ends(0, &[]);
    let rule = json!({"momentum": 0.95, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1});
    assert_eq!(recipe(&folder, "muon")["optimizer"], json!({ "muon": rule }));
    for name in ["sgd", "muon"] {
        let results = fs::read_to_string(folder.path(&format!("{name}/results.json"))).unwrap();
        assert!(results.contains(&format!(r#""variant":"{name}""#)), "{results}");
    }
}

#[test]
fn values_that_make_no_sense_are_refused_before_the_work() {
    let folder = Folder::new();
    for (options, words) in [
        ("--steps 20 --warmup 20", ["--warmup 20", "fewer steps than the run has, found 20"]),
        ("--decay wsd:1.5", ["wsd:1.5", "a share of the steps above 0 and at most 1"]),
        ("--decay cosine:-1", ["cosine:-1", "a factor at the end from 0 to 1"]),
        ("--decay linear", ["linear", "wsd[:SHARE]"]),
        ("--clip 0", ["--clip", "above 0, or `off`"]),
        ("--weight-decay -0.1", ["--weight-decay", "at least 0"]),
        ("--betas 0.9", ["--betas", "B1,B2"]),
        ("--betas 0.9,1", ["--betas", "below 1"]),
        ("--eval-every 0", ["--eval-every", "0"]),
        ("--optimizer adam", ["adam", "adamw"]),
        ("--optimizer sgd", ["--optimizer sgd", "--lr too"]),
        ("--optimizer sgd --lr 0.1 --betas 0.9,0.99", ["--betas", "--momentum"]),
        ("--momentum 0.9", ["--momentum", "--betas"]),
    ] {
        folder.line(&format!("{TRAIN} {options} -o m")).ends(2, &words);
    }
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

//! Classifiers of text: their logits against a slow definition in f64, what their folders say, and
//! every way in which one can be wrong.

use overdrive_formats::{Tensors, safetensors};
use overdrive_ir::eval::philox;
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, DType, Tensor};
use overdrive_studies::pretrained::{ModelTask, Pretrained, Problem};
use std::fs;
use std::path::{Path, PathBuf};

const CLASSIFIERS: [&str; 3] = ["bert_classifier", "distilbert_regression", "roberta_classifier"];
/// Width of the fixtures.
const D: usize = 16;
/// Their heads.
const H: usize = 4;
/// Tokens of a row.
const T: usize = 7;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained").join(name)
}

fn model(name: &str) -> Pretrained {
    Pretrained::read(&folder(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A slow forward pass over one row, straight from the papers; names are those of the files.
struct Slow<'w> {
    weights: &'w Tensors,
    /// ε of the norms.
    eps: f64,
}

type Rows = Vec<Vec<f64>>;

impl Slow<'_> {
    fn tensor(&self, name: &str) -> Vec<f64> {
        self.weights.get(name).unwrap_or_else(|| panic!("no {name}")).to_f64()
    }

    fn row(&self, table: &str, row: usize) -> Vec<f64> {
        self.tensor(table)[row * D..][..D].to_vec()
    }

    fn dense(&self, x: &[f64], layer: &str) -> Vec<f64> {
        let (w, b) =
            (self.tensor(&format!("{layer}.weight")), self.tensor(&format!("{layer}.bias")));
        let product = |(i, b): (usize, &f64)| {
            b + x.iter().zip(&w[i * x.len()..]).map(|(x, w)| x * w).sum::<f64>()
        };
        b.iter().enumerate().map(product).collect()
    }

    fn norm(&self, x: &[f64], layer: &str) -> Vec<f64> {
        let (w, b) =
            (self.tensor(&format!("{layer}.weight")), self.tensor(&format!("{layer}.bias")));
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let scaled =
            |(i, x): (usize, &f64)| (x - mean) / (variance + self.eps).sqrt() * w[i] + b[i];
        x.iter().enumerate().map(scaled).collect()
    }

    /// A block with these names: q, k, v and output projection, both norms, both layers.
    fn block(&self, h: &Rows, mask: &[i128], prefix: &str, names: [&str; 8]) -> Rows {
        let name = |i: usize| format!("{prefix}.{}", names[i]);
        let [q, k, v] =
            [0, 1, 2].map(|i| -> Rows { h.iter().map(|row| self.dense(row, &name(i))).collect() });
        let mut after = Rows::new();
        for at in 0..h.len() {
            let joined = self.dense(&attended([&q, &k, &v], mask, at), &name(3));
            let h = self.norm(&add(&joined, &h[at]), &name(4));
            let wide: Vec<f64> = self.dense(&h, &name(5)).into_iter().map(gelu).collect();
            after.push(self.norm(&add(&self.dense(&wide, &name(6)), &h), &name(7)));
        }
        after
    }

    fn embedded(&self, prefix: &str, row: &[(usize, usize)], has_segments: bool) -> Rows {
        let table = |name: &str| format!("{prefix}.embeddings.{name}.weight");
        let of = |&(id, position): &(usize, usize)| {
            let mut sum = self.row(&table("word_embeddings"), id);
            let mut add = |other: Vec<f64>| sum.iter_mut().zip(other).for_each(|(a, b)| *a += b);
            add(self.row(&table("position_embeddings"), position));
            if has_segments {
                add(self.row(&table("token_type_embeddings"), 0));
            }
            self.norm(&sum, &format!("{prefix}.embeddings.LayerNorm"))
        };
        row.iter().map(of).collect()
    }
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The output of attention for the token `at`, head behind head.
fn attended([q, k, v]: [&Rows; 3], mask: &[i128], at: usize) -> Vec<f64> {
    let (depth, mut mixed) = (D / H, vec![0.0; D]);
    for head in 0..H {
        let channels = head * depth..(head + 1) * depth;
        let mut powers = vec![0.0; k.len()];
        for key in (0..k.len()).filter(|&key| mask[key] != 0) {
            let score: f64 = channels.clone().map(|d| q[at][d] * k[key][d]).sum();
            powers[key] = (score / (depth as f64).sqrt()).exp();
        }
        let sum: f64 = powers.iter().sum();
        for d in channels {
            mixed[d] = (0..k.len()).map(|key| v[key][d] * powers[key] / sum).sum();
        }
    }
    mixed
}

/// x Φ(x), with the error function by its series, which is exact to f64 below |x| of 4 and at its
/// limits beyond.
fn gelu(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    let erf = if z.abs() > 4.0 { z.signum() } else { sum * 2.0 / std::f64::consts::PI.sqrt() };
    0.5 * x * (1.0 + erf)
}

/// Logits of a row of the fixture of this name.
fn slow(name: &str, weights: &Tensors, ids: &[i128], mask: &[i128]) -> Vec<f64> {
    const BERT: [&str; 8] = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ];
    const DISTILBERT: [&str; 8] = [
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ];
    let family = name.split_once('_').unwrap().0;
    let (eps, blocks, names) = match family {
        "bert" => (1e-12, "encoder.layer", BERT),
        "roberta" => (1e-5, "encoder.layer", BERT),
        _ => (1e-12, "transformer.layer", DISTILBERT),
    };
    let slow = Slow { weights, eps };
    // RoBERTa counts positions of tokens from 2 on, and puts padding (id 1) at position 1.
    let mut count = 1;
    let place = |(at, &id): (usize, &i128)| match (family, id) {
        ("roberta", 1) => (1, 1),
        ("roberta", id) => {
            count += 1;
            (id as usize, count)
        }
        (_, id) => (id as usize, at),
    };
    let row: Vec<(usize, usize)> = ids.iter().enumerate().map(place).collect();
    let mut h = slow.embedded(family, &row, family != "distilbert");
    for layer in 0..2 {
        h = slow.block(&h, mask, &format!("{family}.{blocks}.{layer}"), names);
    }
    let [dense, last] = match family {
        "bert" => ["bert.pooler.dense", "classifier"],
        "roberta" => ["classifier.dense", "classifier.out_proj"],
        _ => ["pre_classifier", "classifier"],
    };
    let activation = |x: f64| if family == "distilbert" { x.max(0.0) } else { x.tanh() };
    let vector: Vec<f64> = slow.dense(&h[0], dense).into_iter().map(activation).collect();
    slow.dense(&vector, last)
}

#[test]
fn logits_are_those_of_the_slow_definition() {
    for name in CLASSIFIERS {
        let model = model(name);
        let filling = i128::from(model.architecture.filling());
        let rows = 5;
        let mut bits = (0..).map(|i| u64::from(philox::bits(3, 5, i)));
        let mut ids: Vec<i128> =
            (0..rows * T).map(|_| 4 + i128::from(bits.next().unwrap() % 250)).collect();
        let mut mask = vec![1i128; rows * T];
        for row in 1..rows {
            let length = 1 + (bits.next().unwrap() % T as u64) as usize;
            ids[row * T + length..(row + 1) * T].fill(filling);
            mask[row * T + length..(row + 1) * T].fill(0);
        }
        let sizes = [("batch".to_owned(), rows), ("tokens".to_owned(), T)].into();
        let graph = model.template().unwrap().graph_of(&sizes).unwrap();
        let inputs = [&ids, &mask].map(|values| Array::int(DType::I32, &[rows, T], values.clone()));
        let found = eval(&graph, &inputs, &mut States::new())[0].to_f64();
        let outputs = found.len() / rows;
        assert_eq!(outputs, model.labels.as_ref().unwrap().names.len());
        for row in 0..rows {
            let range = row * T..(row + 1) * T;
            let expected = slow(name, &model.weights, &ids[range.clone()], &mask[range]);
            for (a, b) in found[row * outputs..].iter().zip(&expected) {
                assert!((a - b).abs() < 1e-6 * (1.0 + b.abs()), "{name}, row {row}: {a}, not {b}");
            }
        }
    }
}

#[test]
fn a_classifier_has_labels_and_says_what_comes_out() {
    let bert = model("bert_classifier");
    assert_eq!(bert.architecture.task(), ModelTask::Classifier);
    let labels = bert.labels.unwrap();
    assert_eq!(
        (labels.names, labels.problem),
        (vec!["ant".into(), "bee".into(), "cat".into()], Problem::OneClass)
    );
    let said = |name: &str| model(name).notes.join("; ");
    assert!(said("roberta_classifier").contains("y is the logits of 3 classes: ant, bee, cat"));
    let notes = said("distilbert_regression");
    assert!(notes.contains("y is a quantity (regression)"), "{notes}");
    assert!(!notes.contains("left out") && !notes.contains("other names"), "{notes}");
    assert_eq!(model("roberta_classifier").architecture.filling(), 1);
    assert!(model("bert").labels.is_none(), "an encoder has none");
}

/// A copy of a fixture with this text of config.json replaced, and its tensors changed.
fn changed(name: &str, [from, to]: [&str; 2], change: impl Fn(&mut Tensors)) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(folder(name).join("config.json")).unwrap();
    assert!(text.contains(from), "no {from}");
    fs::write(place.path().join("config.json"), text.replace(from, to)).unwrap();
    let mut tensors = safetensors::read(&folder(name).join("model.safetensors")).unwrap();
    change(&mut tensors);
    safetensors::write(&place.path().join("model.safetensors"), &tensors).unwrap();
    place
}

#[test]
fn the_number_and_the_kind_of_labels_are_read_as_transformers_reads_them() {
    let problem = |to: &str| {
        let words = ["\"vocab_size\": 270", &format!("\"vocab_size\": 270, {to}")];
        let place = changed("bert_classifier", words, |_| {});
        Pretrained::read(place.path()).map(|model| model.labels.unwrap().problem)
    };
    let of = |kind: &str| problem(&format!("\"problem_type\": \"{kind}\""));
    assert_eq!(problem("\"problem_type\": null").unwrap(), Problem::OneClass);
    assert_eq!(of("single_label_classification").unwrap(), Problem::OneClass);
    assert_eq!(of("multi_label_classification").unwrap(), Problem::SeveralClasses);
    assert_eq!(of("regression").unwrap(), Problem::Quantity);
    let error = of("ranking").unwrap_err().to_string();
    assert!(error.contains("problem_type") && error.contains("`ranking`"), "{error}");
    // Without names: two labels unless `num_labels` says otherwise.
    let named =
        "\"id2label\": {\n    \"0\": \"ant\",\n    \"1\": \"bee\",\n    \"2\": \"cat\"\n  }";
    let place = changed("bert_classifier", [named, "\"num_labels\": 3"], |_| {});
    let names = Pretrained::read(place.path()).unwrap().labels.unwrap().names;
    assert_eq!(names, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    let place = changed("bert_classifier", [named, "\"unused\": 0"], |_| {});
    let error = Pretrained::read(place.path()).unwrap_err().to_string();
    assert!(error.contains("classifier.weight expected f32[2, 16], found f16[3, 16]"), "{error}");
    let place = changed("bert_classifier", ["\"2\": \"cat\"", "\"3\": \"cat\""], |_| {});
    let error = Pretrained::read(place.path()).unwrap_err().to_string();
    assert!(error.contains("the name of class 2") && error.contains("that of class 3"), "{error}");
    let one =
        ["\"sinusoidal_pos_embds\": false", "\"problem_type\": \"single_label_classification\""];
    let place = changed("distilbert_regression", one, |_| {});
    let error = Pretrained::read(place.path()).unwrap_err().to_string();
    assert!(error.contains("expected regression, since there is one label"), "{error}");
}

#[test]
fn a_head_that_is_not_there_is_an_error_and_one_that_is_not_asked_for_is_left_out() {
    for (name, tensor) in [
        ("bert_classifier", "classifier.weight"),
        ("bert_classifier", "bert.pooler.dense.bias"),
        ("roberta_classifier", "classifier.out_proj.weight"),
        ("distilbert_regression", "pre_classifier.weight"),
    ] {
        let place = changed(name, ["{", "{"], |tensors| drop(tensors.remove(tensor).unwrap()));
        let error = Pretrained::read(place.path()).unwrap_err().to_string();
        for word in [tensor, "`architectures`", "no such tensor", "read hidden states"] {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
    for class in ["BertModel", "BertForMaskedLM"] {
        let place = changed("bert_classifier", ["BertForSequenceClassification", class], |_| {});
        let model = Pretrained::read(place.path()).unwrap();
        assert_eq!(model.architecture.task(), ModelTask::Encoder);
        let notes = model.notes.join("; ");
        assert!(notes.contains("4 tensors are no part of this graph and left out"), "{notes}");
    }
}

#[test]
fn an_encoder_without_its_prefix_is_the_same_classifier() {
    let bare = |tensors: &mut Tensors| {
        let name = |name: String| name.strip_prefix("bert.").map_or(name.clone(), str::to_owned);
        *tensors = std::mem::take(tensors).into_iter().map(|(n, t)| (name(n), t)).collect();
    };
    let place = changed("bert_classifier", ["{", "{"], bare);
    assert_eq!(Pretrained::read(place.path()).unwrap().weights, model("bert_classifier").weights);
}

#[test]
fn heads_of_other_tasks_are_left_out() {
    let more = |tensors: &mut Tensors| {
        for name in ["cls.predictions.bias", "qa_outputs.bias"] {
            tensors.insert(name.to_owned(), Tensor::from_f32([2], &[0.0; 2]));
        }
    };
    let place = changed("bert_classifier", ["{", "{"], more);
    let notes = Pretrained::read(place.path()).unwrap().notes.join("; ");
    assert!(notes.contains("left out: cls.predictions.bias, qa_outputs.bias"), "{notes}");
}

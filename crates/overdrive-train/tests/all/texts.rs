//! Labelled texts: rows, masks and labels read from a file, and quantities as targets.

use overdrive_cpu::CpuBackend;
use overdrive_formats::huggingface::Tokenizer;
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::{Array, Builder, DType, Tensor, TensorType};
use overdrive_models::table_mlp;
use overdrive_passes::bind;
use overdrive_train::data::{
    Dataset, Encoded, Meaning, Reading, Rows, Split, Target, Targets, Texts, open_as,
};
use overdrive_train::{evaluate, initial_parameters, with_loss};
use std::fs;
use std::path::Path;

/// A tokenizer of words with [CLS] (1) and [SEP] (2) around a text.
fn tokenizer(folder: &Path) -> Tokenizer {
    let words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "b", "c", "d"];
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let special =
        |id: u32| serde_json::json!({ "SpecialToken": { "id": words[id as usize], "type_id": 0 } });
    let text = serde_json::json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "decoder": null,
        "truncation": null, "padding": null,
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing", "single": [special(1), text, special(2)],
            "pair": [special(1), text, special(2)],
            "special_tokens": {
                "[CLS]": { "id": "[CLS]", "ids": [1], "tokens": ["[CLS]"] },
                "[SEP]": { "id": "[SEP]", "ids": [2], "tokens": ["[SEP]"] },
            },
        },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" },
    });
    let path = folder.join("tokenizer.json");
    fs::write(&path, file.to_string()).unwrap();
    Tokenizer::read(&path, 8).unwrap()
}

fn names() -> Vec<String> {
    ["yes", "no", "1"].map(str::to_owned).into()
}

fn encoded(file: &str, content: &str, meaning: Meaning<'_>) -> Result<Encoded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, content).unwrap();
    let read = Texts::read(path.to_str().unwrap(), None).map_err(|error| error.to_string())?;
    read.encoded(&tokenizer(folder.path()), meaning).map_err(|error| error.to_string())
}

#[test]
fn a_label_is_a_name_or_a_number_and_a_name_wins() {
    let names = names();
    let csv = "label,sentence\nno,a b\n0,\"a, \"\"b\"\"\"\n 1 ,c\n2,d\n";
    let read = encoded("a.csv", csv, Meaning::Class(&names)).unwrap();
    assert_eq!(read.targets(), &Targets::Classes { of: vec![1, 0, 2, 2], count: 3 });
    let json = "{\"text\":\"a\",\"label\":\"no\"}\n\n{\"text\":\"b\",\"label\":0}\n";
    let read = encoded("a.jsonl", json, Meaning::Class(&names)).unwrap();
    assert_eq!(read.targets().classes(), [1, 0]);
    let read = encoded("a.csv", "text,label\na,-1.5\nb,2\n", Meaning::Quantity).unwrap();
    assert_eq!(read.targets(), &Targets::Quantities(vec![-1.5, 2.0]));
    for (content, words) in [
        (
            "text,label\na,3\n",
            "line 2, label: expected a class of the model: 0 to 2, or yes, no, 1",
        ),
        ("text,label\na,\n", "line 2, `label`: expected a value, found nothing"),
        ("text\na\n", "line 1: expected `text` or `sentence` and `label`, found text"),
    ] {
        let error = encoded("a.csv", content, Meaning::Class(&names)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let error = encoded("a.csv", "text,label\na,inf\n", Meaning::Quantity).unwrap_err();
    assert!(error.contains("line 2, label: expected a finite number, found `inf`"), "{error}");
}

/// All samples of a part, in a batch each.
fn samples(split: &dyn Split) -> Vec<[Vec<i128>; 3]> {
    let sample = |i: u64| {
        let batch = split.batch(&[i]).unwrap();
        [&batch.x, batch.mask.as_ref().unwrap(), &batch.labels].map(Tensor::to_ints)
    };
    (0..split.len()).map(sample).collect()
}

#[test]
fn rows_are_filled_up_behind_texts_and_long_ones_keep_their_end() {
    let texts = ["a", "b c", "a b c d"];
    let line = |i: usize| format!("{},{}\n", texts[i % 3], i % 3);
    let csv = format!("text,label\n{}", (0..60).map(line).collect::<String>());
    let names = names();
    let read = encoded("a.csv", &csv, Meaning::Class(&names[..])).unwrap();
    // The name `1` of class 2 wins over the number.
    let class = [0, 2, 2];
    assert_eq!((read.longest(), read.longer_than(5), read.longer_than(6)), (6, 20, 0));
    let rows = Rows { tokens: 5, filling: 7 };
    let parts = read.parts(rows, 0).unwrap();
    let expected = [
        [vec![1, 4, 2, 7, 7], vec![1, 1, 1, 0, 0], vec![class[0]]],
        [vec![1, 5, 6, 2, 7], vec![1, 1, 1, 1, 0], vec![class[1]]],
        [vec![1, 4, 5, 6, 2], vec![1, 1, 1, 1, 1], vec![class[2]]],
    ];
    let mut seen = vec![];
    for part in [&parts.train, &parts.validation, &parts.test] {
        let found = samples(part.as_ref());
        assert!(found.iter().all(|sample| expected.contains(sample)), "{found:?}");
        seen.extend(found);
        assert_eq!(part.target(), Target::Classes);
    }
    assert_eq!(seen.len(), 60);
    assert!(expected.iter().all(|sample| seen.contains(sample)), "every text is in a part");
    let other = read.parts(Rows { tokens: 6, ..rows }, 0).unwrap();
    assert_ne!(parts.test.hash().unwrap(), other.test.hash().unwrap(), "a longer row holds more");
    assert_eq!(parts.test.hash().unwrap(), read.parts(rows, 0).unwrap().test.hash().unwrap());
    assert!(read.parts(rows, 5).is_err());
}

#[test]
fn the_loss_of_quantities_is_their_mean_squared_error() {
    let bare = table_mlp(3, 1).unwrap();
    let graph = with_loss(&bare, Target::Quantity).unwrap();
    let graph = bind(&graph, &[("batch".to_owned(), 4)].into()).unwrap();
    let draw = |count: usize, seed| philox::normals(seed, 1).take(count).collect::<Vec<f64>>();
    let (x, labels) = (draw(12, 1), draw(4, 2));
    let given =
        [Array::float(DType::F32, &[4, 3], x), Array::float(DType::F32, &[4], labels.clone())];
    let results = eval(&graph, &given, &mut States::new());
    let y = results[0].to_f64();
    let expected = y.iter().zip(&labels).map(|(y, label)| (y - label).powi(2)).sum::<f64>() / 4.0;
    assert!((results[1].to_f64()[0] - expected).abs() < 1e-12 * expected);
    let error = with_loss(&table_mlp(3, 2).unwrap(), Target::Quantity).unwrap_err().to_string();
    assert!(error.contains("one output a row for a quantity"), "{error}");
}

/// A table whose label is twice the first feature and 1000, and a model that gives the first
/// feature.
#[test]
fn quantities_are_judged_in_the_units_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let row = |i: usize| format!("{},{}.5\n", i, 2 * i + 1000);
    fs::write(&path, (0..100).map(row).collect::<String>()).unwrap();
    let data = open_as(path.to_str().unwrap(), &Reading::default()).unwrap();
    let Dataset::Samples(samples) = &data else { panic!("a table is samples") };
    assert_eq!((samples.targets().kind(), samples.targets().len()), (Target::Quantity, 100));
    assert!(data.columns().unwrap().is_quantity);
    // Standardised: the first outputs of the model are near the mean of the labels.
    let bare = table_mlp(1, 1).unwrap();
    let model = data.standardizing(&bare, 0).unwrap();
    let parts = data.parts(&model, 0).unwrap();
    let batch = parts.test.batch(&(0..parts.test.len()).collect::<Vec<_>>()).unwrap();
    let bound = bind(&model, &[("batch".to_owned(), parts.test.len() as usize)].into()).unwrap();
    let backend = CpuBackend::new(Some(1)).unwrap();
    let states = initial_parameters(&bound, 1);
    let judged = evaluate(&backend, &bound, &states, parts.test.as_ref()).unwrap();
    assert_eq!((judged.target(), judged.hits.len()), (Target::Quantity, 0));
    assert!(judged.loss().sqrt() < 500.0, "{}", judged.loss());
    // A model that is right but for 3.
    let scaled = f64::from(1.0 / samples.scale());
    let b = Builder::new("right");
    let x = b.input("x", TensorType::new(DType::F32, [batch.x.ty().sizes()[0], 1]));
    b.output("y", x * (2.0 * scaled) + 1003.5);
    let right = b.finish().unwrap();
    let parts = data.parts(&right, 0).unwrap();
    let judged = evaluate(&backend, &right, &Default::default(), parts.test.as_ref()).unwrap();
    assert!((judged.loss() - 9.0).abs() < 1e-2, "{}", judged.loss());
    let mean = judged.quantities.iter().sum::<f64>() / judged.quantities.len() as f64;
    let variation: f64 = judged.quantities.iter().map(|x| (x - mean).powi(2)).sum();
    let expected = 1.0 - 9.0 * judged.quantities.len() as f64 / variation;
    assert!((judged.explained().unwrap() - expected).abs() < 1e-4);
}

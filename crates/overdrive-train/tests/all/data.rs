//! Data sets: fixed splits, readers of files, and what they say of files that are wrong.
//!
//! Long because every reader has its files here, whole and damaged.

use overdrive_formats::TableColumns;
use overdrive_formats::huggingface::Tokenizer;
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::{Builder, DType, Tensor};
use overdrive_models::find;
use overdrive_train::data::{
    Dataset, FOLDS, Parts, Reading, Samples, Split, Tokens, books, digits, open, open_as,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

fn model(name: &str) -> overdrive_ir::Graph {
    (find(name).unwrap().build)().unwrap()
}

fn parts(fold: usize) -> Parts {
    Dataset::Samples(digits()).parts(&model("digits-mlp"), fold).unwrap()
}

/// Bytes and label of every sample, as a key.
fn keys(split: &dyn Split) -> Vec<String> {
    let batch = split.batch(&(0..split.len()).collect::<Vec<_>>()).unwrap();
    let labels = batch.labels.to_ints();
    batch.x.bytes().chunks(64 * 4).zip(labels).map(|(x, label)| format!("{x:?} {label}")).collect()
}

#[test]
fn the_digits_are_those_of_the_source() {
    let digits = digits();
    assert_eq!((digits.shape(), digits.labels().len(), digits.classes()), (vec![64], 1797, 10));
    assert_eq!(digits.labels()[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(digits.scale(), 1.0 / 16.0);
    let each: Vec<usize> = (0..10)
        .map(|class| digits.labels().iter().filter(|&&label| label == class).count())
        .collect();
    assert_eq!(
        each,
        [178, 182, 177, 183, 181, 182, 181, 179, 174, 180],
        "as the source's description counts them"
    );
}

#[test]
fn folds_test_every_sample_once_and_parts_share_none() {
    let mut tested = Vec::new();
    for fold in 0..FOLDS {
        let parts = parts(fold);
        let [train, validation, test] =
            [&parts.train, &parts.validation, &parts.test].map(|p| keys(p.as_ref()));
        assert_eq!(train.len() + validation.len() + test.len(), 1797);
        assert!(
            (359..=360).contains(&test.len()) && (175..=185).contains(&validation.len()),
            "fold {fold}"
        );
        let held_out: BTreeSet<&String> = validation.iter().chain(&test).collect();
        // Two images of the set could be equal; none are.
        assert!(train.iter().all(|key| !held_out.contains(key)));
        tested.extend(test);
    }
    let distinct: BTreeSet<String> = tested.iter().cloned().collect();
    assert_eq!((tested.len(), distinct.len()), (1797, 1797));
}

/// A change of these hashes is a change of the data or of the splits: no figure before it compares
/// with one after it.
#[test]
fn splits_are_held_to_their_hashes() {
    let hashes = |parts: &Parts| {
        [&parts.train, &parts.validation, &parts.test]
            .map(|part| part.hash().unwrap()[..16].to_owned())
    };
    let text = Dataset::Text(books()).parts(&model("text-transformer"), 0).unwrap();
    assert_eq!(hashes(&parts(0)), ["6362c77f962244af", "6c6731127db7b453", "db5e028ab6bfaf51"]);
    assert_eq!(hashes(&text), ["63b0bda8e46ceaed", "89e168105de45419", "d5ce1b42cfb1b674"]);
}

#[test]
fn windows_of_text_predict_the_next_byte_and_held_out_bytes_once() {
    let tokens = books();
    assert_eq!(tokens.len(), 883_028 + 684_768);
    let parts = Dataset::Text(tokens).parts(&model("text-transformer"), 0).unwrap();
    let batch = parts.train.batch(&[0, 1]).unwrap();
    assert_eq!(batch.x.ty().to_string(), "i32[2, 128]");
    let (x, labels) = (batch.x.to_ints(), batch.labels.to_ints());
    assert_eq!(x[1..128], labels[..127]);
    assert_eq!(x[1..128], x[128..255], "the second window starts a byte later");
    assert_eq!(x[..4], [69, 77, 77, 65], "EMMA");
    let bytes = 883_028 + 684_768;
    assert_eq!(parts.train.len(), bytes - bytes / 10 - 128);
    assert_eq!(parts.test.len(), (bytes / 20 - 1) / 128);
    let [first, second] = [0, 1].map(|i| parts.test.batch(&[i]).unwrap());
    assert_eq!(first.labels.to_ints()[127], second.x.to_ints()[0]);
    assert_eq!(parts.test.batch(&[0, 3]).unwrap().text_bytes, [128; 2]);
}

/// The folder of a tiny GPT-2, whose tokenizer has 269 tokens, all bytes among them.
fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../overdrive-studies/tests/pretrained/gpt2/tokenizer.json")
}

fn text_bytes(tokens: &Tokens, start: u64, count: usize) -> u64 {
    tokens.tokens(start, count).unwrap().into_iter().map(|(_, bytes)| u64::from(bytes)).sum()
}

#[test]
fn a_tokenizer_makes_fewer_tokens_of_the_same_bytes() {
    let bytes = books();
    let file = Tokenizer::read(&tokenizer(), 300).unwrap();
    let tokens = bytes.encoded(&file).unwrap();
    assert!(tokens.len() < bytes.len(), "{} tokens of {} bytes", tokens.len(), bytes.len());
    assert_eq!(text_bytes(&tokens, 0, tokens.len() as usize), bytes.len());
    assert!(tokens.vocabulary() <= 300);
    // Cut where chunks end or not, tokens are those of the whole text.
    let text: Vec<u8> = bytes.read(0, 1 << 18).unwrap().into_iter().map(|id| id as u8).collect();
    let text = String::from_utf8(text).unwrap();
    let whole: Vec<u32> = file.tokens(&text).unwrap().into_iter().map(|(id, _)| id).collect();
    let shorter = whole.len() - 64;
    assert_eq!(tokens.read(0, shorter).unwrap(), whole[..shorter]);
    assert!(text.starts_with(&file.decode(&tokens.read(0, 1000).unwrap()).unwrap()));
}

#[test]
fn text_that_a_model_learns_in_tokens_is_judged_by_its_bytes() {
    let data = Dataset::Text(books()).encoded(&tokenizer(), 300).unwrap();
    let Dataset::Text(tokens) = data else { panic!("text stays text") };
    let parts = Parts::of_text(&tokens, 128).unwrap();
    let (first, len) = (tokens.len() - tokens.len() / 20, parts.test.len());
    let bytes = parts.test.batch(&[0, len - 1]).unwrap().text_bytes;
    assert_eq!(bytes[0], text_bytes(&tokens, first + 1, 128));
    assert!(bytes[0] > 128);
    let fault = Dataset::Samples(digits()).encoded(&tokenizer(), 300).unwrap_err().to_string();
    assert!(fault.contains("expected text beside a tokenizer, found labelled samples"), "{fault}");
    let fault = Dataset::Text(books()).encoded(&tokenizer(), 256).unwrap_err().to_string();
    assert!(fault.contains("ids below 256, the model's vocabulary"), "{fault}");
}

#[test]
fn data_and_model_must_fit() {
    let fault = |data: Dataset, name: &str| data.parts(&model(name), 0).err().unwrap().to_string();
    let samples = || Dataset::Samples(digits());
    assert!(fault(samples(), "text-transformer").contains("takes tokens"));
    assert!(fault(Dataset::Text(books()), "digits-mlp").contains("at most 10 classes, found 256"));
    assert!(fault(samples(), "mlp").contains("expected 512 features, as [512], found 64, as [64]"));
    let error = samples().parts(&model("digits-mlp"), 5).err().unwrap().to_string();
    assert!(error.contains("a fold below 5, found 5"), "{error}");
    assert!(
        open("nowhere.csv")
            .unwrap_err()
            .to_string()
            .contains("expected `digits`, `text` or a file, found `nowhere.csv`")
    );
}

/// A folder with one file in it.
fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    (folder, path)
}

fn read(path: &Path) -> Result<Dataset, String> {
    open(path.to_str().unwrap()).map_err(|e| e.to_string())
}

fn samples(path: &Path) -> Arc<Samples> {
    match read(path).unwrap() {
        Dataset::Samples(samples) => samples,
        Dataset::Text(_) => panic!("{path:?} was read as text"),
    }
}

/// If the lines before each record were counted, this would take the square of the length.
#[test]
fn a_csv_of_many_lines_is_read_in_one_go() {
    let lines = "0.5,1.25,0\n1.5,-2.25,1\n".repeat(500_000);
    let (_folder, path) = file("long.csv", &lines);
    assert_eq!(samples(&path).labels().len(), 1_000_000);
    let (_folder, path) = file("long.csv", lines + "1,x,0\n");
    let error = read(&path).unwrap_err();
    assert!(error.contains("line 1000001, column 1: expected a number"), "{error}");
}

/// In f32 the first column would be one number.
#[test]
fn columns_that_f32_does_not_tell_apart_are_refused() {
    let line = |i: u32| format!("{},{},{}\n", 1_000_000_000 + i % 2, 1_764_400_000, i % 2);
    let text: String = (0..20).map(line).collect();
    let (_folder, path) = file("lost.csv", &text);
    let error = read(&path).unwrap_err();
    let expected = "column 0: expected numbers that f32 tells apart, found 1000000000 to \
                    1000000001, of which f32 changes some by 1;";
    assert!(error.contains(expected), "{error}");
    // Seconds of a day, which f32 rounds by up to 64, keep their order.
    let day: String =
        (0..20).map(|i| format!("{},{}\n", 1_764_400_000 + 4_320 * i, i % 2)).collect();
    let (_folder, path) = file("day.csv", &day);
    assert_eq!(samples(&path).labels().len(), 20);
}

#[test]
fn csv_is_features_and_a_class_a_line() {
    let (_folder, path) = file("a.csv", "height,width,class\n1, 2.5 ,0\n-3,4,2\n");
    let read = samples(&path);
    assert_eq!(
        (read.shape(), read.labels(), read.classes(), read.scale()),
        (vec![2], &[0, 2][..], 3, 0.25)
    );
    for (content, words) in [
        ("1,2,0\n1,2\n", "line 2: expected 3 fields as before, found 2"),
        ("1,2,0\n1,x,0\n", "line 2, column 1: expected a number, found `x`"),
        ("1,2,0\n1,2,nan\n", "expected labels that are finite, found NaN"),
        ("1,2,0\nnan,2,0\n", "line 2, column 0: expected a number, found `nan`"),
        (
            "a,b,c\n1,2,0\n\n\n1,,0\n",
            "line 5, column `b`: expected a value, found nothing; fill the gap",
        ),
        ("a,b,c\r\n1,2,0\r\n1,NA,0\r\n", "line 3, column `b`: expected a number, found `NA`"),
        ("a,b,a\n1,2,0\n", "line 1: expected a name of its own for each column, found `a` twice"),
        ("1,2,99999999\n", "expected classes numbered from 0, found the label 99999999"),
        ("7\n", "expected 2 or more fields, found 1"),
        ("7;8;0\n", "found 1, with ';' in it"),
        ("1,2,a\n1,3,b\n1,4,c\n", "expected labels that repeat"),
        ("", "at least one sample"),
        ("a,b,c\n", "at least one sample"),
    ] {
        let (_folder, path) = file("a.csv", content);
        let error = read_error(&path);
        assert!(error.contains(words), "{content:?}: {error}");
    }
    let (_folder, path) = file("a.csv", b"1,\xff,0\n");
    assert!(read_error(&path).contains("UTF-8"));
}

/// Reads a table whose labels are asked for, as one that a model has learnt from.
fn table(
    content: &str,
    label: Option<&str>,
    like: Option<TableColumns>,
) -> Result<Arc<Samples>, String> {
    let (_folder, path) = file("a.csv", content);
    let reading = Reading { label: label.map(str::to_owned), target: None, like };
    match open_as(path.to_str().unwrap(), &reading).map_err(|e| e.to_string())? {
        Dataset::Samples(samples) => Ok(samples),
        Dataset::Text(_) => panic!("a table is no text"),
    }
}

#[test]
fn labels_are_a_column_by_name_or_number_and_words_are_classes() {
    let content = "kind,height,width\ntall,9,1\nflat,1,9\ntall,8,2\n";
    let expected = TableColumns {
        features: vec!["height".into(), "width".into()],
        label: Some("kind".into()),
        classes: vec!["flat".into(), "tall".into()],
        is_quantity: false,
    };
    for label in ["kind", "0"] {
        let read = table(content, Some(label), None).unwrap();
        assert_eq!((read.labels(), read.columns()), (&[1, 0, 1][..], Some(&expected)));
        assert_eq!((read.shape(), read.classes()), (vec![2], 2));
    }
    // Rows that a model is shown later: its names, its classes, and no others.
    let read = table("kind,height,width\ntall,9,1\n", None, Some(expected.clone())).unwrap();
    assert_eq!((read.labels(), read.classes()), (&[1][..], 2));
    for (content, label, like, words) in [
        (
            content,
            Some("size"),
            None,
            "expected a column from 0 to 2, or one of kind, height, width, found `size`",
        ),
        (content, Some("3"), None, "found `3`"),
        ("1,2,0\n", Some("kind"), None, "there is no line of names"),
        (content, None, None, "column `kind`: expected a number, found `tall`"),
        (
            "kind,width,height\ntall,1,2\n",
            None,
            Some(expected.clone()),
            "expected the feature `height`, found `width`",
        ),
        (
            "kind,height,width\nround,1,2\n",
            None,
            Some(expected),
            "the model's classes flat, tall, found `round`",
        ),
        (
            "1,2,a\n1,2,a\n",
            None,
            Some(TableColumns::default()),
            "numbers of classes, as the model has learnt, found a",
        ),
    ] {
        let error = table(content, label, like).unwrap_err();
        assert!(error.contains(words), "{content:?}: {error}");
    }
    let signs = table("1,-1\n2,1\n3,-1\n4,10\n5,10\n", None, None).unwrap();
    assert_eq!(signs.labels(), [0, 1, 0, 2, 2], "-1, 1 and 10 in their order");
}

#[test]
fn a_table_is_standardised_by_its_training_part_alone() {
    let row = |i: usize| format!("{},{},7,{}\n", 1000 + i * i % 97, i % 10, i % 2);
    let (_folder, path) = file("a.csv", (0..200).map(row).collect::<String>());
    let data = read(&path).unwrap();
    let bare = overdrive_models::table_mlp(3, 2).unwrap();
    let model = data.standardizing(&bare, 1).unwrap();
    let parts = data.parts(&model, 1).unwrap();
    let raw = parts.train.batch(&(0..parts.train.len()).collect::<Vec<_>>()).unwrap();
    assert!(
        raw.x.to_f32().iter().any(|x| *x > 1000.0),
        "a model that standardises takes what the file holds"
    );
    // The standardised input is the first operand of the model's first product.
    let bound =
        overdrive_passes::bind(&model, &[("batch".to_owned(), parts.train.len() as usize)].into())
            .unwrap();
    let first = bound.nodes().iter().find(|node| node.op.name() == "linear").unwrap().operands[0];
    let b = Builder::new("seen");
    let values = b.append(&bound).unwrap();
    b.output("x", values[first.0 as usize]);
    let seen = eval_tensors(&b.finish().unwrap(), &[raw.x]).remove(0).to_f64();
    for (column, deviation) in [1.0, 1.0, 0.0].into_iter().enumerate() {
        let values: Vec<f64> = seen.iter().skip(column).step_by(3).copied().collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 1e-4, "column {column}: mean {mean}");
        assert!((variance.sqrt() - deviation).abs() < 1e-3, "column {column}: variance {variance}");
    }
    // A model that learnt otherwise sees the data as before.
    let scaled = data.parts(&bare, 1).unwrap().train.batch(&[0, 1, 2]).unwrap();
    assert!(scaled.x.to_f32().iter().all(|x| x.abs() <= 1.0));
    // Samples that are no table stay as they are.
    assert_eq!(Dataset::Samples(digits()).standardizing(&bare, 0).unwrap(), bare);
}

fn read_error(path: &Path) -> String {
    read(path).unwrap_err()
}

#[test]
fn npz_is_x_and_y() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let x = Tensor::from_f32([2usize, 1, 2, 2], &[0.0, 1.0, 2.0, 4.0, 0.5, 0.0, 0.0, -8.0]);
    let write = |named: &[(&str, Tensor)]| {
        let tensors = named.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect();
        overdrive_formats::write(&path, &tensors).unwrap();
    };
    let y = |values: &[i128]| Tensor::from_ints(DType::I64, [values.len()], values);
    write(&[("x", x.clone()), ("y", y(&[1, 0]))]);
    let read = samples(&path);
    assert_eq!((read.shape(), read.labels(), read.scale()), (vec![1, 2, 2], &[1, 0][..], 0.125));
    for (named, words) in [
        (vec![("x", x.clone())], "expected an array `y` or `labels`, found x"),
        (vec![("x", x.clone()), ("y", y(&[1]))], "expected 2 labels, one a sample, found 1"),
        (vec![("x", x.clone()), ("y", y(&[1, -1]))], "found -1"),
        (
            vec![("x", x.clone()), ("y", Tensor::from_f32([2usize], &[0.0, 1.0]))],
            "expected integer labels [N], found f32[2]",
        ),
    ] {
        write(&named);
        let error = read_error(&path);
        assert!(error.contains(words), "{error}");
    }
}

/// An IDX array of bytes.
fn idx(sizes: &[u32], content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|n| bytes.extend(n.to_be_bytes()));
    bytes.extend(content);
    bytes
}

#[test]
fn idx_is_images_and_labels_beside_them() {
    let (folder, images) = file("t-images-idx3-ubyte", idx(&[2, 1, 3], &[0, 1, 2, 3, 4, 51]));
    let labels = folder.path().join("t-labels-idx1-ubyte");
    assert!(read_error(&images).contains("cannot open"), "no labels");
    fs::write(&labels, idx(&[2], &[3, 1])).unwrap();
    let read = samples(&images);
    assert_eq!((read.shape(), read.labels(), read.classes()), (vec![1, 3], &[3, 1][..], 4));
    fs::write(&labels, idx(&[1], &[3])).unwrap();
    assert!(read_error(&images).contains("expected 2 labels, one a sample, found 1"));
    fs::write(&labels, idx(&[1, 2], &[3, 1])).unwrap();
    assert!(read_error(&images).contains("labels of one dimension"));
    for (content, words) in [
        (idx(&[2, 1, 3], &[0, 1]), "expected 6 bytes, found 2 bytes"),
        (idx(&[2, 1, 3], &[0; 7]), "expected the end"),
        (idx(&[u32::MAX; 3], &[]), "a shape that can be addressed"),
        (vec![0, 0, 13, 1, 0, 0, 0, 1, 0], "an IDX file of unsigned bytes"),
        (vec![0, 0], "expected 4 bytes, found 2 bytes"),
    ] {
        fs::write(&images, content).unwrap();
        let error = read_error(&images);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn any_utf8_file_is_a_text() {
    let words = "čaj ".repeat(20_000);
    let (_folder, path) = file("a.txt", &words);
    let Dataset::Text(tokens) = read(&path).unwrap() else { panic!("text is text") };
    assert_eq!(tokens.len(), words.len() as u64);
    let expected: Vec<u32> =
        words.as_bytes()[99_990..100_000].iter().map(|&b| u32::from(b)).collect();
    assert_eq!(tokens.read(99_990, 10).unwrap(), expected);
    let mut broken = words.clone().into_bytes();
    broken[70_000] = 0xff;
    let (_folder, path) = file("b.txt", &broken);
    let error = read_error(&path);
    assert!(error.contains("expected UTF-8 text, found other bytes at offset 70000"), "{error}");
    let (_folder, path) = file("c.txt", &words.as_bytes()[..words.len() - 4]);
    assert!(read_error(&path).contains("UTF-8"), "a character cut short");
    let (_folder, path) = file("d.txt", "");
    assert!(read_error(&path).contains("an empty file"));
    let (_folder, path) = file("e.txt", "short");
    let error =
        read(&path).unwrap().parts(&model("text-transformer"), 0).err().unwrap().to_string();
    assert!(error.contains("parts longer than a window of 128 tokens"), "{error}");
}

proptest! {
    /// For any bytes a reader returns samples or an error, and never panics.
    #[test]
    fn readers_survive_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        text in "[0-9,.\\n-]{0,80}",
    ) {
        for (name, content) in [
            ("a.csv", &bytes[..]), ("b.csv", text.as_bytes()), ("a.npz", &bytes),
            ("a.txt", &bytes), ("t-images-idx3-ubyte", &bytes),
        ] {
            let (_folder, path) = file(name, content);
            if let Ok(Dataset::Samples(samples)) = read(&path) {
                prop_assert!(!samples.targets().is_empty());
            }
        }
    }
}

//! `quantize` on data of the user's own: modes that learn from it, and files of every format. Each
//! way in which a model or its data is refused is here too, with its words and exit code.

use crate::invocation::{Folder, Outcome};
use overdrive::formats::ModelFolder;
use overdrive::ir::{Init, Tensor};
use std::fs;
use std::path::Path;

/// A command line of `quantize` with few samples of its latency.
#[track_caller]
fn quantize(folder: &Folder, arguments: &str) -> Outcome {
    folder.line(&format!("quantize {arguments} --device cpu --threads 1 --trials 5 --batches 1"))
}

/// Fails if anything was written but these files.
#[track_caller]
fn left(folder: &Folder, files: &[&str]) {
    assert_eq!(folder.files(), files, "a refused call writes nothing");
}

#[test]
fn what_is_learnt_is_a_model_that_loses_less_than_rounding() {
    let folder = Folder::new();
    let words = ["top1_percent", "scales", "is a model"];
    let baselines =
        ["float, as given", "float, trained as long", "lost against the one given (points)"];
    quantize(&folder, "digits-mlp --mode qat-int4 --data digits --max-loss 2 -o small")
        .ends(0, &words)
        .ends(0, &baselines);
    let config = fs::read_to_string(folder.path("small/config.json")).unwrap();
    for word in ["pack-quantized", "compressed-tensors", "qat-int4", "\"num_bits\": 4"] {
        assert!(config.contains(word), "{word}: {config}");
    }
    let states = overdrive::formats::read(&folder.path("small/model.safetensors")).unwrap();
    assert_eq!(states["fc1.weight_packed"].ty().to_string(), "i32[128, 8]");
    assert_eq!(states["fc1.weight_shape"].to_ints(), [128, 64]);
    let needs_data = quantize(&folder, "digits-mlp --mode qat-int4 -o none");
    needs_data.ends(2, &["qat-int4", "learns", "--data"]);
    folder.tensors("inputs.npz", &[("x", Tensor::from_f32([256, 64], &[0.5; 256 * 64]))]);
    quantize(&folder, "digits-mlp --mode qat-mxfp4 --data inputs.npz -o none")
        .ends(2, &["learns", "labelled"]);
    let scanned = quantize(&folder, "digits-mlp --sensitivity --mode qat-int4 --data digits");
    scanned.ends(2, &["qat-int4", "alone"]);
    left(&folder, &["inputs.npz", "small"]);
}

#[test]
fn a_pruned_model_is_as_small_as_it_says() {
    let folder = Folder::new();
    quantize(&folder, "digits-mlp --mode sparse24-wanda --data digits -o sparse")
        .ends(0, &["top1_percent"]);
    let float = 4 * (64 * 128 + 128 * 128 + 128 * 10);
    let weights = |folder: &Path| -> usize {
        let states = overdrive::formats::read(&folder.join("model.safetensors")).unwrap();
        let of_weights = states.iter().filter(|(name, _)| name.contains("weight"));
        of_weights.map(|(_, tensor)| tensor.bytes().len()).sum()
    };
    // Two of four values and four bits of a mask; a shape of 16 bytes for each layer.
    assert_eq!(weights(&folder.path("sparse")), float * 17 / 32 + 3 * 16);
    folder.tensors("x.npz", &[("x", Tensor::from_f32([2, 64], &[0.25; 128]))]);
    folder.line("eval sparse --device cpu --inputs x.npz").ends(0, &["f32[2, 10]"]);
    quantize(&folder, "digits-mlp --mode sparse24-sparsegpt-int8 --data digits -o both")
        .ends(0, &["top1_percent"]);
    let config = fs::read_to_string(folder.path("both/config.json")).unwrap();
    assert!(config.contains("sparse-24-bitmask") && config.contains("int-quantized"), "{config}");
    assert!(weights(&folder.path("both")) < float / 5);
    quantize(&folder, "digits-conv --mode sparse24-magnitude --data digits -o conv")
        .ends(0, &["not pruned"]);
}

/// Labelled images of 8x8 bytes in the formats that `--data` takes.
fn images(folder: &Folder, count: usize) -> [String; 3] {
    let class = |i: usize| i % 10;
    let pixel = |i: usize, at: usize| ((at * (class(i) + 3) + i) % 17) as u8;
    let mut idx = [0u8, 0, 8, 3].to_vec();
    [count, 8, 8].iter().for_each(|&size| idx.extend((size as u32).to_be_bytes()));
    (0..count).for_each(|i| idx.extend((0..64).map(|at| pixel(i, at))));
    let mut labels = [0u8, 0, 8, 1].to_vec();
    labels.extend((count as u32).to_be_bytes());
    labels.extend((0..count).map(|i| class(i) as u8));
    fs::write(folder.path("own-images-idx3-ubyte"), idx).unwrap();
    fs::write(folder.path("own-labels-idx1-ubyte"), labels).unwrap();
    let row = |i: usize| {
        let pixels: Vec<String> = (0..64).map(|at| pixel(i, at).to_string()).collect();
        format!("{},{}\n", pixels.join(","), class(i))
    };
    fs::write(folder.path("own.csv"), (0..count).map(row).collect::<String>()).unwrap();
    let x: Vec<f32> =
        (0..count).flat_map(|i| (0..64).map(move |at| f32::from(pixel(i, at)))).collect();
    let y: Vec<i128> = (0..count).map(|i| class(i) as i128).collect();
    let y = Tensor::from_ints(overdrive::ir::DType::I64, [count], &y);
    folder.tensors("own.npz", &[("x", Tensor::from_f32([count, 64], &x)), ("y", y)]);
    ["own-images-idx3-ubyte", "own.csv", "own.npz"].map(str::to_owned)
}

#[test]
fn files_of_every_format_calibrate_and_judge() {
    let folder = Folder::new();
    for (at, file) in images(&folder, 400).iter().enumerate() {
        let made =
            quantize(&folder, &format!("digits-mlp --mode int8-static --data {file} -o small{at}"));
        made.ends(0, &["top1_percent", "80 test samples"]);
        let trained = folder.line(&format!(
            "train digits-mlp --device cpu --threads 1 --steps 5 --data {file} -o t{at}"
        ));
        trained.ends(0, &["80 test samples"]);
    }
}

/// A tokenizer of the 128 characters of ASCII and, as one token, every word of `words`.
fn tokenizer(folder: &Folder, words: &[&str]) {
    let ascii = (0..128u8).map(|byte| char::from(byte).to_string());
    let vocabulary: serde_json::Map<String, serde_json::Value> = ascii
        .chain(words.iter().map(|word| (*word).to_owned()))
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "decoder": null, "truncation": null, "padding": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a-z]+| "},
            "behavior": "Isolated", "invert": false},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    });
    fs::write(folder.path("tokenizer.json"), file.to_string()).unwrap();
}

#[test]
fn text_is_learnt_in_the_tokens_of_a_tokenizer() {
    let folder = Folder::new();
    let words = ["the", "cat", "sat", "on", "mat"];
    tokenizer(&folder, &words);
    fs::write(folder.path("own.txt"), "the cat sat on the mat ".repeat(2000)).unwrap();
    let train = |arguments: &str| {
        folder.line(&format!(
            "train text-transformer --device cpu --threads 1 --steps 2 --batch 2 --data \
             {arguments} -o out --force"
        ))
    };
    // 24,000 tokens of 46,000 bytes: 9 windows of 128 in the last twentieth, where bytes would
    // be 17.
    train("own.txt --tokenizer tokenizer.json").ends(0, &["of 9 test windows", "bits per byte"]);
    let config = fs::read_to_string(folder.path("out/config.json")).unwrap();
    assert!(config.contains("tokenizer.json"), "{config}");
    train("digits --tokenizer tokenizer.json").ends(2, &["text beside a tokenizer"]);
    train("own.txt --tokenizer own.txt").ends(2, &["own.txt", "expected a tokenizer"]);
    let many: Vec<String> = (0..200).map(|i| format!("word{i}")).collect();
    tokenizer(&folder, &many.iter().map(String::as_str).collect::<Vec<_>>());
    train("own.txt --tokenizer tokenizer.json")
        .ends(2, &["ids below 256", "tokenizer is of another model"]);
}

#[test]
fn data_that_does_not_fit_is_refused() {
    let folder = Folder::new();
    images(&folder, 100);
    let refused = |arguments: &str, words: &[&str]| {
        quantize(&folder, &format!("digits-mlp --mode int8-static -o none {arguments}"))
            .ends(2, words);
    };
    // 68 of 100 samples are for training: fewer than eight batches of 64.
    let few = folder.line(
        "quantize digits-mlp --mode int8-static --batches 8 --data own.csv --device cpu -o none",
    );
    few.ends(2, &["calibration", "expected at least 512 samples", "found 68"]);
    let write = |name: &str, text: String| fs::write(folder.path(name), text).unwrap();
    let line = |width: usize, label: usize| format!("{}{label}\n", "1,".repeat(width));
    write("narrow.csv", (0..100).map(|i| line(63, i % 10)).collect());
    refused("--data narrow.csv", &["64 features", "63"]);
    write("classes.csv", (0..120).map(|i| line(64, i % 12)).collect());
    refused("--data classes.csv", &["at most 10 classes", "12"]);
    write("few.csv", (0..5).map(|i| line(64, i)).collect());
    refused("--data few.csv", &["data set", "samples for three parts", "5 in all"]);
    write(
        "nan.csv",
        format!("{}0\n", "nan,".repeat(64))
            + &(0..99).map(|i| line(64, i % 10)).collect::<String>(),
    );
    refused("--data nan.csv", &["nan.csv, line 1, column 0", "a number, found `nan`"]);
    write("torn.csv", format!("{}1,2,3\n", line(64, 1)));
    refused("--data torn.csv", &["torn.csv", "line 2", "65 fields"]);
    let images = fs::read(folder.path("own-images-idx3-ubyte")).unwrap();
    fs::write(folder.path("own-images-idx3-ubyte"), &images[..images.len() - 9]).unwrap();
    refused("--data own-images-idx3-ubyte", &["own-images-idx3-ubyte", "bytes"]);
    assert!(!folder.path("none").exists());
}

/// The trained model in a folder, with its states changed.
fn model(folder: &Folder, name: &str, change: impl Fn(&str, Tensor) -> Tensor) {
    let trained =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-train/trained/digits-mlp");
    let mut read = ModelFolder::read(&trained).unwrap();
    let states: std::collections::BTreeMap<String, Tensor> = read
        .graph
        .states()
        .iter()
        .map(|state| {
            (state.name.clone(), state.init.tensor(&state.name, read.graph.ty(state.value)))
        })
        .collect();
    read.graph =
        read.graph.with_initial_values(|name, _| Init::Value(change(name, states[name].clone())));
    read.write(&folder.path(name)).unwrap();
}

#[test]
fn weights_that_are_not_finite_are_refused_by_every_kind_of_mode() {
    let folder = Folder::new();
    model(&folder, "broken", |name, tensor| {
        let mut values = tensor.to_f32();
        if name == "fc2.weight" {
            values[77] = f32::NAN;
        }
        Tensor::from_f32(tensor.ty().sizes(), &values)
    });
    for mode in ["int8-weights", "int4-hqq", "sparse24-magnitude", "qat-int4"] {
        quantize(&folder, &format!("broken --mode {mode} --data digits -o none"))
            .ends(2, &["finite", "fc2.weight"]);
    }
    left(&folder, &["broken"]);
}

#[test]
fn outputs_that_are_not_finite_pass_no_limit() {
    let folder = Folder::new();
    let huge = |_: &str, tensor: Tensor| {
        let values: Vec<f32> = tensor.to_f32().iter().map(|x| 1e30 * x).collect();
        Tensor::from_f32(tensor.ty().sizes(), &values)
    };
    model(&folder, "huge", huge);
    for data in ["--data digits --metric cosine", "--data digits --metric perplexity", ""] {
        quantize(&folder, &format!("huge --mode int8-weights {data} --max-loss 5 -o none"))
            .ends(4, &["warning", "NaN or infinite", "lost", "nothing was written"]);
    }
    left(&folder, &["huge"]);
}

#[test]
fn groups_that_do_not_divide_a_layer_leave_it_and_say_so() {
    let folder = Folder::new();
    // 64 inputs are one group of 96; 128 are no multiple of it.
    let said = quantize(&folder, "digits-mlp --mode int4-rtn --group 96 --data digits -o some");
    said.ends(0, &["`fc2`", "`fc3`", "multiple of 96"]);
    let states = overdrive::formats::read(&folder.path("some/model.safetensors")).unwrap();
    assert!(states.contains_key("fc1.weight_packed") && states.contains_key("fc2.weight"));
    let learnt = quantize(&folder, "digits-mlp --mode qat-int4 --group 48 --data digits -o none");
    learnt.ends(2, &["multiple of 48", "no layer", "nothing was written"]);
}

#[test]
fn a_corrupt_or_mislabelled_model_is_refused() {
    let folder = Folder::new();
    quantize(&folder, "digits-mlp --mode int4-rtn -o small").ends(0, &["cosine"]);
    folder.tensors("x.npz", &[("x", Tensor::from_f32([2, 64], &[0.25; 128]))]);
    let eval = |words: &[&str]| {
        folder.line("eval small --device cpu --inputs x.npz").ends(2, words);
        quantize(&folder, "small --mode int8-weights -o none").ends(2, words);
    };
    // Like a folder of the version before checksums, so that each file is judged by its content.
    fs::remove_file(folder.path("small").join(overdrive::files::MANIFEST)).unwrap();
    let states = folder.path("small/model.safetensors");
    let config = folder.path("small/config.json");
    let (good, words) = (fs::read(&states).unwrap(), fs::read_to_string(&config).unwrap());
    fs::write(&states, &good[..good.len() / 2]).unwrap();
    eval(&["model.safetensors"]);
    let spoilt = |change: &dyn Fn(&mut overdrive::formats::Tensors)| {
        fs::write(&states, &good).unwrap();
        let mut tensors = overdrive::formats::read(&states).unwrap();
        change(&mut tensors);
        overdrive::formats::write(&states, &tensors).unwrap();
    };
    spoilt(&|tensors| drop(tensors.remove("fc1.weight_shape")));
    eval(&["fc1.weight_shape", "mislabelled"]);
    spoilt(&|tensors| {
        drop(tensors.insert("fc1.weight_packed".into(), Tensor::from_f32([128, 8], &[0.0; 1024])))
    });
    eval(&["fc1.weight_packed", "i32[128, 8]", "f32[128, 8]"]);
    spoilt(&|tensors| drop(tensors.remove("fc2.weight_scale")));
    eval(&["missing", "fc2.weight_scale"]);
    fs::write(&states, &good).unwrap();
    fs::write(&config, words.replace("\"num_bits\": 4", "\"num_bits\": 8")).unwrap();
    eval(&["quantization_config", "num_bits"]);
    fs::write(&config, words).unwrap();
    folder.line("eval small --device cpu --inputs x.npz").ends(0, &["f32[2, 10]"]);
    assert!(!folder.path("none").exists());
}

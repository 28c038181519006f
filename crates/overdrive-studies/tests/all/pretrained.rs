//! Folders in Hugging Face's format against the results of `transformers`, and every way in which
//! one can be wrong.
//!
//! The folders in `pretrained/` are tiny random models; `peers/tiny_models.py` made them with their
//! expected outputs.
//!
//! Long because every way in which a folder can be wrong has its lines.

use crate::tiny::{DECODERS, backend, folder, model};
use overdrive_decoding::CachedDecoder;
use overdrive_formats::{Tensors, npz, safetensors};
use overdrive_ir::{Backend, Dim, Mode, Port, State, Tensor, Tuning};
use overdrive_studies::pretrained::Pretrained;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ENCODERS: [&str; 4] = ["bert", "distilbert", "roberta", "sentence"];
const CLASSIFIERS: [&str; 3] = ["bert_classifier", "distilbert_regression", "roberta_classifier"];
/// Models of images and of sound.
const OTHERS: [&str; 4] = ["clip", "vit", "vit_hidden", "whisper"];

fn expected(name: &str) -> Tensors {
    npz::read(&folder(name).join("expected.npz")).unwrap()
}

/// The outputs of a model, of whole sequences, for the inputs of these names.
fn outputs(model: &Pretrained, given: &Tensors, mode: Mode) -> Tensors {
    let template = model.template().unwrap();
    let mut sizes = BTreeMap::new();
    for port in template.graph.inputs() {
        let named =
            template.graph.ty(port.value).shape.0.iter().zip(given[&port.name].ty().sizes());
        sizes.extend(named.filter_map(|(dim, size)| match dim {
            Dim::Named(name) => Some((name.to_string(), size)),
            Dim::Size(_) => None,
        }));
    }
    let graph = template.bind(&sizes).unwrap().graph;
    let backend = backend();
    let mut session = backend.compile(&graph, mode, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(&graph, &backend).unwrap();
    let inputs: Vec<_> =
        graph.inputs().iter().map(|port| backend.upload(&given[&port.name]).unwrap()).collect();
    let output = |port: &Port| backend.output(graph.ty(port.value)).unwrap();
    let mut outputs: Vec<_> = graph.outputs().iter().map(output).collect();
    session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    let named = graph.outputs().iter().zip(&outputs);
    named.map(|(port, buffer)| (port.name.clone(), backend.download(buffer).unwrap())).collect()
}

/// The largest difference, where shapes are equal.
fn difference(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.ty(), b.ty());
    let pairs = a.to_f32().into_iter().zip(b.to_f32());
    pairs
        .map(|(a, b)| (a - b).abs())
        .reduce(|a, b| if a.is_nan() || a > b { a } else { b })
        .unwrap()
}

#[test]
fn outputs_are_those_of_transformers() {
    for name in DECODERS.into_iter().chain(ENCODERS).chain(CLASSIFIERS).chain(OTHERS) {
        let (model, expected) = (model(name), expected(name));
        for mode in [Mode::Jit, Mode::Compile] {
            for (output, found) in outputs(&model, &expected, mode) {
                let off = difference(&found, &expected[&output]);
                assert!(off <= 1e-5, "{output} of {name} in mode {mode} is off by {off}");
            }
        }
    }
}

/// `peers/gguf_files.py` made the files of these folders.
#[test]
fn files_of_gguf_are_the_models_that_they_were_made_from() {
    for name in ["gemma", "gemma2", "gpt2", "llama", "mixtral", "phi3", "qwen2", "qwen3"] {
        let file = folder("../gguf").join(format!("{name}.gguf"));
        let model = Pretrained::read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = expected(name);
        let off = difference(&outputs(&model, &expected, Mode::Compile)["y"], &expected["y"]);
        assert!(off <= 1e-5, "{name} is off by {off}");
        assert_eq!(model.ends, [0]);
        assert!(!model.notes.join("; ").contains("not known here"), "{:?}", model.notes);
    }
    let (found, expected) = (folder("../gguf/llama.gguf"), model("llama"));
    let found = Pretrained::read(&found).unwrap();
    for text in ["the hand, and a tin: ärger", "", "  and\n\nthe "] {
        let ids = expected.tokenizer.as_ref().unwrap().encode(text).unwrap();
        assert_eq!(found.tokenizer.as_ref().unwrap().encode(text).unwrap(), ids);
    }
    // A folder with one such file and no config.json is read as that file, with the other files of
    // the folder.
    let place = tempfile::tempdir().unwrap();
    fs::copy(folder("../gguf/qwen2.gguf"), place.path().join("q.gguf")).unwrap();
    assert!(Pretrained::is_at(place.path()));
    assert!(Pretrained::read(place.path()).unwrap().tokenizer.is_none());
    fs::copy(folder("qwen2").join("tokenizer.json"), place.path().join("tokenizer.json")).unwrap();
    assert!(Pretrained::read(place.path()).unwrap().tokenizer.is_some());
}

#[test]
fn text_comes_back_and_notes_say_what_was_done() {
    for name in DECODERS {
        let model = model(name);
        let tokenizer = model.tokenizer.as_ref().unwrap();
        let ids = tokenizer.encode("the hand, and a tin: ärger").unwrap();
        assert!(ids.len() < 26 && ids.iter().all(|&id| id < 270));
        assert_eq!(tokenizer.decode(&ids).unwrap(), "the hand, and a tin: ärger");
        assert_eq!(model.ends, [0]);
    }
    let encoded = model("bert").tokenizer.unwrap().encode("the cats sat.").unwrap();
    assert_eq!((encoded[0], encoded.len(), encoded[encoded.len() - 1]), (2, 7, 3));
    let said = |name| model(name).notes.join("; ");
    assert!(
        said("llama").contains("stored as bf16; computing whole sequences widens"),
        "{}",
        said("llama")
    );
    assert!(
        said("mistral").contains("in 2 of 2 blocks a token sees the last 3"),
        "{}",
        said("mistral")
    );
    assert!(said("qwen2_window").contains("in 1 of 2 blocks a token sees the last 4"));
    let shares = "the output layer shares the embedding's weights";
    assert!(said("gpt2").contains(shares), "{}", said("gpt2"));
}

#[test]
fn notes_say_what_images_and_sound_are_and_what_comes_out() {
    let said = |name| model(name).notes.join("; ");
    let vit = said("vit");
    assert!(vit.contains("y is the logits of 3 classes: ant, bee, cat;"), "{vit}");
    let scaled = "images of 8x8, values times 0.003922, less 0.5 0.4 0.3, over 0.5 0.25 0.2";
    assert!(vit.contains(&format!("x is {scaled}")), "{vit}");
    let hidden = said("vit_hidden");
    assert!(hidden.contains("y is the last hidden state"), "{hidden}");
    assert!(hidden.contains("left out: pooler.dense.bias, pooler.dense.weight"), "{hidden}");
    let clip = said("clip");
    assert!(clip.contains(&format!("pixel_values is {scaled}")), "{clip}");
    assert!(clip.contains("read off at the first token 269"), "{clip}");
    let whisper = said("whisper");
    assert!(
        whisper.contains("spectra of 6 bins and 20 frames of sound with 16000 samples"),
        "{whisper}"
    );
    assert!(whisper.contains("the output layer shares the embedding's weights"), "{whisper}");

    let other = copy("vit");
    edit(other.path(), "preprocessor_config.json", "\"height\": 8", "\"height\": 16");
    let notes = Pretrained::read(other.path()).unwrap().notes.join("; ");
    assert!(notes.contains("makes images of 16x8, which the model does not take"), "{notes}");
    edit(other.path(), "preprocessor_config.json", "\"height\": 16", "\"height\": true");
    refused(other.path(), &["preprocessor_config.json: size.height", "`true`"]);
    fs::remove_file(other.path().join("preprocessor_config.json")).unwrap();
    let notes = Pretrained::read(other.path()).unwrap().notes.join("; ");
    assert!(notes.contains("preprocessor_config.json is not there"), "{notes}");
    let other = copy("whisper");
    edit(other.path(), "preprocessor_config.json", "\"feature_size\": 6", "\"feature_size\": 80");
    let notes = Pretrained::read(other.path()).unwrap().notes.join("; ");
    assert!(notes.contains("feature_size is 80, but the model takes 6"), "{notes}");
}

/// Files of old versions say 2 where they know no end token: the largest id of a text is its end.
#[test]
fn a_text_ends_at_its_largest_id_where_no_end_token_is_known() {
    let (place, expected) = (copy("clip"), expected("clip"));
    edit(place.path(), "config.json", "\"eos_token_id\": 269", "\"eos_token_id\": 2");
    let model = Pretrained::read(place.path()).unwrap();
    assert!(model.notes.join("; ").contains("its largest token"));
    let found = outputs(&model, &expected, Mode::Compile);
    assert!(difference(&found["text_embeds"], &expected["text_embeds"]) <= 1e-5);
}

#[test]
fn models_of_images_and_sound_generate_no_text() {
    for name in OTHERS {
        let model = model(name);
        let error =
            CachedDecoder::new((&backend(), Mode::Compile), &model, 8).err().unwrap().to_string();
        assert!(error.contains("expected a decoder of text alone"), "{error}");
    }
}

/// A copy of a fixture that can be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder(name))
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.path().is_file())
    {
        fs::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
    }
    place
}

#[track_caller]
fn refused(folder: &Path, words: &[&str]) {
    let error = Pretrained::read(folder).unwrap_err().to_string();
    words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
}

fn edit(folder: &Path, file: &str, from: &str, to: &str) {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(folder.join(file), text.replace(from, to)).unwrap();
}

#[test]
fn names_of_other_versions_are_known() {
    let bare = copy("gpt2");
    let path = bare.path().join("model.safetensors");
    let strip = |name: String| name.strip_prefix("transformer.").map(str::to_owned).unwrap_or(name);
    let mut tensors: Tensors = safetensors::read(&path)
        .unwrap()
        .into_iter()
        .map(|(name, tensor)| (strip(name), tensor))
        .collect();
    tensors.insert(
        "h.0.attn.bias".into(),
        Tensor::from_ints(overdrive_ir::DType::U8, [1, 1, 2, 2], &[1; 4]),
    );
    tensors.insert("lm_head.weight".into(), tensors["wte.weight"].clone());
    safetensors::write(&path, &tensors).unwrap();
    let model = Pretrained::read(bare.path()).unwrap();
    assert_eq!(model.weights, self::model("gpt2").weights);
    let notes = model.notes.join("; ");
    assert!(
        notes.contains(
            "28 tensors have other names in the files: h.0.attn.c_attn.bias is transformer.h.0"
        ),
        "{notes}"
    );
    assert!(
        notes.contains(
            "2 tensors are no part of this graph and left out: h.0.attn.bias, lm_head.weight"
        ),
        "{notes}"
    );

    let task = copy("bert");
    let path = task.path().join("model.safetensors");
    let old = |name: String| {
        format!(
            "bert.{}",
            name.replace("LayerNorm.weight", "LayerNorm.gamma")
                .replace("LayerNorm.bias", "LayerNorm.beta")
        )
    };
    let mut tensors: Tensors = safetensors::read(&path)
        .unwrap()
        .into_iter()
        .map(|(name, tensor)| (old(name), tensor))
        .collect();
    tensors.insert("cls.predictions.bias".into(), Tensor::from_f32([2], &[0.0; 2]));
    safetensors::write(&path, &tensors).unwrap();
    let model = Pretrained::read(task.path()).unwrap();
    assert_eq!(model.weights, self::model("bert").weights);
    assert!(model.notes.join("; ").contains("left out: cls.predictions.bias"), "{:?}", model.notes);
}

#[test]
fn every_difference_between_weights_and_architecture_is_listed() {
    let place = copy("qwen2");
    let path = place.path().join("model.safetensors");
    let mut tensors = safetensors::read(&path).unwrap();
    tensors.remove("model.norm.weight");
    tensors.insert("model.extra".into(), Tensor::from_f32([3], &[0.0; 3]));
    safetensors::write(&path, &tensors).unwrap();
    edit(place.path(), "config.json", "\"intermediate_size\": 24", "\"intermediate_size\": 25");
    refused(
        place.path(),
        &[
            "model.safetensors: these are not the parameters of `llama`",
            "1 missing: model.norm.weight f32[16]",
            "1 unexpected: model.extra f32[3]",
            "6 of another type: model.layers.0.mlp.down_proj.weight expected f32[16, 25], found \
             f16[16, 24]",
        ],
    );
}

#[test]
fn shards_must_be_there_and_must_not_lead_out_of_the_folder() {
    let place = copy("llama");
    let index = "model.safetensors.index.json";
    fs::remove_file(place.path().join("model-00002-of-00002.safetensors")).unwrap();
    refused(
        place.path(),
        &["model-00002-of-00002.safetensors", "no such file", "fetch the whole folder again"],
    );
    for outside in
        ["../model-00002-of-00002.safetensors", "/etc/passwd", "a/b.safetensors", "..", "."]
    {
        let place = copy("llama");
        edit(place.path(), index, "model-00002-of-00002.safetensors", outside);
        refused(place.path(), &["weight_map.", "the plain name of a file in this folder", outside]);
    }
    let place = copy("llama");
    edit(place.path(), index, "model.norm.weight", "model.other.weight");
    refused(place.path(), &["model.other.weight", "as the index says"]);
    let place = copy("llama");
    edit(place.path(), index, "\"weight_map\"", "\"map\"");
    refused(place.path(), &["weight_map", "no such field"]);
    let place = copy("gpt2");
    fs::rename(place.path().join("model.safetensors"), place.path().join("pytorch_model.bin"))
        .unwrap();
    refused(place.path(), &["pytorch_model.bin", "expected a file of torch.save"]);
    fs::remove_file(place.path().join("pytorch_model.bin")).unwrap();
    refused(
        place.path(),
        &["expected model.safetensors", "pytorch_model.bin.index.json", "neither"],
    );
}

/// The same weights in files of `torch.save`, whole and in shards, and half of them in f64.
#[test]
fn weights_are_read_from_files_of_pytorch_too() {
    let same = |name: &str, original: &str| {
        let (model, original) = (model(name), self::model(original));
        for (name, tensor) in &original.weights {
            assert_eq!(model.weights[name].to_f32(), tensor.to_f32(), "{name}");
        }
        model.notes.join("; ")
    };
    assert!(same("pytorch", "sentence").contains("stored as f64 and rounded to f32"));
    let place = copy("pytorch_shards");
    same("pytorch_shards", "sentence");
    fs::remove_file(place.path().join("pytorch_model-00002-of-00002.bin")).unwrap();
    refused(place.path(), &["pytorch_model-00002-of-00002.bin", "no such file"]);
}

/// Files of older versions give the number of the first block with a window.
#[test]
fn windows_are_read_from_files_of_every_age() {
    let place = copy("qwen2_window");
    let text = fs::read_to_string(place.path().join("config.json")).unwrap();
    let (before, rest) = text.split_once("  \"layer_types\"").unwrap();
    let (_, after) = rest.split_once("],\n").unwrap();
    fs::write(place.path().join("config.json"), format!("{before}{after}")).unwrap();
    let (old, new) = (Pretrained::read(place.path()).unwrap(), model("qwen2_window"));
    assert_eq!(old.architecture, new.architecture);
}

#[test]
fn fields_that_are_wrong_are_named_with_what_was_expected() {
    let with = |name: &str, from: &str, to: &str, words: &[&str]| {
        let place = copy(name);
        edit(place.path(), "config.json", from, to);
        refused(place.path(), words);
    };
    let type_of = |name: &str| format!("\"model_type\": \"{name}\"");
    with(
        "gpt2",
        &type_of("gpt2"),
        &type_of("mamba"),
        &[
            "model_type",
            "one of bert, camembert, clip, distilbert, gemma, gemma2, gemma3_text, gpt2, llama",
            "`mamba`",
        ],
    );
    with(
        "gpt2",
        "\"n_embd\": 16",
        "\"n_embd\": -16",
        &["n_embd", "a whole number from 1", "`-16`"],
    );
    with("gpt2", "\"n_embd\": 16", "\"width\": 16", &["n_embd or hidden_size", "no such field"]);
    with("gpt2", "\"n_head\": 4", "\"n_head\": 3", &["n_head", "a divisor of the width 16"]);
    with("gpt2", "\"n_layer\": 2", "\"n_layer\": 100000", &["n_layer", "at most 1024"]);
    with("gpt2", "gelu_new", "mish", &["activation_function", "`mish`"]);
    with(
        "llama",
        "\"rope_type\": \"llama3\"",
        "\"rope_type\": \"dynamic\"",
        &["rope_parameters.rope_type", "default, linear, llama3, yarn or longrope"],
    );
    with(
        "llama",
        "\"num_key_value_heads\": 2",
        "\"num_key_value_heads\": 3",
        &["num_key_value_heads", "a divisor of the 4"],
    );
    with(
        "qwen3",
        "\"rms_norm_eps\": 1e-06",
        "\"rms_norm_eps\": \"small\"",
        &["rms_norm_eps", "a number above 0", "`\"small\"`"],
    );
    let layer = "\"sliding_attention\"";
    with(
        "qwen2_window",
        layer,
        "\"chunked_attention\"",
        &["layer_types", "full_attention or sliding", "`chunked_"],
    );
    with("qwen2_window", layer, "3", &["layer_types", "a list of strings"]);
    with("qwen2_window", "\"full_attention\",", "", &["layer_types", "2 of them", "found 1"]);
    let off = "\"use_sliding_window\": false";
    with(
        "qwen2_window",
        "\"use_sliding_window\": true",
        off,
        &["sliding_window", "layer_types asks for", "none"],
    );
    with(
        "gemma2",
        "\"use_cache\": true",
        "\"use_bidirectional_attention\": true",
        &["use_bidirectional_attention: expected false, found true"],
    );
    with(
        "llama",
        "\"factor\": 4.0",
        "\"partial_rotary_factor\": 0.5",
        &["rope_parameters.partial_rotary_factor: expected 1, found 0.5"],
    );
    with(
        "phi3",
        "\"partial_rotary_factor\": 0.75",
        "\"partial_rotary_factor\": 0.1",
        &["partial_rotary_factor: expected an even number of the 8 channels of a head"],
    );
    with("phi3", "1.7", "0", &["rope_parameters.short_factor: expected 3 numbers above 0"]);
    with(
        "mixtral",
        "\"num_experts_per_tok\": 2",
        "\"num_experts_per_tok\": 4",
        &["num_experts_per_tok: expected at most 3, found 4"],
    );
    with("mixtral", "\"num_local_experts\": 3", "\"num_local_experts\": 100000", &["at most 512"]);
    with("mixtral", "silu", "gelu", &["hidden_act: expected silu, which experts have"]);
    with(
        "phi",
        "\"num_key_value_heads\": 2",
        "\"num_key_value_heads\": 3",
        &["num_key_value_heads", "a divisor of the 4 query heads"],
    );
    with("vit", "\"patch_size\": 4", "\"patch_size\": 9", &["patch_size", "1 to 65536 patches"]);
    with("vit", "\"image_size\": 8", "\"image_size\": [8]", &["image_size", "or two", "`[8]`"]);
    with("vit", "\"0\": \"ant\"", "\"0\": 1", &["id2label.0", "the name of a class"]);
    with(
        "clip",
        "\"vision_config\": {",
        "\"text_config_dict\": {\"hidden_size\": 32}, \"vision_config\": {",
        &["text_config_dict: expected what text_config says of `hidden_size`: 16, found 32"],
    );
    with(
        "clip",
        "\"eos_token_id\": 269",
        "\"eos_token_id\": [1, 2]",
        &["eos_token_id: expected one"],
    );
    with(
        "whisper",
        "\"decoder_attention_heads\": 2",
        "\"decoder_attention_heads\": 3",
        &["divisor"],
    );
    with(
        "roberta",
        "\"pad_token_id\": 1",
        "\"pad_token_id\": 40",
        &["pad_token_id: expected one token"],
    );
    with("qwen3", "\"use_cache\": true", "\"pruned_heads\": {\"0\": [1]}", &["pruned_heads"]);
    with(
        "bert",
        "\"is_decoder\": false",
        "\"is_decoder\": true",
        &["is_decoder", "expected false"],
    );
    with("bert", "{", "[", &["config.json: the file: expected a JSON object"]);
    let empty = tempfile::tempdir().unwrap();
    assert!(!Pretrained::is_at(empty.path()));
    refused(empty.path(), &["config.json"]);
}

/// A field of unknown name may still change what a model computes, so a note names it.
#[test]
fn fields_that_are_not_known_are_named_in_a_note() {
    let folders = DECODERS.into_iter().chain(ENCODERS).chain(CLASSIFIERS).chain(OTHERS);
    for name in folders {
        let notes = model(name).notes.join("; ");
        assert!(!notes.contains("not known here"), "{name}: {notes}");
    }
    let place = copy("llama");
    let rope = "\"rope_parameters\": {";
    edit(
        place.path(),
        "config.json",
        rope,
        &format!("\"attention_gate\": 3, {rope} \"bend\": 0.5,"),
    );
    edit(place.path(), "config.json", "{", "{\"unused\": null,");
    let notes = Pretrained::read(place.path()).unwrap().notes.join("; ");
    let said =
        "config.json has fields that are not known here: attention_gate, rope_parameters.bend";
    assert!(notes.contains(said), "{notes}");
    assert!(!notes.contains("unused"), "{notes}");
    let notes = model("phi3").notes.join("; ");
    assert!(notes.contains("sequences of at most 48 tokens: longer ones, up to 64"), "{notes}");
    assert!(model("mixtral").notes.join("; ").contains("computes all 3 experts"));
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let place = copy("bert");
    fs::copy(folder("gpt2").join("tokenizer.json"), place.path().join("tokenizer.json")).unwrap();
    edit(place.path(), "tokenizer.json", "\"<|end|>\"", "\"<|other|>\"");
    Pretrained::read(place.path()).unwrap();
    edit(place.path(), "tokenizer.json", "\"Ġa\":", "\"Ġa\":9");
    refused(place.path(), &["tokenizer.json: vocabulary", "ids below 270", "another model"]);
    fs::write(place.path().join("tokenizer.json"), "{\"model\": 3}").unwrap();
    refused(place.path(), &["tokenizer.json: the file: expected a tokenizer"]);
}

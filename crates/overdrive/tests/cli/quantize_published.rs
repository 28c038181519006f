//! `quantize` of folders in Hugging Face's format: every layer has codes, the folder is complete,
//! and our commands take it.

use crate::invocation::{Folder, Outcome};
use overdrive::formats::{self, Tensors};
use overdrive::ir::{DType, Tensor};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A tiny random model, beside the tests that compare it with the framework that it came from.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

/// Calibrates a fixture on a text of its own and writes it to `small`.
#[track_caller]
pub(crate) fn quantize(folder: &Folder, model: &Path, arguments: &str) -> Outcome {
    let model = model.display().to_string();
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("words.txt"), text).unwrap();
    let words = ["quantize", &model].into_iter().chain(arguments.split_whitespace());
    let rest = "--device cpu --threads 1 --trials 5 --batches 2".split_whitespace();
    folder.overdrive(&words.chain(rest).collect::<Vec<_>>())
}

pub(crate) fn config(folder: &Folder, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.path(name).join("config.json")).unwrap())
        .unwrap()
}

pub(crate) fn states(folder: &Folder, name: &str) -> Tensors {
    formats::read(&folder.path(name).join("model.safetensors")).unwrap()
}

#[test]
fn every_architecture_takes_codes_in_every_layer_and_runs() {
    let decoders =
        [("llama", 14), ("qwen2", 14), ("qwen3", 14), ("gpt2", 8), ("phi", 12), ("phi_norms", 12)];
    let encoders = [("bert", 12), ("sentence", 12), ("roberta", 12), ("distilbert", 12)];
    let layers =
        decoders.map(|of| (of, "perplexity")).into_iter().chain(encoders.map(|of| (of, "cosine")));
    for (mode, ((name, count), measure)) in
        ["int8-dynamic", "int4-gptq"].into_iter().cycle().zip(layers)
    {
        let folder = Folder::new();
        let made =
            quantize(&folder, &fixture(name), &format!("--mode {mode} --data words.txt -o small"));
        made.ends(0, &[measure, "windows of held-out text", "is a model"]);
        let config = config(&folder, "small");
        assert_eq!(config["overdrive"]["layers"].as_object().unwrap().len(), count, "{name}");
        assert_eq!(config["quantization_config"]["quant_method"], "compressed-tensors", "{name}");
        assert!(folder.path("small/tokenizer.json").exists(), "{name}");
        // Another length than the one that was calibrated on.
        let ids = Tensor::from_ints(DType::I32, [2usize, 3], &[1, 2, 3, 4, 5, 6]);
        let mask = Tensor::from_ints(DType::I32, [2usize, 3], &[1; 6]);
        folder.tensors(
            "x.npz",
            &[("x", ids), ("mask", mask)][..if measure == "cosine" { 2 } else { 1 }],
        );
        folder.line("eval small --inputs x.npz --device cpu --threads 1").ends(0, &["f32[2"]);
        let said =
            folder.line("generate small --prompt hand --max-tokens 3 --device cpu --threads 1");
        if measure == "cosine" {
            said.ends(2, &["an encoder"])
        } else {
            said.ends(0, &["3 made"])
        };
        quantize(&folder, &folder.path("small"), "--mode fp8 --data words.txt -o again")
            .ends(2, &["is quantized already", mode]);
    }
}

/// Models of images and of sound: there is no text to calibrate on, and convolutions stay as they
/// are.
#[test]
fn models_that_read_more_than_text_take_codes_in_every_linear_layer() {
    let models = [
        ("vit", 13, "vit.embeddings.patch_embeddings.projection"),
        ("vit_hidden", 12, "vit.embeddings.patch_embeddings.projection"),
        ("clip", 26, "vision_model.embeddings.patch_embedding"),
        ("whisper", 32, "model/encoder/conv1"),
    ];
    let modes = ["int8-weights", "int8-dynamic", "int4-rtn", "int4-gptq"];
    for ((name, count, convolution), mode) in
        models.into_iter().flat_map(|of| modes.map(|mode| (of, mode)))
    {
        let folder = Folder::new();
        let made = quantize(&folder, &fixture(name), &format!("--mode {mode} -o small"));
        made.ends(0, &["cosine", "random inputs", "is a model"]);
        let said = format!("{}{}", made.stdout, made.stderr);
        assert!(said.contains("calibrated and judged on random inputs"), "{said}");
        assert!(said.contains(&format!("`{convolution}` stays")), "{said}");
        let config = config(&folder, "small");
        assert_eq!(config["overdrive"]["layers"].as_object().unwrap().len(), count, "{name}");
        assert_eq!(config["quantization_config"]["quant_method"], "compressed-tensors", "{name}");
        assert!(folder.path("small/preprocessor_config.json").exists(), "{name}");
        let given = fixture(name).join("expected.npz").display().to_string();
        folder
            .line(&format!("eval small --inputs {given} --device cpu --threads 1"))
            .ends(0, &["f32["]);
        quantize(&folder, &fixture(name), "--mode int8-weights --data words.txt -o other")
            .ends(2, &["takes more than text", "its inputs by name (.npz)"]);
    }
}

/// A layer stays as it is where its rows do not divide into the groups that the user asks for. It
/// is listed by its name in the files, and by that of `transformers` 5.
#[test]
fn modules_are_listed_by_the_names_of_both_ages() {
    let folder = Folder::new();
    quantize(&folder, &fixture("vit"), "--mode int4-rtn --group 16 -o small")
        .ends(0, &["`vit.encoder.layer.0.output.dense` stays", "is a model"]);
    let ignored = config(&folder, "small")["quantization_config"]["ignore"].clone();
    for module in [r"encoder\.layer\.0\.output\.dense$", r"layers\.0\.mlp\.fc2$"] {
        let name = |name: &&Value| name.as_str().unwrap() == format!(r"re:(.*\.)?{module}");
        assert_eq!(
            ignored.as_array().unwrap().iter().filter(name).count(),
            1,
            "{module} in {ignored}"
        );
    }
}

#[test]
fn models_that_read_more_than_text_are_measured_and_exported() {
    for name in ["vit", "clip", "whisper"] {
        let folder = Folder::new();
        let model = fixture(name).display().to_string();
        folder.line(&format!("export {model} --onnx m.onnx")).ends(0, &["as ONNX"]);
        let given = fixture(name).join("expected.npz").display().to_string();
        folder
            .line(&format!("eval {model} --inputs {given} --device cpu --threads 1"))
            .ends(0, &[]);
        folder
            .line(&format!("generate {model} --prompt hand --device cpu --threads 1"))
            .ends(2, &["reads no text alone"]);
    }
}

#[test]
fn every_mode_writes_what_it_reads() {
    // One of each layout of codes: bytes, packed, of floats, with two levels of scales. Weights are
    // in bf16 and in f32, and a square one could be either way up.
    let modes = [
        "int8-weights",
        "int8-static",
        "fp8",
        "fp8-tensor",
        "mxfp8",
        "mxint8",
        "mxfp6",
        "int4-rtn",
        "int4-hqq",
        "mxfp4",
        "nvfp4",
        "sparse24-magnitude",
    ];
    for (mode, name) in modes.into_iter().flat_map(|mode| [(mode, "llama"), (mode, "gpt2")]) {
        let folder = Folder::new();
        quantize(&folder, &fixture(name), &format!("--mode {mode} --data words.txt -o small"))
            .ends(0, &["perplexity", "is a model"]);
        let ids = Tensor::from_ints(DType::I32, [1usize, 3], &[1, 2, 3]);
        folder.tensors("x.npz", &[("x", ids)]);
        folder.line("eval small --inputs x.npz --device cpu --threads 1").ends(0, &["f32[1, 3"]);
    }
}

#[test]
fn a_published_model_is_rounded_towards_the_float_one() {
    let folder = Folder::new();
    quantize(&folder, &fixture("llama"), "--mode int4-gptaq --data words.txt -o small")
        .ends(0, &["perplexity", "is a model"]);
    let ids = Tensor::from_ints(DType::I32, [1usize, 3], &[1, 2, 3]);
    folder.tensors("x.npz", &[("x", ids)]);
    folder.line("eval small --inputs x.npz --device cpu --threads 1").ends(0, &["f32[1, 3"]);
}

#[test]
fn codes_of_transposed_weights_are_in_the_layout_of_the_original() {
    // Half of GPT-2's layers are square: nothing but the numbers tells which way up they are.
    let folder = Folder::new();
    quantize(&folder, &fixture("gpt2"), "--mode int8-weights --data words.txt -o small")
        .ends(0, &["is a model"]);
    let (small, float) = (
        states(&folder, "small"),
        formats::read(&fixture("gpt2").join("model.safetensors")).unwrap(),
    );
    let mut layers = 0;
    for (name, packed) in
        small.iter().filter_map(|(name, packed)| Some((name.strip_suffix("_packed")?, packed)))
    {
        let before = &float[name];
        let sizes = before.ty().sizes().iter().map(|size| *size as i128).collect::<Vec<_>>();
        assert_eq!(small[&format!("{name}_shape")].to_ints(), sizes, "{name}");
        let scale = small[&format!("{name}_scale")].to_f64();
        // Rows are whole i32: a code is a byte, plus 128.
        let codes = packed.bytes().iter().map(|byte| f64::from(*byte) - 128.0);
        let pairs = codes.zip(before.to_f64()).enumerate();
        for (i, (code, weight)) in pairs {
            let scale = scale[i % scale.len()];
            assert!(
                (code * scale - weight).abs() <= 0.51 * scale,
                "{name}[{i}]: {code} for {weight}"
            );
        }
        layers += 1;
    }
    assert_eq!(layers, 8);
}

#[test]
fn what_did_not_change_is_in_the_folder_as_it_was() {
    let folder = Folder::new();
    let made = quantize(&folder, &fixture("llama"), "--mode int4-rtn --data words.txt -o small");
    made.ends(0, &["`lm_head` stays in float", "--head"]);
    let file = states(&folder, "small");
    let ty = |name: &str| file[name].ty().to_string();
    assert_eq!(ty("model.embed_tokens.weight"), "bf16[270, 16]", "a 16-bit weight stays one");
    assert_eq!(ty("lm_head.weight"), "bf16[270, 16]");
    assert_eq!(ty("model.layers.0.mlp.down_proj.weight_packed"), "i32[16, 3]");
    let found = config(&folder, "small");
    assert_eq!(found["quantization_config"]["config_groups"]["group_0"]["targets"][0], "Linear");
    assert_eq!(found["quantization_config"]["ignore"][0], "lm_head");
    let before: Value =
        serde_json::from_str(&fs::read_to_string(fixture("llama").join("config.json")).unwrap())
            .unwrap();
    for (field, value) in before.as_object().unwrap() {
        assert_eq!(&found[field], value, "{field}");
    }
    let generation = "generation_config.json";
    let bytes = |path: PathBuf| fs::read(path).unwrap();
    assert_eq!(
        bytes(folder.path("small").join(generation)),
        bytes(fixture("llama").join(generation))
    );
}

#[test]
fn a_head_is_quantized_when_asked_for_even_one_that_shares_the_embedding() {
    let folder = Folder::new();
    let made =
        quantize(&folder, &fixture("gpt2"), "--mode int8-weights --data words.txt --head -o small");
    made.ends(0, &["Conv1D", "is a model"]);
    let (file, config) = (states(&folder, "small"), config(&folder, "small"));
    assert_eq!(file["lm_head.weight_packed"].ty().to_string(), "i32[270, 4]");
    assert_eq!(file["transformer.wte.weight"].ty().to_string(), "f32[270, 16]");
    assert_eq!(config["tie_word_embeddings"], false);
    // Conv1D has its weight as [in, out], and so have its codes.
    assert_eq!(file["transformer.h.0.attn.c_attn.weight_packed"].ty().to_string(), "i32[16, 12]");
    assert_eq!(file["transformer.h.0.attn.c_attn.weight_scale"].ty().to_string(), "f32[1, 48]");
    let group = &config["quantization_config"];
    assert_eq!(group["dequantize"], true, "{group}");
    folder
        .line("generate small --prompt hand --max-tokens 3 --device cpu --threads 1")
        .ends(0, &["3 made"]);
}

#[test]
fn a_task_that_does_not_fit_is_refused_with_what_would() {
    let folder = Folder::new();
    fs::write(folder.path("rows.csv"), "1,2,0\n3,4,1\n").unwrap();
    fs::write(folder.path("bytes.txt"), [0xff, 0xfe, 0x00]).unwrap();
    let refused = |model: &str, rest: &str, words: &[&str]| {
        quantize(&folder, &fixture(model), &format!("--mode int8-dynamic {rest} -o none"))
            .ends(2, words);
    };
    refused("llama", "--data rows.csv", &["`llama` reads text", "labelled samples"]);
    refused("llama", "--data digits", &["`llama` reads text"]);
    refused("llama", "--data bytes.txt", &["UTF-8"]);
    refused("llama", "--data nowhere.txt", &["nowhere.txt"]);
    refused("bert", "--data words.txt --metric perplexity", &["cosine"]);
    assert!(!folder.path("none").exists());
}

#[test]
fn a_model_of_the_user_is_not_written_over() {
    let folder = Folder::new();
    let before = fs::read(fixture("llama").join("config.json")).unwrap();
    fs::create_dir(folder.path("own")).unwrap();
    fs::write(folder.path("own/config.json"), &before).unwrap();
    fs::write(folder.path("own/model.safetensors"), b"weights").unwrap();
    let made =
        quantize(&folder, &fixture("llama"), "--mode int8-dynamic --data words.txt --force -o own");
    made.ends(2, &["own", "holds what Overdrive did not write"]);
    assert_eq!(fs::read(folder.path("own/config.json")).unwrap(), before);
    let again = |force: &str| {
        let arguments = format!("--mode int8-dynamic --data words.txt -o small {force}");
        quantize(&folder, &fixture("llama"), &arguments)
    };
    again("").ends(0, &[]);
    again("").ends(2, &["small", "--force"]);
    // Files written here may be overwritten if the user says so.
    again("--force").ends(0, &[]);
    let listed = fs::read_to_string(folder.path("small/overdrive-files.json")).unwrap();
    assert!(listed.contains("in Hugging Face's format"), "{listed}");
    assert!(listed.contains("tokenizer.json") && listed.contains("model.safetensors"), "{listed}");
}

#[test]
fn factors_go_into_norms_and_gated_layers() {
    let folder = Folder::new();
    for mode in ["int8-smooth", "int4-awq"] {
        let made = quantize(
            &folder,
            &fixture("qwen3"),
            &format!("--mode {mode} --data words.txt -o {mode}"),
        );
        made.ends(0, &["`model.layers.0.self_attn.o_proj`", "rounded as it was", "is a model"]);
        assert!(
            !made.stdout.contains("q_proj") && !made.stdout.contains("down_proj"),
            "{}",
            made.stdout
        );
        let before = formats::read(&fixture("qwen3").join("model.safetensors")).unwrap();
        let name = "model.layers.0.input_layernorm.weight";
        assert_ne!(states(&folder, mode)[name].to_f64(), before[name].to_f64(), "{mode}");
        assert!(!states(&folder, mode).keys().any(|name| name.contains("multiplier")));
    }
}

#[test]
fn pruned_weights_keep_their_zeros() {
    let folder = Folder::new();
    let made =
        quantize(&folder, &fixture("mistral"), "--mode sparse24-wanda --data words.txt -o small");
    made.ends(0, &["is a model"]);
    let down = states(&folder, "small")["model.layers.1.mlp.down_proj.weight"].clone();
    assert_eq!(down.ty().to_string(), "bf16[16, 24]");
    assert!(down.to_f64().chunks(4).all(|four| four.iter().filter(|w| **w == 0.0).count() >= 2));
    let head = states(&folder, "small")["lm_head.weight"].to_f64();
    assert!(
        head.iter().filter(|w| **w == 0.0).count() < head.len() / 4,
        "the head is left as it is"
    );
}

#[test]
fn a_mode_that_only_we_read_says_so() {
    let folder = Folder::new();
    let made = quantize(&folder, &fixture("qwen2"), "--mode int4-hqq --data words.txt -o small");
    made.ends(0, &["no words for mode `int4-hqq`", "is a model"]);
    assert_eq!(config(&folder, "small")["quantization_config"]["quant_method"], "overdrive");
    folder
        .line("generate small --prompt hand --max-tokens 3 --device cpu --threads 1")
        .ends(0, &["3 made"]);
}

#[test]
fn a_search_mixes_modes_layer_by_layer_and_leaves_the_head() {
    let folder = Folder::new();
    for name in ["llama", "gpt2"] {
        let arguments =
            "--search --data words.txt --max-loss 20 --max-slowdown 1000 -o small --force";
        let made = quantize(&folder, &fixture(name), arguments);
        made.ends(0, &["taken:", "perplexity", "is a model"]);
        assert!(!made.stdout.lines().any(|line| line.trim().starts_with("lm_head")), "{made:?}");
        let config = config(&folder, "small");
        let layers = config["overdrive"]["layers"].as_object().unwrap();
        assert!(!layers.is_empty() && !layers.contains_key("lm_head"), "{name}: {layers:?}");
        assert_eq!(config["overdrive"]["mode"], "search of int8-dynamic, int4-gptq");
        folder
            .line("generate small --prompt hand --max-tokens 3 --device cpu --threads 1")
            .ends(0, &["3 made"]);
    }
}

#[test]
fn a_mode_that_learns_goes_on_from_the_weights_with_text() {
    let folder = Folder::new();
    for name in ["llama", "gpt2"] {
        let arguments = "--mode qat-int4 --steps 6 --data words.txt -o small --force";
        let made = quantize(&folder, &fixture(name), arguments);
        made.ends(0, &["trained as long", "perplexity", "is a model"]);
        let config = config(&folder, "small");
        assert_eq!(config["quantization_config"]["quant_method"], "compressed-tensors", "{name}");
        assert_eq!(config["overdrive"]["mode"], "qat-int4");
        // Weights without codes keep the type of the folder.
        let (states, norm) = (
            states(&folder, "small"),
            if name == "llama" { "model.norm" } else { "transformer.ln_f" },
        );
        let expected = if name == "llama" { DType::BF16 } else { DType::F32 };
        assert_eq!(states[&format!("{norm}.weight")].ty().dtype, expected, "{name}");
        folder
            .line("generate small --prompt hand --max-tokens 3 --device cpu --threads 1")
            .ends(0, &["3 made"]);
    }
}

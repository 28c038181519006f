//! Modes that rotate the inputs of layers, for models that users bring. Folders in Hugging Face's
//! format say it in the words of compressed-tensors. Files of ONNX have nodes for it.

use crate::invocation::Folder;
use crate::quantize_published::{config, fixture, quantize, states};
use overdrive::files::MANIFEST;
use overdrive::ir::eval::philox;
use overdrive::ir::ops::Hadamard;
use overdrive::ir::{DType, Tensor};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const WIDTH: usize = 64;
const INNER: usize = 96;
const WORDS: usize = 270;

fn normals(seed: u64, shape: &[usize]) -> Tensor {
    let values = philox::normals(seed, 0).take(shape.iter().product());
    Tensor::from_f64(DType::F32, shape.to_vec(), &values.map(|x| x / 8.0).collect::<Vec<_>>())
}

/// A Llama of one block, wide enough for blocks of 32.
fn llama(folder: &Folder) -> PathBuf {
    let at = folder.path("llama");
    fs::create_dir(&at).unwrap();
    let original = fixture("llama");
    fs::copy(original.join("tokenizer.json"), at.join("tokenizer.json")).unwrap();
    let text = fs::read_to_string(original.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (field, size) in [
        ("hidden_size", WIDTH),
        ("intermediate_size", INNER),
        ("head_dim", 16),
        ("num_hidden_layers", 1),
    ] {
        config[field] = size.into();
    }
    fs::write(at.join("config.json"), config.to_string()).unwrap();
    let block = |part: &str| format!("model.layers.0.{part}.weight");
    let matrix = |part: &str, shape: [usize; 2]| (block(part), shape.to_vec());
    let sizes = [
        ("model.embed_tokens.weight".to_owned(), vec![WORDS, WIDTH]),
        ("lm_head.weight".to_owned(), vec![WORDS, WIDTH]),
        matrix("self_attn.q_proj", [WIDTH, WIDTH]),
        matrix("self_attn.k_proj", [WIDTH / 2, WIDTH]),
        matrix("self_attn.v_proj", [WIDTH / 2, WIDTH]),
        matrix("self_attn.o_proj", [WIDTH, WIDTH]),
        matrix("mlp.gate_proj", [INNER, WIDTH]),
        matrix("mlp.up_proj", [INNER, WIDTH]),
        matrix("mlp.down_proj", [WIDTH, INNER]),
    ];
    let mut tensors: Vec<(String, Tensor)> =
        (1..).zip(sizes).map(|(seed, (name, shape))| (name, normals(seed, &shape))).collect();
    let norms = ["input_layernorm", "post_attention_layernorm"].map(block);
    for norm in norms.into_iter().chain(["model.norm.weight".to_owned()]) {
        tensors.push((norm, Tensor::from_f32([WIDTH], &[1.0; WIDTH])));
    }
    let named: Vec<(&str, Tensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    folder.tensors("llama/model.safetensors", &named);
    at
}

/// The transform of every linear layer but the head, in the words of compressed-tensors.
fn transform(block: usize) -> Value {
    let at = |location: &str, inverse: bool| {
        json!({
            "targets": ["Linear"], "location": location, "inverse": inverse, "ignore": ["lm_head"],
        })
    };
    json!({
        "type": "hadamard", "apply": [at("input", false), at("weight_input", true)],
        "randomize": false, "requires_grad": false, "head_dim": block,
        "precision": "torch.float32",
    })
}

/// `quantize` errs unless the folder, read back, gives the outputs that it has judged.
#[test]
fn a_folder_says_its_rotations_and_is_the_model_that_was_judged() {
    let folder = Folder::new();
    let model = llama(&folder);
    folder.tensors("x.npz", &[("x", Tensor::from_ints(DType::I32, [1usize, 3], &[1, 2, 3]))]);
    for (mode, codes) in [("mxfp4", "u8[64, 48]"), ("nvfp4", "u8[64, 48]")] {
        let arguments = format!("--mode {mode}-rotated --data words.txt -o {mode}");
        quantize(&folder, &model, &arguments)
            .ends(0, &["perplexity", "leaves out the rotation", "is a model"]);
        let (found, file) = (config(&folder, mode), states(&folder, mode));
        let words = &found["quantization_config"];
        let expected = json!({ "config_groups": { "hadamard_32": transform(32) } });
        assert_eq!(words["transform_config"], expected, "{mode}");
        assert_eq!(words["format"], format!("{mode}-pack-quantized"));
        let layers = found["overdrive"]["layers"].as_object().unwrap();
        assert_eq!(layers.len(), 7, "{mode}");
        assert!(layers.values().all(|scheme| scheme["rotation"] == 32), "{mode}: {layers:?}");
        let down = "model.layers.0.mlp.down_proj.weight_packed";
        assert_eq!(file[down].ty().to_string(), codes, "{mode}");
        // The matrix is known, and no tensor.
        assert!(file.keys().all(|name| !name.contains("hadamard")), "{mode}");
        let generated = format!("generate {mode} --prompt hand --max-tokens 3 --device cpu");
        folder.line(&generated).ends(0, &["3 made"]);
        folder.line(&format!("eval {mode} --inputs x.npz --device cpu")).ends(0, &["f32[1, 3"]);
    }
    // The layout of Model Optimizer has no word for it.
    let exported = "--mode nvfp4-rotated --export modelopt --data words.txt -o none";
    quantize(&folder, &model, exported).ends(2, &["nvfp4-gptq", "found `nvfp4-rotated`"]);
}

/// Widths of 16 and 24: blocks of 16, and layers without codes. Then layers are named one by one.
#[test]
fn blocks_are_as_large_as_the_inputs_of_a_layer_allow() {
    let folder = Folder::new();
    let arguments = "--mode nvfp4-rotated --data words.txt -o small";
    quantize(&folder, &fixture("llama"), arguments)
        .ends(0, &["rotated in blocks of 16: 32 do not divide its 16 inputs", "is a model"]);
    let words = config(&folder, "small")["quantization_config"].clone();
    let mut expected = transform(16);
    for at in expected["apply"].as_array_mut().unwrap() {
        at["ignore"] = words["ignore"].clone();
    }
    let groups = &words["transform_config"]["config_groups"];
    assert_eq!(*groups, json!({ "hadamard_16": expected }));
    // GPT-2's layers have no words in FP4, and so none for their rotations.
    quantize(&folder, &fixture("gpt2"), "--mode nvfp4-rotated --data words.txt -o own")
        .ends(0, &["compressed-tensors has no words for mode `nvfp4-rotated`", "is a model"]);
    let words = config(&folder, "own");
    assert_eq!(words["quantization_config"].get("transform_config"), None);
    folder.line("generate own --prompt hand --max-tokens 3 --device cpu").ends(0, &["3 made"]);
}

#[test]
fn words_about_a_rotation_that_are_not_those_of_the_codes_are_refused_by_name() {
    let folder = Folder::new();
    let model = llama(&folder);
    quantize(&folder, &model, "--mode mxfp4-rotated --data words.txt -o small").ends(0, &[]);
    quantize(&folder, &model, "--mode mxfp4 --data words.txt -o plain").ends(0, &[]);
    for place in ["small", "plain"] {
        fs::remove_file(folder.path(place).join(MANIFEST)).unwrap();
    }
    let written = config(&folder, "small");
    let refused = |place: &str, words: &Value, said: &[&str]| {
        fs::write(folder.path(place).join("config.json"), words.to_string()).unwrap();
        let line = format!("generate {place} --prompt hand --max-tokens 3 --device cpu");
        folder.line(&line).ends(2, said);
    };
    let pointer = "/quantization_config/transform_config/config_groups/hadamard_32";
    let field = "quantization_config.transform_config.config_groups.hadamard_32";
    for (part, value, path, expected) in [
        ("/type", json!("random-hadamard"), ".type", "\"hadamard\""),
        ("/head_dim", json!(64), ".head_dim", "32"),
        ("/randomize", json!(true), ".randomize", "false"),
        ("/apply/0/location", json!("output"), ".apply[0].location", "\"input\""),
        ("/apply/1/targets/0", json!("Embedding"), ".apply[1].targets[0]", "\"Linear\""),
    ] {
        let mut words = written.clone();
        *words.pointer_mut(&format!("{pointer}{part}")).unwrap() = value.clone();
        let said = format!("{field}{path}: expected {expected}, as `overdrive` says");
        refused("small", &words, &[&said, &format!("found {value}"), "quantize the model again"]);
    }
    let mut words = written.clone();
    words["quantization_config"].as_object_mut().unwrap().remove("transform_config");
    refused("small", &words, &["quantization_config.transform_config: expected {", "found null"]);
    let mut words = config(&folder, "plain");
    assert_eq!(words["quantization_config"].get("transform_config"), None);
    words["quantization_config"]["transform_config"] =
        written["quantization_config"]["transform_config"].clone();
    refused("plain", &words, &["transform_config: expected null", "hadamard_32"]);
}

#[test]
fn a_search_tries_rotations_of_a_folder() {
    let folder = Folder::new();
    let model = llama(&folder);
    let asked = "--device cpu --threads 1 --target size --minutes 0 --max-loss 1 -o out";
    folder.line(&format!("optimize {} {asked}", model.display())).ends_in(&[0, 1, 4, 5], &[]);
    let text = fs::read_to_string(folder.path("out/decision.json")).unwrap();
    let decision: Value = serde_json::from_str(&text).unwrap();
    let rungs = decision["record"]["rungs"].as_array().unwrap();
    for mode in ["mxfp4-rotated", "nvfp4-rotated"] {
        let rung = rungs.iter().find(|rung| rung["mode"] == mode).unwrap();
        assert!(rung["format"].as_str().unwrap().ends_with(", inputs rotated"), "{rung}");
        assert_eq!(rung["mixes"], true, "a layer can be rotated alone");
    }
}

#[test]
fn a_file_of_onnx_rotates_by_one_matrix_before_each_layer() {
    let folder = Folder::new();
    folder.line("export digits-mlp --onnx model.onnx").ends(0, &[]);
    let rest = "--device cpu --threads 1 --trials 5 --batches 2";
    folder.tensors("samples.npz", &[("x", normals(7, &[64, 64]))]);
    for mode in ["mxfp4-rotated", "nvfp4-rotated"] {
        let line = format!("quantize model.onnx --mode {mode} --data samples.npz {rest} --force");
        folder.line(&format!("{line} -o small.onnx")).ends(0, &["any batch", "the file"]);
        let file = fs::read(folder.path("small.onnx")).unwrap();
        let (matrix, size) = (matrix(), 4 * 32 * 32);
        let count = file.windows(size).filter(|bytes| *bytes == matrix.bytes()).count();
        assert_eq!(count, 1, "{mode}: three layers share the matrix");
        // A folder of the same samples holds the same model.
        folder.line(&format!("{line} -o small")).ends(0, &["is a model"]);
        folder.tensors("x.npz", &[("x", normals(3, &[8, 64]))]);
        let eval = "eval small --device cpu --inputs x.npz -o y.npz --force";
        folder.line(eval).ends(0, &[]);
        let eval = "eval small.onnx --device cpu --inputs x.npz --expect y.npz";
        folder.line(&format!("{eval} --rtol 1e-3 --atol 1e-4")).ends(0, &["agrees"]);
    }
}

/// The matrix of blocks of 32.
fn matrix() -> Tensor {
    Tensor::from_f64(DType::F32, [32usize, 32], &Hadamard { block: 32 }.matrix())
}

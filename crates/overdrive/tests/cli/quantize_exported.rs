//! `quantize --export gptq`, `awq` and `modelopt`: the codes of a mode in other layouts, and our
//! commands take them, whoever wrote them.

use crate::invocation::Folder;
use crate::quantize_published::{config, fixture, quantize, states};
use overdrive::files::MANIFEST;
use overdrive::formats::Tensors;
use overdrive::ir::{DType, Tensor};
use std::fs;

/// Code `i` of a row of words, the lowest bits first.
fn code(tensor: &Tensor, at: usize) -> u8 {
    tensor.bytes()[at / 2] >> (4 * (at % 2)) & 15
}

/// Codes `[N, K]` of a layer as compressed-tensors, GPTQ or AWQ has them.
fn codes(file: &Tensors, layer: &str) -> Vec<u8> {
    if let Some(packed) = file.get(&format!("{layer}.weight_packed")) {
        return (0..packed.ty().elements() * 8).map(|at| code(packed, at)).collect();
    }
    let words = &file[&format!("{layer}.qweight")];
    let [rows, columns] = [words.ty().sizes()[0], words.ty().sizes()[1]];
    let is_gptq = file.contains_key(&format!("{layer}.g_idx"));
    let [n, k] = if is_gptq { [columns, rows * 8] } else { [columns * 8, rows] };
    // The place of column `i` of eight in a word of AWQ.
    const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    let of = |row: usize, column: usize| match is_gptq {
        true => code(words, (column / 8 * n + row) * 8 + column % 8),
        false => code(words, column * n + row / 8 * 8 + PLACES[row % 8]),
    };
    (0..n * k).map(|at| of(at / k, at % k)).collect()
}

#[test]
fn exported_codes_are_those_of_the_mode() {
    let folder = Folder::new();
    let arguments = |export: &str, place: &str| {
        format!("--mode int4-gptq --group 8 --data words.txt {export} -o {place}")
    };
    quantize(&folder, &fixture("llama"), &arguments("", "plain")).ends(0, &["is a model"]);
    let (plain, layer) = (states(&folder, "plain"), "model.layers.1.mlp.down_proj");
    for (name, qweight) in [("gptq", "i32[3, 16]"), ("awq", "i32[24, 2]")] {
        let made =
            quantize(&folder, &fixture("llama"), &arguments(&format!("--export {name}"), name));
        made.ends(0, &["perplexity", "groups of 8: vLLM takes", "is a model"]);
        let file = states(&folder, name);
        let ty = |part: &str| file[&format!("{layer}.{part}")].ty().to_string();
        assert_eq!([ty("qweight"), ty("qzeros")], [qweight, "i32[3, 2]"], "{name}");
        assert_eq!(ty("scales"), "f16[3, 16]");
        assert_eq!(file["lm_head.weight"].ty().to_string(), "bf16[270, 16]");
        let layers = plain.keys().filter_map(|name| name.strip_suffix(".weight_packed"));
        let layers: Vec<&str> = layers.collect();
        assert_eq!(layers.len(), 14);
        for layer in layers {
            assert_eq!(codes(&file, layer), codes(&plain, layer), "{name}: {layer}");
        }
        let zero = if name == "gptq" { 0x77 } else { 0x88 };
        let zeros = file[&format!("{layer}.qzeros")].bytes();
        assert!(zeros.iter().all(|byte| *byte == zero), "{name}: {zeros:?}");
        let words = config(&folder, name)["quantization_config"].clone();
        assert_eq!(words["quant_method"], name);
        assert_eq!(words["group_size"], 8);
        folder
            .line(&format!("generate {name} --prompt hand --max-tokens 3 --device cpu --threads 1"))
            .ends(0, &["3 made"]);
    }
}

/// Codes of NVFP4 in both dialects: the same bytes, and a scale that multiplies or divides.
#[test]
fn nvfp4_of_modelopt_has_the_codes_of_the_mode() {
    let folder = Folder::new();
    let arguments =
        |export: &str, place: &str| format!("--mode nvfp4 --data words.txt {export} -o {place}");
    quantize(&folder, &fixture("llama"), &arguments("", "plain")).ends(0, &["is a model"]);
    let made = quantize(&folder, &fixture("llama"), &arguments("--export modelopt", "modelopt"));
    made.ends(0, &["perplexity", "is a model"]);
    let [plain, file] = ["plain", "modelopt"].map(|name| states(&folder, name));
    let layers = plain.keys().filter_map(|name| name.strip_suffix(".weight_packed"));
    let layers: Vec<&str> = layers.collect();
    // The inputs of down_proj are no multiple of a block.
    assert_eq!(layers.len(), 12);
    let whole = |layer: &str| file[&format!("{layer}.weight_scale_2")].to_f32()[0];
    let own = |layer: &str| 1.0 / plain[&format!("{layer}.weight_global_scale")].to_f32()[0];
    for layer in &layers {
        let codes = &file[&format!("{layer}.weight")];
        assert_eq!(codes.ty().dtype, DType::U8, "{layer}");
        let packed = &plain[&format!("{layer}.weight_packed")];
        assert_eq!(codes.bytes(), packed.bytes(), "{layer}");
        let scales = &file[&format!("{layer}.weight_scale")];
        let before = &plain[&format!("{layer}.weight_scale")];
        assert_eq!(scales.ty(), before.ty(), "{layer}");
        if own(layer) == whole(layer) {
            assert_eq!(scales, before, "{layer}");
        }
    }
    // Layers that engines join have the largest scale of them.
    for joined in [&["q_proj", "k_proj", "v_proj"][..], &["gate_proj", "up_proj"]] {
        let block = if joined.len() == 3 { "self_attn" } else { "mlp" };
        let names = joined.iter().map(|name| format!("model.layers.1.{block}.{name}"));
        let names: Vec<String> = names.collect();
        let largest = names.iter().map(|name| own(name)).fold(0.0, f32::max);
        assert!(names.iter().all(|name| whole(name) == largest), "{joined:?}");
    }
    let words = config(&folder, "modelopt")["quantization_config"].clone();
    assert_eq!(words["quant_method"], "modelopt");
    assert_eq!(words["quant_algo"], "W4A16_NVFP4");
    let ignored = ["lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"];
    assert_eq!(words["ignore"], serde_json::json!(ignored));
    let beside = fs::read_to_string(folder.path("modelopt/hf_quant_config.json")).unwrap();
    let beside: serde_json::Value = serde_json::from_str(&beside).unwrap();
    assert_eq!(beside["quantization"]["quant_algo"], "W4A16_NVFP4");
    assert_eq!(beside["quantization"]["exclude_modules"], words["ignore"]);
    let line = "generate modelopt --prompt hand --max-tokens 3 --device cpu --threads 1";
    folder.line(line).ends(0, &["3 made"]);
    // A folder of Model Optimizer itself: no words of ours, and activations that engines round.
    let ids = Tensor::from_ints(DType::I32, [1usize, 3], &[1, 2, 3]);
    folder.tensors("x.npz", &[("x", ids)]);
    let line = "eval modelopt --inputs x.npz --device cpu --threads 1";
    let before = folder.line(line);
    fs::remove_file(folder.path("modelopt").join(MANIFEST)).unwrap();
    let mut config = config(&folder, "modelopt");
    config.as_object_mut().unwrap().remove("overdrive");
    config["quantization_config"]["quant_algo"] = "NVFP4".into();
    fs::write(folder.path("modelopt/config.json"), config.to_string()).unwrap();
    let after = folder.line(line);
    after.ends(0, &["12 layers have codes: modelopt", "activations and the cache stay in float"]);
    assert_eq!(after.stdout, before.stdout);
    config["quantization_config"]["quant_algo"] = "FP8".into();
    fs::write(folder.path("modelopt/config.json"), config.to_string()).unwrap();
    folder.line(line).ends(2, &["quant_algo", "W4A16_NVFP4 or NVFP4", "FP8"]);
    // An older folder has its words in the file beside config.json alone.
    config.as_object_mut().unwrap().remove("quantization_config");
    fs::write(folder.path("modelopt/config.json"), config.to_string()).unwrap();
    let older = folder.line(line);
    older.ends(0, &["12 layers have codes: modelopt"]);
    assert_eq!(older.stdout, before.stdout);
}

/// Folders of other programs have no words of ours.
#[test]
fn a_folder_without_our_words_is_the_same_model() {
    let folder = Folder::new();
    let ids = Tensor::from_ints(DType::I32, [1usize, 3], &[1, 2, 3]);
    folder.tensors("x.npz", &[("x", ids)]);
    for (name, model) in [("gptq", "qwen3"), ("awq", "qwen2")] {
        let rest = format!("--mode int4-awq --group 8 --export {name} --data words.txt -o {name}");
        quantize(&folder, &fixture(model), &rest).ends(0, &["is a model"]);
        let line = format!("eval {name} --inputs x.npz --device cpu --threads 1");
        let before = folder.line(&line);
        before.ends(0, &["f32[1, 3"]);
        fs::remove_file(folder.path(name).join(MANIFEST)).unwrap();
        let mut words = config(&folder, name);
        words.as_object_mut().unwrap().remove("overdrive");
        fs::write(folder.path(name).join("config.json"), words.to_string()).unwrap();
        let after = folder.line(&line);
        after.ends(0, &[&format!("14 layers have codes: {name}")]);
        assert_eq!(after.stdout, before.stdout, "{name}");
        // Ours must say the same as the tensors.
        words["overdrive"] = serde_json::json!({ "mode": "int4-rtn", "layers": {} });
        fs::write(folder.path(name).join("config.json"), words.to_string()).unwrap();
        folder.line(&line).ends(2, &["overdrive: expected the layers whose tensors"]);
    }
}

#[test]
fn codes_that_no_reader_expects_are_refused_before_anything_is_written() {
    let folder = Folder::new();
    let refused = |model: &str, rest: &str, words: &[&str]| {
        quantize(&folder, &fixture(model), &format!("--data words.txt {rest} -o none"))
            .ends(2, words);
    };
    let mode = "--mode int4-rtn --export";
    refused("llama", "--mode int8-dynamic --export gptq", &["int4-rtn", "found `int8-dynamic`"]);
    refused("llama", "--mode int4-hqq --export awq", &["int4-gptq", "found `int4-hqq`"]);
    refused("llama", &format!("{mode} gptq"), &["group_size", "groups of 16, 24", "--group"]);
    refused("llama", &format!("{mode} gptq --group 16"), &["down_proj", "float weights"]);
    refused("llama", &format!("{mode} awq --group 8 --head"), &["lm_head", "in float"]);
    refused("llama", &format!("{mode} modelopt"), &["nvfp4-gptq", "found `int4-rtn`"]);
    refused("gpt2", "--mode nvfp4 --export modelopt", &["model_type", "found \"gpt2\""]);
    refused("llama", "--mode nvfp4 --group 8 --export modelopt", &["blocks of 16", "--export"]);
    refused("gpt2", &format!("{mode} gptq"), &["model_type", "found \"gpt2\""]);
    refused("mixtral", &format!("{mode} awq"), &["without experts", "mixtral"]);
    assert!(!folder.path("none").exists());
    folder
        .line("quantize digits-mlp --mode int4-rtn --export gptq -o none --device cpu")
        .ends(2, &["expected a model in Hugging Face's format"]);
    quantize(&folder, &fixture("llama"), "--mode int4-rtn --export gptq -o m.onnx")
        .ends(2, &["expected a folder, -o DIR", "m.onnx"]);
}

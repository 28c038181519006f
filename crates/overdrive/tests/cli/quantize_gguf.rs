//! `quantize -o NAME.gguf`: a file that is judged as it was read back, and that our commands take.

use crate::invocation::Folder;
use crate::quantize_published::{fixture, quantize};
use overdrive::formats::gguf;
use overdrive::ir::Tensor;
use serde_json::Value;
use std::fs;

/// A Llama wide enough for blocks of 256, with the tokenizer of the fixture.
fn wide(folder: &Folder) {
    let (width, hidden, heads, vocabulary) = (256usize, 512usize, 4usize, 270usize);
    let mut seed = 1u64;
    let mut random = |sizes: &[usize], scale: f32| {
        let numbers = (0..sizes.iter().product()).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        });
        Tensor::from_f32(sizes.to_vec(), &numbers.collect::<Vec<f32>>())
    };
    let ones = || Tensor::from_f32([width], &vec![1.0; width]);
    let block = "model.layers.0";
    let named = [
        ("model.embed_tokens.weight".to_owned(), random(&[vocabulary, width], 1.0)),
        ("model.norm.weight".to_owned(), ones()),
        ("lm_head.weight".to_owned(), random(&[vocabulary, width], 0.1)),
        (format!("{block}.input_layernorm.weight"), ones()),
        (format!("{block}.post_attention_layernorm.weight"), ones()),
        (format!("{block}.self_attn.q_proj.weight"), random(&[width, width], 0.1)),
        (format!("{block}.self_attn.k_proj.weight"), random(&[width, width], 0.1)),
        (format!("{block}.self_attn.v_proj.weight"), random(&[width, width], 0.1)),
        (format!("{block}.self_attn.o_proj.weight"), random(&[width, width], 0.1)),
        (format!("{block}.mlp.gate_proj.weight"), random(&[hidden, width], 0.1)),
        (format!("{block}.mlp.up_proj.weight"), random(&[hidden, width], 0.1)),
        (format!("{block}.mlp.down_proj.weight"), random(&[width, hidden], 0.1)),
    ];
    fs::create_dir(folder.path("wide")).unwrap();
    let named: Vec<(&str, Tensor)> =
        named.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    folder.tensors("wide/model.safetensors", &named);
    let text = fs::read_to_string(fixture("llama").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (field, value) in [
        ("hidden_size", width),
        ("intermediate_size", hidden),
        ("num_hidden_layers", 1),
        ("num_attention_heads", heads),
        ("num_key_value_heads", heads),
        ("head_dim", width / heads),
    ] {
        config[field] = value.into();
    }
    fs::write(folder.path("wide/config.json"), config.to_string()).unwrap();
    let tokenizer = "tokenizer.json";
    fs::copy(fixture("llama").join(tokenizer), folder.path("wide").join(tokenizer)).unwrap();
}

#[test]
fn every_type_is_written_judged_and_read() {
    let folder = Folder::new();
    wide(&folder);
    let model = folder.path("wide");
    // Bits of a weight, with the wider output layer of K formats.
    for (mode, least, most) in [
        ("f16", 15.9, 16.6),
        ("q8_0", 8.4, 9.0),
        ("q6_k", 6.5, 7.1),
        ("q5_k", 5.5, 6.2),
        ("q4_k", 4.5, 5.3),
    ] {
        let made =
            quantize(&folder, &model, &format!("--mode {mode} --data words.txt -o {mode}.gguf"));
        made.ends(0, &["perplexity", "cosine", "bits a weight", "is a model"]);
        let said = made.stdout.lines().find(|line| line.contains("bits a weight")).unwrap();
        let bits = said.split(" bits a weight").next().and_then(|text| text.split(' ').next_back());
        let bits: f64 = bits.unwrap().parse().unwrap();
        assert!((least..most).contains(&bits), "{mode}: {said}");
        let tensors = fs::read(folder.path(&format!("{mode}.gguf"))).unwrap();
        let tensors = gguf::decode(&folder.path("m.gguf"), tensors).unwrap();
        assert_eq!(tensors["blk.0.attn_q.weight"].ty().sizes(), [256, 256]);
        assert_eq!(tensors["rope_freqs.weight"].ty().sizes(), [32]);
        folder
            .line(&format!(
                "generate {mode}.gguf --prompt hand --max-tokens 3 --device cpu --threads 1"
            ))
            .ends(0, &["3 made"]);
    }
    let made = quantize(&folder, &model, "--mode q4_k --data words.txt --max-loss 0 -o again.gguf");
    made.ends_in(&[0, 4], &["perplexity"]);
    assert_eq!(folder.path("again.gguf").exists(), made.code == 0, "{made:?}");
    quantize(&folder, &model, "--mode q4_k --data words.txt -o f16.gguf")
        .ends(2, &["f16.gguf", "--force"]);
}

#[test]
fn narrow_rows_take_a_wider_type_with_a_note() {
    let folder = Folder::new();
    for (name, mode) in [("llama", "q4_k"), ("qwen2", "q8_0"), ("qwen3", "f16")] {
        let rest = format!("--mode {mode} --data words.txt -o {name}.gguf");
        let made = quantize(&folder, &fixture(name), &rest);
        made.ends(0, &["perplexity", "is a model"]);
        assert_eq!(made.stdout.contains("rows without whole blocks"), mode != "f16", "{made:?}");
    }
}

#[test]
fn what_no_file_holds_is_refused_before_any_work() {
    let folder = Folder::new();
    let refused = |model: &str, rest: &str, words: &[&str]| {
        quantize(&folder, &fixture(model), &format!("{rest} --data words.txt -o none.gguf"))
            .ends(2, words);
    };
    refused("llama", "--mode int4-gptq", &["--mode int4-gptq", "q4_k, q5_k, q6_k", "-o DIR"]);
    refused("llama", "--mode q4_k --group 32", &["--group: expected a folder"]);
    refused("llama", "--mode q4_k --head", &["--head: expected a folder"]);
    refused("llama", "--search", &["--search: expected a folder"]);
    refused("gpt2", "--mode q4_k", &["model_type", "llama, mistral, qwen2 or qwen3", "gpt2"]);
    refused("mistral", "--mode q4_k", &["sliding_window", "a window of 3 tokens"]);
    assert!(!folder.path("none.gguf").exists());
    folder
        .line("quantize digits-mlp --mode q4_k -o none.gguf --device cpu")
        .ends(2, &["digits-mlp", "a model in Hugging Face's format"]);
    quantize(&folder, &fixture("llama"), "--mode q4_k --data words.txt -o none")
        .ends(2, &["unknown mode `q4_k`", "-o NAME.gguf"]);
}

//! `generate` on several ranks: the tokens of one, and ends that name who failed.

use crate::invocation::{Folder, Outcome};
use crate::ranks::ranks_of;
use crate::signals::{Underway, is_gone, send};
use overdrive::cuda::{Library, gpus};
use overdrive::formats::safetensors;
use overdrive::ir::Tensor;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use testkit::Needs;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

const WIDTH: usize = 32;
const HEADS: usize = 8;
const KEY_HEADS: usize = 4;
const HIDDEN: usize = 48;
const VOCABULARY: usize = 272;

/// Makes a folder of a Llama with grouped queries and random weights, which ends no text.
fn llama(folder: &Folder, name: &str, seed: u32) {
    let mut state = seed;
    let mut number = || {
        // Numerical Recipes' generator; the upper half of its bits.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as f32 / 65_536.0 - 0.5
    };
    let depth = WIDTH / HEADS;
    let mut tensors = vec![
        ("model.embed_tokens".to_owned(), vec![VOCABULARY, WIDTH]),
        ("lm_head".to_owned(), vec![VOCABULARY, WIDTH]),
        ("model.norm".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..2 {
        for (part, sizes) in [
            ("input_layernorm", vec![WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
            ("self_attn.q_proj", vec![HEADS * depth, WIDTH]),
            ("self_attn.k_proj", vec![KEY_HEADS * depth, WIDTH]),
            ("self_attn.v_proj", vec![KEY_HEADS * depth, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, HEADS * depth]),
            ("mlp.gate_proj", vec![HIDDEN, WIDTH]),
            ("mlp.up_proj", vec![HIDDEN, WIDTH]),
            ("mlp.down_proj", vec![WIDTH, HIDDEN]),
        ] {
            tensors.push((format!("model.layers.{layer}.{part}"), sizes));
        }
    }
    let tensors = tensors.into_iter().map(|(name, sizes)| {
        let values: Vec<f32> = (0..sizes.iter().product()).map(|_| number()).collect();
        (format!("{name}.weight"), Tensor::from_f32(sizes, &values))
    });
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": depth,
        "max_position_embeddings": 65_536, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "tie_word_embeddings": false, "vocab_size": VOCABULARY, "torch_dtype": "float32",
    });
    let path = folder.path(name);
    fs::create_dir(&path).unwrap();
    safetensors::write(&path.join("model.safetensors"), &tensors.collect()).unwrap();
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    fs::copy(fixture("llama").join("tokenizer.json"), path.join("tokenizer.json")).unwrap();
}

#[track_caller]
fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap()
}

const DEVICE: &str = "--device cpu --threads 1";

#[test]
fn ranks_print_the_text_of_one() {
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    let gpt2 = fixture("gpt2").display().to_string();
    for model in ["llama", &gpt2] {
        let made = |rest: &str| {
            let line = format!("generate {model} --prompt hand --max-tokens 9 {DEVICE} {rest}");
            folder.line(&line)
        };
        let one = json(&made("--json --dtype f32"));
        for ranks in [2, 4] {
            let several = json(&made(&format!("--json --dtype f32 --nproc {ranks}")));
            assert_eq!(several["tokens"], one["tokens"], "{model}, {ranks} ranks");
            assert_eq!(several["text"], one["text"]);
            assert_eq!(several["ranks"], ranks);
        }
        let shown = made("--nproc 2 --mesh tensor=2 --dtype f32");
        shown.ends(0, &["2 ranks exchange over TCP", "2 tokens read, 9 made", "tokens/s (n = 8)"]);
        assert_eq!(shown.stderr.matches("tokens read").count(), 1, "{}", shown.stderr);
        assert_eq!(shown.stdout.trim_end(), one["text"].as_str().unwrap().trim_end());
        made("--nproc 2 --dtype bf16").ends(0, &["bf16 weights: 2 tokens read, 9 made"]);
    }
}

#[test]
fn two_gpus_print_the_text_of_one() {
    let found = gpus();
    if found < 2 || Library::Nccl.require().is_err() {
        return testkit::skip(
            Needs::TwoGpus,
            format!("two GPUs and NCCL are needed, found {found}"),
        );
    }
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    let line = "generate llama --prompt hand --max-tokens 9 --dtype f32 --json";
    let (one, two) = (json(&folder.line(line)), json(&folder.line(&format!("{line} --nproc 2"))));
    assert_eq!(two["tokens"], one["tokens"], "{two}");
    assert!(two["device"].as_str().unwrap().starts_with("cuda"), "{two}");
}

#[test]
fn ranks_continue_the_lines_of_a_file_and_draw_by_a_seed() {
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    fs::write(folder.path("prompts.txt"), "hand\nhand in hand\nno\n").unwrap();
    let made = |rest: &str| {
        folder.line(&format!("generate llama --max-tokens 7 --dtype f32 {DEVICE} {rest}"))
    };
    let tokens = |made: &Value| -> Vec<Value> {
        made["texts"].as_array().unwrap().iter().map(|text| text["tokens"].clone()).collect()
    };
    let several = "--prompts prompts.txt --batch 2 --json";
    let (one, two) = (json(&made(several)), json(&made(&format!("{several} --nproc 2"))));
    assert_eq!(tokens(&two), tokens(&one));
    made("--prompts prompts.txt --page-size 4 --nproc 2")
        .ends(2, &["--page-size 4: expected one rank, found 2"]);
    let drawn = "--prompt hand --temperature 1 --seed 5 --nproc 2 --json";
    assert_eq!(json(&made(drawn))["tokens"], json(&made(drawn))["tokens"]);
}

#[test]
fn a_model_of_bytes_is_split_too() {
    let folder = Folder::new();
    let line = format!("generate text-transformer --prompt abc --max-tokens 3 --json {DEVICE}");
    let (one, two) = (json(&folder.line(&line)), json(&folder.line(&format!("{line} --nproc 2"))));
    assert_eq!(two["tokens"], one["tokens"]);
}

#[test]
fn a_mesh_that_does_not_fit_is_refused_once() {
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    for (options, found) in [
        ("--nproc 3", "divide the 8 heads of attention, found 3; of this model 1, 2, 4 divide"),
        ("--nproc 8", "divide the 4 heads of keys and values, found 8"),
        ("--nproc 2 --mesh data=2", "expected the axis `tensor` alone"),
        ("--nproc 2 --mesh tensor=4", "multiply to the number of ranks, 2, found 4"),
        ("--mesh tensor=2", "add --nproc 2"),
    ] {
        let ended = folder.line(&format!("generate llama --prompt hand {DEVICE} {options}"));
        ended.ends(2, &[found]);
        assert_eq!(ended.stderr.matches(found).count(), 1, "{}", ended.stderr);
    }
    let line = "generate llama --prompt hand --nproc 2 --device cuda:0";
    folder.line(line).ends(2, &["a GPU for each of the 2 ranks of --nproc, found one"]);
    let bert = fixture("bert").display().to_string();
    let line = format!("generate {bert} --prompt hand --nproc 2 {DEVICE}");
    folder.line(&line).ends(2, &["all 2 ranks", "found an encoder"]);
}

/// The ends of two ranks that a launcher started, with more words each.
fn launched(folder: &Folder, words: [&str; 2]) -> [Outcome; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let start = |rank: usize| {
        let line = format!("generate --max-tokens 4 {DEVICE} {}", words[rank]);
        let rank = rank.to_string();
        let variables = [
            ("RANK", rank.as_str()),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", &rank),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &port),
        ];
        let words: Vec<&str> = line.split(' ').collect();
        Underway::with(folder, env!("CARGO_BIN_EXE_overdrive"), &words, &variables)
    };
    [0, 1].map(start).map(|mut rank| rank.end())
}

#[test]
fn ranks_of_a_launcher_that_differ_end_before_the_first_step() {
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    llama(&folder, "other", 2);
    let [first, other] = launched(&folder, ["llama --prompt hand", "llama --prompt hand"]);
    first.ends(0, &["2 tokens read, 4 made"]);
    other.ends(0, &[]);
    assert_eq!((other.stdout.as_str(), other.stderr.as_str()), ("", ""), "rank 0 speaks for all");
    for (words, found) in [
        (["llama --prompt hand", "llama --prompt no"], "prompt 0 of tokens"),
        (["llama --prompt hand", "other --prompt hand"], "model of checksum"),
        (["llama --prompt hand", "llama --prompt hand --seed 2"], "`seed 1`"),
    ] {
        let [first, other] = launched(&folder, words);
        first.ends(6, &["rank 1: expected what is generated", found]);
        other.ends(2, &["rank 1: expected what is generated", found]);
        assert_eq!(first.stdout, "", "nothing was made");
    }
}

/// Two ranks that make a long text, and their numbers, once the first of it was printed.
fn underway(folder: &Folder) -> (Underway, Vec<u32>) {
    let line = format!("generate llama --prompt hand --max-tokens 60000 --nproc 2 {DEVICE}");
    let mut underway = Underway::line(folder, &line);
    let ranks = ranks_of(underway.id(), 2);
    underway.prints();
    (underway, ranks)
}

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named() {
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    for gone in [0, 1] {
        let (mut underway, ranks) = underway(&folder);
        send("KILL", ranks[gone]);
        let named = format!("rank {gone} of 2 was ended from outside (signal: 9");
        underway.end().ends(3, &[&named, "the other 1 ended with it"]);
        ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
    }
}

#[test]
fn a_signal_ends_all_ranks_at_one_token() {
    let folder = Folder::new();
    llama(&folder, "llama", 1);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let (mut underway, ranks) = underway(&folder);
        underway.send(signal).end().ends(code, &["of 60000 tokens were made"]);
        ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
    }
    let (mut underway, ranks) = underway(&folder);
    send("TERM", ranks[1]);
    underway.end().ends_in(&[3, 130, 143], &["since another rank was asked to end", "rank 1 of 2"]);
    ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
}

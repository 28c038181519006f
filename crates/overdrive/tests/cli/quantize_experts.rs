//! `quantize` of mixtures of experts: which results engines read, and the note if they do not.

use crate::invocation::Folder;
use crate::quantize_published::{config, fixture, quantize, states};
use overdrive::ir::DType;

#[test]
fn layers_that_choose_experts_stay_in_float() {
    for (name, router) in [
        ("mixtral", "model.layers.0.block_sparse_moe.gate"),
        ("qwen3_moe", "model.layers.1.mlp.gate"),
    ] {
        let folder = Folder::new();
        let made =
            quantize(&folder, &fixture(name), "--mode int8-weights --data words.txt -o small");
        made.ends(0, &["that choose experts", router]);
        assert!(!made.stdout.contains("`transformers` 5"), "{made:?}");
        let file = states(&folder, "small");
        assert!(file[&format!("{router}.weight")].ty().dtype.is_float(), "{name}");
        let found = config(&folder, "small");
        let ignored = found["quantization_config"]["ignore"].as_array().expect("names");
        assert!(ignored.iter().any(|layer| layer == router), "{name}: {ignored:?}");
    }
}

/// Engines read experts of eight bits with float activations when they are packed; of other formats
/// a note says who refuses them.
#[test]
fn experts_have_a_form_that_engines_read_or_a_note() {
    for (name, expert) in [
        ("mixtral", "model.layers.0.block_sparse_moe.experts.0.w1"),
        ("qwen3_moe", "model.layers.1.mlp.experts.0.up_proj"),
    ] {
        let folder = Folder::new();
        let in_mode = |mode: &str| {
            quantize(
                &folder,
                &fixture(name),
                &format!("--mode {mode} --data words.txt -o small --force"),
            )
        };
        in_mode("int8-weights").ends(0, &["is a model"]);
        let (file, found) = (states(&folder, "small"), config(&folder, "small"));
        assert_eq!(found["quantization_config"]["format"], "pack-quantized", "{name}");
        assert_eq!(file[&format!("{expert}.weight_packed")].ty().dtype, DType::I32, "{name}");
        in_mode("int8-dynamic").ends(0, &["`transformers` 5 refuses it", "is a model"]);
        in_mode("int8-static").ends(0, &["`transformers` 5 and vLLM refuse it", "is a model"]);
        assert!(!in_mode("fp8").stdout.contains("`transformers` 5"), "{name}");
    }
}

//! Published architectures, small and with random weights, for comparisons with the implementation
//! that most people run. They are a GPT-2, a Llama and a BERT of the width and depth of the
//! built-in transformer.
//!
//! Each is a config.json in Hugging Face's format. The code that reads folders makes our graph of
//! it. A peer that has `transformers` makes its own model of the same text and is given our
//! weights. Invariant: whoever takes part computes the same function of the same weights, since
//! there is one text for all.

use crate::pretrained::{Architecture, PretrainedError};
use crate::{Template, Workload};
use overdrive_formats::huggingface::Config;
use std::collections::BTreeMap;
use std::path::Path;

const VOCABULARY: usize = 8192;
const TOKENS: usize = 128;
const BATCH: usize = 8;

/// Names, and the fields of a config.json except the vocabulary.
const CONFIGS: [(&str, &str); 3] = [
    (
        "gpt2-6x512",
        r#"{"model_type": "gpt2",
            "vocab_size": 8192, "n_positions": 1024, "n_embd": 512, "n_layer": 6, "n_head": 8,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": true,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0,
            "eos_token_id": 0}"#,
    ),
    (
        "llama-6x512",
        r#"{"model_type": "llama",
            "vocab_size": 8192, "max_position_embeddings": 1024, "hidden_size": 512,
            "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
            "attention_bias": false,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "bos_token_id": 0,
            "eos_token_id": 0}"#,
    ),
    (
        "bert-6x512",
        r#"{"model_type": "bert",
            "vocab_size": 8192, "max_position_embeddings": 512, "hidden_size": 512,
            "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0, "pad_token_id": 0}"#,
    ),
];

/// All of them.
///
/// # Errors
/// Never, which a test holds.
pub(crate) fn workloads() -> Result<Vec<Workload>, PretrainedError> {
    CONFIGS.iter().map(|&(name, text)| workload(name, text)).collect()
}

fn workload(name: &str, text: &str) -> Result<Workload, PretrainedError> {
    let config = Config::parse(Path::new(name), text)?;
    let template = Template {
        name: name.to_owned(),
        graph: Architecture::read(&config, Path::new(name))?.whole()?,
        dimensions: [("batch".to_owned(), BATCH), ("tokens".to_owned(), TOKENS)].into(),
        limits: BTreeMap::new(),
        vocabulary: Some(VOCABULARY),
        columns: None,
        config: Some(config.to_json()),
    };
    Ok(template.bind(&BTreeMap::new())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_model_with_inputs_below_its_vocabulary() {
        let workloads = workloads().expect("they build");
        for (workload, inputs) in workloads.iter().zip([1, 1, 2]) {
            let name = &workload.key.name;
            assert!(workload.config.is_some() && workload.graph.states().len() > 50, "{name}");
            let drawn = workload.inputs(1);
            assert_eq!(drawn.len(), inputs, "{name}");
            let ids = drawn[0].to_ints();
            assert!(ids.iter().all(|&id| (0..VOCABULARY as i128).contains(&id)), "{name}");
            assert!(ids.iter().any(|&id| id > VOCABULARY as i128 / 2), "{name}");
            assert!(
                drawn[1..].iter().all(|mask| mask.to_ints().iter().all(|&bit| bit == 1)),
                "{name}"
            );
        }
    }
}

//! A published architecture without weights: the start of training from scratch.
//!
//! Its graphs declare random values, which training draws from its seed. They are distributed as
//! the architecture's class in `transformers` draws them. Matrices and tables are normal, with
//! `initializer_range` of config.json as standard deviation. Norms are 1 and biases 0. The
//! projections of GPT-2 into the residual stream are smaller by `√(2 layers)`, as its paper has it.
//! Invariant: weights in the folder change nothing.

use super::coding::FIELD;
use super::source::PretrainedSource;
use super::{Architecture, Labels, Pretrained, PretrainedError, named, plain_config};
use overdrive_formats::huggingface::{Config, Tokenizer, has_weights};
use overdrive_formats::{FormatError, Tensors};
use overdrive_ir::{Graph, Init};
use overdrive_models::llama::Llama;
use overdrive_models::{INITIAL_STD, LLAMA_CONTEXT, LLAMA_ROTARY_BASE, built_in_llama};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Fields of config.json that number tokens of one tokenizer.
const TOKENS: [&str; 5] =
    ["bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id", "sep_token_id"];

impl Pretrained {
    /// The architecture of a folder without the weights that it may have.
    ///
    /// # Errors
    /// As [`Self::read`], but for the weights. When config.json describes codes.
    pub fn from_scratch(place: &Path) -> Result<Self, PretrainedError> {
        let source = PretrainedSource::read(place)?;
        let mut new = Self::without_weights((named(place), place), source)?;
        if !place.is_dir() || has_weights(place) {
            let place = place.display();
            new.notes.push(format!("the weights in `{place}` are ignored: new ones are trained"));
        }
        Ok(new)
    }

    /// The built-in model of this name, if it is a published architecture. It has no tokenizer.
    ///
    /// # Errors
    /// Never for one that is built in.
    pub fn built_in(name: &str) -> Result<Option<Self>, PretrainedError> {
        let Some(llama) = built_in_llama(name) else { return Ok(None) };
        let place = Path::new(name);
        let config = Config::parse(&place.join("config.json"), &config_of(&llama).to_string())?;
        let source = PretrainedSource::of_config(config);
        Self::without_weights((name.to_owned(), place), source).map(Some)
    }

    /// The graph with random values of this standard deviation, in the proportions that it
    /// declares.
    pub(super) fn beginning(graph: Graph, std: f64) -> Graph {
        let declared: Vec<Init> = graph.states().iter().map(|state| state.init.clone()).collect();
        let mut declared = declared.into_iter();
        graph.with_initial_values(|_, _| match declared.next() {
            Some(Init::Normal { std: own, seed }) => {
                Init::Normal { std: own * std / INITIAL_STD, seed }
            }
            other => other.expect("asked once for each state, in their order"),
        })
    }

    fn without_weights(
        (name, place): (String, &Path),
        mut source: PretrainedSource,
    ) -> Result<Self, PretrainedError> {
        let config = of_floats(&source.config, place)?;
        let beside = source.folder.clone();
        let beside = beside.as_deref().unwrap_or(place);
        let architecture = Architecture::read(&config, beside)?;
        let range = config.find_positive(&["initializer_range"])?;
        let labels = Labels::read(&config)?;
        let notes = architecture.notes(&config, beside)?;
        // Sizes that do not fit together are an error now.
        architecture.whole()?;
        let tokenizer = match architecture.facts().vocabulary {
            Some(vocabulary) => source.tokenizer(vocabulary)?,
            None => None,
        };
        Ok(Self {
            name,
            config: plain_config(&architecture, None, &config),
            ends: source.ends()?,
            folder: source.folder,
            architecture,
            described: config,
            labels,
            weights: Tensors::new(),
            initial_std: Some(range.unwrap_or(INITIAL_STD)),
            coding: None,
            renamed: BTreeMap::new(),
            left_out: Tensors::new(),
            part: None,
            tokenizer,
            notes,
        })
    }

    /// The same with this tokenizer. The settings of another one, beside the weights and in
    /// config.json, are left behind.
    ///
    /// # Errors
    /// Never: config.json was read before.
    pub fn with_tokenizer(self, tokenizer: Tokenizer) -> Result<Self, FormatError> {
        let place = self.folder.as_deref().unwrap_or(Path::new(&self.name)).join("config.json");
        let mut config = self.described.to_json();
        let fields = config.as_object_mut().into_iter();
        fields.for_each(|fields| fields.retain(|field, _| !TOKENS.contains(&field.as_str())));
        let described = Config::parse(&place, &config.to_string())?;
        let config = self.config.map(|_| config);
        let tokenizer = Some(tokenizer);
        Ok(Self { folder: None, described, config, tokenizer, ends: vec![], ..self })
    }
}

/// The config of the weights that are about to be drawn, which are in f32.
fn of_floats(config: &Config, place: &Path) -> Result<Config, FormatError> {
    const CODES: &str = "quantization_config";
    if config.section(&[CODES])?.is_some() {
        let error = config.wrong(CODES, "none, since training draws floats", "one");
        return Err(error.remedy("take the config.json of the float model, or remove the field"));
    }
    let mut fields = config.to_json();
    if let Some(fields) = fields.as_object_mut() {
        fields.remove(FIELD);
        for name in ["dtype", "torch_dtype"] {
            fields.entry(name).and_modify(|dtype| *dtype = "float32".into());
        }
    }
    Config::parse(&place.join("config.json"), &fields.to_string())
}

/// The config.json of a built-in Llama.
fn config_of(llama: &Llama) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": llama.vocabulary,
        "max_position_embeddings": LLAMA_CONTEXT,
        "hidden_size": llama.width,
        "intermediate_size": llama.hidden,
        "num_hidden_layers": llama.layers,
        "num_attention_heads": llama.heads,
        "num_key_value_heads": llama.key_heads,
        "hidden_act": "silu",
        "rms_norm_eps": llama.eps,
        "rope_theta": LLAMA_ROTARY_BASE,
        "attention_bias": false,
        "mlp_bias": false,
        "initializer_range": INITIAL_STD,
        "tie_word_embeddings": llama.tied,
        "torch_dtype": "float32",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_of_a_built_in_llama_describes_it() {
        for name in ["llama-135m", "llama-1.1b"] {
            let llama = built_in_llama(name).unwrap();
            let text = config_of(&llama).to_string();
            let config = Config::parse(Path::new("config.json"), &text).unwrap();
            let read = Architecture::read(&config, Path::new(name)).unwrap();
            assert_eq!(read, Architecture::Llama(Box::new(llama), LLAMA_CONTEXT));
            assert!(read.notes(&config, Path::new(name)).unwrap().is_empty());
        }
    }
}
